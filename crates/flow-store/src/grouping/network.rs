//! Networks of addresses, as parts of a grouping.

use crate::filter::canonical_address;
use std::fmt;
use std::net::IpAddr;

/// Prefix lengths of the networks of IPv4 and IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkLengths {
    v4: u32,
    v6: u32,
}

impl NetworkLengths {
    /// Reads `24`, `64` or `24/64`. A single length is for IPv4 if it is at most 32, otherwise for IPv6. Each address
    /// of the other IP version is then a group of its own.
    pub(super) fn from_words<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let lengths: Option<Vec<u32>> = words.map(|word| word.parse().ok()).collect();
        match lengths?[..] {
            [v4] if v4 <= 32 => Some(Self { v4, v6: 128 }),
            [v6] if v6 <= 128 => Some(Self { v4: 32, v6 }),
            [v4, v6] if v4 <= 32 && v6 <= 128 => Some(Self { v4, v6 }),
            _ => None,
        }
    }

    /// The network of an address.
    pub(super) fn network_of(self, address: [u8; 16]) -> AddressNetwork {
        let is_v4 = matches!(canonical_address(address), IpAddr::V4(_));
        let (length, behind) = if is_v4 { (self.v4, 96) } else { (self.v6, 0) };
        // A shift by all 128 bits overflows: a network of full length is a single address.
        let rest = u128::MAX.checked_shr(behind + length).unwrap_or(0);
        let address = (u128::from_be_bytes(address) & !rest).to_be_bytes();
        AddressNetwork { address, length, is_whole: length == if is_v4 { 32 } else { 128 } }
    }
}

/// A network: its first address, and its prefix length in the IP version of that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressNetwork {
    pub(super) address: [u8; 16],
    length: u32,
    is_whole: bool,
}

impl fmt::Display for AddressNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = canonical_address(self.address);
        if self.is_whole { write!(f, "{address}") } else { write!(f, "{address}/{}", self.length) }
    }
}
