//! Receives datagrams, many in one call. Datagrams that did not fit into the socket's buffer are counted.
//!
//! [`UdpReceiver`] owns its socket and one buffer.
//!
//! Invariant: a datagram is either delivered to the caller whole, or dropped
//! and counted in [`UdpReceiver::dropped_datagrams`].

mod peers;
mod stamped;
mod watched;

pub use peers::PeerSocket;
pub use stamped::{ArrivedDatagram, StampedSocket};
pub use watched::WatchedSocket;

use crate::Error;
use crate::clock::duration_to_timespec;
use crate::packet::socket::{attach_filter, call_error, length_of};
use crate::ports::DROP_ALL_FILTER;
use rustix::net::sockopt;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Maximum length of a UDP datagram, in bytes.
const MAX_DATAGRAM_BYTES: usize = 65_535;
/// Index of the drops among the numbers of `SO_MEMINFO` (`SK_MEMINFO_DROPS`), and the number of these numbers.
const MEMINFO_DROPS_INDEX: usize = 8;
const MEMINFO_NUMBERS: usize = 9;

#[derive(Debug)]
pub struct UdpReceiver {
    socket: OwnedFd,
    buffer: Box<[u8]>,
    seen: u32,
    dropped: u64,
}

impl UdpReceiver {
    /// Listens at an address, with a buffer of `bytes` if the kernel grants it.
    pub fn bind_with_buffer(address: SocketAddr, bytes: usize) -> Result<Self, Error> {
        let socket = UdpSocket::bind(address).map_err(|error| {
            Error::from_call("bind", address.to_string(), error)
                .with_rights("ports below 1024 need CAP_NET_BIND_SERVICE")
        })?;
        // The limit for ordinary users (net.core.rmem_max) is low; with CAP_NET_ADMIN it does not apply.
        let sized = sockopt::set_socket_recv_buffer_size_force(&socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, bytes));
        sized.map_err(|errno| Error::from_call("setsockopt SO_RCVBUF", address.to_string(), errno))?;
        let socket = OwnedFd::from(socket);
        Ok(Self { socket, buffer: vec![0; MAX_DATAGRAM_BYTES].into_boxed_slice(), seen: 0, dropped: 0 })
    }

    pub fn address(&self) -> Result<SocketAddr, Error> {
        let address = rustix::net::getsockname(&self.socket).and_then(SocketAddr::try_from);
        address.map_err(call_error("getsockname", "a UDP socket"))
    }

    /// Stops the intake: the kernel drops datagrams that arrive from now on, and counts them as dropped. Datagrams in
    /// the socket can still be received.
    pub fn stop_intake(&self) -> Result<(), Error> {
        attach_filter(&self.socket, &DROP_ALL_FILTER)
            .map_err(call_error("setsockopt(SO_ATTACH_FILTER)", "a UDP socket"))
    }

    /// Size of the buffer that the kernel granted, in bytes, including the kernel's overhead; 0 if it cannot be read.
    pub fn granted_bytes(&self) -> usize {
        sockopt::socket_recv_buffer_size(&self.socket).unwrap_or(0)
    }

    /// Waits until a datagram comes, for at most `wait`, then delivers the datagrams that have arrived, at
    /// most `most`. Returns how many it delivered; attempts that a signal or an ICMP error ended count, too.
    pub fn receive_datagrams(
        &mut self,
        wait: Duration,
        most: usize,
        mut take: impl FnMut(&[u8], SocketAddr),
    ) -> Result<usize, Error> {
        use rustix::event::{PollFd, PollFlags, poll};
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&duration_to_timespec(wait))) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(0),
            Ok(_) => {}
            Err(errno) => return Err(Error::from_call("poll", "a UDP socket", errno)),
        }
        for received in 0..most {
            let flags = rustix::net::RecvFlags::DONTWAIT;
            match rustix::net::recvfrom(&self.socket, &mut self.buffer[..], flags) {
                Ok((length, _, Some(from))) => {
                    if let Ok(from) = SocketAddr::try_from(from) {
                        take(&self.buffer[..length], from);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(received),
                // A datagram without an address; a signal; an ICMP error about a datagram that was sent before.
                Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNREFUSED) => {}
                Err(errno) => return Err(Error::from_call("recvfrom", "a UDP socket", errno)),
            }
        }
        Ok(most)
    }

    /// Datagrams dropped so far: the buffer was full, their checksum was wrong, or [`Self::stop_intake`] was called.
    pub fn dropped_datagrams(&mut self) -> Result<u64, Error> {
        let mut numbers = [0_u32; MEMINFO_NUMBERS];
        let mut length = length_of::<[u32; MEMINFO_NUMBERS]>();
        // SAFETY: the socket is open while `self` lives; both pointers are to live values that may be written, and `length` is
        // the size of the first.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                numbers.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if done != 0 {
            return Err(Error::last_os_error("getsockopt SO_MEMINFO", "a UDP socket"));
        }
        // The kernel counts modulo 2^32.
        self.dropped += u64::from(numbers[MEMINFO_DROPS_INDEX].wrapping_sub(self.seen));
        self.seen = numbers[MEMINFO_DROPS_INDEX];
        Ok(self.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datagram_is_received_or_counted_as_dropped() {
        let mut receiver = UdpReceiver::bind_with_buffer("127.0.0.1:0".parse().unwrap(), 8192).unwrap();
        let address = receiver.address().unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sent = 1000;
        for _ in 0..sent {
            assert_eq!(sender.send_to(&[7; 500], address).unwrap(), 500);
        }
        let mut received = 0;
        let from = sender.local_addr().unwrap();
        while receiver
            .receive_datagrams(Duration::ZERO, 7, |bytes, source| {
                assert_eq!((bytes.len(), source), (500, from));
                received += 1;
            })
            .unwrap()
            > 0
        {}
        let dropped = receiver.dropped_datagrams().unwrap();
        assert!(received > 0 && dropped > 0, "{received} received, {dropped} dropped");
        assert_eq!(received + dropped, sent);
        // Datagrams from before the socket was shut are given out, later ones are counted.
        sender.send_to(&[1; 9], address).unwrap();
        receiver.stop_intake().unwrap();
        sender.send_to(&[2; 9], address).unwrap();
        let mut left = Vec::new();
        while receiver.receive_datagrams(Duration::ZERO, 7, |bytes, _| left.push(bytes[0])).unwrap() > 0 {}
        assert_eq!((left, receiver.dropped_datagrams().unwrap()), (vec![1], dropped + 1));
        let dropped = dropped + 1;
        assert_eq!(receiver.dropped_datagrams().unwrap(), dropped);
    }
}
