//! Fields of a flow that other exporters report and our meter cannot see: the outgoing interface, the networks of both
//! ends, the addresses after NAT, and fields that have no column.

use crate::account::ENTERPRISE_NUMBER;
use crate::export::section::own;
use crate::iana::{self, DataKind};
use crate::narrow::fitting_u16;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// RFC 5103: the enterprise of reverse elements.
pub const REVERSE_ENTERPRISE: u32 = 29305;
/// Maximum number of bytes of a record's other fields. Each field takes `FIELD_BYTES` besides its value.
pub const MAX_OTHER_BYTES: usize = 512;
/// Bytes of a field besides its value: enterprise, number and length.
const FIELD_BYTES: usize = 8;

/// Fields that only other exporters send. Zero means that the value is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignFields {
    /// Number of the interface through which the flow left the exporter.
    pub output: u32,
    /// The autonomous system of the source.
    pub source_as: u32,
    /// The autonomous system of the destination.
    pub destination_as: u32,
    /// The next router. In this and the following addresses, IPv4 is mapped.
    pub next_hop: [u8; 16],
    /// The next router according to BGP.
    pub bgp_next_hop: [u8; 16],
    /// The source address after NAT.
    pub nat_source: [u8; 16],
    /// The destination address after NAT.
    pub nat_destination: [u8; 16],
    /// The source port after NAT.
    pub nat_source_port: u16,
    /// The destination port after NAT.
    pub nat_destination_port: u16,
    /// The VLAN in which the flow left the exporter.
    pub post_vlan: u16,
    /// The type of service with which the flow left the exporter.
    pub post_tos: u8,
    /// Fields that have no column.
    pub others: OtherFields,
}

impl ForeignFields {
    /// Returns the fields of the opposite direction: fields of the source and of the destination are swapped, fields
    /// of the exporter stay.
    #[must_use]
    pub fn opposite_direction(&self) -> Self {
        Self {
            source_as: self.destination_as,
            destination_as: self.source_as,
            nat_source: self.nat_destination,
            nat_destination: self.nat_source,
            nat_source_port: self.nat_destination_port,
            nat_destination_port: self.nat_source_port,
            ..self.clone()
        }
    }
}

/// Fields of a record that have no column, as they were sent: at most [`MAX_OTHER_BYTES`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtherFields {
    /// The fields follow each other: enterprise, number, length, value.
    bytes: Vec<u8>,
    left_out: u16,
}

impl OtherFields {
    pub const NONE: &'static Self = &Self { bytes: Vec::new(), left_out: 0 };

    /// Returns whether there are no fields, and none was left out.
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.left_out == 0
    }

    /// Returns the number of fields that were left out for lack of room.
    pub const fn left_out(&self) -> u16 {
        self.left_out
    }

    /// Adds a field of an enterprise (0: IANA), or counts it as left out.
    pub fn add_field(&mut self, enterprise: u32, id: u16, value: &[u8]) {
        // The fields are bounded, because the sender chooses their number and length: a queue that counts
        // records could otherwise hold nearly a whole message for each of them. A shorter field that comes later
        // may still fit.
        if self.bytes.len() + FIELD_BYTES + value.len() > MAX_OTHER_BYTES {
            self.left_out = self.left_out.saturating_add(1);
            return;
        }
        self.bytes.extend_from_slice(&enterprise.to_be_bytes());
        self.bytes.extend_from_slice(&id.to_be_bytes());
        self.bytes.extend_from_slice(&fitting_u16(value.len()).to_be_bytes());
        self.bytes.extend_from_slice(value);
    }

    /// Returns whether there is a field of this element.
    pub(crate) fn has_element(&self, enterprise: u32, id: u16) -> bool {
        self.iter_fields().any(|field| (field.enterprise, field.id) == (enterprise, id))
    }

    fn iter_fields(&self) -> OtherFieldsIter<'_> {
        OtherFieldsIter { bytes: &self.bytes }
    }

    /// Appends the fields as a JSON object, with the names of [`field_name`] and the values in the notation of their
    /// kind. A repeated name gets `#2` appended, and so on. `fieldsLeftOut` is the number of fields that were left out
    /// for lack of room.
    pub fn append_json(&self, text: &mut String) {
        let mut before = '{';
        for (at, field) in self.iter_fields().enumerate() {
            text.push(before);
            before = ',';
            text.push('"');
            text.push_str(&field_name(field.enterprise, field.id));
            let earlier = self.iter_fields().take(at).filter(|other| other.is_same_element(&field)).count();
            if earlier > 0 {
                append_format(text, format_args!("#{}", earlier + 1));
            }
            text.push_str("\":");
            field.append_value(text);
        }
        if self.left_out > 0 {
            text.push(before);
            before = ',';
            append_format(text, format_args!("\"fieldsLeftOut\":{}", self.left_out));
        }
        text.push_str(if before == '{' { "{}" } else { "}" });
    }
}

