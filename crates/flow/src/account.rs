//! The meter's ledger as a list of numbered, named counts, which are called accounts. Options records of IPFIX and SIM
//! carry the ledger in this form.
//!
//! The numbers are element numbers of the enterprise [`ENTERPRISE_NUMBER`]. A number is never reused for another
//! account; new accounts are added at the end.

use crate::ledger::MeterLedger;

/// Enterprise number of the elements that IANA does not define. IANA reserves it for examples (RFC 5612); packetrig
/// uses it until it has its own number. IPFIX exports describe these elements (RFC 5610).
pub const ENTERPRISE_NUMBER: u32 = 32473;

/// Sent in place of a count that the meter does not know.
pub const UNKNOWN_VALUE: u64 = u64::MAX;

/// An account, that is, one count of the ledger: its element, and how its value is read and written.
#[derive(Clone, Copy, Debug)]
pub struct LedgerValue {
    /// Element number within the enterprise [`ENTERPRISE_NUMBER`].
    pub id: u16,
    /// Name of the element, in IANA's style.
    pub name: &'static str,
    /// Reads the value from a ledger; `None` if the meter does not know it.
    pub get: fn(&MeterLedger) -> Option<u64>,
    pub set: fn(&mut MeterLedger, Option<u64>),
}

/// Type of an account: a count, or a count that may be unknown.
trait AccountValue {
    fn known_value(self) -> Option<u64>;
    fn from_known_value(value: Option<u64>) -> Self;
}

impl AccountValue for u64 {
    fn known_value(self) -> Option<u64> {
        Some(self)
    }
    fn from_known_value(value: Option<u64>) -> Self {
        value.unwrap_or(0)
    }
}

impl AccountValue for Option<u64> {
    fn known_value(self) -> Self {
        self
    }
    fn from_known_value(value: Self) -> Self {
        value
    }
}

macro_rules! accounts {
    ($($id:literal $name:literal $($place:ident).+ $([$index:literal])?;)*) => {
        &[$(LedgerValue {
            id: $id,
            name: $name,
            get: |ledger| AccountValue::known_value(ledger.$($place).+$([$index])?),
            set: |ledger, value| ledger.$($place).+$([$index])? = AccountValue::from_known_value(value),
        }),*]
    };
}

/// Every account of the ledger, in ascending order of element numbers, which have no gap.
pub const LEDGER_ACCOUNTS: &[LedgerValue] = accounts! {
    100 "captureArrivedPacketTotalCount" capture.arrived;
    101 "captureDriverDroppedPacketTotalCount" capture.driver_dropped;
    102 "captureRingDroppedPacketTotalCount" capture.ring_dropped;
    103 "captureDeliveredPacketTotalCount" capture.delivered;
    104 "parserSeenPacketTotalCount" packets.seen;
    105 "parserSeenLayer2OctetTotalCount" packets.seen_bytes;
    106 "parserIgnoredArpTotalCount" packets.ignored[0];
    107 "parserIgnoredNotIpTotalCount" packets.ignored[1];
    108 "parserIgnoredShortLinkTotalCount" packets.ignored[2];
    109 "parserIgnoredShortIpTotalCount" packets.ignored[3];
    110 "parserIgnoredBadIpTotalCount" packets.ignored[4];
    111 "parserIgnoredTooDeepTotalCount" packets.ignored[5];
    112 "parserIgnoredSampledTotalCount" packets.ignored[6];
    113 "tableMeteredPacketTotalCount" packets.metered;
    114 "tableUntrackedPacketTotalCount" packets.untracked;
    115 "tableLivePacketTotalCount" packets.live;
    116 "tableRecordedPacketTotalCount" packets.recorded;
    117 "tableRecordTotalCount" packets.records;
    118 "tableFlowTotalCount" packets.flows;
    119 "tableEvictedFlowTotalCount" packets.evicted;
    120 "tableBackwardsPacketTotalCount" packets.backwards;
    121 "exportOfferedRecordTotalCount" export.offered.records;
    122 "exportOfferedPacketTotalCount" export.offered.packets;
    123 "exportOfferedOctetTotalCount" export.offered.bytes;
    124 "exportQueueDroppedRecordTotalCount" export.queue_dropped.records;
    125 "exportQueueDroppedPacketTotalCount" export.queue_dropped.packets;
    126 "exportQueueDroppedOctetTotalCount" export.queue_dropped.bytes;
    127 "exportSentRecordTotalCount" export.sent.records;
    128 "exportSentPacketTotalCount" export.sent.packets;
    129 "exportSentOctetTotalCount" export.sent.bytes;
    130 "exportRefusedRecordTotalCount" export.refused.records;
    131 "exportRefusedPacketTotalCount" export.refused.packets;
    132 "exportRefusedOctetTotalCount" export.refused.bytes;
    133 "exportWaitingRecordTotalCount" export.waiting.records;
    134 "exportWaitingPacketTotalCount" export.waiting.packets;
    135 "exportWaitingOctetTotalCount" export.waiting.bytes;
    136 "exportMessageTotalCount" export.messages;
    137 "exportMessageOctetTotalCount" export.message_bytes;
    138 "exportOwnRecordTotalCount" export.own_records;
    139 "parserIgnoredElsewhereTotalCount" packets.ignored[7];
    140 "exportLeftToOthersRecordTotalCount" export.left_to_others.records;
    141 "exportLeftToOthersPacketTotalCount" export.left_to_others.packets;
    142 "exportLeftToOthersOctetTotalCount" export.left_to_others.bytes;
    143 "captureSentPacketTotalCount" capture.sent;
    144 "parserMergedPacketTotalCount" packets.merged;
    145 "parserMergedOnWirePacketTotalCount" packets.merged_packets;
    146 "parserUnsplitPacketTotalCount" packets.unsplit;
};

/// Returns the account with this element number.
pub(crate) fn ledger_value_by_id(id: u16) -> Option<&'static LedgerValue> {
    // Numbers have no gap, so the position follows from the number.
    LEDGER_ACCOUNTS.get(usize::from(id.checked_sub(LEDGER_ACCOUNTS[0].id)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn account_ids_are_consecutive_and_names_unique() {
        for (at, account) in LEDGER_ACCOUNTS.iter().enumerate() {
            assert_eq!(usize::from(account.id), 100 + at);
            assert_eq!(ledger_value_by_id(account.id).unwrap().name, account.name);
        }
        assert!(ledger_value_by_id(99).is_none() && ledger_value_by_id(u16::MAX).is_none());
        let names: BTreeSet<_> = LEDGER_ACCOUNTS.iter().map(|account| account.name).collect();
        assert_eq!(names.len(), LEDGER_ACCOUNTS.len());
    }

    #[test]
    fn the_whole_ledger_is_in_accounts() {
        let mut ledger = MeterLedger::default();
        for (account, value) in LEDGER_ACCOUNTS.iter().zip(1000..) {
            (account.set)(&mut ledger, Some(value));
        }
        for (account, value) in LEDGER_ACCOUNTS.iter().zip(1000..) {
            assert_eq!((account.get)(&ledger), Some(value), "{}", account.name);
        }
        // Whatever is a number in the ledger was set through an account, so none of them is still zero.
        let text = format!("{ledger:?}");
        assert!(!text.contains(": 0,") && !text.contains(": 0 ") && !text.contains("[0"), "{text}");
        assert!(!text.contains("None"), "{text}");
    }
}
