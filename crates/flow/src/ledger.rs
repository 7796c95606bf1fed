//! The meter's ledger: what became of every packet and record, from the driver to the last byte handed to a collector.

use crate::counts::{CountImbalance, PacketCounts};
use serde::{Deserialize, Serialize};

/// Packets before the parser. Values that a source cannot know are absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureCounts {
    /// Packets that the interface received, according to its own counter, or packets of a file. If the packets on the
    /// wire are known, these are counted, not the merged ones.
    pub arrived: Option<u64>,
    /// Packets that this machine sent through the interface; they are not in `arrived`.
    #[serde(default)]
    pub sent: u64,
    /// Packets dropped by the interface or its driver.
    pub driver_dropped: Option<u64>,
    /// Packets dropped because the meter's capture ring was full.
    pub ring_dropped: u64,
    /// Packets given to the parser, counted as they were on the wire.
    pub delivered: u64,
}

/// Records that left the table, and their packets. In SIM, each item of a packet or of a new flow counts as a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportCounts {
    /// Records that were offered to the export queue.
    pub offered: CarriedRecords,
    /// Records dropped because the queue was full: a slow or dead collector.
    pub queue_dropped: CarriedRecords,
    /// Records that were encoded, and that the transport accepted.
    pub sent: CarriedRecords,
    /// Records that were encoded, and that the transport refused.
    pub refused: CarriedRecords,
    /// Records not sent, because another meter of the group exports them.
    #[serde(default)]
    pub left_to_others: CarriedRecords,
    /// Records in the queue or in a message that is not full yet.
    pub waiting: CarriedRecords,
    pub messages: u64,
    pub message_bytes: u64,
    /// Options and template records sent; they carry no packets.
    pub own_records: u64,
}

/// Number of records, and of the packets and bytes in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedRecords {
    pub records: u64,
    pub packets: u64,
    pub bytes: u64,
}

/// All counts of a meter, including all of its losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterLedger {
    pub capture: CaptureCounts,
    pub packets: PacketCounts,
    pub export: ExportCounts,
}

impl CarriedRecords {
    /// Adds other counts. Exporters choose packets and bytes of their records, so a sum may overflow: then it stays
    /// at the largest number.
    pub const fn add_records(&mut self, other: Self) {
        self.records = self.records.saturating_add(other.records);
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Returns `of` minus `part`. Both must be contained in this sum.
    #[must_use]
    pub const fn subtract_partial_counts(self, of: Self, part: Self) -> Self {
        // The difference saturates only if the sum has saturated. Otherwise `of` contains the part, and tests must show
        // an underflow as a bug.
        const fn subtract_count(sum: u64, of: u64, part: u64) -> u64 {
            if sum == u64::MAX { of.saturating_sub(part) } else { of - part }
        }
        Self {
            records: subtract_count(self.records, of.records, part.records),
            packets: subtract_count(self.packets, of.packets, part.packets),
            bytes: subtract_count(self.bytes, of.bytes, part.bytes),
        }
    }
}

impl MeterLedger {
    /// Checks that the counts add up. Returns every rule that does not hold. The rules for [`PacketCounts`] hold at any
    /// time, those for [`ExportCounts`] only between batches.
    pub fn find_imbalances(&self) -> Vec<CountImbalance> {
        let export = &self.export;
        let mut accounted = CarriedRecords::default();
        for part in [export.queue_dropped, export.sent, export.refused, export.left_to_others, export.waiting]
        {
            accounted.add_records(part);
        }
        let mut found = self.packets.find_imbalances();
        let rules = [
            ("capture delivered = parser seen", self.capture.delivered, self.packets.seen),
            (
                "records offered = queue dropped + sent + refused + left to others + waiting",
                export.offered.records,
                accounted.records,
            ),
            (
                "packets offered = queue dropped + sent + refused + left to others + waiting",
                export.offered.packets,
                accounted.packets,
            ),
        ];
        let broken = rules.into_iter().filter(|(_, left, right)| left != right);
        found.extend(broken.map(|(rule, left, right)| CountImbalance { rule, left, right }));
        found
    }
}
