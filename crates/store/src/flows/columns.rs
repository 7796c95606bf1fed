//! The columns of a stored record and of a stored ledger: names, kinds, values.
//!
//! Those of a record are `flow::element::ELEMENTS` in their order, then who exported it.

use super::RecordMaker;
use packetrig_flow::element::{ELEMENTS, ElementKind, ElementValue, FlowElement};
use packetrig_flow::{CarriedRecords, FlowRecord, IgnoredReason, MeterLedger};
use std::sync::LazyLock;

pub use packetrig_flow::REVERSE_ENTERPRISE;

/// A record and who made it.
#[derive(Clone, Debug)]
pub struct SourcedRow {
    pub record: FlowRecord,
    pub source: RecordMaker,
}

/// A column of the flow table.
#[derive(Clone, Copy, Debug)]
pub struct FlowColumn {
    /// IANA's name of the element, where there is one.
    pub name: &'static str,
    /// What people type for it.
    pub short: &'static str,
    /// Its number at IANA, 0 if it has none.
    pub id: u16,
    /// Whether it is the reverse of that element.
    pub reverse: bool,
    /// What its values are.
    pub kind: ElementKind,
    /// What they count, if anything.
    pub unit: &'static str,
    pub meaning: &'static str,
    accessor: ColumnAccessor,
}

#[derive(Clone, Copy, Debug)]
enum ColumnAccessor {
    Record(for<'a> fn(&'a FlowRecord) -> ElementValue<'a>),
    Source(fn(&RecordMaker) -> ElementValue<'static>),
}

impl FlowColumn {
    /// Its value in a row.
    pub fn value<'a>(&self, row: &'a SourcedRow) -> ElementValue<'a> {
        match self.accessor {
            ColumnAccessor::Record(value) => value(&row.record),
            ColumnAccessor::Source(value) => value(&row.source),
        }
    }

    /// Whether people mean it by this word: its name, or its short name with dashes or without (`srcip`).
    pub fn is_called(&self, word: &str) -> bool {
        let letters = |text: &str| text.replace('-', "").to_ascii_lowercase();
        self.name.eq_ignore_ascii_case(word) || letters(self.short) == letters(word)
    }
}

/// The column that people mean by a word.
pub fn find_column(word: &str) -> Option<&'static FlowColumn> {
    columns().iter().find(|column| column.is_called(word))
}

/// The columns of the flow table, in order.
pub fn columns() -> &'static [FlowColumn] {
    static COLUMNS: LazyLock<Vec<FlowColumn>> = LazyLock::new(|| {
        let of_record =
            ELEMENTS.iter().map(|&FlowElement { name, short, id, reverse, kind, unit, meaning, value }| {
                FlowColumn {
                    name,
                    short,
                    id,
                    reverse,
                    kind,
                    unit,
                    meaning,
                    accessor: ColumnAccessor::Record(value),
                }
            });
        of_record.chain(OF_SOURCE).collect()
    });
    &COLUMNS
}

const OF_SOURCE: [FlowColumn; 2] = [
    FlowColumn {
        name: "exporterIPv6Address",
        short: "exporter-ip",
        id: 131,
        reverse: false,
        kind: ElementKind::Address,
        unit: "",
        meaning: "who exported it; zero: the meter of this machine",
        accessor: ColumnAccessor::Source(|source| ElementValue::Address(source.exporter)),
    },
    FlowColumn {
        name: "observationDomainId",
        short: "domain",
        id: 149,
        reverse: false,
        kind: ElementKind::Unsigned(32),
        unit: "",
        meaning: "of the exporter",
        accessor: ColumnAccessor::Source(|source| ElementValue::Number(u64::from(source.domain))),
    },
];

/// Columns that change places when a record is looked at from its other end.
const COUNTERPARTS: [(&str, &str); 11] = [
    ("sourceIPv6Address", "destinationIPv6Address"),
    ("sourceTransportPort", "destinationTransportPort"),
    ("packetDeltaCount", "reversePacketDeltaCount"),
    ("octetDeltaCount", "reverseOctetDeltaCount"),
    ("layer2OctetDeltaCount", "reverseLayer2OctetDeltaCount"),
    ("tcpControlBits", "reverseTcpControlBits"),
    ("sourceMacAddress", "destinationMacAddress"),
    ("outerSourceIPv6Address", "outerDestinationIPv6Address"),
    ("bgpSourceAsNumber", "bgpDestinationAsNumber"),
    ("postNATSourceIPv6Address", "postNATDestinationIPv6Address"),
    ("postNAPTSourceTransportPort", "postNAPTDestinationTransportPort"),
];

