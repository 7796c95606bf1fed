//! Converts a flow's headers into the generator's options, or reports the settings that the generator cannot send.
//!
//! Pure: no file is opened.
//!
//! Invariant: if no problem is reported, each setting of the plan is an option or a value that the generator always
//! writes, even without an option.

use super::options::PktgenOptionReader;
use packetrig_wire::header::{
    AbsentValue, ComputedField, FieldDef, FieldSetting, HeaderKind, NumberSpace, PacketHeader,
};
use packetrig_wire::pattern::FieldPattern;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Fields to which the generator always writes the same value.
const FIXED_FIELD_VALUES: [(HeaderKind, &str, u128); 12] = [
    (HeaderKind::Ipv4, "version", 4),
    (HeaderKind::Ipv4, "header_length", 5),
    (HeaderKind::Ipv4, "reserved", 0),
    (HeaderKind::Ipv4, "dont_fragment", 0),
    (HeaderKind::Ipv4, "more_fragments", 0),
    (HeaderKind::Ipv4, "fragment_offset", 0),
    (HeaderKind::Ipv4, "time_to_live", PKTGEN_HOP_LIMIT),
    (HeaderKind::Ipv4, "protocol", UDP),
    (HeaderKind::Ipv6, "version", 6),
    (HeaderKind::Ipv6, "flow_label", 0),
    (HeaderKind::Ipv6, "next_header", UDP),
    (HeaderKind::Ipv6, "hop_limit", PKTGEN_HOP_LIMIT),
];
/// Hop limit that the generator always writes.
const PKTGEN_HOP_LIMIT: u128 = 32;
const UDP: u128 = 17;
const HEADER_ORDER_TEXT: &str =
    "can send only these headers, in this order: ethernet, at most two vlan, ipv4 or ipv6, udp";

/// One header of a flow, with its position among the flow's headers.
struct HeaderPart<'a> {
    /// Path below the flow, such as `packet[1].vlan`.
    path: String,
    header: &'a PacketHeader,
    /// Bytes of the flow's first frame, from this header on.
    bytes: &'a [u8],
    next: Option<HeaderKind>,
}

impl HeaderPart<'_> {
    fn find_field(&self, name: &str) -> Option<&'static FieldDef> {
        self.header.kind().fields().iter().find(|field| field.name == name)
    }

    /// Returns a field's value in the flow's first frame; 0 if this header has no such field.
    fn value_in_first_frame(&self, name: &str) -> u128 {
        let Some(field) = self.find_field(name) else { return 0 };
        (field.at..field.at + field.bits).fold(0, |value, at| value << 1 | u128::from(self.bit_at(at)))
    }

    /// Returns bit `at` of the frame, counted from the start of this header. Bit 0 is the highest of the first byte.
    fn bit_at(&self, at: u32) -> u8 {
        self.bytes[at as usize / 8] >> (7 - at % 8) & 1
    }

    fn varying_pattern(&self, name: &str) -> Option<&FieldPattern> {
        match self.header.field_setting(name) {
            Some(FieldSetting::Pattern(pattern)) if pattern.varies() => Some(pattern),
            _ => None,
        }
    }

    fn field_path(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// Returns the value that the generator writes into a field without an option; `None` if it computes the value.
    fn value_written_without_option(&self, field: &FieldDef) -> Option<u128> {
        match field.absent {
            AbsentValue::Computed(ComputedField::NextHeader { space: NumberSpace::EtherType, .. }) => {
                self.next.and_then(ether_type)
            }
            _ => FIXED_FIELD_VALUES
                .iter()
                .find(|(kind, name, _)| *kind == self.header.kind() && *name == field.name)
                .map(|fixed| fixed.2),
        }
    }
}

