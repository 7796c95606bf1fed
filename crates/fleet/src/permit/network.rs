//! IP and MAC addresses to which a node may send.

use packetrig_plan::device::format_mac;
use packetrig_plan::reach::FieldValues;
use packetrig_plan::recording::parse_mac;
use packetrig_units::Network;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkSet {
    /// Ranges of addresses (first, last), sorted, neither adjacent nor overlapping.
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl NetworkSet {
    pub fn new(networks: &[Network]) -> Self {
        Self { v4: select_ranges(networks, true), v6: select_ranges(networks, false) }
    }

    /// Networks that are reserved for benchmarking: RFC 2544 (IPv4) and RFC 5180 (IPv6).
    pub fn benchmark_networks() -> Self {
        Self {
            // 198.18.0.0/15 and 2001:2::/48.
            v4: vec![(0xc612_0000, 0xc613_ffff)],
            v6: vec![(0x2001_0002 << 96, (0x2001_0002_0001 << 80) - 1)],
        }
    }

    /// True if the set contains every address.
    pub fn is_everything(&self) -> bool {
        self.v4 == [(0, u128::from(u32::MAX))] && self.v6 == [(0, u128::MAX)]
    }

    /// True if the set contains this address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        // An IPv4 address in an IPv6 address (`::ffff:192.0.2.1`) must be checked against the IPv4 ranges.
        match ip.to_canonical() {
            IpAddr::V4(ip) => ranges_cover(&self.v4, ip.to_bits().into(), ip.to_bits().into()),
            IpAddr::V6(ip) => ranges_cover(&self.v6, ip.to_bits(), ip.to_bits()),
        }
    }

    /// Returns the text of a value that is not permitted, if there is one.
    pub(super) fn find_forbidden_value(&self, values: &FieldValues, is_v6: bool) -> Option<String> {
        if is_v6 {
            find_uncovered_value(values, &self.v6, |value| Ipv6Addr::from_bits(value).to_string())
        } else {
            find_uncovered_value(values, &self.v4, format_ipv4_value)
        }
    }
}

fn select_ranges(networks: &[Network], is_v4: bool) -> Vec<(u128, u128)> {
    let own = networks.iter().filter(|network| network.first().is_ipv4() == is_v4);
    join_ranges(own.map(|network| network.first_and_last()).collect())
}

/// Formats a value of an IPv4 field. A value that is too large for an IPv4 address is shown as an IPv6 address.
fn format_ipv4_value(value: u128) -> String {
    match u32::try_from(value) {
        Ok(value) => Ipv4Addr::from_bits(value).to_string(),
        Err(_) => Ipv6Addr::from_bits(value).to_string(),
    }
}

/// Returns one value, or a whole range of values, that the ranges do not cover, as text; `None` if they cover all.
fn find_uncovered_value(
    values: &FieldValues,
    ranges: &[(u128, u128)],
    text: impl Fn(u128) -> String,
) -> Option<String> {
    match values {
        FieldValues::List(list) => {
            list.iter().find(|value| !ranges_cover(ranges, **value, **value)).map(|value| text(*value))
        }
        // A range is allowed only as a whole, because the frames may have every value in it.
        FieldValues::Range(first, last) => (!ranges_cover(ranges, *first, *last))
            .then(|| format!("anything from {} to {}", text(*first), text(*last))),
    }
}

fn join_ranges(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut joined: Vec<(u128, u128)> = Vec::new();
    for (first, last) in ranges {
        match joined.last_mut() {
            // Adjacent ranges become one, so that `ranges_cover` can check each range separately.
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

fn ranges_cover(ranges: &[(u128, u128)], first: u128, last: u128) -> bool {
    // One range must contain all values from `first` to `last`: after `join_ranges`, no two ranges are adjacent.
    ranges.iter().any(|range| range.0 <= first && last <= range.1)
}

/// MAC addresses to which the node may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PermittedMacs {
    Any,
    List(Vec<[u8; 6]>),
}

impl PermittedMacs {
    /// Parses a MAC address of the permit file. The error says what is wrong.
    pub(super) fn parse_mac(text: &str) -> Result<[u8; 6], String> {
        parse_mac(text)
            .ok_or_else(|| format!("`{text}` is not a MAC address; write it like 02:00:00:00:00:01"))
    }

    /// Returns the text of a value that is not permitted, if there is one.
    pub(super) fn find_forbidden_value(&self, values: &FieldValues) -> Option<String> {
        let Self::List(allowed) = self else { return None };
        let ranges = join_ranges(allowed.iter().map(|mac| (mac_number(*mac), mac_number(*mac))).collect());
        find_uncovered_value(values, &ranges, |value| {
            let bytes = value.to_be_bytes();
            format_mac([10, 11, 12, 13, 14, 15].map(|index: usize| bytes[index]))
        })
    }
}

fn mac_number(mac: [u8; 6]) -> u128 {
    mac.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}
