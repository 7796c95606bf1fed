//! Datagrams with the time at which the kernel received them, for the comparison of clocks.
//!
//! [`StampedSocket`] owns its socket. The kernel stamps datagrams with `CLOCK_REALTIME`. Right after a datagram is
//! fetched, both clocks are read to convert its stamp to the monotonic clock. If the result is impossible, because the
//! wall clock was set in the meantime, the time of fetching replaces the stamp, and the datagram is marked.

use crate::clock::{duration_to_timespec, measure_realtime_offset, monotonic_ns};
use crate::packet::socket::length_of;
use crate::{Error, stamping};
use rustix::event::{PollFd, PollFlags, poll};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A received datagram, with its time of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivedDatagram {
    /// Length in bytes. A datagram longer than the buffer is truncated.
    pub length: usize,
    pub from: SocketAddr,
    /// Time of arrival, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// Largest possible error of `at_ns`.
    pub bound_ns: u64,
    /// The kernel stamped the datagram; otherwise the time is that of fetching it.
    pub by_kernel: bool,
}

#[derive(Debug)]
pub struct StampedSocket {
    socket: UdpSocket,
    /// Time when the socket was last found empty, or was opened. The next datagram arrived after this time.
    empty_at: u64,
}

impl StampedSocket {
    /// Binds to an address.
    pub fn bind_to(address: SocketAddr) -> Result<Self, Error> {
        let empty_at = monotonic_ns();
        let socket =
            UdpSocket::bind(address).map_err(|error| Error::from_call("bind", address.to_string(), error))?;
        socket.set_nonblocking(true).map_err(|error| Error::from_call("fcntl", "a UDP socket", error))?;
        let on: libc::c_int = 1;
        let length = length_of::<libc::c_int>();
        // SAFETY: the socket is open; the pointer is to a live value of the length given, which is only read.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                stamping::STAMP_NS,
                (&raw const on).cast(),
                length,
            )
        };
        if done != 0 {
            return Err(Error::last_os_error("setsockopt SO_TIMESTAMPNS", "a UDP socket"));
        }
        Ok(Self { socket, empty_at })
    }

    /// Address to which the socket is bound.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.socket.local_addr().map_err(|error| Error::from_call("getsockname", "a UDP socket", error))
    }

    /// Sends a datagram; returns the time just before the call, in nanoseconds of the monotonic clock.
    pub fn send_datagram(&self, bytes: &[u8], to: SocketAddr) -> Result<u64, Error> {
        let before = monotonic_ns();
        self.socket.send_to(bytes, to).map_err(|error| Error::from_call("sendto", to.to_string(), error))?;
        Ok(before)
    }

    /// Waits for a datagram, for `wait` at most. `None`: nothing came.
    pub fn receive_datagram(
        &mut self,
        wait: Duration,
        buffer: &mut [u8],
    ) -> Result<Option<ArrivedDatagram>, Error> {
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&duration_to_timespec(wait))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::from_call("poll", "a UDP socket", errno)),
        }
        let looked_at = monotonic_ns();
        let received = stamping::receive_packet(&self.socket, buffer)?;
        let Some((packet, from)) = received.and_then(|packet| Some((packet, packet.from?))) else {
            self.empty_at = looked_at;
            return Ok(None);
        };
        let fetched = monotonic_ns();
        let own = ArrivedDatagram {
            length: packet.length,
            from,
            at_ns: fetched,
            bound_ns: fetched - self.empty_at,
            by_kernel: false,
        };
        let Some(stamp) = packet.stamps.software_ns else { return Ok(Some(own)) };
        // The conversion holds only if the wall clock was not stepped between the stamp and this reading. A datagram cannot have arrived
        // before the socket was last empty, nor after it was fetched: a stamp outside of this range is not used.
        let offset = measure_realtime_offset();
        let at_ns = offset.to_monotonic(stamp);
        let bound_ns = offset.bound_ns;
        let possible = self.empty_at.saturating_sub(bound_ns)..=fetched + bound_ns;
        Ok(Some(if possible.contains(&at_ns) {
            ArrivedDatagram { at_ns, bound_ns, by_kernel: true, ..own }
        } else {
            own
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(address: &str) {
        let one = StampedSocket::bind_to(address.parse().unwrap()).unwrap();
        let mut other = StampedSocket::bind_to(address.parse().unwrap()).unwrap();
        for length in [1, 48, 500] {
            let sent = one.send_datagram(&vec![7; length], other.address().unwrap()).unwrap();
            let mut buffer = [0; 100];
            let arrival = other.receive_datagram(Duration::from_secs(10), &mut buffer).unwrap().unwrap();
            let fetched = monotonic_ns();
            assert_eq!((arrival.length, arrival.from), (length.min(100), one.address().unwrap()));
            assert_eq!(buffer[..arrival.length], vec![7; arrival.length]);
            assert!(arrival.by_kernel);
            assert!(arrival.at_ns + arrival.bound_ns >= sent && arrival.at_ns <= fetched + arrival.bound_ns);
        }
        assert_eq!(other.receive_datagram(Duration::ZERO, &mut [0; 10]).unwrap(), None);
    }

    #[test]
    fn arrivals_are_between_sending_and_fetching() {
        exchange("127.0.0.1:0");
        exchange("[::1]:0");
    }

    #[test]
    fn datagram_to_closed_port_does_no_harm() {
        let mut socket = StampedSocket::bind_to("127.0.0.1:0".parse().unwrap()).unwrap();
        let gone = StampedSocket::bind_to("127.0.0.1:0".parse().unwrap()).unwrap().address().unwrap();
        socket.send_datagram(b"anybody?", gone).unwrap();
        assert_eq!(socket.receive_datagram(Duration::from_millis(20), &mut [0; 10]).unwrap(), None);
    }
}
