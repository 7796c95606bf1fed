//! A record as a line of JSON: an object with the names of the columns, in their order.

use super::cells::ColumnCells;
use super::columns::{ExporterRow, flow_columns};
use packetrig_flow::IPV4_MAPPED_PREFIX;
use packetrig_flow::element::{ElementKind, ElementValue};
use std::fmt::Write;
use std::net::Ipv6Addr;

/// Appends a record, without a line end. Times are nanoseconds since 1970; IPv4 addresses are mapped into IPv6.
pub fn append_record(row: &ExporterRow, text: &mut String) {
    let mut before = '{';
    for column in flow_columns() {
        text.push(before);
        before = ',';
        text.push('"');
        // Names of columns are packetrig's own and need no escapes.
        text.push_str(column.name);
        text.push_str("\":");
        append_value(column.value_in_row(row), text);
    }
    text.push('}');
}

/// A MAC address: `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn append_value(value: ElementValue<'_>, text: &mut String) {
    // Writing to a string cannot fail. The words are packetrig's own and need no escapes.
    let written = match value {
        ElementValue::Number(number) => write!(text, "{number}"),
        ElementValue::Address(address) => write!(text, "\"{}\"", Ipv6Addr::from(address)),
        ElementValue::Mac(mac) => write!(text, "\"{}\"", mac_text(mac)),
        ElementValue::Word(word) => write!(text, "\"{word}\""),
        ElementValue::Flag(flag) => write!(text, "{flag}"),
        ElementValue::Fields(fields) => {
            fields.append_json(text);
            Ok(())
        }
    };
    debug_assert!(written.is_ok());
}

/// The value in a row of a file without quotation marks. A missing column is `null`.
pub fn append_plain_cell(cells: &ColumnCells, row: usize, text: &mut String) {
    match cells {
        ColumnCells::Missing => text.push_str("null"),
        ColumnCells::Numbers(_) => append_number(cells.number_at(row), text),
        ColumnCells::Flags(_) => text.push_str(if cells.number_at(row) == 1 { "true" } else { "false" }),
        ColumnCells::Addresses(_) => append_address(cells.address_at(row), text),
        ColumnCells::Macs(_) => text.push_str(&mac_text(cells.mac_at(row))),
        ColumnCells::Words(_) => text.push_str(cells.word_at(row)),
    }
}

/// Appends the decimal digits of a number. The formatter of the standard library takes several times as long.
fn append_number(number: u64, text: &mut String) {
    text.push_str(itoa::Buffer::new().format(number));
}

fn append_address(address: [u8; 16], text: &mut String) {
    let Some(ipv4) = address.strip_prefix(&IPV4_MAPPED_PREFIX) else {
        let written = write!(text, "{}", Ipv6Addr::from(address));
        debug_assert!(written.is_ok());
        return;
    };
    text.push_str("::ffff");
    let mut before = ':';
    for &byte in ipv4 {
        text.push(before);
        append_number(byte.into(), text);
        before = '.';
    }
}

/// The value in a row of a file as JSON: the same text that [`append_record`] makes of a record. A missing column is `null`.
pub fn append_cell(kind: ElementKind, cells: &ColumnCells, row: usize, text: &mut String) {
    let written = match cells {
        ColumnCells::Missing | ColumnCells::Numbers(_) | ColumnCells::Flags(_) => {
            append_plain_cell(cells, row, text);
            Ok(())
        }
        ColumnCells::Addresses(_) | ColumnCells::Macs(_) => {
            text.push('"');
            append_plain_cell(cells, row, text);
            text.push('"');
            Ok(())
        }
        // The column `otherFields` is stored as JSON, which is copied unchanged.
        ColumnCells::Words(_) if kind == ElementKind::Fields && is_object(cells.word_at(row)) => {
            write!(text, "{}", cells.word_at(row))
        }
        ColumnCells::Words(_) if kind == ElementKind::Fields && cells.word_at(row).is_empty() => {
            write!(text, "{{}}")
        }
        // A word in another program's file may be anything, so it is escaped.
        ColumnCells::Words(_) => write!(text, "{}", serde_json::Value::from(cells.word_at(row))),
    };
    debug_assert!(written.is_ok());
}

/// Returns whether a text is one JSON object in one line: another program's file may contain anything.
fn is_object(text: &str) -> bool {
    text.starts_with('{')
        && !text.contains('\n')
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordExporter;
    use crate::sample::{THIRTEEN, foreign_record};

    #[test]
    fn addresses_are_written_as_the_standard_library_writes_them() {
        let ipv4 = |last: u8| {
            let mut address = [0; 16];
            address[..12].copy_from_slice(&IPV4_MAPPED_PREFIX);
            address[12..].copy_from_slice(&[198, 18, 0, last]);
            address
        };
        let ipv6 = [0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        for address in [ipv4(0), ipv4(255), ipv6, [0; 16], [0xff; 16]] {
            let mut text = String::new();
            append_address(address, &mut text);
            assert_eq!(text, Ipv6Addr::from(address).to_string());
        }
    }

    #[test]
    fn a_line_is_an_object_of_all_columns() {
        let mut text = String::new();
        append_record(
            &ExporterRow {
                record: foreign_record(3),
                source: RecordExporter { exporter: [0; 16], domain: 7 },
            },
            &mut text,
        );
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json.as_object().unwrap().len(), flow_columns().len());
        assert_eq!(json["flowStartNanoseconds"], THIRTEEN + 3_000_000_000);
        assert_eq!(json["sourceIPv6Address"], "::ffff:198.18.0.3");
        assert_eq!(json["sourceMacAddress"], "02:00:00:00:00:01");
        assert_eq!(json["tunnelKind"], "vxlan");
        assert_eq!(json["observedLoss"], true);
        assert_eq!(json["egressInterface"], 1003);
        assert_eq!(json["otherFields"], serde_json::json!({"flowDirection": 0}));
        assert_eq!(
            (json["flowId"].as_u64(), json["observationDomainId"].as_u64()),
            (Some(u64::MAX - 3), Some(7))
        );
    }
}
