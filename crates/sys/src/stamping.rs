//! Time stamps of the kernel and of the network device for frames that a socket sends and receives.
//!
//! ```text
//!  request_stamps(socket, wanted) ... send ... drain_reports(socket)  -> stamps of departure, by number of the packet;
//!                                                                        drops because of the release time
//!                                     receive_packet(socket) -> a packet with its stamps of arrival
//! ```
//! This module owns nothing: the caller has the socket. Software stamps are times of `CLOCK_REALTIME`, stamps
//! of a device are times of its own clock; both are returned unchanged.
//!
//! Invariant: a stamp is returned with the number that the kernel wrote beside it; nothing is guessed from the order.

mod card;
mod control;
mod report;

pub use card::CardStamping;
pub(crate) use control::{ControlMessages, ControlledMessage, STAMP_NS, STAMPING};
pub use report::{KernelReport, PacketSendStage, drain_reports};

use crate::Error;
use crate::packet::socket::length_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

/// Kinds of timestamps to request from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "five independent requests, as the kernel has them")]
pub struct WantedStamps {
    /// Stamp on entering the queueing discipline.
    pub queued: bool,
    /// Stamp on handover to the driver.
    pub sent: bool,
    /// Stamp on leaving, by the device; stamping must be switched on in the device ([`CardStamping`]).
    pub wire: bool,
    /// Stamp on arrival, by the kernel.
    pub arrival: bool,
    /// Stamp on arrival, by the device.
    pub arrival_by_device: bool,
}

impl WantedStamps {
    fn to_flags(self) -> u32 {
        let departures = self.queued || self.sent || self.wire;
        flags_if(self.queued, libc::SOF_TIMESTAMPING_TX_SCHED)
            | flags_if(self.sent, libc::SOF_TIMESTAMPING_TX_SOFTWARE)
            | flags_if(self.wire, libc::SOF_TIMESTAMPING_TX_HARDWARE)
            | flags_if(self.arrival, libc::SOF_TIMESTAMPING_RX_SOFTWARE)
            | flags_if(self.arrival_by_device, libc::SOF_TIMESTAMPING_RX_HARDWARE)
            | flags_if(self.queued || self.sent || self.arrival, libc::SOF_TIMESTAMPING_SOFTWARE)
            | flags_if(self.wire || self.arrival_by_device, libc::SOF_TIMESTAMPING_RAW_HARDWARE)
            // Reports have a number and not the packet itself; software and device stamps come in separate reports.
            | flags_if(departures, libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY)
            | flags_if(self.sent && self.wire, libc::SOF_TIMESTAMPING_OPT_TX_SWHW)
    }
}

/// Makes the kernel stamp the packets that this socket sends and receives from now on. Sent packets
/// are numbered from 0.
pub fn request_stamps(socket: &impl AsFd, wanted: WantedStamps) -> Result<(), Error> {
    // Off first: the kernel restarts the numbers (OPT_ID) only when the option is switched on.
    set_flags(socket, 0)?;
    set_flags(socket, wanted.to_flags())
}

const fn flags_if(is_wanted: bool, flags: u32) -> u32 {
    if is_wanted { flags } else { 0 }
}

fn set_flags(socket: &impl AsFd, flags: u32) -> Result<(), Error> {
    let length = length_of::<u32>();
    let fd = socket.as_fd().as_raw_fd();
    let value = (&raw const flags).cast();
    // SAFETY: the socket is open while it is borrowed; the pointer is to a live value of the length given, which is only read.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, STAMPING, value, length) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error("setsockopt SO_TIMESTAMPING", "a socket")) }
}

/// Times of an event of a packet, by the kernel's clock and by the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketStamps {
    /// Kernel's time: nanoseconds of `CLOCK_REALTIME`.
    pub software_ns: Option<u64>,
    /// Device's time: nanoseconds of its own clock.
    pub hardware_ns: Option<u64>,
}

/// A received packet, as [`receive_packet`] returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedPacket {
    /// Length in bytes. A packet longer than the buffer is truncated.
    pub length: usize,
    /// The sender's address, if it is an IPv4 or IPv6 address.
    pub from: Option<SocketAddr>,
    pub stamps: PacketStamps,
    /// TTL or hop limit on arrival, if the socket was told to report it.
    pub hops: Option<u8>,
    /// Class of service (TOS, traffic class), if the socket was told to report it.
    pub class: Option<u8>,
}

/// Receives a packet that waits in the socket. `None`: no packet waits, a signal came, or ICMP has reported that no
/// program listens at an address to which a packet was sent.
pub fn receive_packet(socket: &impl AsFd, buffer: &mut [u8]) -> Result<Option<ReceivedPacket>, Error> {
    let mut message = ControlledMessage::new();
    let Some(length) = message.receive_from(socket, buffer, libc::MSG_DONTWAIT)? else { return Ok(None) };
    let mut stamps = PacketStamps::default();
    let mut hops = None;
    let mut class = None;
    for control in message.control_messages() {
        if let Some(found) = control.read_stamps() {
            stamps = found;
        }
        hops = hops.or_else(|| control.read_hop_limit());
        class = class.or_else(|| control.read_traffic_class());
    }
    let from = socket_address_from_storage(message.sender_address());
    Ok(Some(ReceivedPacket { length, from, stamps, hops, class }))
}

fn socket_address_from_storage(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family identifies the type; the storage is large enough and aligned for any address.
            let of = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(of.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(of.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let of = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(of.sin6_addr.s6_addr);
            let port = u16::from_be(of.sin6_port);
            Some(SocketAddrV6::new(ip, port, of.sin6_flowinfo, of.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
