//! The counters of an agent's interfaces, as its last samples state them.
//!
//! Invariant: the number of interfaces is bounded.

use super::super::reader::{ByteReader, read_number};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of interfaces of one agent that are kept.
const MAX_INTERFACES_PER_AGENT: usize = 1024;
/// Format number of the part of a counter sample that holds the generic counters of an interface.
const GENERIC_COUNTERS_FORMAT: u32 = 1;

/// Counters of one interface since the agent began to count, as in the MIB of RFC 2863; each one wraps
/// at its own width.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceCounters {
    /// Number of the interface at the agent (ifIndex).
    pub index: u32,
    /// Time at which the sample arrived, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Speed in bits per second; 0 if the agent does not know it.
    pub speed: u64,
    pub in_octets: u64,
    /// Unicast, multicast and broadcast packets.
    pub in_packets: u64,
    pub in_discards: u64,
    pub in_errors: u64,
    pub out_octets: u64,
    pub out_packets: u64,
    pub out_discards: u64,
    pub out_errors: u64,
}

impl InterfaceCounters {
    /// Returns the counters with their names; the speed is not a counter.
    pub const fn named_counts(&self) -> [(&'static str, u64); 8] {
        [
            ("in_octets", self.in_octets),
            ("in_packets", self.in_packets),
            ("in_discards", self.in_discards),
            ("in_errors", self.in_errors),
            ("out_octets", self.out_octets),
            ("out_packets", self.out_packets),
            ("out_discards", self.out_discards),
            ("out_errors", self.out_errors),
        ]
    }

    /// Reads the counters of an interface; `None` if the part is cut off.
    fn read_counter_part(part: &[u8], at_ns: u64) -> Option<Self> {
        let mut reader = ByteReader::new(part);
        let index = reader.read_u32()?;
        let _kind = reader.read_u32()?;
        let speed = read_u64(&mut reader)?;
        let _direction = reader.read_u32()?;
        let _status = reader.read_u32()?;
        let in_octets = read_u64(&mut reader)?;
        let in_packets = read_packets(&mut reader)?;
        let in_discards = reader.read_u32()?;
        let in_errors = reader.read_u32()?;
        let _unknown_protocols = reader.read_u32()?;
        let out_octets = read_u64(&mut reader)?;
        let out_packets = read_packets(&mut reader)?;
        let out_discards = reader.read_u32()?;
        let out_errors = reader.read_u32()?;
        Some(Self {
            index,
            at_ns,
            speed,
            in_octets,
            in_packets,
            in_discards: in_discards.into(),
            in_errors: in_errors.into(),
            out_octets,
            out_packets,
            out_discards: out_discards.into(),
            out_errors: out_errors.into(),
        })
    }
}

fn read_u64(reader: &mut ByteReader<'_>) -> Option<u64> {
    read_number(reader.read_bytes(8)?)
}

/// Reads three counters (unicast, multicast, broadcast) and returns their sum. A counter that the agent does not have
/// is all ones and adds nothing.
fn read_packets(reader: &mut ByteReader<'_>) -> Option<u64> {
    let mut sum = 0;
    for _ in 0..3 {
        let packets = reader.read_u32()?;
        sum += if packets == u32::MAX { 0 } else { u64::from(packets) };
    }
    Some(sum)
}

/// Outcome of a counter sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CounterSampleOutcome {
    /// True if the sample had counters of an interface.
    pub(super) is_known: bool,
    pub(super) has_no_room: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct InterfaceTable(BTreeMap<u32, InterfaceCounters>);

impl InterfaceTable {
    pub(super) fn interface_count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn all_interfaces(&self) -> Vec<InterfaceCounters> {
        self.0.values().copied().collect()
    }

    pub(super) fn evict_highest_interface(&mut self) -> bool {
        self.0.pop_last().is_some()
    }

    /// Reads the parts of a counter sample; `None` if one is cut off.
    pub(super) fn read_sample(
        &mut self,
        reader: &mut ByteReader<'_>,
        at_ns: u64,
    ) -> Option<CounterSampleOutcome> {
        let mut noted = CounterSampleOutcome::default();
        for _ in 0..reader.read_u32()? {
            let kind = reader.read_u32()?;
            let length = usize::try_from(reader.read_u32()?).ok()?;
            let part = reader.read_bytes(length)?;
            if kind == GENERIC_COUNTERS_FORMAT {
                let counters = InterfaceCounters::read_counter_part(part, at_ns)?;
                noted.is_known = true;
                noted.has_no_room |= !self.store_counters(counters);
            }
        }
        Some(noted)
    }

    /// Stores the counters. Returns false if there is no room for another interface.
    fn store_counters(&mut self, counters: InterfaceCounters) -> bool {
        let has_room = self.0.len() < MAX_INTERFACES_PER_AGENT || self.0.contains_key(&counters.index);
        if has_room {
            self.0.insert(counters.index, counters);
        }
        has_room
    }
}
