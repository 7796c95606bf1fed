//! Changes addresses and VLAN tags of frames.

use super::{PacketLayers, TransportLayer, correct_checksum};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// EtherType of the VLAN tags that are added (802.1Q). The priority bits of an added tag are zero.
const VLAN_TAG_TYPE: [u8; 2] = [0x81, 0x00];

/// The changes to make in every frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameRewrite {
    pub src_mac: Option<[u8; 6]>,
    pub dst_mac: Option<[u8; 6]>,
    /// The IP networks whose addresses are replaced, for source and destination. The first matching entry applies.
    pub addresses: Vec<AddressMap>,
    /// Change of the outermost VLAN tag.
    pub vlan: Option<VlanEdit>,
}

/// A change of VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanEdit {
    /// Adds a new outermost tag with this VLAN number.
    Push(u16),
    /// Removes the outermost tag; a frame without a tag stays unchanged.
    Pop,
    /// Sets the VLAN number of the outermost tag; a frame without a tag stays unchanged.
    Set(u16),
}

/// Replaces the addresses of one network by those of another network of the same size. The host bits are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressMap {
    from: IpAddr,
    to: IpAddr,
    prefix: u8,
}

/// A text is neither a valid [`VlanEdit`] nor a valid [`AddressMap`], whichever was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {what}; write it like {example}")]
pub struct RewriteError {
    text: String,
    what: &'static str,
    example: &'static str,
}

impl FrameRewrite {
    /// Returns whether no change is made.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Changes a frame without FCS.
    pub fn rewrite_frame(&self, frame: &mut Vec<u8>) {
        if frame.len() < 14 {
            return;
        }
        if let Some(mac) = self.dst_mac {
            frame[..6].copy_from_slice(&mac);
        }
        if let Some(mac) = self.src_mac {
            frame[6..12].copy_from_slice(&mac);
        }
        if !self.addresses.is_empty() {
            self.rewrite_addresses(frame);
        }
        // The VLAN tag is changed last, because that moves the headers after it.
        if let Some(edit) = self.vlan {
            edit.edit_vlan_tags(frame);
        }
    }

    fn rewrite_addresses(&self, frame: &mut [u8]) {
        let Some(PacketLayers { ip: Some(ip), transport, .. }) = PacketLayers::from_frame(frame) else {
            return;
        };
        let first = ip.at + if ip.is_v6 { 8 } else { 12 };
        let len = if ip.is_v6 { 16 } else { 4 };
        // The transport checksum of a packet with a source route does not cover the destination address in
        // the header.
        for (at, is_covered) in [(first, true), (first + len, ip.is_final)] {
            let mut old = [0; 16];
            old[..len].copy_from_slice(&frame[at..at + len]);
            let mut new = old;
            if !self.addresses.iter().any(|map| map.map_address(&mut new[..len])) || new == old {
                continue;
            }
            frame[at..at + len].copy_from_slice(&new[..len]);
            // Two checksums cover an address: the IPv4 header checksum, and the transport checksum with its
            // pseudo-header.
            if !ip.is_v6 {
                correct_checksum(frame, ip.at + 10, &old[..len], &new[..len], false, false);
            }
            let covering = transport.as_ref().filter(|t| is_covered && t.checksum_covers_addresses());
            if let Some(&TransportLayer { checksum_at: Some(check), .. }) = covering {
                let never_zero = covering.is_some_and(TransportLayer::zero_means_no_checksum);
                correct_checksum(frame, check, &old[..len], &new[..len], false, never_zero);
            }
        }
    }
}

impl VlanEdit {
    /// Returns the maximum number of bytes that the change adds to a frame.
    pub const fn max_growth_bytes(self) -> usize {
        if matches!(self, Self::Push(_)) { 4 } else { 0 }
    }

