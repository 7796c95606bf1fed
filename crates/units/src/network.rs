//! Networks: the addresses that share a prefix.
//!
//! An IPv4-mapped IPv6 address (`::ffff:192.0.2.7`) reaches the same host as `192.0.2.7`, so it is in the same
//! networks. A network of IPv4-mapped addresses is stored as an IPv4 network.
//!
//! Invariant: no bit after the prefix is set in a network's first address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network: all addresses that share a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

impl Network {
    pub const fn first(self) -> IpAddr {
        self.first
    }

    /// Returns the length of the prefix, in bits.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Returns whether an address is in the network. An IPv4 network also contains its addresses in IPv4-mapped form.
    pub fn contains(self, ip: IpAddr) -> bool {
        let ends = self.first_and_last();
        let ip = ip.to_canonical();
        // The number of an IPv4 address also lies in IPv6 networks such as ::/0, so the families are compared first.
        ip.is_ipv4() == self.first.is_ipv4() && (ends.0..=ends.1).contains(&address_number(ip))
    }

    /// Returns the IPv4 network if all addresses are IPv4-mapped IPv6 addresses; otherwise the network unchanged.
    fn to_canonical(self) -> Self {
        // RFC 4291 2.5.5.2: the IPv4 address is the last 32 bits of a mapped address. A network with a shorter prefix
        // than 96 also has addresses that are not mapped, so it stays one of IPv6.
        const MAPPED: u8 = 96;
        match (self.first.to_canonical(), self.bits.checked_sub(MAPPED)) {
            (IpAddr::V4(first), Some(bits)) if self.first.is_ipv6() => Self { first: first.into(), bits },
            _ => self,
        }
    }

    const fn address_width(self) -> u8 {
        if self.first.is_ipv4() { 32 } else { 128 }
    }

    /// Returns the first and the last address as numbers.
    pub fn first_and_last(self) -> (u128, u128) {
        let first = address_number(self.first);
        let host = u32::from(self.address_width() - self.bits);
        (first, first | if host >= 128 { u128::MAX } else { (1 << host) - 1 })
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(2, '/');
        let ip = parts.next().unwrap_or_default();
        let first: IpAddr = ip.parse().map_err(|_| invalid_network_message(text, ""))?;
        let width = if first.is_ipv4() { 32 } else { 128 };
        let bits = parts
            .next()
            .map_or(Ok(width), |bits| bits.parse::<u8>().map_err(|_| invalid_network_message(text, "")))?;
        if bits > width {
            return Err(invalid_network_message(text, ""));
        }
        let network = Self { first, bits };
        let host = u32::from(width - bits);
        // A shift by the full width would overflow: ::/0 has 128 bits of host.
        let mask = if host >= 128 { u128::MAX } else { (1 << host) - 1 };
        if network.first_and_last().0 & mask != 0 {
            // A user who writes a host address here may not know how many addresses the prefix covers.
            return Err(invalid_network_message(text, " (it has bits set after its prefix)"));
        }
        // Two spellings of one network must compare equal.
        Ok(network.to_canonical())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

fn invalid_network_message(text: &str, why: &str) -> String {
    format!("`{text}` is not a network{why}; write it like 198.18.0.0/15 or 2001:2::/48")
}

fn address_number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_what_shares_its_prefix() {
        let of = |network: &str, ip: &str| network.parse::<Network>().unwrap().contains(ip.parse().unwrap());
        assert!(of("198.18.0.0/15", "198.19.255.255") && !of("198.18.0.0/15", "198.20.0.0"));
        assert!(of("2001:2::/48", "2001:2::1") && !of("2001:2::/48", "2001:2:1::"));
        assert!(of("0.0.0.0/0", "255.255.255.255") && !of("0.0.0.0/0", "::1"));
        assert!(of("::/0", "ffff::") && of("192.0.2.1", "192.0.2.1"));
        assert!(of("10.0.0.0/8", "::ffff:10.1.1.1") && of("::ffff:10.0.0.0/104", "10.1.1.1"));
        assert!(!of("::/0", "10.1.1.1") && !of("::/0", "::ffff:10.1.1.1"), "of IPv6 only");
        assert_eq!("::ffff:10.0.0.0/104".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
        assert!("10.0.0.1/8".parse::<Network>().is_err() && "10.0.0.0/33".parse::<Network>().is_err());
    }
}
