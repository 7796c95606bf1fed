//! Summary of a packet for the meter: the *unified header*, of fixed size. The parser of this crate makes it, or a BPF
//! program in the driver does.
//!
//! The header holds values only, in the machine's own byte order.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// The first twelve bytes of an IPv4 address written as an IPv6 address.
pub const IPV4_MAPPED_PREFIX: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Converts an IPv4 address to an IPv4-mapped IPv6 address.
#[inline]
pub(crate) fn ipv4_mapped(address: [u8; 4]) -> [u8; 16] {
    (0xffff_0000_0000 | u128::from(u32::from_be_bytes(address))).to_be_bytes()
}

/// Converts an address to the form of the columns: IPv4 is mapped.
pub(crate) fn mapped_address(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => ipv4_mapped(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Numbers of IP protocols.
pub(crate) mod protocol {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ICMPV6: u8 = 58;
}

/// Bits of [`PacketInfo::flags`].
pub mod flags {
    /// The captured frame ends before the end of its headers, or before the length that they state.
    pub const CUT_FLAG: u8 = 1;
    pub const FRAGMENT_FLAG: u8 = 2;
    /// A fragment that is not the first: it carries no ports.
    pub const LATER_FRAGMENT_FLAG: u8 = 4;
    /// The version of IP is 6.
    pub const IPV6_FLAG: u8 = 8;
    /// The packet represents several packets, see [`PacketInfo::segments`](super::PacketInfo::segments).
    pub const MERGED_FLAG: u8 = 16;
    /// The packet was longer than any packet on the wire, and its segments are not known: its counts may be too small.
    pub const UNSPLIT_FLAG: u8 = 32;
}

/// A packet's unified header. Its first 64 bytes are enough to count a packet of a known flow, except for the tunnel
/// number and, in a group of meters, the content hash. The last 4 bytes are read only for merged packets.
///
/// It is not aligned to cache lines: that would make it half as large again, and packets that are held back are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PacketInfo {
    /// Source address; IPv4 is [mapped](IPV4_MAPPED_PREFIX).
    pub source: [u8; 16],
    pub destination: [u8; 16],
    /// Time of arrival, nanoseconds since 1970.
    pub at_ns: u64,
    /// Length of the metered IP packet, as its header states it; for a merged packet, the length of
    /// all of its packets.
    pub bytes: u32,
    /// Length of the whole frame, without FCS; for a merged packet, the length of all of its frames.
    pub frame_bytes: u32,
    /// Source port; 0 if the protocol has no ports.
    pub source_port: u16,
    /// Destination port; for ICMP, type and code.
    pub destination_port: u16,
    /// Outermost VLAN identifier; 0 if untagged.
    pub vlan: u16,
    /// The VLAN tag inside the outermost one.
    pub inner_vlan: u16,
    /// IP protocol; for IPv6, the one after the extension headers.
    pub protocol: u8,
    pub tcp_flags: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Kind of tunnel that carried the packet.
    pub tunnel: TunnelKind,
    /// Index of the meter's input through which the packet came.
    pub input: u16,
    /// VXLAN or Geneve VNI, GTP TEID, or GRE key; 0 where there is none.
    pub tunnel_id: u32,
    /// Labels of an MPLS stack, outermost first, each as its 32-bit entry; 0 where there is none.
    pub mpls: [u32; 3],
    pub source_mac: [u8; 6],
    pub destination_mac: [u8; 6],
    /// Source address of the outermost IP header; zero if the packet was not tunnelled.
    pub outer_source: [u8; 16],
    /// See `outer_source`.
    pub outer_destination: [u8; 16],
    /// Hash of the packet's content: the same at every meter that sees a copy of the packet. 0 outside of groups of
    /// meters.
    pub content: u32,
    /// Number of packets on the wire that the packet represents, if it is [merged](flags::MERGED_FLAG).
    pub segments: u16,
    /// Length of the metered IP packet in each of these packets; it may be shorter in the last one.
    pub segment_bytes: u16,
}

impl PacketInfo {
    /// Returns the number of packets on the wire that this packet represents.
    #[inline]
    pub const fn packet_count(&self) -> u16 {
        if self.flags & flags::MERGED_FLAG == 0 { 1 } else { self.segments }
    }

    /// Splits a merged packet into the first of the packets that it represents, and the others; `None` if it
    /// is a single packet.
    pub(crate) fn split_first(&self) -> Option<(Self, Self)> {
        let others = self.packet_count().checked_sub(1).filter(|others| *others > 0)?;
        let bytes = u32::from(self.segment_bytes);
        // Each packet has the same headers below IP, so each gets an equal part.
        let below_ip = self.frame_bytes.saturating_sub(self.bytes) / u32::from(self.packet_count());
        let frame_bytes = bytes + below_ip;
        let first = Self { bytes, frame_bytes, segments: 1, ..*self };
        let (bytes, frame_bytes) =
            (self.bytes.saturating_sub(bytes), self.frame_bytes.saturating_sub(frame_bytes));
        Some((first, Self { bytes, frame_bytes, segments: others, ..*self }))
    }

    /// Returns the length of the metered IP packet of each packet on the wire.
    pub fn packet_lengths(&self) -> impl Iterator<Item = u32> {
        let longer = u32::from(self.packet_count()).saturating_sub(1);
        let length = u32::from(self.segment_bytes);
        let last = self.bytes.saturating_sub(longer * length);
        (0..longer).map(move |_| length).chain(std::iter::once(last))
    }
}

/// Innermost tunnel that carried a metered packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum TunnelKind {
    #[default]
    None = 0,
    /// IP in IP (protocol 4 or 41).
    Ip = 1,
    Gre = 2,
    Vxlan = 3,
    Gtp = 4,
    Geneve = 5,
}

