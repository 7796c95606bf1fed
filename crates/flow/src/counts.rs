//! The meter's packet counts, from the parser to the records.

use crate::packet::IgnoredReason;
use serde::{Deserialize, Serialize};

/// Counts of packets by outcome. Values add up over workers and intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketCounts {
    /// Packets given to the parser. A merged packet counts as the packets that it was on the wire.
    pub seen: u64,
    /// Bytes of the `seen` packets on the link, without FCS.
    pub seen_bytes: u64,
    /// Ignored packets by cause, in the order of [`IgnoredReason::ALL`]; in JSON by name.
    #[serde(with = "by_cause")]
    pub ignored: [u64; IgnoredReason::ALL.len()],
    /// Packets in a flow of the table, or in a flow that was reported.
    pub metered: u64,
    /// Packets for which the table had no room: they are in no record.
    pub untracked: u64,
    /// Packets in flows that the table still holds.
    pub live: u64,
    /// Packets in records that left the table.
    pub recorded: u64,
    /// Records that left the table.
    pub records: u64,
    pub flows: u64,
    /// Flows ended early to make room.
    pub evicted: u64,
    /// Packets with a time before that of an earlier packet of their flow.
    pub backwards: u64,
    /// Merged packets that the meter split again; in `seen`, they count as `merged_packets`.
    #[serde(default)]
    pub merged: u64,
    /// Packets on the wire from which the `merged` packets had been made.
    #[serde(default)]
    pub merged_packets: u64,
    /// Packets that are too long for the wire and could not be split: each counts as one.
    #[serde(default)]
    pub unsplit: u64,
}

/// Serializes the counts by the names of their causes, so that a reader need not know their order.
mod by_cause {
    use crate::packet::IgnoredReason;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    type IgnoredCounts = [u64; IgnoredReason::ALL.len()];

    pub(super) fn serialize<S: Serializer>(
        counted: &IgnoredCounts,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(IgnoredReason::ALL.into_iter().zip(counted))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IgnoredCounts, D::Error> {
        let named = BTreeMap::<IgnoredReason, u64>::deserialize(deserializer)?;
        Ok(IgnoredReason::ALL.map(|cause| named.get(&cause).copied().unwrap_or(0)))
    }
}

/// Two sums that should be equal and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the rule `{rule}` does not hold: left side {left}, right side {right}")]
pub struct CountImbalance {
    pub rule: &'static str,
    pub left: u64,
    pub right: u64,
}

impl PacketCounts {
    /// Counts a packet that is not metered.
    pub fn count_ignored(&mut self, cause: IgnoredReason) {
        self.ignored[cause as usize] += 1;
    }

    /// Counts several packets that are not metered.
    pub fn count_ignored_packets(&mut self, cause: IgnoredReason, packets: u64) {
        self.ignored[cause as usize] += packets;
    }

    /// Returns the number of ignored packets of all causes.
    pub fn ignored_packets(&self) -> u64 {
        self.ignored.iter().sum()
    }

    /// Returns how many more packets there were on the wire than the source delivered, because the source merged some.
    pub const fn packets_gained_by_splitting(&self) -> u64 {
        self.merged_packets - self.merged
    }

    /// Adds another worker's counts.
    pub fn add_counts(&mut self, other: &Self) {
        // All fields are named, so the compiler refuses a new count that is not added here.
        let Self {
            seen,
            seen_bytes,
            ignored,
            metered,
            untracked,
            live,
            recorded,
            records,
            flows,
            evicted,
            backwards,
            merged,
            merged_packets,
            unsplit,
        } = self;
        for (mine, theirs) in ignored.iter_mut().zip(other.ignored) {
            *mine += theirs;
        }
        for (mine, theirs) in [
            (seen, other.seen),
            (seen_bytes, other.seen_bytes),
            (metered, other.metered),
            (untracked, other.untracked),
            (live, other.live),
            (recorded, other.recorded),
            (records, other.records),
            (flows, other.flows),
            (evicted, other.evicted),
            (backwards, other.backwards),
            (merged, other.merged),
            (merged_packets, other.merged_packets),
            (unsplit, other.unsplit),
        ] {
            *mine += theirs;
        }
    }

    /// Checks that the counts add up. Returns every rule that does not hold.
    pub fn find_imbalances(&self) -> Vec<CountImbalance> {
        [
            (
                "seen = metered + untracked + ignored",
                self.seen,
                self.metered + self.untracked + self.ignored_packets(),
            ),
            ("metered = live + recorded", self.metered, self.live + self.recorded),
        ]
        .into_iter()
        .filter(|(_, left, right)| left != right)
        .map(|(rule, left, right)| CountImbalance { rule, left, right })
        .collect()
    }
}
