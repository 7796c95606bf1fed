//! The columns of a stored ledger, and the conversion of stored values back to a ledger.

use crate::RecordExporter;
use packetrig_flow::element::{ElementKind, ElementValue};
use packetrig_flow::{CarriedRecords, IgnoredReason, MeterLedger};

/// The packet counts (ledger) of a meter at one time.
#[derive(Clone, Copy, Debug)]
pub struct LedgerRow {
    /// Time, nanoseconds since 1970.
    pub at_ns: u64,
    pub source: RecordExporter,
    pub ledger: MeterLedger,
}

/// A column of the ledger table. Numbers that some capture sources do not count are optional.
#[derive(Clone, Copy, Debug)]
pub struct LedgerColumn {
    pub name: &'static str,
    pub kind: ElementKind,
    /// True if the value may be absent (null).
    pub optional: bool,
    pub value: fn(&LedgerRow) -> Option<ElementValue<'static>>,
}

const fn number_column(
    name: &'static str,
    value: fn(&LedgerRow) -> Option<ElementValue<'static>>,
) -> LedgerColumn {
    LedgerColumn { name, kind: ElementKind::Unsigned(64), optional: false, value }
}

const fn optional_number_column(
    name: &'static str,
    value: fn(&LedgerRow) -> Option<ElementValue<'static>>,
) -> LedgerColumn {
    LedgerColumn { name, kind: ElementKind::Unsigned(64), optional: true, value }
}

macro_rules! ledger {
    ($row:ident, $($name:literal => $value:expr;)*) => {
        [$(number_column($name, |$row| Some(ElementValue::Number($value)))),*]
    };
}

macro_rules! carried {
    ($($name:literal $field:ident;)*) => {
        [$(
            number_column(concat!($name, "Records"), |row| Some(ElementValue::Number(row.ledger.export.$field.records))),
            number_column(concat!($name, "Packets"), |row| Some(ElementValue::Number(row.ledger.export.$field.packets))),
            number_column(concat!($name, "Octets"), |row| Some(ElementValue::Number(row.ledger.export.$field.bytes))),
        )*]
    };
}

const OWNER_COLUMNS: [LedgerColumn; 3] = [
    LedgerColumn {
        name: "observationTimeNanoseconds",
        kind: ElementKind::Time,
        optional: false,
        value: |row| Some(ElementValue::Number(row.at_ns)),
    },
    LedgerColumn {
        name: "exporterIPv6Address",
        kind: ElementKind::Address,
        optional: false,
        value: |row| Some(ElementValue::Address(row.source.exporter)),
    },
    LedgerColumn {
        name: "observationDomainId",
        kind: ElementKind::Unsigned(32),
        optional: false,
        value: |row| Some(ElementValue::Number(u64::from(row.source.domain))),
    },
];

const CAPTURE_COLUMNS: [LedgerColumn; 2] = [
    optional_number_column("captureArrived", |row| row.ledger.capture.arrived.map(ElementValue::Number)),
    optional_number_column("captureDriverDropped", |row| {
        row.ledger.capture.driver_dropped.map(ElementValue::Number)
    }),
];

const PACKET_COLUMNS: [LedgerColumn; 24] = ledger! { row,
    "captureRingDropped" => row.ledger.capture.ring_dropped;
    "captureDelivered" => row.ledger.capture.delivered;
    "seen" => row.ledger.packets.seen;
    "seenOctets" => row.ledger.packets.seen_bytes;
    "ignoredArp" => ignored_packets(row, IgnoredReason::Arp);
    "ignoredNotIp" => ignored_packets(row, IgnoredReason::NotIp);
    "ignoredShortLink" => ignored_packets(row, IgnoredReason::ShortLink);
    "ignoredShortIp" => ignored_packets(row, IgnoredReason::ShortIp);
    "ignoredBadIp" => ignored_packets(row, IgnoredReason::BadIp);
    "ignoredTooDeep" => ignored_packets(row, IgnoredReason::TooDeep);
    "ignoredSampled" => ignored_packets(row, IgnoredReason::Sampled);
    "ignoredElsewhere" => ignored_packets(row, IgnoredReason::Elsewhere);
    "metered" => row.ledger.packets.metered;
    "untracked" => row.ledger.packets.untracked;
    "live" => row.ledger.packets.live;
    "recorded" => row.ledger.packets.recorded;
    "records" => row.ledger.packets.records;
    "flows" => row.ledger.packets.flows;
    "evicted" => row.ledger.packets.evicted;
    "backwards" => row.ledger.packets.backwards;
    "captureSent" => row.ledger.capture.sent;
    "merged" => row.ledger.packets.merged;
    "mergedPackets" => row.ledger.packets.merged_packets;
    "unsplit" => row.ledger.packets.unsplit;
};

const EXPORT_COLUMNS: [LedgerColumn; 18] = carried! {
    "exportOffered" offered;
    "exportQueueDropped" queue_dropped;
    "exportSent" sent;
    "exportRefused" refused;
    "exportLeftToOthers" left_to_others;
    "exportWaiting" waiting;
};

const MESSAGE_COLUMNS: [LedgerColumn; 3] = ledger! { row,
    "exportMessages" => row.ledger.export.messages;
    "exportMessageOctets" => row.ledger.export.message_bytes;
    "exportOwnRecords" => row.ledger.export.own_records;
};

