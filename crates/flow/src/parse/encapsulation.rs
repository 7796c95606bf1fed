//! Frames of captures that are not Ethernet: serial lines, 802.11, and headers that capture programs
//! add before the frame.
//!
//! Of 802.11, only data frames that are neither encrypted nor aggregated are read. PPI and
//! radiotap headers are skipped.

use super::capture::LinkKind;
use super::link::ppp_type;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Maximum number of encapsulating headers that are followed. Real files have at most two.
const MAX_ENCAPSULATIONS: u32 = 4;

/// Type of a frame's payload, and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPayload {
    pub kind: u16,
    /// Offset of the payload in the frame.
    pub at: usize,
    /// Source and destination MAC address, if the frame has them.
    pub addresses: Option<([u8; 6], [u8; 6])>,
}

impl LinkPayload {
    const fn new(kind: u16, at: usize) -> Self {
        Self { kind, at, addresses: None }
    }
}

/// Layer that follows a layer of headers.
enum NextLayer {
    /// Another link layer, this many bytes further on.
    Link(LinkKind, usize),
    Payload(LinkPayload),
}

/// Finds the payload of a frame that begins with `link`; `None` if its headers cannot be read.
pub(super) fn find_payload(link: LinkKind, frame: &[u8]) -> Option<LinkPayload> {
    let mut link = link;
    let mut start = 0;
    for _ in 0..MAX_ENCAPSULATIONS {
        match next_layer(link, frame.get(start..)?)? {
            NextLayer::Link(next, bytes) => {
                link = next;
                start += bytes;
            }
            NextLayer::Payload(payload) => return Some(LinkPayload { at: start + payload.at, ..payload }),
        }
    }
    None
}

fn next_layer(link: LinkKind, bytes: &[u8]) -> Option<NextLayer> {
    Some(NextLayer::Payload(match link {
        LinkKind::Ppi => return read_ppi(bytes),
        // A radiotap header states its length, and only 802.11 follows it.
        LinkKind::Radiotap => return Some(NextLayer::Link(LinkKind::Wireless, le_u16(bytes, 2)?.into())),
        LinkKind::Wireless => read_wireless_header(bytes)?,
        LinkKind::Ppp => read_ppp(bytes)?,
        LinkKind::Hdlc => LinkPayload::new(be_u16(bytes, 2)?, 4),
        LinkKind::Nflog => read_nflog(bytes)?,
        LinkKind::Ethernet => {
            let addresses = Some((*bytes.get(6..)?.first_chunk()?, *bytes.first_chunk()?));
            LinkPayload { addresses, ..LinkPayload::new(be_u16(bytes, 12)?, 14) }
        }
        LinkKind::Ip => LinkPayload::new(ip_ethertype(bytes)?, 0),
        LinkKind::Cooked | LinkKind::Cooked2 | LinkKind::Loopback => return None,
    }))
}

fn be_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|pair| u16::from_be_bytes(*pair))
}

fn le_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|pair| u16::from_le_bytes(*pair))
}

fn mac_at(bytes: &[u8], at: usize) -> Option<[u8; 6]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn ip_ethertype(bytes: &[u8]) -> Option<u16> {
    match bytes.first()? >> 4 {
        4 => Some(IPV4),
        6 => Some(IPV6),
        _ => None,
    }
}

/// Reads Per-Packet Information: version, flags, length, and the link type of the following bytes, all little-endian.
fn read_ppi(bytes: &[u8]) -> Option<NextLayer> {
    let link = LinkKind::from_number(le_u16(bytes, 4)?)?;
    let is_known_version = bytes.first() == Some(&0);
    is_known_version.then_some(NextLayer::Link(link, le_u16(bytes, 2)?.into()))
}

/// Reads PPP (RFC 1661), in frames like those of HDLC (RFC 1662) or without; on a serial line, also Cisco's HDLC.
fn read_ppp(bytes: &[u8]) -> Option<LinkPayload> {
    let at = match bytes.first_chunk()? {
        // HDLC: address "all stations", control "unnumbered information".
        // RFC 1661 section 6.6 lets both ends agree to leave these two out.
        [0xff, 3] => 2,
        // Cisco's HDLC: unicast or broadcast, then a type as in Ethernet.
        [0x0f | 0x8f, 0] => return Some(LinkPayload::new(be_u16(bytes, 2)?, 4)),
        _ => 0,
    };
    // RFC 1661 section 2: a protocol number may have one byte; such a number is odd.
    let first = *bytes.get(at)?;
    let is_short = first & 1 == 1;
    let protocol = if is_short { first.into() } else { be_u16(bytes, at)? };
    Some(LinkPayload::new(ppp_type(protocol)?, at + if is_short { 1 } else { 2 }))
}

