//! Sends datagrams. A datagram that the kernel refuses is lost, for example after an ICMP "port unreachable"
//! from the collector's machine.
//!
//! After each lost datagram the templates are sent again: a collector that was started in the
//! meantime has no templates.

use super::super::Error;
use super::super::target::HostPort;
use super::UnsentMessageReason;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

#[derive(Debug)]
pub(crate) struct UdpSender {
    socket: UdpSocket,
    v6: bool,
}

impl UdpSender {
    pub(super) fn open_socket(place: &HostPort) -> Result<Self, Error> {
        Self::connect_socket(place)
            .map_err(|source| Error::Target { target: format!("udp://{place}"), source })
    }

    fn connect_socket(place: &HostPort) -> std::io::Result<Self> {
        let mut found = (place.host.as_str(), place.port).to_socket_addrs()?;
        // The first address only: a datagram gets no answer that would tell which address works.
        let address = found.next().ok_or_else(|| std::io::Error::other("the name has no address"))?;
        // The socket must have the collector's address family.
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpSocket::bind(any)?;
        // A connected socket gets ICMP errors as errors of the next send; an unconnected one would not.
        socket.connect(address)?;
        Ok(Self { socket, v6: address.is_ipv6() })
    }

    pub(super) const fn is_v6(&self) -> bool {
        self.v6
    }

    pub(super) fn send_datagram(&self, message: &[u8]) -> Result<(), UnsentMessageReason> {
        self.socket.send(message).map(|_| ()).map_err(UnsentMessageReason::Refused)
    }

    /// Returns the ICMP error that has arrived since the last call or send, such as "port unreachable", and forgets it.
    /// `None` if there was no error, or if it cannot be read.
    pub(super) fn take_refusal(&self) -> Option<std::io::Error> {
        self.socket.take_error().ok().flatten()
    }
}