fn ignored_packets(row: &LedgerRow, cause: IgnoredReason) -> u64 {
    row.ledger.packets.ignored[cause as usize]
}

/// The columns of the ledger table, in order.
pub fn ledger_columns() -> impl Iterator<Item = LedgerColumn> {
    OWNER_COLUMNS
        .into_iter()
        .chain(CAPTURE_COLUMNS)
        .chain(PACKET_COLUMNS)
        .chain(EXPORT_COLUMNS)
        .chain(MESSAGE_COLUMNS)
}

/// Makes a ledger of the numbers that `value` returns for the names of columns. A number that is missing becomes zero,
/// or stays absent if its column is optional.
pub fn ledger_from_numbers(value: impl Fn(&str) -> Option<u64>) -> MeterLedger {
    // Numbers are found by the name of the column, because files of earlier versions lack the newer columns.
    let mut ledger = MeterLedger::default();
    let capture = &mut ledger.capture;
    capture.arrived = value("captureArrived");
    capture.driver_dropped = value("captureDriverDropped");
    capture.ring_dropped = ledger_count_or_zero("captureRingDropped", &value);
    capture.delivered = ledger_count_or_zero("captureDelivered", &value);
    capture.sent = ledger_count_or_zero("captureSent", &value);
    let packets = &mut ledger.packets;
    packets.seen = ledger_count_or_zero("seen", &value);
    packets.seen_bytes = ledger_count_or_zero("seenOctets", &value);
    // `IGNORED_PACKET_COLUMNS` has the length of `ALL`, so a reason without a name does not compile.
    for (cause, name) in IgnoredReason::ALL.into_iter().zip(IGNORED_PACKET_COLUMNS) {
        packets.ignored[cause as usize] = ledger_count_or_zero(name, &value);
    }
    packets.metered = ledger_count_or_zero("metered", &value);
    packets.untracked = ledger_count_or_zero("untracked", &value);
    packets.live = ledger_count_or_zero("live", &value);
    packets.recorded = ledger_count_or_zero("recorded", &value);
    packets.records = ledger_count_or_zero("records", &value);
    packets.flows = ledger_count_or_zero("flows", &value);
    packets.evicted = ledger_count_or_zero("evicted", &value);
    packets.backwards = ledger_count_or_zero("backwards", &value);
    packets.merged = ledger_count_or_zero("merged", &value);
    packets.merged_packets = ledger_count_or_zero("mergedPackets", &value);
    packets.unsplit = ledger_count_or_zero("unsplit", &value);
    let export = &mut ledger.export;
    export.offered = carried_records_by_name("exportOffered", &value);
    export.queue_dropped = carried_records_by_name("exportQueueDropped", &value);
    export.sent = carried_records_by_name("exportSent", &value);
    export.refused = carried_records_by_name("exportRefused", &value);
    export.left_to_others = carried_records_by_name("exportLeftToOthers", &value);
    export.waiting = carried_records_by_name("exportWaiting", &value);
    export.messages = ledger_count_or_zero("exportMessages", &value);
    export.message_bytes = ledger_count_or_zero("exportMessageOctets", &value);
    export.own_records = ledger_count_or_zero("exportOwnRecords", &value);
    ledger
}

fn ledger_count_or_zero(name: &str, value: &impl Fn(&str) -> Option<u64>) -> u64 {
    value(name).unwrap_or(0)
}

fn carried_records_by_name(name: &str, value: &impl Fn(&str) -> Option<u64>) -> CarriedRecords {
    CarriedRecords {
        records: ledger_count_or_zero(&format!("{name}Records"), value),
        packets: ledger_count_or_zero(&format!("{name}Packets"), value),
        bytes: ledger_count_or_zero(&format!("{name}Octets"), value),
    }
}

/// Column names in the order of [`IgnoredReason::ALL`].
const IGNORED_PACKET_COLUMNS: [&str; IgnoredReason::ALL.len()] = [
    "ignoredArp",
    "ignoredNotIp",
    "ignoredShortLink",
    "ignoredShortIp",
    "ignoredBadIp",
    "ignoredTooDeep",
    "ignoredSampled",
    "ignoredElsewhere",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_ledger_is_the_same_after_its_columns() {
        let mut counter = 0_u64;
        let mut next = || {
            counter += 1;
            counter
        };
        // Every number of a ledger is another, so that a swapped or missing column is seen.
        let mut json = serde_json::to_value(MeterLedger::default()).unwrap();
        json["capture"]["arrived"] = 0.into();
        json["capture"]["driver_dropped"] = 0.into();
        fn fill(value: &mut serde_json::Value, next: &mut impl FnMut() -> u64) {
            match value {
                serde_json::Value::Object(map) => map.values_mut().for_each(|value| fill(value, next)),
                serde_json::Value::Array(list) => list.iter_mut().for_each(|value| fill(value, next)),
                number => *number = next().into(),
            }
        }
        fill(&mut json, &mut next);
        let ledger: MeterLedger = serde_json::from_value(json).unwrap();
        let row = LedgerRow { at_ns: 5, source: RecordExporter::default(), ledger };
        let named: BTreeMap<_, _> = ledger_columns()
            .filter_map(|column| match (column.value)(&row) {
                Some(ElementValue::Number(number)) => Some((column.name, number)),
                _ => None,
            })
            .collect();
        assert_eq!(ledger_from_numbers(|name| named.get(name).copied()), ledger);
    }
}
