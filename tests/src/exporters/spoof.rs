//! Datagrams from any address: whole IPv4 packets given to the kernel.

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::net::{Ipv4Addr, SocketAddrV4};

const HEADERS: usize = 28;

/// A sender that gives each datagram the source address that is wanted. Needs `CAP_NET_RAW`.
#[derive(Debug)]
pub struct Spoofer {
    socket: OwnedFd,
    to: SocketAddrV4,
    packet: Vec<u8>,
}

impl Spoofer {
    /// Sends to `to`.
    pub fn open(to: SocketAddrV4) -> rustix::io::Result<Self> {
        let socket = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))?;
        Ok(Self { socket, to, packet: Vec::new() })
    }

    /// Sends one datagram. Without an error it is in the other end's socket, or that counts it as dropped.
    pub fn send(&mut self, from: Ipv4Addr, port: u16, payload: &[u8]) -> rustix::io::Result<()> {
        let length = |more: usize| u16::try_from(payload.len() + more).unwrap_or(u16::MAX).to_be_bytes();
        let packet = &mut self.packet;
        packet.clear();
        packet.extend([0x45, 0]);
        packet.extend(length(HEADERS));
        // Identification and checksum are the kernel's.
        packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        packet.extend(from.octets());
        packet.extend(self.to.ip().octets());
        packet.extend(port.to_be_bytes());
        packet.extend(self.to.port().to_be_bytes());
        packet.extend(length(8));
        packet.extend([0, 0]);
        packet.extend(payload);
        sendto(&self.socket, packet, SendFlags::empty(), &self.to)?;
        Ok(())
    }
}