/// Converts the headers of a flow, outermost first; `frame` is the flow's first frame.
pub(super) fn convert_headers(reading: &mut PktgenOptionReader, headers: &[PacketHeader], frame: &[u8]) {
    let kinds: Vec<HeaderKind> = headers.iter().map(PacketHeader::kind).collect();
    // The generator writes an outer tag only together with an inner one, so a single tag becomes the inner tag.
    let tags = kinds.iter().skip(1).take_while(|kind| **kind == HeaderKind::Vlan).count().min(2);
    let mut at = 0;
    for (place, header) in headers.iter().enumerate() {
        let path = format!("packet[{place}].{}", header.kind().name());
        let part = HeaderPart { path, header, bytes: &frame[at..], next: kinds.get(place + 1).copied() };
        at += header.len();
        match (header.kind(), place) {
            (HeaderKind::Ethernet, 0) => convert_ethernet(reading, &part),
            (HeaderKind::Vlan, 1) if tags == 2 => convert_vlan(reading, &part, "svlan"),
            (HeaderKind::Vlan, _) if (1..=tags).contains(&place) => convert_vlan(reading, &part, "vlan"),
            (HeaderKind::Ipv4, _) if place == tags + 1 => convert_ipv4(reading, &part),
            (HeaderKind::Ipv6, _) if place == tags + 1 => convert_ipv6(reading, &part),
            (HeaderKind::Udp, _) if place == tags + 2 => convert_udp(reading, &part),
            // One problem is enough: all headers after a misplaced header would be misplaced, too.
            (_, _) if place == tags + 2 => return reading.refuse_setting(&part.path, "can send only UDP"),
            _ => return reading.refuse_setting(&part.path, HEADER_ORDER_TEXT),
        }
    }
    if kinds.len() < tags + 3 {
        reading.refuse_setting("packet", HEADER_ORDER_TEXT);
    }
}

/// Refuses settings that are neither options nor the values that the generator writes anyway.
fn check_header_settings(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>, options: &[&str]) {
    for (field, setting) in part.header.field_settings() {
        if options.iter().any(|option| field.name.starts_with(option)) {
            continue;
        }
        let written = part.value_written_without_option(field);
        // A plan may name the value that the generator writes anyway.
        if written.is_some_and(|written| *setting == FieldSetting::Pattern(FieldPattern::Value(written))) {
            continue;
        }
        let what = written.map_or_else(
            || "computes this field itself".to_owned(),
            |written| match field.bits {
                16 => format!("always writes {written:#06x} into this field"),
                _ => format!("always writes {written} into this field"),
            },
        );
        reading.refuse_setting(&part.field_path(field.name), what);
    }
}

fn convert_ethernet(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>) {
    check_header_settings(reading, part, &["dst", "src"]);
    for name in ["dst", "src"] {
        require_constant(reading, part, name);
        let bytes = part.value_in_first_frame(name).to_be_bytes();
        // A MAC address is the last 6 of 16 bytes.
        let digits: Vec<String> = bytes[10..].iter().map(|byte| format!("{byte:02x}")).collect();
        reading.add_option(format!("{name}_mac {}", digits.join(":")));
    }
    require_nonzero_address(reading, part, "src");
}

fn convert_vlan(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>, prefix: &str) {
    const FIELDS: [(&str, &str); 3] = [("id", "id"), ("priority", "p"), ("cfi", "cfi")];
    check_header_settings(reading, part, &FIELDS.map(|(name, _)| name));
    for (name, option) in FIELDS {
        require_constant(reading, part, name);
        reading.add_option(format!("{prefix}_{option} {}", part.value_in_first_frame(name)));
    }
}

fn convert_ipv4(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>) {
    check_header_settings(reading, part, &["src", "dst", "priority."]);
    for (field, _) in part.header.field_settings().filter(|(field, _)| field.name.starts_with("priority.")) {
        require_constant(reading, part, field.name);
    }
    reading.add_option(format!("tos {:02x}", part.value_in_first_frame("priority.raw")));
    if part.header.len() > 20 {
        reading.refuse_setting(&part.field_path("options"), "cannot send IPv4 options");
    }
    for name in ["src", "dst"] {
        let range = convert_range(reading, part, name);
        reading.add_option(format!("{name}_min {}", ipv4_address(range.first)));
        reading.add_option(format!("{name}_max {}", ipv4_address(range.last)));
    }
    // The generator writes 32. This is a caveat and not a problem, because the plan does not set the hop limit.
    reading.hops_open |= part.header.field_setting("time_to_live").is_none();
}