impl TunnelKind {
    pub const ALL: [Self; 6] = [Self::None, Self::Ip, Self::Gre, Self::Vxlan, Self::Gtp, Self::Geneve];

    /// Returns the kind of tunnel with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Why a frame is not metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum IgnoredReason {
    Arp = 0,
    /// Another protocol than IP.
    NotIp = 1,
    /// Too short for its own headers below IP.
    ShortLink = 2,
    /// Too short for an IP header.
    ShortIp = 3,
    /// An impossible IP header: wrong version or length.
    BadIp = 4,
    /// More nested headers than the parser follows.
    TooDeep = 5,
    /// The packet was skipped by sampling.
    Sampled = 6,
    /// The packet is in the share of another meter that sees the same traffic.
    Elsewhere = 7,
}

impl IgnoredReason {
    pub const ALL: [Self; 8] = [
        Self::Arp,
        Self::NotIp,
        Self::ShortLink,
        Self::ShortIp,
        Self::BadIp,
        Self::TooDeep,
        Self::Sampled,
        Self::Elsewhere,
    ];

    /// Returns the name of the reason in reports, metrics and ledgers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arp => "arp",
            Self::NotIp => "not_ip",
            Self::ShortLink => "short_link",
            Self::ShortIp => "short_ip",
            Self::BadIp => "bad_ip",
            Self::TooDeep => "too_deep",
            Self::Sampled => "sampled",
            Self::Elsewhere => "elsewhere",
        }
    }
}

const _: () = assert!(size_of::<PacketInfo>() == 136, "two lines of cache and 8 bytes");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_packet_splits_into_first_and_rest() {
        let (segments, segment_bytes) = (3, 100);
        let (bytes, frame_bytes, flags) = (240, 240 + 3 * 14, flags::MERGED_FLAG);
        let merged =
            PacketInfo { bytes, frame_bytes, flags, segments, segment_bytes, ..PacketInfo::default() };
        let (first, others) = merged.split_first().unwrap();
        assert_eq!((first.packet_count(), first.bytes, first.frame_bytes), (1, 100, 114));
        assert_eq!((others.packet_count(), others.bytes, others.frame_bytes), (2, 140, 140 + 28));
        assert_eq!(others.packet_lengths().collect::<Vec<_>>(), [100, 40]);
        assert!(first.split_first().is_none() && PacketInfo::default().split_first().is_none());
    }

    #[test]
    fn numbers_are_those_of_their_tunnels() {
        for tunnel in TunnelKind::ALL {
            assert_eq!(TunnelKind::from_number(tunnel as u8), Some(tunnel));
        }
        assert_eq!(TunnelKind::from_number(6), None);
    }
}
