//! A UDP socket that also reports the arrival time, remaining hops and class of received datagrams, and the
//! departure time of sent ones.
//!
//! [`WatchedSocket`] owns its socket, which stays in the namespace it was bound in. Stamps are of `CLOCK_REALTIME`.

use crate::packet::socket::{call_error, length_of};
use crate::stamping::{self, KernelReport, ReceivedPacket, WantedStamps};
use crate::{Error, clock, netns::NetNs};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

#[derive(Debug)]
pub struct WatchedSocket {
    socket: UdpSocket,
    sent: u32,
}

impl WatchedSocket {
    /// Binds to an address in a namespace.
    pub fn bind_in(netns: &NetNs, address: SocketAddr) -> Result<Self, Error> {
        let socket =
            netns.run_in_namespace(|| UdpSocket::bind(address))?.map_err(|error| match error.kind() {
                std::io::ErrorKind::AddrInUse => {
                    Error::Busy { object: format!("UDP address {address}"), holder: None }
                }
                _ => Error::from_call("bind", address.to_string(), error)
                    .with_rights("ports below 1024 need CAP_NET_BIND_SERVICE"),
            })?;
        let object = address.to_string();
        match address.ip() {
            IpAddr::V4(_) => {
                sockopt::set_ip_recvtos(&socket, true).map_err(call_error("setsockopt", &object))?;
                switch_on(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL)?;
            }
            IpAddr::V6(_) => {
                sockopt::set_ipv6_recvtclass(&socket, true).map_err(call_error("setsockopt", &object))?;
                switch_on(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            }
        }
        stamping::request_stamps(
            &socket,
            WantedStamps { sent: true, arrival: true, ..WantedStamps::default() },
        )?;
        Ok(Self { socket, sent: 0 })
    }

    /// Address to which the socket is bound.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.socket.local_addr().map_err(|error| Error::from_call("getsockname", "a UDP socket", error))
    }

    /// Waits for a datagram, or for a report about a sent datagram, for at most `within_ns`.
    pub fn wait_for_event(&self, within_ns: u64) -> Result<(), Error> {
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&clock::to_timespec(within_ns))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::from_call("poll", "a UDP socket", errno)),
        }
    }

    /// Receives a datagram that waits in the socket; `None` if none waits.
    pub fn receive_datagram(&self, buffer: &mut [u8]) -> Result<Option<ReceivedPacket>, Error> {
        stamping::receive_packet(&self.socket, buffer)
    }

    /// Sends a datagram; returns the number that the reports of [`Self::drain_reports`] have for it. `None` if the
    /// kernel refused the datagram.
    pub fn send_datagram(&mut self, bytes: &[u8], to: SocketAddr) -> Option<u32> {
        self.socket.send_to(bytes, to).ok()?;
        let number = self.sent;
        self.sent = self.sent.wrapping_add(1);
        Some(number)
    }

    /// Calls `take` with the kernel's reports on sent datagrams. Returns how many reports there were.
    pub fn drain_reports(&self, take: &mut dyn FnMut(KernelReport)) -> Result<usize, Error> {
        stamping::drain_reports(&self.socket, take)
    }
}

fn switch_on(socket: &UdpSocket, level: i32, option: i32) -> Result<(), Error> {
    let on: libc::c_int = 1;
    let length = length_of::<libc::c_int>();
    let value = (&raw const on).cast();
    // SAFETY: the socket is open; the pointer is to a live value of the length given, which is only read.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error("setsockopt", "a UDP socket")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_and_received_datagrams_are_reported_with_stamps() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let here = NetNs::current().unwrap();
            let mut one = WatchedSocket::bind_in(&here, address.parse().unwrap()).unwrap();
            let other = WatchedSocket::bind_in(&here, address.parse().unwrap()).unwrap();
            for number in 0..3 {
                let before = clock::wall_clock_ns();
                assert_eq!(one.send_datagram(b"abc", other.address().unwrap()), Some(number));
                other.wait_for_event(5_000_000_000).unwrap();
                let received = other.receive_datagram(&mut [0; 9]).unwrap().unwrap();
                assert_eq!((received.length, received.from), (3, Some(one.address().unwrap())));
                assert_eq!((received.hops, received.class), (Some(64), Some(0)));
                let mut departures = Vec::new();
                one.drain_reports(&mut |report| departures.push(report)).unwrap();
                let [KernelReport::Departed { number: of, stamps, .. }] = departures[..] else {
                    panic!("{departures:?}")
                };
                assert_eq!(of, number);
                // The first arrivals may come before the kernel has switched stamping on.
                if let (Some(left), Some(came)) = (stamps.software_ns, received.stamps.software_ns) {
                    assert!(before <= left && left <= came, "{before} {left} {came}");
                }
            }
        }
    }
}