struct OtherFieldsIter<'a> {
    bytes: &'a [u8],
}

struct OtherField<'a> {
    enterprise: u32,
    id: u16,
    value: &'a [u8],
}

impl<'a> Iterator for OtherFieldsIter<'a> {
    type Item = OtherField<'a>;

    fn next(&mut self) -> Option<OtherField<'a>> {
        let enterprise = u32::from_be_bytes(read_array(&mut self.bytes)?);
        let id = u16::from_be_bytes(read_array(&mut self.bytes)?);
        let length = u16::from_be_bytes(read_array(&mut self.bytes)?);
        let value = self.bytes.split_off(..usize::from(length))?;
        Some(OtherField { enterprise, id, value })
    }
}

fn read_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    bytes.split_off(..N)?.try_into().ok()
}

impl OtherField<'_> {
    const fn is_same_element(&self, other: &Self) -> bool {
        self.enterprise == other.enterprise && self.id == other.id
    }

    fn append_value(&self, text: &mut String) {
        let kind = field_kind(self.enterprise, self.id);
        if !append_value_of_kind(kind, self.value, text) {
            text.push_str("\"0x");
            for byte in self.value {
                append_format(text, format_args!("{byte:02x}"));
            }
            text.push('"');
        }
    }
}

/// Returns IANA's element with this number, also for the enterprise of reverse elements; `None` for any other
/// enterprise or an unknown number.
fn registered_element(enterprise: u32, id: u16) -> Option<&'static iana::RegisteredElement> {
    // RFC 5103: a reverse element has the number and the type of its forward element.
    matches!(enterprise, 0 | REVERSE_ENTERPRISE).then(|| iana::element_by_id(id)).flatten()
}

/// Returns the name of one of our own elements; `None` for any other element.
fn own_name(enterprise: u32, id: u16) -> Option<&'static str> {
    let mut all = own::ALL.iter().filter(|_| enterprise == ENTERPRISE_NUMBER);
    all.find(|(own, ..)| *own == id).map(|(_, name, ..)| *name)
}

/// Returns the kind of a field's values; [`DataKind::Bytes`] if the element is not known.
pub fn field_kind(enterprise: u32, id: u16) -> DataKind {
    let own_kind = || match (enterprise, id) {
        // Shown as numbers, because a restarted collector reads the elements of groups back as numbers.
        (ENTERPRISE_NUMBER, own::LOCAL_PREFERENCE) => DataKind::Unsigned,
        (ENTERPRISE_NUMBER, id) if own::GROUP_ELEMENT_RANGE.contains(&id) => DataKind::Unsigned,
        (ENTERPRISE_NUMBER, own::AS_PATH) => DataKind::Text,
        _ => DataKind::Bytes,
    };
    registered_element(enterprise, id).map_or_else(own_kind, |element| element.kind)
}

/// Returns the name of a field: IANA's name, the name of our own element, or `enterprise/number` if it has none.
pub fn field_name(enterprise: u32, id: u16) -> String {
    match registered_element(enterprise, id) {
        Some(element) if enterprise == 0 => element.name.to_owned(),
        Some(element) => reverse_name(element.name),
        None => own_name(enterprise, id).map_or_else(|| format!("{enterprise}/{id}"), str::to_owned),
    }
}

/// Appends a value in the notation of its kind. Returns false and appends nothing if the value is not valid for its
/// kind, or if the kind is bytes.
fn append_value_of_kind(kind: DataKind, value: &[u8], text: &mut String) -> bool {
    match (kind, value) {
        // RFC 7011 section 6.2: exporters may send integers in fewer bytes than their type has.
        (DataKind::Unsigned, [_, ..]) if value.len() <= 8 => {
            append_format(text, format_args!("{}", shift_in_bytes(0, value)));
        }
        (DataKind::Signed, [first, ..]) if value.len() <= 8 => {
            // The sign of a shortened value is its own first bit: all bits in front of it repeat that.
            let before = if first & 0x80 == 0 { 0 } else { u64::MAX };
            append_format(text, format_args!("{}", shift_in_bytes(before, value).cast_signed()));
        }
        (DataKind::Float, value) if value.len() == 4 => {
            append_float(f32::from_be_bytes(value.try_into().unwrap_or_default()).into(), text);
        }
        (DataKind::Float, value) if value.len() == 8 => {
            append_float(f64::from_be_bytes(value.try_into().unwrap_or_default()), text);
        }
        // RFC 7011 section 6.1.5: 1 is true, 2 is false.
        (DataKind::Boolean, [1]) => text.push_str("true"),
        (DataKind::Boolean, [2]) => text.push_str("false"),
        // Only numbers may be shortened. A value of any other length is shown as bytes, not guessed.
        (DataKind::Mac, value) if value.len() == 6 => {
            let bytes: Vec<_> = value.iter().map(|byte| format!("{byte:02x}")).collect();
            append_format(text, format_args!("\"{}\"", bytes.join(":")));
        }
        (DataKind::Ipv4, &[a, b, c, d]) => {
            append_format(text, format_args!("\"{}\"", Ipv4Addr::new(a, b, c, d)));
        }
        (DataKind::Ipv6, value) if value.len() == 16 => {
            let address: [u8; 16] = value.try_into().unwrap_or_default();
            append_format(text, format_args!("\"{}\"", Ipv6Addr::from(address)));
        }
        // RFC 7011 section 6.1.6 asks for UTF-8, but some exporters send other bytes; the JSON must stay valid.
        (DataKind::Text, value) => append_text(&String::from_utf8_lossy(value), text),
        _ => return false,
    }
    true
}

