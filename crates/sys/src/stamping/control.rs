//! A message of `recvmsg` with its control messages.
//!
//! A [`ControlledMessage`] owns the memory that the kernel writes to. Invariant: no more is read of a control message than the length that
//! the kernel gave it.

use super::PacketStamps;
use crate::Error;
use crate::packet::socket::length_of;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};

/// The socket options for stamps, and the kinds of the control messages that carry them. The older options have times of 32 bits on
/// 32-bit processors, which end in 2038; there, these are `SO_TIMESTAMPING_NEW` and `SO_TIMESTAMPNS_NEW` of Linux 5.1.
#[cfg(target_pointer_width = "64")]
pub(crate) const STAMPING: libc::c_int = libc::SO_TIMESTAMPING;
#[cfg(target_pointer_width = "64")]
pub(crate) const STAMP_NS: libc::c_int = libc::SO_TIMESTAMPNS;
#[cfg(not(target_pointer_width = "64"))]
pub(crate) const STAMPING: libc::c_int = 65;
#[cfg(not(target_pointer_width = "64"))]
pub(crate) const STAMP_NS: libc::c_int = 64;

/// Length of the control buffer in words of 8 bytes, which align it like the headers of control messages. It has space
/// for a pair of stamps, an error and further messages.
const CONTROL_BUFFER_WORDS: usize = 64;

pub(crate) struct ControlledMessage {
    name: libc::sockaddr_storage,
    /// Memory for control messages. Parts that the kernel has not written are zero, which no control message begins with.
    control: [u64; CONTROL_BUFFER_WORDS],
}

impl ControlledMessage {
    pub(crate) fn new() -> Self {
        // SAFETY: this is plain data, for which zero is valid.
        let name = unsafe { zeroed() };
        Self { name, control: [0; CONTROL_BUFFER_WORDS] }
    }

    /// Receives one message into `buffer` and returns its length. `None` if no message waits, a signal came, or ICMP
    /// has reported an error.
    pub(crate) fn receive_from(
        &mut self,
        socket: &impl AsFd,
        buffer: &mut [u8],
        flags: i32,
    ) -> Result<Option<usize>, Error> {
        self.control.fill(0);
        // SAFETY: plain data and null pointers.
        let mut message: libc::msghdr = unsafe { zeroed() };
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        message.msg_name = (&raw mut self.name).cast();
        message.msg_namelen = length_of::<libc::sockaddr_storage>();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&self.control) as _;
        // SAFETY: every pointer in `message` is to a live value that may be written, with its true length.
        let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
        let Ok(length) = usize::try_from(length) else {
            let error = std::io::Error::last_os_error();
            // No message waits; a signal came; or ICMP has reported that no program listens at an address to
            // which a datagram was sent.
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(None),
                _ => Err(Error::from_call("recvmsg", "a socket", error)),
            };
        };
        Ok(Some(length))
    }

    /// The sender's address of the last received message.
    pub(crate) const fn sender_address(&self) -> &libc::sockaddr_storage {
        &self.name
    }

    /// The control messages that came with the last received message.
    pub(crate) fn control_messages(&self) -> ControlMessages<'_> {
        let start = self.control.as_ptr().cast::<u8>();
        // SAFETY: the array is live and has this length, and every bit pattern is a valid byte.
        ControlMessages { rest: unsafe { std::slice::from_raw_parts(start, size_of_val(&self.control)) } }
    }
}

/// Control messages, one after the other.
pub(crate) struct ControlMessages<'a> {
    pub(super) rest: &'a [u8],
}

#[derive(Clone, Copy)]
pub(crate) struct ControlMessage<'a> {
    pub(super) level: i32,
    pub(super) kind: i32,
    pub(super) data: &'a [u8],
}

/// Size of `struct cmsghdr`: length, level, type.
const HEADER: usize = size_of::<libc::cmsghdr>();

impl<'a> Iterator for ControlMessages<'a> {
    type Item = ControlMessage<'a>;

    fn next(&mut self) -> Option<ControlMessage<'a>> {
        let header = self.rest.get(..HEADER)?;
        let length = usize::from_ne_bytes(*header.first_chunk()?);
        let data = self.rest.get(HEADER..length)?;
        let control = ControlMessage {
            level: number_at(header, HEADER - 8)?,
            kind: number_at(header, HEADER - 4)?,
            data,
        };
        self.rest = self.rest.get(length.next_multiple_of(size_of::<usize>())..).unwrap_or(&[]);
        Some(control)
    }
}

fn number_at(header: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(*header.get(at..)?.first_chunk()?))
}

impl ControlMessage<'_> {
    /// The stamps of the message, if it carries some.
    pub(crate) fn read_stamps(self) -> Option<PacketStamps> {
        match (self.level, self.kind) {
            (libc::SOL_SOCKET, STAMP_NS) => {
                Some(PacketStamps { software_ns: self.time_at(0), hardware_ns: None })
            }
            // There are three times: software, a legacy time that is always zero, hardware
            // (Documentation/networking/timestamping.rst).
            (libc::SOL_SOCKET, STAMPING) => {
                Some(PacketStamps { software_ns: self.time_at(0), hardware_ns: self.time_at(2) })
            }
            _ => None,
        }
    }

    /// The class of service, if the message carries it: a byte for IPv4, a number for IPv6.
    pub(super) fn read_traffic_class(self) -> Option<u8> {
        match (self.level, self.kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => self.data.first().copied(),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let number = self.data.first_chunk().copied().map(u32::from_ne_bytes)?;
                u8::try_from(number).ok()
            }
            _ => None,
        }
    }

    /// The TTL or hop limit, if the message carries it.
    pub(super) fn read_hop_limit(self) -> Option<u8> {
        let carries = matches!(
            (self.level, self.kind),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)
        );
        let number = i32::from_ne_bytes(*self.data.first_chunk()?);
        carries.then(|| u8::try_from(number).ok())?
    }

    /// Reads the time with this index: seconds and nanoseconds, of 64 bits each. `None` if the time is zero, which
    /// means that there is none.
    fn time_at(self, index: usize) -> Option<u64> {
        let time = self.data.get(index * 16..)?;
        let seconds = u64::try_from(i64::from_ne_bytes(*time.first_chunk()?)).ok()?;
        let nanoseconds = u64::try_from(i64::from_ne_bytes(*time.get(8..)?.first_chunk()?)).ok()?;
        let all = seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)?;
        (all > 0).then_some(all)
    }
}
