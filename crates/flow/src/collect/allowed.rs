//! The list of exporters whose messages are read: addresses and networks that the user names.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address, or all addresses with the same prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExporterNetwork {
    address: IpAddr,
    prefix: u8,
}

/// A text that is neither an address nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is neither an address nor a network: write 192.0.2.7, 192.0.2.0/24, 2001:db8::7 or 2001:db8::/64"
)]
pub struct ExporterNetworkError(String);

/// The exporters whose messages are read. An empty list allows all.
#[derive(Clone, Debug, Default)]
pub struct ExporterList {
    hosts: BTreeSet<IpAddr>,
    networks: Vec<ExporterNetwork>,
}

const fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl ExporterNetwork {
    fn contains(&self, address: IpAddr) -> bool {
        let differs = match (self.address, address) {
            (IpAddr::V4(mine), IpAddr::V4(theirs)) => u128::from(mine.to_bits() ^ theirs.to_bits()),
            (IpAddr::V6(mine), IpAddr::V6(theirs)) => mine.to_bits() ^ theirs.to_bits(),
            _ => return false,
        };
        let rest = u32::from(address_bits(address) - self.prefix);
        // A prefix of length 0 shifts all bits out, and `>>` cannot shift by the whole width.
        differs.checked_shr(rest).unwrap_or(0) == 0
    }

    fn is_single_host(&self) -> bool {
        self.prefix == address_bits(self.address)
    }
}

impl FromStr for ExporterNetwork {
    type Err = ExporterNetworkError;

    fn from_str(text: &str) -> Result<Self, ExporterNetworkError> {
        parse_network(text).ok_or_else(|| ExporterNetworkError(text.to_owned()))
    }
}

fn parse_network(text: &str) -> Option<ExporterNetwork> {
    let Some((address, prefix)) = text.split_once('/') else {
        let address = text.parse().ok()?;
        return Some(ExporterNetwork { address, prefix: address_bits(address) });
    };
    let address = address.parse().ok()?;
    // `contains` subtracts the prefix from the length of the address, so a longer one would underflow there.
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= address_bits(address))?;
    Some(ExporterNetwork { address, prefix })
}

impl fmt::Display for ExporterNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single_host() {
            self.address.fmt(f)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

impl FromIterator<ExporterNetwork> for ExporterList {
    fn from_iter<I: IntoIterator<Item = ExporterNetwork>>(all: I) -> Self {
        let mut list = Self::default();
        for network in all {
            // Hosts go into a set, so that a long list is searched fast; networks must be tried one by one.
            if network.is_single_host() {
                list.hosts.insert(network.address);
            } else {
                list.networks.push(network);
            }
        }
        list
    }
}

impl ExporterList {
    /// Returns whether messages from an address are read.
    pub fn allows_address(&self, address: IpAddr) -> bool {
        // Single hosts are tried first, because a look into the set is faster than the walk over the networks.
        self.is_empty()
            || self.lists_host(address)
            || self.networks.iter().any(|network| network.contains(address))
    }

    /// Returns whether the list contains this address as a host, not as part of a network.
    pub(super) fn lists_host(&self, address: IpAddr) -> bool {
        self.hosts.contains(&address)
    }

    /// Returns whether the list is empty, so that it allows every address.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.networks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporter_networks_parse_and_match_by_prefix() {
        let allows = |list: &[&str], address: &str| {
            let list: ExporterList =
                list.iter().map(|text| text.parse::<ExporterNetwork>().unwrap()).collect();
            list.allows_address(address.parse().unwrap())
        };
        assert!(allows(&[], "192.0.2.1"));
        assert!(allows(&["192.0.2.1"], "192.0.2.1") && !allows(&["192.0.2.1"], "192.0.2.2"));
        assert!(allows(&["192.0.2.0/25"], "192.0.2.127") && !allows(&["192.0.2.0/25"], "192.0.2.128"));
        assert!(
            allows(&["2001:db8::/33"], "2001:db8:7fff::1") && !allows(&["2001:db8::/33"], "2001:db8:8000::1")
        );
        assert!(allows(&["0.0.0.0/0"], "198.18.0.1") && !allows(&["0.0.0.0/0"], "2001:db8::1"));
        assert!(allows(&["::/0", "192.0.2.1"], "192.0.2.1"));
        for text in ["192.0.2.1", "192.0.2.0/24", "2001:db8::/32"] {
            assert_eq!(text.parse::<ExporterNetwork>().unwrap().to_string(), text);
        }
        for text in ["", "192.0.2", "192.0.2.0/33", "192.0.2.0/-1", "2001:db8::/129", "exporter", "1.2.3.4/"]
        {
            assert!(text.parse::<ExporterNetwork>().is_err(), "{text}");
        }
    }
}
