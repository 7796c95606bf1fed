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

/// The statement that inserts rows, which follow it.
pub(super) fn insert(database: &str, table: &str) -> String {
    let names: Vec<_> = columns().iter().map(|column| column.name).collect();
    format!("INSERT INTO `{database}`.`{table}` ({}) FORMAT RowBinary", names.join(", "))
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

fn append(kind: Kind, value: Value, bytes: &mut Vec<u8>) {
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
        Value::Word(word) => {
            // Words are shorter than 128 bytes, so their length is one.
            bytes.push(u8::try_from(word.len()).unwrap_or(0));
            bytes.extend_from_slice(word.as_bytes());
        }
        Value::Flag(flag) => bytes.push(u8::from(flag)),
    }
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
            Kind::Flag => 1,
        };
        assert_eq!(bytes.len(), columns().iter().map(width).sum::<usize>());
        assert_eq!(bytes[..8], (THIRTEEN + 3_000_000_000).to_le_bytes());
        assert_eq!(bytes[16], 4);
        assert_eq!(bytes[bytes.len() - 4..], 7_u32.to_le_bytes());
    }

    #[test]
    fn no_word_is_too_long_for_its_length() {
        use packetrig_flow::Tunnel;
        for tunnel in [Tunnel::None, Tunnel::Ip, Tunnel::Gre, Tunnel::Vxlan, Tunnel::Gtp] {
            let mut record = record(0);
            record.key.tunnel = tunnel;
            let row = Row { record, source: Source::default() };
            for column in columns() {
                assert!(!matches!(column.value(&row), Value::Word(word) if word.len() > 127));
            }
        }
    }
}