/// Shifts the bytes of a big-endian number into another number from the right.
fn shift_in_bytes(before: u64, value: &[u8]) -> u64 {
    value.iter().fold(before, |sum, byte| sum << 8 | u64::from(*byte))
}

/// Appends a float. JSON has no numbers for infinity and NaN, so these are written as text.
fn append_float(value: f64, text: &mut String) {
    if value.is_finite() {
        append_format(text, format_args!("{value}"));
    } else {
        append_format(text, format_args!("\"{value}\""));
    }
}

/// Appends a text as a JSON string, without zero bytes at its end: NetFlow 9 fills a text of fixed length with them.
fn append_text(value: &str, text: &mut String) {
    text.push('"');
    for c in value.trim_end_matches('\0').chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            c if c.is_control() => append_format(text, format_args!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
    }
    text.push('"');
}

/// Builds a reverse name as RFC 5103 spells it: `reverse` and the name with its first letter capitalised.
pub(crate) fn reverse_name(name: &str) -> String {
    let mut reversed = format!("reverse{name}");
    if let Some(first) = reversed.get_mut(7..8) {
        first.make_ascii_uppercase();
    }
    reversed
}

fn append_format(text: &mut String, more: std::fmt::Arguments<'_>) {
    let written = text.write_fmt(more);
    // Only a formatter can fail here, and the formatters of numbers, addresses and texts do not: a string
    // accepts any length.
    debug_assert!(written.is_ok(), "a String takes any text");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(fields: &[(u32, u16, &[u8])]) -> String {
        let mut others = OtherFields::default();
        for (enterprise, id, value) in fields {
            others.add_field(*enterprise, *id, value);
        }
        let mut text = String::new();
        others.append_json(&mut text);
        text
    }

    #[test]
    fn fields_are_shown_by_name_and_kind() {
        assert_eq!(json(&[]), "{}");
        assert_eq!(
            json(&[(0, 61, &[1]), (0, 96, b"dns\0\0")]),
            r#"{"flowDirection":1,"applicationName":"dns"}"#
        );
        assert_eq!(json(&[(0, 130, &[198, 18, 0, 1])]), r#"{"exporterIPv4Address":"198.18.0.1"}"#);
        assert_eq!(json(&[(0, 81, &[2, 0, 0, 0, 0, 1])]), r#"{"postSourceMacAddress":"02:00:00:00:00:01"}"#);
        assert_eq!(
            json(&[(0, 276, &[2]), (0, 434, &[0xff, 0xfe])]),
            r#"{"dataRecordsReliability":false,"mibObjectValueInteger":-2}"#
        );
        assert_eq!(json(&[(0, 320, &1.5_f64.to_be_bytes())]), r#"{"absoluteError":1.5}"#);
    }

    #[test]
    fn unnamed_field_is_written_with_number_and_bytes() {
        assert_eq!(json(&[(9, 33002, &[0, 0x2a]), (0, 9999, &[])]), r#"{"9/33002":"0x002a","0/9999":"0x"}"#);
        // A length that does not fit the kind.
        assert_eq!(json(&[(0, 130, &[1, 2])]), r#"{"exporterIPv4Address":"0x0102"}"#);
        assert_eq!(json(&[(29305, 61, &[1])]), r#"{"reverseFlowDirection":1}"#);
    }

    #[test]
    fn a_field_that_comes_twice_is_there_twice() {
        assert_eq!(json(&[(0, 61, &[0]), (0, 61, &[1])]), r#"{"flowDirection":0,"flowDirection#2":1}"#);
    }

    #[test]
    fn oversized_fields_are_counted_and_small_ones_kept() {
        let long = [7; 400];
        let text = json(&[(0, 95, &long), (0, 95, &long), (0, 61, &[1])]);
        assert!(text.ends_with(r#","flowDirection":1,"fieldsLeftOut":1}"#), "{text}");
        assert_eq!(json(&[(9, 1, &[0; 600])]), r#"{"fieldsLeftOut":1}"#);
    }

    #[test]
    fn text_cannot_leave_its_quotes() {
        assert_eq!(
            json(&[(0, 96, b"a\"b\\c\n\xff")]),
            "{\"applicationName\":\"a\\\"b\\\\c\\u000a\u{fffd}\"}"
        );
    }
}