/// The column that says of the way back what this one says of the way there; most say the same of both.
pub fn counterpart(name: &'static str) -> &'static str {
    let other = COUNTERPARTS.iter().find_map(|&(one, other)| match name {
        name if name == one => Some(other),
        name if name == other => Some(one),
        _ => None,
    });
    other.unwrap_or(name)
}

/// The state of a ledger, and whose.
#[derive(Clone, Copy, Debug)]
pub struct LedgerRow {
    /// When, nanoseconds since 1970.
    pub at_ns: u64,
    pub source: RecordMaker,
    pub ledger: MeterLedger,
}

/// A number of the ledger table. Those that a source may not know can be absent.
#[derive(Clone, Copy, Debug)]
pub struct LedgerColumn {
    pub name: &'static str,
    /// What its values are.
    pub kind: ElementKind,
    /// Whether it can be absent.
    pub optional: bool,
    pub value: fn(&LedgerRow) -> Option<ElementValue<'static>>,
}

const fn number(name: &'static str, value: fn(&LedgerRow) -> Option<ElementValue<'static>>) -> LedgerColumn {
    LedgerColumn { name, kind: ElementKind::Unsigned(64), optional: false, value }
}

const fn absent(name: &'static str, value: fn(&LedgerRow) -> Option<ElementValue<'static>>) -> LedgerColumn {
    LedgerColumn { name, kind: ElementKind::Unsigned(64), optional: true, value }
}

macro_rules! ledger {
    ($row:ident, $($name:literal => $value:expr;)*) => {
        [$(number($name, |$row| Some(ElementValue::Number($value)))),*]
    };
}

macro_rules! carried {
    ($($name:literal $field:ident;)*) => {
        [$(
            number(concat!($name, "Records"), |row| Some(ElementValue::Number(row.ledger.export.$field.records))),
            number(concat!($name, "Packets"), |row| Some(ElementValue::Number(row.ledger.export.$field.packets))),
            number(concat!($name, "Octets"), |row| Some(ElementValue::Number(row.ledger.export.$field.bytes))),
        )*]
    };
}

const WHOSE: [LedgerColumn; 3] = [
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

const CAPTURE: [LedgerColumn; 2] = [
    absent("captureArrived", |row| row.ledger.capture.arrived.map(ElementValue::Number)),
    absent("captureDriverDropped", |row| row.ledger.capture.driver_dropped.map(ElementValue::Number)),
];

const PACKETS: [LedgerColumn; 20] = ledger! { row,
    "captureRingDropped" => row.ledger.capture.ring_dropped;
    "captureDelivered" => row.ledger.capture.delivered;
    "seen" => row.ledger.packets.seen;
    "seenOctets" => row.ledger.packets.seen_bytes;
    "ignoredArp" => ignored(row, IgnoredReason::Arp);
    "ignoredNotIp" => ignored(row, IgnoredReason::NotIp);
    "ignoredShortLink" => ignored(row, IgnoredReason::ShortLink);
    "ignoredShortIp" => ignored(row, IgnoredReason::ShortIp);
    "ignoredBadIp" => ignored(row, IgnoredReason::BadIp);
    "ignoredTooDeep" => ignored(row, IgnoredReason::TooDeep);
    "ignoredSampled" => ignored(row, IgnoredReason::Sampled);
    "ignoredElsewhere" => ignored(row, IgnoredReason::Elsewhere);
    "metered" => row.ledger.packets.metered;
    "untracked" => row.ledger.packets.untracked;
    "live" => row.ledger.packets.live;
    "recorded" => row.ledger.packets.recorded;
    "records" => row.ledger.packets.records;
    "flows" => row.ledger.packets.flows;
    "evicted" => row.ledger.packets.evicted;
    "backwards" => row.ledger.packets.backwards;
};

const EXPORT: [LedgerColumn; 15] = carried! {
    "exportOffered" offered;
    "exportQueueDropped" queue_dropped;
    "exportSent" sent;
    "exportRefused" refused;
    "exportWaiting" waiting;
};

const MESSAGES: [LedgerColumn; 3] = ledger! { row,
    "exportMessages" => row.ledger.export.messages;
    "exportMessageOctets" => row.ledger.export.message_bytes;
    "exportOwnRecords" => row.ledger.export.own_records;
};

fn ignored(row: &LedgerRow, cause: IgnoredReason) -> u64 {
    row.ledger.packets.ignored[cause as usize]
}

/// The columns of the ledger table, in order.
pub fn ledger_columns() -> impl Iterator<Item = LedgerColumn> {
    WHOSE.into_iter().chain(CAPTURE).chain(PACKETS).chain(EXPORT).chain(MESSAGES)
}

/// A ledger row from its named numbers; what has no such name is zero or absent.
pub fn ledger_of(value: impl Fn(&str) -> Option<u64>) -> MeterLedger {
    let n = |name: &str| value(name).unwrap_or(0);
    let carried = |name: &str| CarriedRecords {
        records: n(&format!("{name}Records")),
        packets: n(&format!("{name}Packets")),
        bytes: n(&format!("{name}Octets")),
    };
    let mut ledger = MeterLedger::default();
    let capture = &mut ledger.capture;
    (capture.arrived, capture.driver_dropped) = (value("captureArrived"), value("captureDriverDropped"));
    (capture.ring_dropped, capture.delivered) = (n("captureRingDropped"), n("captureDelivered"));
    let packets = &mut ledger.packets;
    (packets.seen, packets.seen_bytes) = (n("seen"), n("seenOctets"));
    for (cause, name) in IgnoredReason::ALL.into_iter().zip(IGNORED) {
        packets.ignored[cause as usize] = n(name);
    }
    (packets.metered, packets.untracked, packets.live) = (n("metered"), n("untracked"), n("live"));
    (packets.recorded, packets.records, packets.flows) = (n("recorded"), n("records"), n("flows"));
    (packets.evicted, packets.backwards) = (n("evicted"), n("backwards"));
    let export = &mut ledger.export;
    (export.offered, export.queue_dropped) = (carried("exportOffered"), carried("exportQueueDropped"));
    (export.sent, export.refused, export.waiting) =
        (carried("exportSent"), carried("exportRefused"), carried("exportWaiting"));
    (export.messages, export.message_bytes) = (n("exportMessages"), n("exportMessageOctets"));
    export.own_records = n("exportOwnRecords");
    ledger
}

/// In the order of [`Ignored::ALL`].
const IGNORED: [&str; IgnoredReason::ALL.len()] = [
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
        let row = LedgerRow { at_ns: 5, source: RecordMaker::default(), ledger };
        let named: BTreeMap<_, _> = ledger_columns()
            .filter_map(|column| match (column.value)(&row) {
                Some(ElementValue::Number(number)) => Some((column.name, number)),
                _ => None,
            })
            .collect();
        assert_eq!(ledger_of(|name| named.get(name).copied()), ledger);
    }

    fn kind_in_words(kind: ElementKind) -> String {
        match kind {
            ElementKind::Unsigned(bits) => format!("{bits} bit"),
            ElementKind::Time => "time".into(),
            ElementKind::Address => "address".into(),
            ElementKind::Mac => "MAC".into(),
            ElementKind::Word => "word".into(),
            ElementKind::Flag => "yes or no".into(),
            ElementKind::Fields => "JSON".into(),
        }
    }

    /// The page's table is made of the list of columns: on a difference, the right rows are in the message.
    #[test]
    fn the_page_lists_exactly_the_columns_there_are() {
        let page = include_str!("../../../../docs/book/flow-store.md");
        let row = |column: &FlowColumn| {
            let id = if column.id > 0 { column.id.to_string() } else { "–".into() };
            let unit = if column.unit.is_empty() { "–" } else { column.unit };
            let FlowColumn { name, short, meaning, .. } = column;
            format!("| {name} | {short} | {id} | {} | {unit} | {meaning} |\n", kind_in_words(column.kind))
        };
        let rows: String = columns().iter().map(row).collect();
        assert!(page.contains(&rows), "the rows of the page should be:\n{rows}");
        for column in ledger_columns().skip(3) {
            let base = ["Records", "Packets", "Octets"]
                .iter()
                .find_map(|end| {
                    column.name.strip_prefix("export")?.strip_suffix(end).map(|rest| format!("export{rest}"))
                })
                .filter(|base| !base.ends_with("Own") && !base.ends_with("Message"))
                .unwrap_or_else(|| column.name.to_owned());
            let said = page.contains(&format!("`{base}`")) || base.starts_with("ignored");
            assert!(said, "{}", column.name);
        }
    }

    #[test]
    fn every_column_has_its_own_name() {
        let mut names: Vec<_> = columns().iter().map(|column| column.name).collect();
        assert_eq!(names.len(), ELEMENTS.len() + 2);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ELEMENTS.len() + 2);
        for column in columns() {
            for word in [column.name, column.short] {
                assert_eq!(find_column(word).map(|found| found.name), Some(column.name), "{word}");
            }
        }
        assert_eq!(find_column("srcip").map(|column| column.name), Some("sourceIPv6Address"));
    }

    #[test]
    fn the_counterpart_of_a_counterpart_is_the_column_itself_and_of_its_kind() {
        let kind = |name: &str| columns().iter().find(|column| column.name == name).unwrap().kind;
        for column in columns() {
            let other = counterpart(column.name);
            assert_eq!((counterpart(other), kind(other)), (column.name, column.kind));
        }
    }
}
