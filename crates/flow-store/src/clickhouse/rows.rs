//! Records for ClickHouse: the table's statements, and rows in the format RowBinary (little-endian, one value after the other).

use crate::columns::{ExporterRow, FlowColumn, flow_columns};
use packetrig_flow::element::{ElementKind, ElementValue};

/// The statement that creates the table. Rows are ordered by the start of flows. A repeated batch is recognised if it is
/// among the last thousand batches.
pub(super) fn create_table_statement(database: &str, table: &str) -> String {
    let lines: Vec<_> = flow_columns()
        .iter()
        .map(|column| format!("    `{}` {}", column.name, column_type_with_codec(column)))
        .collect();
    format!(
        "CREATE TABLE IF NOT EXISTS `{database}`.`{table}`\n(\n{}\n)\nENGINE = MergeTree\n\
         ORDER BY (flowStartNanoseconds, flowId)\nSETTINGS non_replicated_deduplication_window = 1000",
        lines.join(",\n")
    )
}

/// The statement that adds missing columns to a table of an earlier version, and widens columns that were narrower.
pub(super) fn alter_table_statement(database: &str, table: &str) -> String {
    let additions = flow_columns().iter().map(|column| {
        format!("ADD COLUMN IF NOT EXISTS `{}` {}", column.name, column_type_with_codec(column))
    });
    let widenings = WIDENED_COLUMNS.iter().map(|(name, kind)| format!("MODIFY COLUMN `{name}` {kind}"));
    format!(
        "ALTER TABLE `{database}`.`{table}` {}",
        additions.chain(widenings).collect::<Vec<_>>().join(", ")
    )
}

/// The statement that inserts rows into a table with all columns. The rows follow it in the request.
pub(super) fn insert_statement(database: &str, table: &str) -> String {
    format!("INSERT INTO `{database}`.`{table}` ({}) FORMAT RowBinary", column_names())
}

/// Like [`insert_statement`], for a table that the user may not change. The statement names the types of the sent
/// values, so that ClickHouse converts them: a narrower column of the table gets the low bits.
pub(super) fn typed_insert_statement(database: &str, table: &str) -> String {
    let names = column_names();
    let types: Vec<_> = flow_columns()
        .iter()
        // `input` takes the types as a text in quotes, so the quotes of `'UTC'` are escaped.
        .map(|column| format!("{} {}", column.name, column_type_without_codec(column).replace('\'', "\\'")))
        .collect();
    let types = types.join(", ");
    format!(
        "INSERT INTO `{database}`.`{table}` ({names}) SELECT {names} FROM input('{types}') FORMAT RowBinary"
    )
}

fn column_names() -> String {
    flow_columns().iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// Columns that were narrower in earlier versions.
const WIDENED_COLUMNS: [(&str, &str); 2] =
    [("tcpControlBits", "UInt16"), ("reverseTcpControlBits", "UInt16")];

/// The type of a column, without its compression codec.
fn column_type_without_codec(column: &FlowColumn) -> &'static str {
    column_type_with_codec(column).split(" CODEC").next().unwrap_or_default()
}

/// The type of a column, and its compression codec if it has one.
fn column_type_with_codec(column: &FlowColumn) -> &'static str {
    match column.kind {
        ElementKind::Unsigned(8) => "UInt8",
        ElementKind::Unsigned(16) => "UInt16",
        ElementKind::Unsigned(32) => "UInt32",
        // Random numbers do not compress, so there is no codec.
        ElementKind::Unsigned(_) if column.name == "flowId" => "UInt64",
        ElementKind::Unsigned(_) => "UInt64 CODEC(T64, ZSTD(1))",
        // Rows are sorted by time, so the differences of differences are small.
        ElementKind::Time => "DateTime64(9, 'UTC') CODEC(DoubleDelta, ZSTD(1))",
        ElementKind::Address => "IPv6 CODEC(ZSTD(1))",
        ElementKind::Mac => "FixedString(6)",
        ElementKind::Word => "LowCardinality(String)",
        ElementKind::Flag => "Bool",
        // A JSON object, for `JSONExtract`.
        ElementKind::Fields => "String CODEC(ZSTD(1))",
    }
}

pub(super) fn encode_rows(rows: &[ExporterRow]) -> Vec<u8> {
    // An estimate: with longer rows the buffer only grows again.
    let mut bytes = Vec::with_capacity(rows.len() * 256);
    for row in rows {
        for column in flow_columns() {
            append_value(column.kind, column.value_in_row(row), &mut bytes);
        }
    }
    bytes
}

fn append_value(kind: ElementKind, value: ElementValue<'_>, bytes: &mut Vec<u8>) {
    match value {
        ElementValue::Number(number) => {
            let width = match kind {
                ElementKind::Unsigned(bits) => usize::from(bits / 8),
                _ => 8,
            };
            // DateTime64 is signed: times later than 2262 are clamped.
            let number = if kind == ElementKind::Time { number.min(i64::MAX.unsigned_abs()) } else { number };
            // Little-endian: the low bytes come first, so the first `width` bytes are the number in the column's width.
            bytes.extend_from_slice(&number.to_le_bytes()[..width]);
        }
        ElementValue::Address(address) => bytes.extend_from_slice(&address),
        ElementValue::Mac(mac) => bytes.extend_from_slice(&mac),
        ElementValue::Word(word) => append_text(word, bytes),
        ElementValue::Fields(fields) => {
            let mut text = String::new();
            // Most records have no fields without a column: an empty text is shorter than `{}`.
            if !fields.is_empty() {
                fields.append_json(&mut text);
            }
            append_text(&text, bytes);
        }
        ElementValue::Flag(flag) => bytes.push(u8::from(flag)),
    }
}

/// Appends a text after its length in LEB128: seven bits per byte, lowest first, and the top bit set if more follow.
fn append_text(text: &str, bytes: &mut Vec<u8>) {
    let mut rest = text.len();
    loop {
        let [low, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            bytes.push(low & 0x7f);
            break;
        }
        bytes.push(low | 0x80);
    }
    bytes.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordExporter;
    use crate::sample::{THIRTEEN, record};

    #[test]
    fn rows_have_the_widths_of_their_columns() {
        let bytes = encode_rows(&[ExporterRow {
            record: record(3),
            source: RecordExporter { exporter: [9; 16], domain: 7 },
        }]);
        let width = |column: &FlowColumn| match column.kind {
            ElementKind::Unsigned(bits) => usize::from(bits / 8),
            ElementKind::Time => 8,
            ElementKind::Address => 16,
            ElementKind::Mac => 6,
            ElementKind::Word => 1 + "vxlan".len(),
            ElementKind::Flag | ElementKind::Fields => 1,
        };
        assert_eq!(bytes.len(), flow_columns().iter().map(width).sum::<usize>());
        assert_eq!(bytes[..8], (THIRTEEN + 3_000_000_000).to_le_bytes());
        assert_eq!(bytes[16], 4);
        assert_eq!(bytes[bytes.len() - 4..], 7_u32.to_le_bytes());
    }

    #[test]
    fn long_text_length_uses_multibyte_varint() {
        let mut bytes = Vec::new();
        append_text(&"x".repeat(300), &mut bytes);
        assert_eq!((&bytes[..3], bytes.len()), (&[0xac, 0x02, b'x'][..], 302));
    }
}
