//! Datagrams with the time at which the kernel took them in: what a comparison of clocks needs.
//!
//! [`StampedSocket`] owns its socket. The kernel stamps with `CLOCK_REALTIME`; stamps are converted by a reading of both clocks
//! taken right after, and checked against the monotonic clock: what a step of the wall clock has spoilt is replaced by the time
//! at which the datagram was fetched, and says so.

use crate::Error;
use crate::clock::{monotonic_ns, realtime_offset};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A datagram that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its bytes; what did not fit is cut off.
    pub length: usize,
    /// Who sent it.
    pub from: SocketAddr,
    /// When it arrived, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// It was at most this much earlier or later.
    pub bound_ns: u64,
    /// The kernel stamped it; otherwise the time is when it was fetched.
    pub by_kernel: bool,
}

/// See the module.
#[derive(Debug)]
pub struct StampedSocket {
    socket: UdpSocket,
    /// When it was last found empty, or opened: what arrives next arrives later.
    empty_at: u64,
}

impl StampedSocket {
    /// Bound to an address.
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let empty_at = monotonic_ns();
        let socket =
            UdpSocket::bind(address).map_err(|error| Error::call("bind", address.to_string(), error))?;
        socket.set_nonblocking(true).map_err(|error| Error::call("fcntl", "a UDP socket", error))?;
        let on: libc::c_int = 1;
        let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
        // SAFETY: the socket is open; the pointer is to a live value of the length given, which is only read.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_TIMESTAMPNS,
                (&raw const on).cast(),
                length,
            )
        };
        if done != 0 {
            return Err(Error::last("setsockopt SO_TIMESTAMPNS", "a UDP socket"));
        }
        Ok(Self { socket, empty_at })
    }

    /// Where it is bound.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.socket.local_addr().map_err(|error| Error::call("getsockname", "a UDP socket", error))
    }

    /// Sends a datagram; gives the monotonic time just before.
    pub fn send(&self, bytes: &[u8], to: SocketAddr) -> Result<u64, Error> {
        let before = monotonic_ns();
        self.socket.send_to(bytes, to).map_err(|error| Error::call("sendto", to.to_string(), error))?;
        Ok(before)
    }

    /// Waits for a datagram, at most so long. `None`: nothing came.
    pub fn receive(&mut self, wait: Duration, buffer: &mut [u8]) -> Result<Option<Arrival>, Error> {
        let timeout = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::call("poll", "a UDP socket", errno)),
        }
        let looked_at = monotonic_ns();
        let Some((length, from, stamp)) = self.fetch(buffer)? else {
            self.empty_at = looked_at;
            return Ok(None);
        };
        let fetched = monotonic_ns();
        let own =
            Arrival { length, from, at_ns: fetched, bound_ns: fetched - self.empty_at, by_kernel: false };
        let Some(stamp) = stamp else { return Ok(Some(own)) };
        let offset = realtime_offset();
        let (at_ns, bound_ns) = (offset.to_monotonic(stamp), offset.bound_ns);
        let possible = self.empty_at.saturating_sub(bound_ns)..=fetched + bound_ns;
        Ok(Some(if possible.contains(&at_ns) {
            Arrival { at_ns, bound_ns, by_kernel: true, ..own }
        } else {
            own
        }))
    }

    fn fetch(&self, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr, Option<u64>)>, Error> {
        // SAFETY: plain data, for which zero is a value.
        let mut name: libc::sockaddr_storage = unsafe { zeroed() };
        // SAFETY: plain data and null pointers.
        let mut message: libc::msghdr = unsafe { zeroed() };
        let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // Aligned as headers of control messages are; room for one stamp and more.
        let mut control = [0_u64; 16];
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = libc::socklen_t::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: every pointer in `message` is to a live value that may be written, with its true length.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let Ok(length) = usize::try_from(length) else {
            let error = std::io::Error::last_os_error();
            // Nothing there; interrupted; the answer to something sent to where nobody listens.
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED) => Ok(None),
                _ => Err(Error::call("recvmsg", "a UDP socket", error)),
            };
        };
        Ok(address_of(&name).map(|from| (length, from, stamp_of(&message))))
    }
}

/// The stamp among the control messages, in nanoseconds since 1970.
fn stamp_of(message: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled `message`, whose control buffer is alive and as long as it says.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so the whole header is within the control buffer, which is aligned for it.
        let of = unsafe { header.read() };
        if (of.cmsg_level, of.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            // SAFETY: `header` is one of a filled control buffer.
            let data = unsafe { libc::CMSG_DATA(header) };
            // SAFETY: a message of this kind carries a `timespec`, which may not be aligned.
            let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
            let seconds = u64::try_from(time.tv_sec).ok()?;
            return seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(time.tv_nsec).ok()?);
        }
        // SAFETY: as for the first.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is one; the storage is large enough and aligned for any.
            let of = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(of.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(of.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let of = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(of.sin6_addr.s6_addr);
            let port = u16::from_be(of.sin6_port);
            Some(std::net::SocketAddrV6::new(ip, port, of.sin6_flowinfo, of.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(address: &str) {
        let one = StampedSocket::bind(address.parse().unwrap()).unwrap();
        let mut other = StampedSocket::bind(address.parse().unwrap()).unwrap();
        for length in [1, 48, 500] {
            let sent = one.send(&vec![7; length], other.address().unwrap()).unwrap();
            let mut buffer = [0; 100];
            let arrival = other.receive(Duration::from_secs(10), &mut buffer).unwrap().unwrap();
            let fetched = monotonic_ns();
            assert_eq!((arrival.length, arrival.from), (length.min(100), one.address().unwrap()));
            assert_eq!(buffer[..arrival.length], vec![7; arrival.length]);
            assert!(arrival.by_kernel);
            assert!(arrival.at_ns + arrival.bound_ns >= sent && arrival.at_ns <= fetched + arrival.bound_ns);
        }
        assert_eq!(other.receive(Duration::ZERO, &mut [0; 10]).unwrap(), None);
    }

    #[test]
    fn arrivals_are_between_sending_and_fetching() {
        exchange("127.0.0.1:0");
        exchange("[::1]:0");
    }

    #[test]
    fn a_datagram_to_where_nobody_listens_does_no_harm() {
        let mut socket = StampedSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let gone = StampedSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap().address().unwrap();
        socket.send(b"anybody?", gone).unwrap();
        assert_eq!(socket.receive(Duration::from_millis(20), &mut [0; 10]).unwrap(), None);
    }
}
