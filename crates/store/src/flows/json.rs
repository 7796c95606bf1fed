//! A record as a line of JSON: an object whose names are the columns', in their order.

use super::cells::Cells;
use super::columns::{Row, columns};
use packetrig_flow::element::{Kind, Value};
use std::fmt::Write;
use std::net::Ipv6Addr;

/// Appends a record, without a line end. Times are nanoseconds since 1970, addresses IPv6 (IPv4 mapped).
pub fn append(row: &Row, text: &mut String) {
    let mut before = '{';
    for column in columns() {
        text.push(before);
        before = ',';
        text.push('"');
        text.push_str(column.name);
        text.push_str("\":");
        value(column.value(row), text);
    }
    text.push('}');
}

/// A MAC address: `02:00:00:00:00:01`.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn value(value: Value<'_>, text: &mut String) {
    // Writing to a string cannot fail; the words are our own and need no escapes.
    let written = match value {
        Value::Number(number) => write!(text, "{number}"),
        Value::Address(address) => write!(text, "\"{}\"", Ipv6Addr::from(address)),
        Value::Mac(mac) => write!(text, "\"{}\"", mac_text(mac)),
        Value::Word(word) => write!(text, "\"{word}\""),
        Value::Flag(flag) => write!(text, "{flag}"),
        Value::Fields(fields) => {
            fields.append_json(text);
            Ok(())
        }
    };
    debug_assert!(written.is_ok());
}

/// The value in a row of a file, as JSON: the same text that [`append`] makes of a record. What is missing is `null`.
pub fn append_cell(kind: Kind, cells: &Cells, row: usize, text: &mut String) {
    let written = match cells {
        Cells::Missing => write!(text, "null"),
        Cells::Numbers(_) => write!(text, "{}", cells.number(row)),
        Cells::Flags(_) => write!(text, "{}", cells.number(row) == 1),
        Cells::Addresses(_) => write!(text, "\"{}\"", Ipv6Addr::from(cells.address(row))),
        Cells::Macs(_) => write!(text, "\"{}\"", mac_text(cells.mac(row))),
        Cells::Words(_) if kind == Kind::Fields && is_object(cells.word(row)) => {
            write!(text, "{}", cells.word(row))
        }
        Cells::Words(_) if kind == Kind::Fields && cells.word(row).is_empty() => write!(text, "{{}}"),
        // A word of a foreign file may be anything.
        Cells::Words(_) => write!(text, "{}", serde_json::Value::from(cells.word(row))),
    };
    debug_assert!(written.is_ok());
}

/// Whether a text is one object of JSON in one line: a foreign file may hold anything.
fn is_object(text: &str) -> bool {
    text.starts_with('{')
        && !text.contains('\n')
        && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::Source;
    use crate::flows::sample::{THIRTEEN, foreign_record};

    #[test]
    fn a_line_is_an_object_of_all_columns() {
        let mut text = String::new();
        append(
            &Row { record: foreign_record(3), source: Source { exporter: [0; 16], domain: 7 } },
            &mut text,
        );
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json.as_object().unwrap().len(), columns().len());
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
