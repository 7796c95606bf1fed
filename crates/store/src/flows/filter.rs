//! Which records are asked for.

use super::scan::{Chunk, Span};
use packetrig_flow::MAPPED;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Columns that a filter looks at; whoever scans for one asks for them first, in this order.
pub const FILTER_COLUMNS: [&str; 6] = [
    "flowStartNanoseconds",
    "sourceIPv6Address",
    "destinationIPv6Address",
    "sourceTransportPort",
    "destinationTransportPort",
    "protocolIdentifier",
];

/// Every condition holds. An empty filter lets all records through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// When the flow began.
    pub span: Span,
    /// Either end's address is in one of these, if there are any.
    pub addresses: Vec<Prefix>,
    /// Either end's port is one of these, if there are any.
    pub ports: Vec<u16>,
    /// The protocol is one of these, if there are any.
    pub protocols: Vec<u8>,
}

impl Filter {
    /// Whether the row of a chunk whose first columns are [`FILTER_COLUMNS`] is asked for.
    pub fn keeps(&self, chunk: &Chunk, row: usize) -> bool {
        let columns = &chunk.columns;
        let ports = [3, 4].map(|column| columns[column].number(row));
        let one_of = |address: [u8; 16]| self.addresses.iter().any(|prefix| prefix.has(address));
        self.span.has(columns[0].number(row))
            && (self.addresses.is_empty()
                || one_of(columns[1].address(row))
                || one_of(columns[2].address(row)))
            && (self.ports.is_empty() || self.ports.iter().any(|&port| ports.contains(&u64::from(port))))
            && (self.protocols.is_empty()
                || self.protocols.iter().any(|&one| columns[5].number(row) == u64::from(one)))
    }
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    bits: u128,
    length: u32,
}

impl Prefix {
    fn has(&self, address: [u8; 16]) -> bool {
        let different = self.bits ^ u128::from_be_bytes(address);
        self.length == 0 || different >> (128 - self.length) == 0
    }
}

/// What is no address or prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no address or prefix; write 198.18.0.0/15, 198.18.0.1 or 2001:2::/48")]
pub struct NoPrefix(String);

impl FromStr for Prefix {
    type Err = NoPrefix;

    fn from_str(text: &str) -> Result<Self, NoPrefix> {
        let wrong = || NoPrefix(text.to_owned());
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let (mapped, own_bits) = match address {
            IpAddr::V4(address) => (address.to_ipv6_mapped(), 32),
            IpAddr::V6(address) => (address, 128),
        };
        let length = length.map_or(Ok(own_bits), str::parse).map_err(|_| wrong())?;
        if length > own_bits {
            return Err(wrong());
        }
        Ok(Self { bits: u128::from_be_bytes(mapped.octets()), length: 128 - own_bits + length })
    }
}

/// An address as people write it: IPv4 where it is mapped.
pub fn address(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [.., a, b, c, d] if bytes.starts_with(&MAPPED) => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(prefix: &str, text: &str) -> bool {
        let bytes = match text.parse().unwrap() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        prefix.parse::<Prefix>().unwrap().has(bytes)
    }

    #[test]
    fn prefixes_hold_what_they_name() {
        assert!(has("198.18.0.0/15", "198.19.255.255") && !has("198.18.0.0/15", "198.20.0.0"));
        assert!(has("198.18.0.1", "198.18.0.1") && !has("198.18.0.1", "198.18.0.2"));
        assert!(has("2001:2::/48", "2001:2::1") && !has("2001:2::/48", "2001:3::1"));
        assert!(has("0.0.0.0/0", "203.0.113.1") && !has("0.0.0.0/0", "2001:2::1"));
        assert!(has("::/0", "2001:2::1") && has("::/0", "198.18.0.1"));
        for wrong in ["", "198.18.0.0/33", "2001:2::/129", "host", "198.18.0.0/", "198.18.0.0/-1"] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}
