//! Records in ClickHouse's terms: the table, and rows as its format RowBinary has them (little-endian, one value after the other).

use crate::flows::columns::{Column, Row, columns};
use packetrig_flow::element::{Kind, Value};

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
    let typed = |column: &Column| format!("{} {}", column.name, plain_kind(column).replace('\'', "\\'"));
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
fn plain_kind(column: &Column) -> &'static str {
    kind(column).split(" CODEC").next().unwrap_or_default()
}

/// The type of a column, and how it is packed.
fn kind(column: &Column) -> &'static str {
    match column.kind {
        Kind::Unsigned(8) => "UInt8",
        Kind::Unsigned(16) => "UInt16",
        Kind::Unsigned(32) => "UInt32",
        // A number drawn from all there are does not get shorter.
        Kind::Unsigned(_) if column.name == "flowId" => "UInt64",
        Kind::Unsigned(_) => "UInt64 CODEC(T64, ZSTD(1))",
        Kind::Time => "DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))",
        Kind::Address => "IPv6 CODEC(ZSTD(1))",
        Kind::Mac => "FixedString(6)",
        Kind::Word => "LowCardinality(String)",
        Kind::Flag => "Bool",
        // An object of JSON, for `JSONExtract`.
        Kind::Fields => "String CODEC(ZSTD(1))",
    }
}

pub(super) fn encode(rows: &[Row]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rows.len() * 256);
    for row in rows {
        for column in columns() {
            append(column.kind, column.value(row), &mut bytes);
        }
    }
    bytes
}

fn append(kind: Kind, value: Value<'_>, bytes: &mut Vec<u8>) {
    match value {
        Value::Number(number) => {
            let width = match kind {
                Kind::Unsigned(bits) => usize::from(bits / 8),
                _ => 8,
            };
            let number = if kind == Kind::Time { number.min(i64::MAX.unsigned_abs()) } else { number };
            bytes.extend_from_slice(&number.to_le_bytes()[..width]);
        }
        Value::Address(address) => bytes.extend_from_slice(&address),
        Value::Mac(mac) => bytes.extend_from_slice(&mac),
        Value::Word(word) => append_text(word, bytes),
        Value::Fields(fields) => {
            let mut text = String::new();
            if !fields.is_empty() {
                fields.append_json(&mut text);
            }
            append_text(&text, bytes);
        }
        Value::Flag(flag) => bytes.push(u8::from(flag)),
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
    use crate::flows::Source;
    use crate::flows::sample::{THIRTEEN, record};

    #[test]
    fn rows_have_the_widths_of_their_columns() {
        let bytes = encode(&[Row { record: record(3), source: Source { exporter: [9; 16], domain: 7 } }]);
        let width = |column: &Column| match column.kind {
            Kind::Unsigned(bits) => usize::from(bits / 8),
            Kind::Time => 8,
            Kind::Address => 16,
            Kind::Mac => 6,
            Kind::Word => 1 + "vxlan".len(),
            Kind::Flag | Kind::Fields => 1,
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
