//! Decodes datagrams into events. Any bytes are accepted: bytes that are not SIM give an error with the
//! reason, never a panic.
//!
//! Sequence numbers are returned, not judged: the receiver of many datagrams finds out which one is missing.

use super::{HEADER, SIM_DATAGRAM_MAGIC, SimEvent, VERSION, item};
use crate::account::{LEDGER_ACCOUNTS, UNKNOWN_VALUE};
use crate::key::FlowKey;
use crate::ledger::MeterLedger;
use crate::packet::{TunnelKind, ipv4_mapped};

/// Why bytes are not a datagram of SIM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    #[error("the message does not begin with `SIM`")]
    Magic,
    /// A version that packetrig cannot read.
    #[error("SIM version {0} is not supported: packetrig reads version {VERSION}")]
    Version(u8),
    /// The datagram is shorter than its header, than the length in its header, or than its items.
    #[error("the SIM datagram is truncated: bytes needed: {want}, bytes left: {have}")]
    Cut {
        have: usize,
        /// Number of bytes that are needed.
        want: usize,
    },
    /// Bytes follow the last item of the datagram.
    #[error("the SIM datagram is longer than its items; surplus bytes: {left}")]
    Left { left: usize },
    /// An item of unknown kind.
    #[error("item {index} of the SIM datagram has the unknown kind {kind}")]
    Kind {
        /// Index of the item, from 0.
        index: u16,
        kind: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimDatagram {
    pub length: u16,
    pub items: u16,
    pub exporter: u32,
    /// Datagrams before this one, modulo 2^32.
    pub datagram_sequence: u32,
    /// Packets and new flows before this datagram.
    pub event_sequence: u64,
    /// Base of the times, nanoseconds since 1970.
    pub base_ns: u64,
}

/// One item of a datagram.
#[expect(clippy::large_enum_variant, reason = "passed on from the stack at once, and a ledger is rare")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimItem {
    /// A packet or a new flow.
    Event(SimEvent),
    /// The meter's own counts of its losses.
    Ledger {
        /// Time of the counts, nanoseconds since 1970.
        at_ns: u64,
        ledger: MeterLedger,
    },
}

/// Reads datagrams. It remembers nothing between them.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimDecoder;

impl SimDecoder {
    /// Reads the header of a datagram, or of the first one of a stream; it states the length of the datagram.
    pub fn read_header(bytes: &[u8]) -> Result<SimDatagram, SimError> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            // On a stream, a part of the header may be missing. Bytes that can still become SIM are reported
            // as truncated, all other bytes as wrong.
            if !bytes.starts_with(&SIM_DATAGRAM_MAGIC[..bytes.len().min(3)]) {
                return Err(SimError::Magic);
            }
            return Err(SimError::Cut { have: bytes.len(), want: HEADER });
        };
        if header[..3] != SIM_DATAGRAM_MAGIC {
            return Err(SimError::Magic);
        }
        if header[3] != VERSION {
            return Err(SimError::Version(header[3]));
        }
        let mut rest = &header[4..];
        Ok(SimDatagram {
            length: u16::from_be_bytes(read_array(&mut rest)),
            items: u16::from_be_bytes(read_array(&mut rest)),
            exporter: u32::from_be_bytes(read_array(&mut rest)),
            datagram_sequence: u32::from_be_bytes(read_array(&mut rest)),
            event_sequence: u64::from_be_bytes(read_array(&mut rest)),
            base_ns: u64::from_be_bytes(read_array(&mut rest)),
        })
    }

    /// Decodes one whole datagram and passes its items to `take_item`, also the items before an error.
    pub fn decode_datagram(
        bytes: &[u8],
        take_item: &mut impl FnMut(SimItem),
    ) -> Result<SimDatagram, SimError> {
        let header = Self::read_header(bytes)?;
        // A stated length below the header would let the first item begin inside it.
        let length = usize::from(header.length).max(HEADER);
        if bytes.len() < length {
            return Err(SimError::Cut { have: bytes.len(), want: length });
        }
        let mut rest = &bytes[HEADER..];
        for index in 0..header.items {
            take_item(read_sim_item(&mut rest, index, header.base_ns)?);
        }
        if rest.is_empty() { Ok(header) } else { Err(SimError::Left { left: rest.len() }) }
    }
}