    fn edit_vlan_tags(self, frame: &mut Vec<u8>) {
        // Eighteen bytes are needed: both addresses, the tag, and the EtherType after it.
        let is_tagged =
            frame.len() >= 18 && matches!([frame[12], frame[13]], [0x81 | 0x91, 0] | [0x88, 0xa8]);
        match self {
            Self::Push(id) => {
                let [high, low] = id.to_be_bytes();
                frame.splice(12..12, [VLAN_TAG_TYPE[0], VLAN_TAG_TYPE[1], high, low]);
            }
            Self::Pop if is_tagged => drop(frame.drain(12..16)),
            // The priority and drop bits share the first byte with the number, and are kept.
            Self::Set(id) if is_tagged => {
                let [high, low] = id.to_be_bytes();
                frame[14] = frame[14] & 0xf0 | high & 0x0f;
                frame[15] = low;
            }
            Self::Pop | Self::Set(_) => {}
        }
    }
}

impl fmt::Display for VlanEdit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Push(id) => write!(f, "push:{id}"),
            Self::Pop => f.write_str("pop"),
            Self::Set(id) => write!(f, "set:{id}"),
        }
    }
}

impl FromStr for VlanEdit {
    type Err = RewriteError;

    fn from_str(text: &str) -> Result<Self, RewriteError> {
        let edit = match text.split_once(':') {
            Some(("push", digits)) => parse_vlan_number(digits).map(Self::Push),
            Some(("set", digits)) => parse_vlan_number(digits).map(Self::Set),
            _ => (text == "pop").then_some(Self::Pop),
        };
        edit.ok_or_else(|| RewriteError {
            text: text.to_owned(),
            what: "valid change of VLAN tags",
            example: "push:7, set:7 or pop, with a number below 4096",
        })
    }
}

fn parse_vlan_number(digits: &str) -> Option<u16> {
    digits.parse().ok().filter(|id| *id < 4096)
}

/// Returns the bits of an address, left-aligned in 128 bits.
fn left_aligned_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

impl AddressMap {
    /// Replaces an address (4 or 16 bytes) if it belongs to the network, and returns whether it does.
    fn map_address(&self, address: &mut [u8]) -> bool {
        // The addresses of both families are left-aligned in 128 bits, so that a prefix has the same meaning
        // in each.
        let from = left_aligned_bits(self.from);
        let to = left_aligned_bits(self.to);
        let len = if self.from.is_ipv4() { 4 } else { 16 };
        let mut whole = [0; 16];
        if address.len() != len {
            return false;
        }
        whole[..len].copy_from_slice(address);
        let old = u128::from_be_bytes(whole);
        // A prefix of length 0 shifts out all bits, which `<<` does not support.
        let network = u128::MAX.checked_shl(128 - u32::from(self.prefix)).unwrap_or(0);
        if (old ^ from) & network != 0 {
            return false;
        }
        // The host bits are kept, so different hosts have different addresses afterwards.
        let new = to & network | old & !network;
        address.copy_from_slice(&new.to_be_bytes()[..len]);
        true
    }
}

impl fmt::Display for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{prefix}={}/{prefix}", self.from, self.to, prefix = self.prefix)
    }
}

impl FromStr for AddressMap {
    type Err = RewriteError;

    fn from_str(text: &str) -> Result<Self, RewriteError> {
        parse_address_map(text).ok_or_else(|| RewriteError {
            text: text.to_owned(),
            what: "valid pair of networks of the same size",
            example: "10.0.0.0/8=198.18.0.0/8",
        })
    }
}

fn parse_address_map(text: &str) -> Option<AddressMap> {
    let (from, to) = text.split_once('=')?;
    let from = parse_network(from)?;
    let to = parse_network(to)?;
    let same_size = from.prefix == to.prefix && from.address.is_ipv4() == to.address.is_ipv4();
    same_size.then_some(AddressMap { from: from.address, to: to.address, prefix: from.prefix })
}

struct RewriteNetwork {
    address: IpAddr,
    prefix: u8,
}

fn parse_network(text: &str) -> Option<RewriteNetwork> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    Some(RewriteNetwork { address, prefix: prefix.parse().ok().filter(|prefix| *prefix <= longest)? })
}
