//! The memory of a flow, in three parts by how often packets touch them.
//!
//! [`HotSlot`] is one cache line, and most packets of a known flow with a short key touch nothing else. [`ColdSlot`]
//! is written when a flow or a part of it begins, and read when it is reported, or to compare a long key.
//! [`RarelyUsedCounts`] holds values that most flows lack: addresses around a tunnel, and counts too large for the
//! narrow counters of [`HotSlot`], which are moved there before they overflow.
//!
//! Invariant: a count is the narrow counter and, if [`HAS_RARE_STATE`] is set, the wide one, added.

use super::look::{KEY_KIND_BITS, KeyLookup, STATE_BITS};
use crate::canonical::CanonicalKey;
use crate::history::CountTotals;
use crate::key::FlowKey;
use crate::packet::protocol::TCP;
use crate::packet::{PacketInfo, flags};
use crate::record::{EndReason, FlowHalf, FlowRecord};

/// The source is the upper endpoint. This and the following bits are the state, in the lowest byte of
/// the second of [`HotSlot::words`].
pub(super) const FLIPPED_STATE: u64 = 1;
/// TCP ended the flow.
pub(super) const ENDED_STATE: u64 = 2;
/// [`RarelyUsedCounts`] holds something of this flow.
pub(super) const HAS_RARE_STATE: u64 = 4;
/// The source has sent FIN; the next bit: the destination has.
const FIN: u64 = 8;
const BOTH_FIN_BITS: u64 = FIN | FIN << 1;
/// A packet of this part may have been several on the wire.
const UNSPLIT_STATE: u64 = 32;

const TCP_FIN: u8 = 1;
const TCP_SYN: u8 = 2;
const TCP_RST: u8 = 4;
/// TCP flags that may change a flow's state.
pub(super) const TCP_CLOSING_FLAGS: u8 = TCP_FIN | TCP_RST;

/// The frequently used part of a flow; see the module documentation. Arrays are by direction: from the source of the
/// first packet, and to it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct HotSlot {
    /// The key, and the state.
    pub(super) words: [u64; 2],
    /// Time of the first packet of this part; in a group of meters, the boundary between parts before it.
    pub(super) start: u64,
    /// Time of the last packet. It is not reset when the flow is reported and a new part begins.
    pub(super) last: [u64; 2],
    bytes: [u32; 2],
    frame_bytes: [u32; 2],
    packets: [u16; 2],
    tcp_flags: [u8; 2],
    ttl_min: u8,
    ttl_max: u8,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct ColdSlot {
    pub(super) words: [u64; 6],
    /// Time of the first packet of this part, by direction.
    first: [u64; 2],
    /// Losses of the meter that were known when this part began.
    losses: u32,
    mpls: [u32; 3],
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    icmp: u16,
    input: u16,
    part: u16,
    tos: u8,
}

/// The rarely used part of a flow; see the module documentation. Packets, bytes, bytes of frames by
/// direction; then the outer addresses.
pub(super) type RarelyUsedCounts = [u64; 10];
const WIDE_COUNTS: usize = 6;

const _: () =
    assert!(size_of::<HotSlot>() == 64 && size_of::<ColdSlot>() == 128, "one line of cache, and two");

impl HotSlot {
    pub(super) const FREE_SLOT: Self = Self {
        words: [0; 2],
        start: 0,
        last: [0; 2],
        bytes: [0; 2],
        frame_bytes: [0; 2],
        packets: [0; 2],
        tcp_flags: [0; 2],
        ttl_min: u8::MAX,
        ttl_max: 0,
    };

    /// Creates the slot of a new flow, before its first packet is added.
    pub(super) fn from_first_packet(look: &KeyLookup, packet: &PacketInfo) -> Self {
        let flipped = if look.flipped { FLIPPED_STATE } else { 0 };
        let at_ns = packet.at_ns;
        Self {
            words: [look.words[0], look.words[1] | flipped],
            start: at_ns,
            // The other direction has no packet yet; `last` takes the greater of the two.
            last: [at_ns, 0],
            ..Self::FREE_SLOT
        }
    }

    pub(super) const fn is_free(&self) -> bool {
        self.words[1] & KEY_KIND_BITS == 0
    }

    /// Returns whether the slot has these two key words, whatever its state is.
    #[inline]
    pub(super) const fn matches_words(&self, words: [u64; 2]) -> bool {
        // State is the lowest byte, so words that differ there only have a difference of at most 0xff.
        self.words[0] == words[0] && self.words[1] ^ words[1] <= STATE_BITS
    }

    /// Returns the key words, with the bits of the state cleared.
    pub(super) const fn key_words(&self) -> [u64; 2] {
        [self.words[0], self.words[1] & !STATE_BITS]
    }

    #[inline]
    pub(super) const fn has_flow_state(&self, state: u64) -> bool {
        self.words[1] & state != 0
    }

    pub(super) const fn set_state(&mut self, state: u64) {
        self.words[1] |= state;
    }