/// Reads the item at the beginning of `rest`, and removes it from there.
fn read_sim_item(rest: &mut &[u8], index: u16, base_ns: u64) -> Result<SimItem, SimError> {
    let bytes = *rest;
    let kind = bytes.first().copied().ok_or(SimError::Cut { have: 0, want: 1 })?;
    let length = match kind {
        kind if kind == item::PACKET_ITEM_LAYOUT.kind => item::PACKET_ITEM_LAYOUT.length,
        kind if kind == item::LONG_PACKET_ITEM_LAYOUT.kind => item::LONG_PACKET_ITEM_LAYOUT.length,
        kind if kind == item::FLOW_V4_ITEM_LAYOUT.kind => item::FLOW_V4_ITEM_LAYOUT.length,
        kind if kind == item::FLOW_V6_ITEM_LAYOUT.kind => item::FLOW_V6_ITEM_LAYOUT.length,
        kind if kind == item::LEDGER_ITEM_LAYOUT.kind => {
            item::LEDGER_ITEM_LAYOUT.length + 8 * ledger_value_count(bytes)
        }
        kind => return Err(SimError::Kind { index, kind }),
    };
    // The whole item is available before any of it is read, so `read_array` below never finds too few bytes.
    let whole = rest.split_off(..length).ok_or(SimError::Cut { have: bytes.len(), want: length })?;
    Ok(match kind {
        kind if kind == item::PACKET_ITEM_LAYOUT.kind => SimItem::Event(decode_packet(whole, base_ns)),
        kind if kind == item::LONG_PACKET_ITEM_LAYOUT.kind => SimItem::Event(decode_long_packet(whole)),
        kind if kind == item::LEDGER_ITEM_LAYOUT.kind => decode_ledger(whole),
        _ => SimItem::Event(decode_flow(whole)),
    })
}

fn ledger_value_count(bytes: &[u8]) -> usize {
    bytes.get(2..4).map_or(0, |count| usize::from(u16::from_be_bytes([count[0], count[1]])))
}

/// Reads the next bytes. Returns zeros if there are too few, which callers have excluded by checking the
/// length of the whole item.
fn read_array<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let Some((head, behind)) = rest.split_first_chunk::<N>() else { return [0; N] };
    *rest = behind;
    *head
}

fn decode_packet(mut rest: &[u8], base_ns: u64) -> SimEvent {
    // The first byte is the kind of the item.
    let bytes = u32::from_be_bytes(read_array(&mut rest)) & 0x00ff_ffff;
    let delta = i32::from_be_bytes(read_array(&mut rest));
    SimEvent::Packet {
        bytes,
        at_ns: base_ns.wrapping_add_signed(i64::from(delta)),
        flow_id: u64::from_be_bytes(read_array(&mut rest)),
    }
}

fn decode_long_packet(whole: &[u8]) -> SimEvent {
    let mut rest = &whole[4..];
    SimEvent::Packet {
        bytes: u32::from_be_bytes(read_array(&mut rest)),
        at_ns: u64::from_be_bytes(read_array(&mut rest)),
        flow_id: u64::from_be_bytes(read_array(&mut rest)),
    }
}

fn decode_flow(whole: &[u8]) -> SimEvent {
    let mut rest = whole;
    let [kind, protocol, tunnel, _] = read_array(&mut rest);
    let vlan = u16::from_be_bytes(read_array(&mut rest));
    let inner_vlan = u16::from_be_bytes(read_array(&mut rest));
    let tunnel_id = u32::from_be_bytes(read_array(&mut rest));
    let source_port = u16::from_be_bytes(read_array(&mut rest));
    let destination_port = u16::from_be_bytes(read_array(&mut rest));
    let flow_id = u64::from_be_bytes(read_array(&mut rest));
    let at_ns = u64::from_be_bytes(read_array(&mut rest));
    let is_ipv4 = kind == item::FLOW_V4_ITEM_LAYOUT.kind;
    let source = read_address(&mut rest, is_ipv4);
    let destination = read_address(&mut rest, is_ipv4);
    let tunnel = TunnelKind::from_number(tunnel).unwrap_or_default();
    let key = FlowKey {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
        tunnel,
        vlan,
        inner_vlan,
        tunnel_id,
    };
    SimEvent::Flow { flow_id, key, at_ns }
}

fn read_address(rest: &mut &[u8], is_ipv4: bool) -> [u8; 16] {
    if is_ipv4 { ipv4_mapped(read_array(rest)) } else { read_array(rest) }
}

fn decode_ledger(whole: &[u8]) -> SimItem {
    // New accounts are only added at the end, so `zip` reads as many as both ends know, whichever end is newer.
    let mut rest = &whole[8..];
    let at_ns = u64::from_be_bytes(read_array(&mut rest));
    let mut ledger = MeterLedger::default();
    for (account, value) in LEDGER_ACCOUNTS.iter().zip(rest.chunks_exact(8)) {
        let value = value.try_into().map_or(UNKNOWN_VALUE, u64::from_be_bytes);
        (account.set)(&mut ledger, (value != UNKNOWN_VALUE).then_some(value));
    }
    SimItem::Ledger { at_ns, ledger }
}
