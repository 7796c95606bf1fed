//! Emulated devices: interfaces on a port that have addresses and answer requests. The kernel does not know them.
//!
//! This module resolves no address. A [`DeviceNeighbour`] says which address an interface must resolve to a MAC
//! address; the engine does it.

use std::fmt;
use std::net::IpAddr;

pub type Mac = [u8; 6];

/// Formats a MAC address like `02:00:00:00:00:01`.
pub fn format_mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// An emulated Ethernet interface on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInterface {
    /// Name of the interface in the plan.
    pub name: String,
    /// Name of the device that the interface belongs to.
    pub device: String,
    /// Index of the port that the interface is on.
    pub port: usize,
    pub mac: Mac,
    /// VLAN tags of the interface's frames, outermost first.
    pub vlans: Vec<VlanTag>,
    pub addresses: Vec<DeviceAddress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    pub tpid: u16,
    pub priority: u8,
    pub id: u16,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAddress {
    /// Name of the address in the plan.
    pub name: String,
    pub ip: IpAddr,
    /// Prefix length of the address's network, in bits.
    pub prefix: u8,
    /// The next hop to other networks; absent if the document gives the unspecified address.
    pub gateway: Option<IpAddr>,
    /// The gateway's MAC address, if the document gives it; the interface then need not resolve it.
    pub gateway_mac: Option<Mac>,
}

/// A neighbour whose MAC address an interface must resolve before a stream can send frames to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNeighbour {
    /// Index of the interface in the plan.
    pub interface: usize,
    /// Index of the interface's address that requests are sent from.
    pub address: usize,
    /// IP address of the neighbour.
    pub ip: IpAddr,
}

impl DeviceAddress {
    /// True if `other` is in the network of this address.
    pub fn is_on_link(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            // The exclusive or has the bits in which two addresses differ.
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                self.differs_in_host_part_only(u128::from(a.to_bits() ^ b.to_bits()), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => self.differs_in_host_part_only(a.to_bits() ^ b.to_bits(), 128),
            _ => false,
        }
    }

    /// True if two addresses of `bits` bits differ only in bits after the prefix.
    fn differs_in_host_part_only(&self, differing: u128, bits: u8) -> bool {
        // A shift by 128 bits (IPv6 with prefix 0) has no result and counts as equal: ::/0 has every address.
        let host = u32::from(bits.saturating_sub(self.prefix));
        differing.checked_shr(host).unwrap_or(0) == 0
    }
}

impl fmt::Display for VlanTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}/{}", self.tpid, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, prefix: u8) -> DeviceAddress {
        DeviceAddress { name: "a".into(), ip: ip.parse().unwrap(), prefix, gateway: None, gateway_mac: None }
    }

    #[test]
    fn a_network_is_what_shares_the_prefix() {
        let reaches = |ip, prefix, other: &str| address(ip, prefix).is_on_link(other.parse().unwrap());
        assert!(reaches("198.18.0.1", 24, "198.18.0.254") && !reaches("198.18.0.1", 24, "198.18.1.1"));
        assert!(!reaches("198.18.0.1", 32, "198.18.0.2") && reaches("2001:2::1", 1, "3fff::1"));
        assert!(!reaches("2001:2::1", 64, "2001:2:0:1::1") && !reaches("2001:2::1", 64, "198.18.0.1"));
    }
}