    /// Returns the time of the last packet of either direction.
    #[inline]
    pub(super) const fn last_ns(&self) -> u64 {
        if self.last[0] > self.last[1] { self.last[0] } else { self.last[1] }
    }

    /// Moves the times of an empty part back to `now_ns`, to which the clock was set back.
    pub(super) fn move_times_back(&mut self, now_ns: u64) {
        self.start = self.start.min(now_ns);
        self.last = self.last.map(|last_ns| last_ns.min(now_ns));
    }

    /// Returns whether no packet came since the last report.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.packets[0] == 0 && self.packets[1] == 0
    }

    /// Returns the index of a direction: 0 for the direction of the first packet, 1 for the opposite one.
    #[inline]
    pub(super) const fn direction_index(&self, flipped: bool) -> usize {
        (self.words[1] & FLIPPED_STATE != flipped as u64) as usize
    }

    /// Returns whether the next packet of this direction is its first in this part.
    #[inline]
    pub(super) const fn is_direction_empty(&self, direction: usize) -> bool {
        self.packets[direction] == 0
    }

    /// Adds a packet. Returns false and does nothing if that would overflow a counter.
    #[inline]
    pub(super) const fn add_packet(&mut self, direction: usize, packet: &PacketInfo) -> bool {
        let packets = self.packets[direction].wrapping_add(packet.packet_count());
        let bytes = self.bytes[direction].wrapping_add(packet.bytes);
        let frame_bytes = self.frame_bytes[direction].wrapping_add(packet.frame_bytes);
        // A sum smaller than the added value has wrapped. With `|` all three checks are one branch, which
        // every packet takes.
        let packets_wrapped = packets < packet.packet_count();
        let bytes_wrapped = bytes < packet.bytes;
        let frame_bytes_wrapped = frame_bytes < packet.frame_bytes;
        if packets_wrapped | bytes_wrapped | frame_bytes_wrapped {
            return false;
        }
        self.packets[direction] = packets;
        self.bytes[direction] = bytes;
        self.frame_bytes[direction] = frame_bytes;
        self.tcp_flags[direction] |= packet.tcp_flags;
        if packet.ttl < self.ttl_min {
            self.ttl_min = packet.ttl;
        }
        if packet.ttl > self.ttl_max {
            self.ttl_max = packet.ttl;
        }
        if packet.at_ns > self.last[direction] {
            self.last[direction] = packet.at_ns;
        }
        true
    }

    /// Moves the counts to the wide counters, except one packet: a direction without packets would count as not begun.
    pub(super) fn widen_counts(&mut self, direction: usize, rare: &mut RarelyUsedCounts) {
        if !self.has_flow_state(HAS_RARE_STATE) {
            // The slot still holds values of an earlier flow.
            *rare = RarelyUsedCounts::default();
            self.set_state(HAS_RARE_STATE);
        }
        rare[direction] += u64::from(self.packets[direction]) - 1;
        rare[2 + direction] += u64::from(self.bytes[direction]);
        rare[4 + direction] += u64::from(self.frame_bytes[direction]);
        self.packets[direction] = 1;
        self.bytes[direction] = 0;
        self.frame_bytes[direction] = 0;
    }

    /// Records FIN and RST. A one-way flow ends with its own FIN.
    pub(super) const fn record_end_flags(&mut self, direction: usize, packet: &PacketInfo, biflow: bool) {
        // The end is noted once: packets in the grace time must not change how the flow ended.
        if packet.protocol != TCP
            || packet.tcp_flags & TCP_CLOSING_FLAGS == 0
            || self.has_flow_state(ENDED_STATE)
        {
            return;
        }
        // A FIN closes its own direction only (RFC 9293 section 3.6): a connection ends with both, or with a reset.
        if packet.tcp_flags & TCP_FIN != 0 {
            self.set_state(FIN << direction);
        }
        let fins = self.words[1] & BOTH_FIN_BITS;
        if packet.tcp_flags & TCP_RST != 0 || fins == BOTH_FIN_BITS || (fins != 0 && !biflow) {
            self.set_state(ENDED_STATE);
        }
    }

    /// Records that a packet may have been several on the wire.
    #[inline]
    pub(super) const fn record_possible_merge(&mut self, packet: &PacketInfo) {
        if packet.flags & flags::UNSPLIT_FLAG != 0 {
            self.set_state(UNSPLIT_STATE);
        }
    }

    /// Clears the counts that were reported.
    pub(super) fn begin_record_part(&mut self, rare: Option<&mut RarelyUsedCounts>) {
        // The unsplit mark belongs to one part; direction, FIN and end belong to the whole flow.
        let words = [self.words[0], self.words[1] & !UNSPLIT_STATE];
        *self = Self { words, start: self.start, last: self.last, ..Self::FREE_SLOT };
        if let Some(rare) = rare {
            rare[..WIDE_COUNTS].fill(0);
        }
    }

    /// Returns the totals of a direction that are not reported yet.
    pub(super) fn unreported_totals(&self, direction: usize, rare: &RarelyUsedCounts) -> CountTotals {
        if self.is_direction_empty(direction) {
            return CountTotals::default();
        }
        let rare = self.has_flow_state(HAS_RARE_STATE).then_some(rare);
        CountTotals {
            packets: u64::from(self.packets[direction]) + rare_count_at(rare, direction),
            bytes: u64::from(self.bytes[direction]) + rare_count_at(rare, 2 + direction),
            frame_bytes: u64::from(self.frame_bytes[direction]) + rare_count_at(rare, 4 + direction),
        }
    }

    fn to_half(self, direction: usize, cold: &ColdSlot, rare: Option<&RarelyUsedCounts>) -> FlowHalf {
        if self.is_direction_empty(direction) {
            return FlowHalf::default();
        }
        FlowHalf {
            packets: u64::from(self.packets[direction]) + rare_count_at(rare, direction),
            bytes: u64::from(self.bytes[direction]) + rare_count_at(rare, 2 + direction),
            frame_bytes: u64::from(self.frame_bytes[direction]) + rare_count_at(rare, 4 + direction),
            first_ns: cold.first[direction],
            last_ns: self.last[direction],
            tcp_flags: self.tcp_flags[direction].into(),
        }
    }
}