fn convert_ipv6(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>) {
    check_header_settings(reading, part, &["src", "dst", "traffic_class"]);
    require_constant(reading, part, "traffic_class");
    reading.add_option(format!("traffic_class {:02x}", part.value_in_first_frame("traffic_class")));
    for name in ["src", "dst"] {
        require_constant(reading, part, name);
        reading.add_option(format!("{name}6 {}", Ipv6Addr::from_bits(part.value_in_first_frame(name))));
    }
    require_nonzero_address(reading, part, "src");
    reading.hops_open |= part.header.field_setting("hop_limit").is_none();
}

fn convert_udp(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>) {
    check_header_settings(reading, part, &["src_port", "dst_port", "checksum"]);
    for (name, option) in [("src_port", "udp_src"), ("dst_port", "udp_dst")] {
        let FieldRange { first, last } = convert_range(reading, part, name);
        // The generator sends ports below the upper bound. For a single port, both bounds are this port.
        let bound = if last > first { last + 1 } else { last };
        if bound > u128::from(u16::MAX) {
            reading.refuse_setting(&part.field_path(name), "cannot send a range that ends with 65535");
        }
        reading.add_option(format!("{option}_min {first}"));
        reading.add_option(format!("{option}_max {bound}"));
    }
    match part.header.field_setting("checksum") {
        None => reading.add_option("flag UDPCSUM".into()),
        Some(FieldSetting::Pattern(FieldPattern::Value(0))) => reading.add_option("flag !UDPCSUM".into()),
        Some(_) => {
            reading.refuse_setting(&part.field_path("checksum"), "can write only a correct checksum or 0");
        }
    }
}

/// Refuses a field that varies between frames.
fn require_constant(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>, name: &str) {
    if part.varying_pattern(name).is_some() {
        reading.refuse_setting(&part.field_path(name), "cannot vary this field");
    }
}

/// Refuses a zero address: the generator takes it for "not set" and writes the address of the interface instead.
fn require_nonzero_address(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>, name: &str) {
    if part.value_in_first_frame(name) == 0 {
        reading.refuse_setting(
            &part.field_path(name),
            "replaces address 0 with the address of the interface; give another address",
        );
    }
}

/// Converts the value of an address field to an IPv4 address.
fn ipv4_address(value: u128) -> Ipv4Addr {
    let [.., a, b, c, d] = value.to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// First and last value of a field; equal if the field is constant.
struct FieldRange {
    first: u128,
    last: u128,
}

fn convert_range(reading: &mut PktgenOptionReader, part: &HeaderPart<'_>, name: &str) -> FieldRange {
    let first = part.value_in_first_frame(name);
    let most = part.find_field(name).map_or(0, |field| (1 << field.bits) - 1);
    match part.varying_pattern(name) {
        None => FieldRange { first, last: first },
        Some(FieldPattern::Step { step: 1, count, down: false, .. })
            if first + u128::from(count - 1) <= most =>
        {
            FieldRange { first, last: first + u128::from(count - 1) }
        }
        Some(_) => {
            reading.refuse_setting(
                &part.field_path(name),
                "can vary this field only by counting up in steps of 1 without a wrap",
            );
            FieldRange { first, last: first }
        }
    }
}

fn ether_type(kind: HeaderKind) -> Option<u128> {
    match kind {
        HeaderKind::Vlan => Some(0x8100),
        HeaderKind::Ipv4 => Some(0x0800),
        HeaderKind::Ipv6 => Some(0x86dd),
        _ => None,
    }
}
