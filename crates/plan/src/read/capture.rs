//! Captures and their filters. In a filter, a mask bit of 0 means "must match"; fields that are
//! not named match anything.

use super::{NamedObjectPaths, PortNames, UNSUPPORTED_TEXT, resolve_port_name};
use crate::reader::{DocumentItem, DocumentObject};
use crate::{CaptureFormat, PlannedCapture};
use packetrig_wire::filter::{FieldCondition, FilterBase, FrameFilter};
use std::collections::HashMap;

/// A filter field: OTG's name, offset from its base in bits, width in bits.
type FieldDef = (&'static str, u32, u32);

// Offsets are in bits, from the start of the frame, of the tag control information, or of the IP header.
const ETHERNET: &[FieldDef] = &[("dst", 0, 48), ("src", 48, 48), ("ether_type", 96, 16)];
const VLAN: &[FieldDef] = &[("priority", 0, 3), ("cfi", 3, 1), ("id", 4, 12), ("protocol", 16, 16)];
const IPV4: &[FieldDef] = &[
    ("version", 0, 4),
    ("header_length", 4, 4),
    ("priority", 8, 8),
    ("total_length", 16, 16),
    ("identification", 32, 16),
    ("reserved", 48, 1),
    ("dont_fragment", 49, 1),
    ("more_fragments", 50, 1),
    ("fragment_offset", 51, 13),
    ("time_to_live", 64, 8),
    ("protocol", 72, 8),
    ("header_checksum", 80, 16),
    ("src", 96, 32),
    ("dst", 128, 32),
];
const IPV6: &[FieldDef] = &[
    ("version", 0, 4),
    ("traffic_class", 4, 8),
    ("flow_label", 12, 20),
    ("payload_length", 32, 16),
    ("next_header", 48, 8),
    ("hop_limit", 56, 8),
    ("src", 64, 128),
    ("dst", 192, 128),
];

pub(super) fn read_captures<'a>(
    config: &DocumentObject<'a>,
    ports: &PortNames,
    names: &mut NamedObjectPaths<'a>,
) -> Vec<PlannedCapture> {
    let mut captures: Vec<PlannedCapture> = Vec::new();
    let mut captured = HashMap::new();
    for item in config.read_items("captures") {
        let Some(object) = item.as_object() else { continue };
        let name = names.read_unique_name(&object);
        let members = read_capture_ports(&object, ports, &name, &mut captured);
        let format = match object.read_word("format", &["pcap", "pcapng"], "pcap") {
            "pcapng" => CaptureFormat::Pcapng,
            _ => CaptureFormat::Pcap,
        };
        // OTG: without `packet_size`, the whole packet is captured.
        let snap_len =
            object.read_member("packet_size").map(|_| object.read_number("packet_size", 0, 1, 65_535));
        // OTG combines filters with AND, so one list holds the conditions of all filters.
        let conditions = object.read_items("filters").iter().flat_map(read_capture_conditions).collect();
        captures.push(PlannedCapture {
            name,
            ports: members,
            format,
            snap_len: snap_len.and_then(|bytes| u32::try_from(bytes).ok()),
            overwrite: object.read_flag("overwrite", true),
            filter: FrameFilter { conditions },
        });
        object.refuse_unread_members();
    }
    captures
}

/// Reads the ports of a capture. `captured` has the ports of the earlier captures, each with the name of the first
/// capture that has the port.
fn read_capture_ports(
    object: &DocumentObject<'_>,
    ports: &PortNames,
    name: &str,
    captured: &mut HashMap<usize, String>,
) -> Vec<usize> {
    let mut members = Vec::new();
    let named = object.require_member("port_names").map(|item| item.as_list()).unwrap_or_default();
    for item in named {
        let Some(port) = resolve_port_name(&item, ports) else { continue };
        // OTG fetches a capture by the name of its port, so a port can have only one.
        if let Some(other) = captured.get(&port) {
            item.add_item_error(format!("port `{}` is already in capture `{other}`", ports.names[port]));
        } else {
            captured.insert(port, name.to_owned());
        }
        members.push(port);
    }
    members
}

fn read_capture_conditions(item: &DocumentItem<'_>) -> Vec<FieldCondition> {
    let Some(filter) = item.as_object() else { return Vec::new() };
    let choice = filter.read_choice(&["custom", "ethernet", "vlan", "ipv4", "ipv6"], "custom");
    let found = match (choice, filter.chosen_member_object(choice)) {
        (_, None) => Vec::new(),
        ("ethernet", Some(fields)) => read_named_conditions(fields, FilterBase::Frame, ETHERNET),
        ("vlan", Some(fields)) => read_named_conditions(fields, FilterBase::Vlan, VLAN),
        ("ipv4", Some(fields)) => read_named_conditions(fields, FilterBase::Ipv4, IPV4),
        ("ipv6", Some(fields)) => read_named_conditions(fields, FilterBase::Ipv6, IPV6),
        (_, Some(fields)) => read_custom_condition(fields).into_iter().collect(),
    };
    filter.refuse_unread_members();
    found
}

fn read_named_conditions(
    fields: DocumentObject<'_>,
    base: FilterBase,
    table: &[FieldDef],
) -> Vec<FieldCondition> {
    let mut found = Vec::new();
    // Only fields that the document names are tested: with the default mask, an absent field would
    // demand the value 0.
    for (name, bit_offset, bits) in table {
        if let Some(field) = fields.read_object(name) {
            let value = read_hex(&field, "value", *bits);
            let mask = read_hex(&field, "mask", *bits);
            let negate = field.read_flag("negate", false);
            field.refuse_unread_members();
            found.push(FieldCondition { base, bit_offset: *bit_offset, bits: *bits, value, mask, negate });
        }
    }
    if base == FilterBase::Frame {
        fields.refuse_members(&["pfc_queue"], UNSUPPORTED_TEXT);
    }
    fields.refuse_unread_members();
    found
}

fn read_custom_condition(field: DocumentObject<'_>) -> Option<FieldCondition> {
    let bit_offset = u32::try_from(field.read_number("offset", 0, 0, 1 << 20)).ok()?;
    let bits = u32::try_from(field.read_number("bit_length", 8, 1, 128)).ok()?;
    let value = read_hex(&field, "value", bits);
    let mask = read_hex(&field, "mask", bits);
    let negate = field.read_flag("negate", false);
    field.refuse_unread_members();
    Some(FieldCondition { base: FilterBase::Frame, bit_offset, bits, value, mask, negate })
}

/// Reads a hexadecimal number, with or without `0x`. A missing member is 0.
fn read_hex(object: &DocumentObject<'_>, name: &'static str, bits: u32) -> u128 {
    let Some(item) = object.read_member(name) else { return 0 };
    let Some(text) = item.as_text() else { return 0 };
    let digits = text.trim_start_matches("0x").trim_start_matches("0X");
    // `from_str_radix` accepts a sign, which is not a hexadecimal digit.
    let value = if digits.starts_with('+') { None } else { u128::from_str_radix(digits, 16).ok() };
    match value {
        Some(value) if bits >= 128 || value < 1 << bits => value,
        _ => {
            item.add_item_error(format!("`{text}` is not a hexadecimal value of {bits} bits"));
            0
        }
    }
}