/// Reads the header of a data frame (IEEE 802.11, section 9.2).
fn read_wireless_header(bytes: &[u8]) -> Option<LinkPayload> {
    let [control, flags] = *bytes.first_chunk()?;
    let is_data = control & 0b1111 == 0b1000;
    let has_qos = control & 0x80 != 0;
    let is_null = control & 0x40 != 0;
    let is_encrypted = flags & 0x40 != 0;
    // Only the first fragment has the headers of the packet.
    // The sequence control field is little-endian: the fragment number is in the low bits of its first byte.
    let is_later_fragment = bytes.get(22)? & 15 != 0;
    if !is_data || is_null || is_encrypted || is_later_fragment {
        return None;
    }
    // Bit 0: to the access point; bit 1: from it. Receiver and transmitter come first, so where they are access points,
    // the ends are the third and the fourth address.
    let is_to_access_point = flags & 1 != 0;
    let is_from_access_point = flags & 2 != 0;
    let destination = mac_at(bytes, if is_to_access_point { 16 } else { 4 })?;
    let source = match (is_to_access_point, is_from_access_point) {
        (_, false) => mac_at(bytes, 10)?,
        (false, true) => mac_at(bytes, 16)?,
        (true, true) => mac_at(bytes, 24)?,
    };
    let mut at = if is_to_access_point && is_from_access_point { 30 } else { 24 };
    if has_qos {
        let is_aggregated = bytes.get(at)? & 0x80 != 0;
        if is_aggregated {
            return None;
        }
        // HT control follows the QoS field if the order bit is set.
        at += if flags & 0x80 != 0 { 6 } else { 2 };
    }
    // RFC 1042 uses the organisation code 0; bridges use 00-00-F8 for
    // protocols that they tunnel (IEEE 802.1H).
    let is_snap = matches!(bytes.get(at..at + 6)?, [0xaa, 0xaa, 3, 0, 0, 0 | 0xf8]);
    is_snap.then_some(LinkPayload {
        kind: be_u16(bytes, at + 6)?,
        at: at + 8,
        addresses: Some((source, destination)),
    })
}

/// Reads an entry of the netfilter log: values, each with a length and a type, one of which is the packet. The byte
/// order is that of the capturing machine, which is little-endian nearly everywhere.
fn read_nflog(bytes: &[u8]) -> Option<LinkPayload> {
    const PACKET: u16 = 9;
    const MAX_VALUES: u32 = 64;
    let mut at = 4;
    for _ in 0..MAX_VALUES {
        let length = le_u16(bytes, at)?;
        if le_u16(bytes, at + 2)? == PACKET {
            return Some(LinkPayload::new(ip_ethertype(bytes.get(at + 4..)?)?, at + 4));
        }
        // The length includes the four bytes of length and type. With a smaller one, the loop would not advance.
        if length < 4 {
            return None;
        }
        at += usize::from(length).next_multiple_of(4);
    }
    None
}

/// Names of link types that occur in captures but are not read.
const UNREAD_LINK_TYPES: [(u16, &str); 16] = [
    (3, "AX.25"),
    (7, "ARCNET"),
    (10, "FDDI"),
    (107, "Frame Relay"),
    (119, "Prism and 802.11"),
    (122, "IP over Fibre Channel"),
    (143, "DOCSIS"),
    (147, "private use"),
    (163, "AVS and 802.11"),
    (187, "Bluetooth HCI"),
    (189, "USB"),
    (195, "IEEE 802.15.4"),
    (201, "Bluetooth HCI"),
    (220, "USB"),
    (227, "SocketCAN"),
    (253, "netlink"),
];

/// Returns the name of a link type that is not read: its number, and its name if it is in the list.
pub fn describe_unread_link_type(number: u16) -> String {
    match UNREAD_LINK_TYPES.iter().find(|(known, _)| *known == number) {
        Some((_, name)) => format!("{number} ({name})"),
        None => number.to_string(),
    }
}
