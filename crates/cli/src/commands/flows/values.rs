//! Formats values of flow columns for tables, CSV and JSON.

use super::{exporter_name, utc_time_text};
use crate::numbers::format_count;
use crate::protocols;
use packetrig_flow::element::ElementKind;
use packetrig_flow_store::RecordExporter;
use packetrig_flow_store::cells::ColumnCells;
use packetrig_flow_store::columns::FlowColumn;
use packetrig_flow_store::filter::canonical_address;
use packetrig_flow_store::grouping::{GroupPart, GroupValue};
use packetrig_flow_store::json::mac_text;
use packetrig_flow_store::tcp_flags;

/// Formats the value in a row of a file. A dash means that the value is unknown.
pub(super) fn cell_text(column: &FlowColumn, cells: &ColumnCells, row: usize) -> String {
    match column.kind {
        // Files have zeros for an address that is not in the packet.
        ElementKind::Address if cells.address_at(row) == [0; 16] => "–".to_owned(),
        ElementKind::Address => canonical_address(cells.address_at(row)).to_string(),
        ElementKind::Mac => mac_text(cells.mac_at(row)),
        ElementKind::Word | ElementKind::Fields => cells.word_at(row).to_owned(),
        ElementKind::Unsigned(_) | ElementKind::Time | ElementKind::Flag => {
            number_text(column, cells.number_at(row))
        }
    }
}

fn number_text(column: &FlowColumn, number: u64) -> String {
    match (column.name, column.kind) {
        (_, ElementKind::Time) => utc_time_text(number),
        (_, ElementKind::Flag) => if number == 0 { "no" } else { "yes" }.to_owned(),
        ("protocolIdentifier", _) => protocol_name(number),
        ("tcpControlBits" | "reverseTcpControlBits", _) => tcp_flags::format_tcp_flags(number),
        ("flowEndReason", _) => end_reason_text(number).to_owned(),
        // Numbers without a unit are identifiers, such as ports: blanks between their digits would be wrong.
        _ if column.unit.is_empty() => number.to_string(),
        _ => format_count(number),
    }
}

/// Returns the name of an IP protocol, or the number itself if it exceeds 8 bits, which a file could contain.
pub(super) fn protocol_name(number: u64) -> String {
    u8::try_from(number).map_or_else(|_| number.to_string(), protocols::protocol_name)
}

/// Name of a record's protocol; for ICMP also type and code, which records have in the destination port.
pub(super) fn protocol_with_type(number: u64, type_and_code: u64) -> String {
    let name = protocol_name(number);
    if is_icmp(number) {
        format!("{name} type {} code {}", type_and_code >> 8, type_and_code & 0xff)
    } else {
        name
    }
}

/// Returns true for ICMP and ICMPv6.
pub(super) const fn is_icmp(protocol: u64) -> bool {
    matches!(protocol, 1 | 58)
}

/// Formats one part of a group's key; empty if the value is unknown.
pub(super) fn group_text(part: &GroupPart, value: &GroupValue) -> String {
    match (part, value) {
        (GroupPart::Column(column), GroupValue::Number(number)) => number_text(column, *number),
        // An autonomous system of number 0 is not known.
        (GroupPart::Name(_), GroupValue::Number(0)) => String::new(),
        (_, GroupValue::Number(number)) => number.to_string(),
        (_, GroupValue::Address(one)) => canonical_address(*one).to_string(),
        (_, GroupValue::Network(network)) => network.to_string(),
        (_, GroupValue::Mac(mac)) => mac_text(*mac),
        (_, GroupValue::Word(word)) => word.clone(),
        (_, GroupValue::Pair(one, other)) => {
            format!("{} <-> {}", canonical_address(*one), canonical_address(*other))
        }
        (_, GroupValue::Port(protocol, port)) => format!("{}/{port}", protocols::protocol_name(*protocol)),
        (_, GroupValue::Exporter(address, domain)) => {
            exporter_name(RecordExporter { exporter: *address, domain: *domain })
        }
    }
}

/// Returns the text, or a dash for an empty text: the value is unknown.
pub(super) fn text_or_dash(text: String) -> String {
    if text.is_empty() { "–".to_owned() } else { text }
}

/// The value of a group in JSON: numbers stay numbers.
pub(crate) fn group_json(part: &GroupPart, value: &GroupValue) -> serde_json::Value {
    match (part, value) {
        // A flag is a truth value in JSON, though files store it as a number.
        (GroupPart::Column(column), GroupValue::Number(number)) if column.kind == ElementKind::Flag => {
            (*number == 1).into()
        }
        (_, GroupValue::Number(number)) => (*number).into(),
        _ => group_text(part, value).into(),
    }
}

/// IANA's numbers of `flowEndReason`, in words. After an active timeout, the flow continues in another record.
pub(super) const fn end_reason_text(number: u64) -> &'static str {
    match number {
        1 => "idle timeout",
        2 => "active timeout",
        3 => "end of flow",
        4 => "meter stopped",
        5 => "lack of resources",
        _ => "–",
    }
}

/// Remark that the sums of sampled packets are not scaled; `None` if no record is of sampled packets.
pub(super) fn sampling_remark(sampled_records: u64) -> Option<String> {
    (sampled_records > 0).then(|| {
        format!(
            "records of sampled packets: {}; the sums count only the metered packets and are not multiplied by the \
            sampling interval",
            format_count(sampled_records)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icmp_has_type_and_code_instead_of_port() {
        assert_eq!(protocol_with_type(1, 2048), format!("{} type 8 code 0", protocol_name(1)));
        assert_eq!(protocol_with_type(58, 0x8001), format!("{} type 128 code 1", protocol_name(58)));
        assert_eq!(protocol_with_type(17, 2048), protocol_name(17));
    }
}
