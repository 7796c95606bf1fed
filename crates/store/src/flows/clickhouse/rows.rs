//! Records in ClickHouse's terms: the table, and rows as its format RowBinary has them (little-endian, one value after the other).

use crate::flows::columns::{FlowColumn, SourcedRow, columns};
use packetrig_flow::element::{ElementKind, ElementValue};

/// The statement that makes the table. It is ordered by the start of flows; a batch that is sent again is recognised among the last
/// thousand.
pub(super) fn create_table(database: &str, table: &str) -> String {
    let lines: Vec<_> =
        columns().iter().map(|column| format!("    `{}` {}", column.name, kind(column))).collect();
    format!(
        "CREATE TABLE IF NOT EXISTS `{database}`.`{table}`\n(\n{}\n)\nENGINE = MergeTree\n\
         ORDER BY (flowStartNanoseconds, flowId)\nSETTINGS non_replicated_deduplication_window = 1000",
        lines.join(",\n")
    )
}

/// The statement that gives a table of an earlier version the columns that it lacks, and widens those that were narrower.
pub(super) fn add_columns(database: &str, table: &str) -> String {
    let additions =
        columns().iter().map(|column| format!("ADD COLUMN IF NOT EXISTS `{}` {}", column.name, kind(column)));
    let widenings = WIDENED.iter().map(|(name, kind)| format!("MODIFY COLUMN `{name}` {kind}"));
    format!(
        "ALTER TABLE `{database}`.`{table}` {}",
        additions.chain(widenings).collect::<Vec<_>>().join(", ")
    )
}

/// The statement that inserts rows, which follow it, into a table with all columns.
pub(super) fn insert(database: &str, table: &str) -> String {
    format!("INSERT INTO `{database}`.`{table}` ({}) FORMAT RowBinary", names())
}

/// The same into a table that the user may not change. It says the rows' own types: columns that are narrower take the lower bits.
pub(super) fn insert_typed(database: &str, table: &str) -> String {
    let names = names();
    let typed = |column: &FlowColumn| format!("{} {}", column.name, plain_kind(column).replace('\'', "\\'"));
    let types = columns().iter().map(typed).collect::<Vec<_>>().join(", ");
    format!(
        "INSERT INTO `{database}`.`{table}` ({names}) SELECT {names} FROM input('{types}') FORMAT RowBinary"
    )
}

fn names() -> String {
    columns().iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// Columns that were narrower in earlier versions.
const WIDENED: [(&str, &str); 2] = [("tcpControlBits", "UInt16"), ("reverseTcpControlBits", "UInt16")];

/// The type of a column.
fn plain_kind(column: &FlowColumn) -> &'static str {
    kind(column).split(" CODEC").next().unwrap_or_default()
}

/// The type of a column, and how it is packed.
fn kind(column: &FlowColumn) -> &'static str {
    match column.kind {
        ElementKind::Unsigned(8) => "UInt8",
        ElementKind::Unsigned(16) => "UInt16",
        ElementKind::Unsigned(32) => "UInt32",
        // A number drawn from all there are does not get shorter.
        ElementKind::Unsigned(_) if column.name == "flowId" => "UInt64",
        ElementKind::Unsigned(_) => "UInt64 CODEC(T64, ZSTD(1))",
        ElementKind::Time => "DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))",
        ElementKind::Address => "IPv6 CODEC(ZSTD(1))",
        ElementKind::Mac => "FixedString(6)",
        ElementKind::Word => "LowCardinality(String)",
        ElementKind::Flag => "Bool",
        // An object of JSON, for `JSONExtract`.
        ElementKind::Fields => "String CODEC(ZSTD(1))",
    }
}

pub(super) fn encode(rows: &[SourcedRow]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rows.len() * 256);
    for row in rows {
        for column in columns() {
            append(column.kind, column.value(row), &mut bytes);
        }
    }
    bytes
}

fn append(kind: ElementKind, value: ElementValue<'_>, bytes: &mut Vec<u8>) {
    match value {
        ElementValue::Number(number) => {
            let width = match kind {
                ElementKind::Unsigned(bits) => usize::from(bits / 8),
                _ => 8,
            };
            let number = if kind == ElementKind::Time { number.min(i64::MAX.unsigned_abs()) } else { number };
            bytes.extend_from_slice(&number.to_le_bytes()[..width]);
        }
        ElementValue::Address(address) => bytes.extend_from_slice(&address),
        ElementValue::Mac(mac) => bytes.extend_from_slice(&mac),
        ElementValue::Word(word) => append_text(word, bytes),
        ElementValue::Fields(fields) => {
            let mut text = String::new();
            if !fields.is_empty() {
                fields.append_json(&mut text);
            }
            append_text(&text, bytes);
        }
        ElementValue::Flag(flag) => bytes.push(u8::from(flag)),
    }
}

/// A text behind its length, of which seven bits are in a byte, the lowest first.
fn append_text(text: &str, bytes: &mut Vec<u8>) {
    let mut length = text.len();
    while length > 0x7f {
        bytes.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    bytes.push(u8::try_from(length).unwrap_or(0));
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::RecordMaker;
    use crate::flows::sample::{THIRTEEN, record};

    #[test]
    fn rows_have_the_widths_of_their_columns() {
        let bytes =
            encode(&[SourcedRow { record: record(3), source: RecordMaker { exporter: [9; 16], domain: 7 } }]);
        let width = |column: &FlowColumn| match column.kind {
            ElementKind::Unsigned(bits) => usize::from(bits / 8),
            ElementKind::Time => 8,
            ElementKind::Address => 16,
            ElementKind::Mac => 6,
            ElementKind::Word => 1 + "vxlan".len(),
            ElementKind::Flag | ElementKind::Fields => 1,
        };
        assert_eq!(bytes.len(), columns().iter().map(width).sum::<usize>());
        assert_eq!(bytes[..8], (THIRTEEN + 3_000_000_000).to_le_bytes());
        assert_eq!(bytes[16], 4);
        assert_eq!(bytes[bytes.len() - 4..], 7_u32.to_le_bytes());
    }

    #[test]
    fn a_long_text_has_a_length_of_several_bytes() {
        let mut bytes = Vec::new();
        append_text(&"x".repeat(300), &mut bytes);
        assert_eq!((&bytes[..3], bytes.len()), (&[0xac, 0x02, b'x'][..], 302));
    }
}
