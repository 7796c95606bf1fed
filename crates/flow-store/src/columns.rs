//! The columns of a stored record and of a stored ledger: names, kinds, values.
//!
//! A record has the columns of `flow::element::FLOW_ELEMENTS` in their order, then the columns of its exporter.

mod ledger;

pub use ledger::{LedgerColumn, LedgerRow, ledger_columns, ledger_from_numbers};

use super::RecordExporter;
use packetrig_flow::FlowRecord;
use packetrig_flow::element::{ElementKind, ElementValue, FLOW_ELEMENTS, FlowElement};
use std::sync::LazyLock;

pub use packetrig_flow::REVERSE_ENTERPRISE;

/// A record and its exporter.
#[derive(Clone, Debug)]
pub struct ExporterRow {
    pub record: FlowRecord,
    pub source: RecordExporter,
}

/// A column of the flow table.
#[derive(Clone, Copy, Debug)]
pub struct FlowColumn {
    /// IANA's name of the element, or packetrig's own if IANA has none.
    pub name: &'static str,
    /// Short name for the command line.
    pub short: &'static str,
    /// IANA number of the element; 0 if it has none.
    pub id: u16,
    /// True if the element is the reverse of element `id` (RFC 5103).
    pub reverse: bool,
    pub kind: ElementKind,
    /// Unit of the values; empty if they have none.
    pub unit: &'static str,
    pub meaning: &'static str,
    accessor: ColumnAccessor,
}

#[derive(Clone, Copy, Debug)]
enum ColumnAccessor {
    Record(for<'a> fn(&'a FlowRecord) -> ElementValue<'a>),
    Source(fn(&RecordExporter) -> ElementValue<'static>),
}

impl FlowColumn {
    /// The column's value in a row.
    pub fn value_in_row<'a>(&self, row: &'a ExporterRow) -> ElementValue<'a> {
        match self.accessor {
            ColumnAccessor::Record(value) => value(&row.record),
            ColumnAccessor::Source(value) => value(&row.source),
        }
    }

    /// Returns whether the word names this column: by its name, or by its short name with or without dashes (`srcip`).
    pub fn has_column_name(&self, word: &str) -> bool {
        self.name.eq_ignore_ascii_case(word) || without_dashes(self.short) == without_dashes(word)
    }
}

pub(crate) fn without_dashes(text: &str) -> String {
    text.replace('-', "").to_ascii_lowercase()
}

/// Finds the column with this name or short name; `None` if no column has it.
pub fn find_column(word: &str) -> Option<&'static FlowColumn> {
    flow_columns().iter().find(|column| column.has_column_name(word))
}

/// The columns of the flow table, in order.
pub fn flow_columns() -> &'static [FlowColumn] {
    // The list is built once, because each batch of rows needs it.
    static COLUMNS: LazyLock<Vec<FlowColumn>> = LazyLock::new(|| {
        let of_record = FLOW_ELEMENTS.iter().map(
            |&FlowElement { name, short, id, reverse, kind, unit, meaning, value }| FlowColumn {
                name,
                short,
                id,
                reverse,
                kind,
                unit,
                meaning,
                accessor: ColumnAccessor::Record(value),
            },
        );
        of_record.chain(EXPORTER_COLUMNS).collect()
    });
    &COLUMNS
}

const EXPORTER_COLUMNS: [FlowColumn; 2] = [
    FlowColumn {
        name: "exporterIPv6Address",
        short: "exporter-ip",
        id: 131,
        reverse: false,
        kind: ElementKind::Address,
        unit: "",
        meaning: "address of the exporter; zero for the meter of this machine",
        accessor: ColumnAccessor::Source(|source| ElementValue::Address(source.exporter)),
    },
    FlowColumn {
        name: "observationDomainId",
        short: "domain",
        id: 149,
        reverse: false,
        kind: ElementKind::Unsigned(32),
        unit: "",
        meaning: "observation domain of the exporter",
        accessor: ColumnAccessor::Source(|source| ElementValue::Number(u64::from(source.domain))),
    },
];

/// Pairs of columns that are exchanged when a record is seen in the reverse direction.
const REVERSE_COLUMNS: [(&str, &str); 11] = [
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

/// Returns the column that has the same meaning for the reverse direction: for most columns, the column itself.
pub fn counterpart_column(name: &'static str) -> &'static str {
    // Each pair is looked up in both directions, so that applying this twice gives the same column again.
    let other = REVERSE_COLUMNS.iter().find_map(|&(one, other)| match name {
        name if name == one => Some(other),
        name if name == other => Some(one),
        _ => None,
    });
    other.unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe_element_kind(kind: ElementKind) -> String {
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
        let page = include_str!("../../../docs/book/flow-store.md");
        let row = |column: &FlowColumn| {
            let id = if column.id > 0 { column.id.to_string() } else { "–".into() };
            let unit = if column.unit.is_empty() { "–" } else { column.unit };
            let FlowColumn { name, short, meaning, .. } = column;
            format!(
                "| {name} | {short} | {id} | {} | {unit} | {meaning} |\n",
                describe_element_kind(column.kind)
            )
        };
        let rows: String = flow_columns().iter().map(row).collect();
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
        let mut names: Vec<_> = flow_columns().iter().map(|column| column.name).collect();
        assert_eq!(names.len(), FLOW_ELEMENTS.len() + 2);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FLOW_ELEMENTS.len() + 2);
        for column in flow_columns() {
            for word in [column.name, column.short] {
                assert_eq!(find_column(word).map(|found| found.name), Some(column.name), "{word}");
            }
        }
        assert_eq!(find_column("srcip").map(|column| column.name), Some("sourceIPv6Address"));
    }

    #[test]
    fn counterpart_column_is_symmetric_and_same_kind() {
        let kind = |name: &str| flow_columns().iter().find(|column| column.name == name).unwrap().kind;
        for column in flow_columns() {
            let other = counterpart_column(column.name);
            assert_eq!((counterpart_column(other), kind(other)), (column.name, column.kind));
        }
    }
}
