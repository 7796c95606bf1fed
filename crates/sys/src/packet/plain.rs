//! Sends single frames, one call each. The kernel can stamp their departure. Some queueing disciplines and BPF programs
//! release frames at a time that the frames carry.
//!
//! A [`FrameSocket`] owns its socket, which receives nothing. Invariant: the numbers of stamps count the
//! frames of this socket that the kernel accepted.

use super::socket::{self, call_error};
use crate::error::ignore_failure;
use crate::stamping::{self, KernelReport, WantedStamps};
use crate::{Error, netns::NetNs};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Buffer for stamps that have not been fetched yet; the default is too small for a long train.
const STAMP_BUFFER_BYTES: i32 = 16 << 20;

/// Clock of a release time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseClock {
    /// `CLOCK_MONOTONIC`, for `fq` and for BPF programs of packetrig.
    Monotonic,
    /// `CLOCK_TAI`, for `etf`.
    Tai,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameOptions {
    /// Go straight to the driver, past queueing disciplines and packet taps of this interface.
    pub bypass_queue: bool,
    /// Timestamps of departure to request from the kernel.
    pub stamps: WantedStamps,
    /// Frames carry a release time of this clock.
    pub release: Option<ReleaseClock>,
}

#[derive(Debug)]
pub struct FrameSocket {
    socket: OwnedFd,
    object: String,
}

impl FrameSocket {
    /// Opens a socket on the interface with this index in `netns`; `name` is for messages.
    pub fn open_on_interface(
        netns: &NetNs,
        index: u32,
        name: &str,
        options: FrameOptions,
    ) -> Result<Self, Error> {
        let socket = socket::open_packet_socket(netns, name)?;
        if options.bypass_queue {
            socket::set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)
                .map_err(call_error("setsockopt(PACKET_QDISC_BYPASS)", name))?;
        }
        if let Some(clock) = options.release {
            let clockid = match clock {
                ReleaseClock::Monotonic => libc::CLOCK_MONOTONIC,
                ReleaseClock::Tai => libc::CLOCK_TAI,
            };
            // With this flag, the error queue gets a report on each frame that is dropped because of its release time.
            let request = libc::sock_txtime { clockid, flags: libc::SOF_TXTIME_REPORT_ERRORS };
            socket::set_option(&socket, libc::SOL_SOCKET, libc::SO_TXTIME, &request).map_err(|errno| {
                Error::from_call("setsockopt(SO_TXTIME)", name, errno)
                    .with_rights("needs CAP_NET_ADMIN: run as root")
            })?;
        }
        // The buffer grows before any frame is sent: a stamp is lost if the buffer is full.
        enlarge_stamp_buffer(&socket);
        stamping::request_stamps(&socket, options.stamps)?;
        // With protocol 0 the socket receives nothing.
        socket::bind_interface(&socket, index, 0, name)?;
        Ok(Self { socket, object: name.to_owned() })
    }

    /// Sends a frame; returns when the kernel has accepted it.
    pub fn send_frame(&self, frame: &[u8]) -> Result<(), Error> {
        match rustix::net::send(&self.socket, frame, rustix::net::SendFlags::empty()) {
            Ok(_) => Ok(()),
            Err(errno) => Err(Error::from_call("sendto", self.object.clone(), errno)),
        }
    }

    /// Sends a frame that carries its release time, in nanoseconds of the clock that the socket was opened with.
    pub fn send_frame_at(&self, frame: &[u8], at_ns: u64) -> Result<(), Error> {
        let mut control = ReleaseMessage::from_time(at_ns);
        let mut part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        // SAFETY: plain data and null pointers.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of::<ReleaseMessage>() as _;
        // SAFETY: every pointer in `message` is to a live value of its true length, which is only read.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, 0) };
        if sent < 0 { Err(Error::last_os_error("sendmsg", self.object.clone())) } else { Ok(()) }
    }

    /// The kernel's number for this socket, which no other socket has.
    pub fn cookie(&self) -> Result<u64, Error> {
        socket::get_option(&self.socket, libc::SOL_SOCKET, libc::SO_COOKIE, 0u64)
            .map_err(|errno| Error::from_call("getsockopt(SO_COOKIE)", self.object.clone(), errno))
    }

    /// Calls `take` with all reports about sent frames; does not wait. Returns how many reports there were.
    pub fn drain_reports(&self, take: &mut dyn FnMut(KernelReport)) -> Result<usize, Error> {
        stamping::drain_reports(&self.socket, take)
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Enlarges the buffer for stamps as far as the kernel allows. Stamps that do not fit are lost.
pub(super) fn enlarge_stamp_buffer(socket: &OwnedFd) {
    if socket::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &STAMP_BUFFER_BYTES).is_err() {
        ignore_failure(socket::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &STAMP_BUFFER_BYTES));
    }
}

/// A control message with a release time: `struct cmsghdr` and its data, without padding between them.
#[repr(C)]
struct ReleaseMessage {
    header: libc::cmsghdr,
    /// The bytes of a 64-bit number, which on 32-bit processors follows the header unaligned.
    at_ns: [u8; 8],
}

impl ReleaseMessage {
    fn from_time(at_ns: u64) -> Self {
        // SAFETY: this is plain data, for which zero is valid.
        let mut header: libc::cmsghdr = unsafe { zeroed() };
        header.cmsg_len = size_of::<Self>() as _;
        header.cmsg_level = libc::SOL_SOCKET;
        // SCM_TXTIME is SO_TXTIME.
        header.cmsg_type = libc::SO_TXTIME;
        Self { header, at_ns: at_ns.to_ne_bytes() }
    }
}

const _: () = assert!(size_of::<ReleaseMessage>() == size_of::<libc::cmsghdr>() + 8);