/// Returns whether a TCP packet opens a connection.
pub(super) const fn opens_connection(packet: &PacketInfo) -> bool {
    packet.protocol == TCP && packet.tcp_flags & TCP_SYN != 0
}

impl ColdSlot {
    /// Creates the slot of a new flow.
    pub(super) fn from_first_packet(words: [u64; 6], packet: &PacketInfo, losses: u32) -> Self {
        Self {
            words,
            first: [packet.at_ns, 0],
            losses,
            mpls: packet.mpls,
            source_mac: packet.source_mac,
            destination_mac: packet.destination_mac,
            icmp: if crate::canonical::is_icmp(packet.protocol) { packet.destination_port } else { 0 },
            input: packet.input,
            part: 0,
            tos: packet.tos,
        }
    }

    /// Sets the time of a direction's first packet of this part.
    pub(super) const fn set_first_packet_time(&mut self, direction: usize, at_ns: u64) {
        self.first[direction] = at_ns;
    }

    /// Records a late packet of a direction, which may be its first packet.
    pub(super) fn record_late_packet(&mut self, direction: usize, at_ns: u64) {
        self.first[direction] = self.first[direction].min(at_ns);
    }

    pub(super) const fn begin_record_part(&mut self, losses: u32) {
        self.part = self.part.saturating_add(1);
        self.losses = losses;
    }
}

/// Returns the outer addresses of a new flow; `None` if it is not in a tunnel.
pub(super) fn outer_addresses(packet: &PacketInfo) -> Option<RarelyUsedCounts> {
    let carried = packet.outer_source != [0; 16] || packet.outer_destination != [0; 16];
    carried.then(|| {
        let mut rare = RarelyUsedCounts::default();
        let words =
            packet.outer_source.as_chunks::<8>().0.iter().chain(packet.outer_destination.as_chunks::<8>().0);
        for (to, word) in rare[WIDE_COUNTS..].iter_mut().zip(words) {
            *to = u64::from_be_bytes(*word);
        }
        rare
    })
}

fn rare_count_at(rare: Option<&RarelyUsedCounts>, at: usize) -> u64 {
    rare.map_or(0, |rare| rare[at])
}

fn rare_address(rare: Option<&RarelyUsedCounts>, at: usize) -> [u8; 16] {
    (u128::from(rare_count_at(rare, at)) << 64 | u128::from(rare_count_at(rare, at + 1))).to_be_bytes()
}

/// Returns the key of a flow, in the direction of its first packet.
pub(super) fn flow_key(hot: &HotSlot, cold: &ColdSlot, icmp: bool) -> FlowKey {
    let canonical = CanonicalKey { words: cold.words, flipped: hot.has_flow_state(FLIPPED_STATE) };
    canonical.to_flow_key(if icmp { cold.icmp } else { 0 })
}

/// Builds the record of a flow without the values that all records of the table have in common.
pub(super) fn build_record(
    hot: &HotSlot,
    cold: &ColdSlot,
    rare: Option<&RarelyUsedCounts>,
    icmp: bool,
    end: EndReason,
    losses: u32,
) -> FlowRecord {
    FlowRecord {
        key: flow_key(hot, cold, icmp),
        forward: hot.to_half(0, cold, rare),
        reverse: hot.to_half(1, cold, rare),
        part: cold.part,
        end,
        ttl_min: hot.ttl_min,
        ttl_max: hot.ttl_max,
        tos: cold.tos,
        icmp: cold.icmp,
        mpls: cold.mpls,
        source_mac: cold.source_mac,
        destination_mac: cold.destination_mac,
        outer_source: rare_address(rare, WIDE_COUNTS),
        outer_destination: rare_address(rare, WIDE_COUNTS + 2),
        input: u32::from(cold.input),
        loss: cold.losses != losses,
        merged: hot.has_flow_state(UNSPLIT_STATE),
        ..FlowRecord::default()
    }
}
