//! Writes the exporter's own records: templates, the meaning of our own elements, names of
//! interfaces, sampling, the ledger.
//!
//! Options records count in IPFIX sequence numbers, templates do not; [`OpenRecordKind`] distinguishes the two.

use super::MessageSink;
use super::open::{OpenMessage, OpenRecordKind, RecordToAdd};
use super::options::{ExportFormat, ExportOptions};
use super::section::{SectionField, VARIABLE_LENGTH, own};
use super::template::ExportTemplate;
use super::write::ValueWriter;
use crate::account::{ENTERPRISE_NUMBER, LEDGER_ACCOUNTS, UNKNOWN_VALUE};
use crate::ledger::MeterLedger;
use crate::membership::GroupMembership;
use crate::narrow::{fitting_u8, fitting_u16};

/// An interface to which records refer by its index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnouncedInterface {
    /// Index of the interface in the kernel, as in [`FlowRecord::input`](crate::FlowRecord::input).
    pub index: u32,
    pub name: String,
    /// Description of the interface, as the user gave it.
    pub description: String,
}

/// Numbers of the options templates. The scope is the first field of each; `TYPES_TEMPLATE` and `MEMBERSHIP_TEMPLATE`
/// have two scope fields.
mod id {
    pub(super) const INTERFACES_TEMPLATE: u16 = 280;
    pub(super) const SAMPLING_TEMPLATE: u16 = 281;
    pub(super) const METERING_TEMPLATE: u16 = 282;
    pub(super) const RELIABILITY_TEMPLATE: u16 = 283;
    pub(super) const EXPORTING_TEMPLATE: u16 = 284;
    pub(super) const LEDGER_TEMPLATE: u16 = 285;
    pub(super) const TYPES_TEMPLATE: u16 = 286;
    pub(super) const MEMBERSHIP_TEMPLATE: u16 = 287;
}

/// Number of the only metering and exporting process of this program.
const PROCESS_ID: u32 = 1;
// NetFlow 9 has no fields of variable length, so names are cut or filled up to these lengths there.
const NAME_FIELD_BYTES: u16 = 32;
const DESCRIPTION_FIELD_BYTES: u16 = 64;
const TEMPLATE_SET_ID: u16 = 2;
const OPTIONS_SET_ID: u16 = 3;
const NETFLOW9_TEMPLATE_FLOWSET: u16 = 0;
const NETFLOW9_OPTIONS_FLOWSET: u16 = 1;

struct OptionsTemplate {
    id: u16,
    scopes: usize,
    fields: Vec<SectionField>,
}

const fn iana_field(id: u16, length: u16) -> SectionField {
    SectionField { id, enterprise: 0, length }
}

fn iana_fields(fields: &[(u16, u16)]) -> Vec<SectionField> {
    fields.iter().map(|(id, length)| iana_field(*id, *length)).collect()
}

const fn packetrig_field(id: u16, length: u16) -> SectionField {
    SectionField { id, enterprise: ENTERPRISE_NUMBER, length }
}

fn options_templates(format: ExportFormat, has_history: bool) -> Vec<OptionsTemplate> {
    let nine = format == ExportFormat::NetFlow9;
    let name = if nine { NAME_FIELD_BYTES } else { VARIABLE_LENGTH };
    let description = if nine { DESCRIPTION_FIELD_BYTES } else { VARIABLE_LENGTH };
    // Sampling is sent twice: older readers know the plain interval (34, 35), newer ones the selector (304 to 306).
    // METERING, RELIABILITY and EXPORTING are the statistics that RFC 7011 section 4 asks for.
    let mut templates: Vec<_> = [
        (id::INTERFACES_TEMPLATE, iana_fields(&[(10, 4), (82, name), (83, description)])),
        (id::SAMPLING_TEMPLATE, iana_fields(&[(149, 4), (34, 4), (35, 1), (304, 2), (305, 4), (306, 4)])),
        (id::METERING_TEMPLATE, iana_fields(&[(143, 4), (323, 8), (40, 8), (41, 8), (42, 8)])),
        (id::RELIABILITY_TEMPLATE, iana_fields(&[(143, 4), (323, 8), (164, 8), (135, 8)])),
        (id::EXPORTING_TEMPLATE, iana_fields(&[(144, 4), (323, 8), (166, 8), (167, 8), (168, 8)])),
    ]
    .into_iter()
    .map(|(id, fields)| OptionsTemplate { id, scopes: 1, fields })
    .collect();
    // NetFlow 9 cannot name elements of an enterprise, so it has neither our ledger nor the types of our elements.
    if !nine {
        let mut fields = iana_fields(&[(143, 4), (323, 8)]);
        fields.extend(LEDGER_ACCOUNTS.iter().map(|account| packetrig_field(account.id, 8)));
        templates.push(OptionsTemplate { id: id::LEDGER_TEMPLATE, scopes: 1, fields });
        let fields = iana_fields(&[(346, 4), (303, 2), (339, 1), (344, 1), (341, VARIABLE_LENGTH)]);
        templates.push(OptionsTemplate { id: id::TYPES_TEMPLATE, scopes: 2, fields });
    }
    if has_history {
        let mut fields = vec![packetrig_field(own::GROUP_ELEMENT, 8), packetrig_field(own::METER_ELEMENT, 4)];
        fields.extend((own::TERM_ELEMENT..=own::COPY_PACKETS_ELEMENT).map(|id| packetrig_field(id, 8)));
        templates.push(OptionsTemplate { id: id::MEMBERSHIP_TEMPLATE, scopes: 2, fields });
    }
    templates
}

/// Writes templates, type information, interfaces and sampling: everything but the ledger and the membership.
pub(super) fn write_announcements(
    open: &mut OpenMessage,
    templates: &[ExportTemplate],
    options: &ExportOptions,
    now_ns: u64,
    sink: &mut impl MessageSink,
) {
    let nine = options.format == ExportFormat::NetFlow9;
    let set = if nine { NETFLOW9_TEMPLATE_FLOWSET } else { TEMPLATE_SET_ID };
    let options_set = if nine { NETFLOW9_OPTIONS_FLOWSET } else { OPTIONS_SET_ID };
    // Templates come before the records that need them: a collector may drop data without a known template.
    for template in templates {
        let fields: Vec<SectionField> = template.fields().copied().collect();
        let length = 4 + specifiers_length(&fields);
        open.add_record(RecordToAdd { set, length, kind: OpenRecordKind::Template }, now_ns, sink, |out| {
            out.put_u16(template.id);
            out.put_u16(fitting_u16(fields.len()));
            write_field_specifiers(&fields, out);
        });
    }
    for template in options_templates(options.format, options.has_history) {
        let length = 6 + specifiers_length(&template.fields);
        let place = RecordToAdd { set: options_set, length, kind: OpenRecordKind::Template };
        open.add_record(place, now_ns, sink, |out| {
            write_options_template(&template, nine, out);
        });
    }
    if !nine {
        write_type_information(open, now_ns, sink);
    }
    write_interfaces(open, options, now_ns, sink);
    // Without sampling there is nothing to scale, and a reader without
    // this record assumes an interval of one.
    if options.sampling > 1 {
        write_sampling_options(open, options, now_ns, sink);
    }
}

fn write_options_template(template: &OptionsTemplate, nine: bool, out: &mut Vec<u8>) {
    out.put_u16(template.id);
    if nine {
        // RFC 3954 section 6.1: lengths in bytes instead of counts, and scopes with numbers of their own: 1
        // is the system, 2 an interface.
        out.put_u16(fitting_u16(4 * template.scopes));
        out.put_u16(fitting_u16(4 * (template.fields.len() - template.scopes)));
        // The scope replaces the first field, which has the same meaning in IPFIX.
        out.put_u16(if template.id == id::INTERFACES_TEMPLATE { 2 } else { 1 });
        out.put_u16(4);
        write_field_specifiers(&template.fields[1..], out);
    } else {
        out.put_u16(fitting_u16(template.fields.len()));
        out.put_u16(fitting_u16(template.scopes));
        write_field_specifiers(&template.fields, out);
    }
}

fn write_field_specifiers(fields: &[SectionField], out: &mut Vec<u8>) {
    for field in fields {
        if field.enterprise == 0 {
            out.put_u16(field.id);
            out.put_u16(field.length);
        } else {
            // The first bit says that an enterprise number follows (RFC 7011 section 3.2).
            out.put_u16(field.id | 0x8000);
            out.put_u16(field.length);
            out.put_u32(field.enterprise);
        }
    }
}

fn specifiers_length(fields: &[SectionField]) -> usize {
    fields.iter().map(|field| if field.enterprise == 0 { 4 } else { 8 }).sum()
}

/// Writes names and types of our own elements (RFC 5610), so that a collector can show them
/// without knowing this program.
fn write_type_information(open: &mut OpenMessage, now_ns: u64, sink: &mut impl MessageSink) {
    const UNSIGNED64: u8 = 4;
    const TOTAL_COUNTER: u8 = 2;
    let ledger = LEDGER_ACCOUNTS.iter().map(|account| (account.id, account.name, UNSIGNED64, TOTAL_COUNTER));
    for (element, name, kind, semantics) in own::ALL.iter().copied().chain(ledger) {
        let length = 8 + text_length(name, None);
        let place = RecordToAdd { set: id::TYPES_TEMPLATE, length, kind: OpenRecordKind::Options };
        open.add_record(place, now_ns, sink, |out| {
            out.put_u32(ENTERPRISE_NUMBER);
            out.put_u16(element);
            out.put_u8(kind);
            out.put_u8(semantics);
            write_text(name, None, out);
        });
    }
}

fn write_interfaces(
    open: &mut OpenMessage,
    options: &ExportOptions,
    now_ns: u64,
    sink: &mut impl MessageSink,
) {
    let nine = options.format == ExportFormat::NetFlow9;
    let name_length = nine.then_some(usize::from(NAME_FIELD_BYTES));
    let description_length = nine.then_some(usize::from(DESCRIPTION_FIELD_BYTES));
    for interface in &options.interfaces {
        let texts = [(&interface.name, name_length), (&interface.description, description_length)];
        let length = 4 + texts.iter().map(|(value, fixed)| text_length(value, *fixed)).sum::<usize>();
        let place = RecordToAdd { set: id::INTERFACES_TEMPLATE, length, kind: OpenRecordKind::Options };
        open.add_record(place, now_ns, sink, |out| {
            out.put_u32(interface.index);
            for (value, fixed) in texts {
                write_text(value, fixed, out);
            }
        });
    }
}

fn write_sampling_options(
    open: &mut OpenMessage,
    options: &ExportOptions,
    now_ns: u64,
    sink: &mut impl MessageSink,
) {
    let place = RecordToAdd { set: id::SAMPLING_TEMPLATE, length: 19, kind: OpenRecordKind::Options };
    open.add_record(place, now_ns, sink, |out| {
        out.put_u32(options.domain);
        out.put_u32(options.sampling);
        // Sampling is deterministic and systematic by count: one packet is metered, and the next ones are skipped.
        out.put_u8(1);
        out.put_u16(1);
        out.put_u32(1);
        out.put_u32(options.sampling - 1);
    });
}

/// Writes the ledger: the statistics of RFC 7011 section 4 and, in IPFIX, all counts of the ledger.
pub(super) fn write_statistics(
    open: &mut OpenMessage,
    format: ExportFormat,
    ledger: &MeterLedger,
    now_ns: u64,
    sink: &mut impl MessageSink,
) {
    let capture = &ledger.capture;
    let packets = &ledger.packets;
    let export = &ledger.export;
    // Elements 166 to 168 count records that were not sent: dropped by the queue, or refused by the transport.
    // Records that were left to another meter are missing on purpose: that meter sends them.
    let mut lost = export.queue_dropped;
    lost.add_records(export.refused);
    // Element 135 counts packets lost before metering: in the driver, in the ring, and for lack of a
    // place in the table.
    let dropped = capture.ring_dropped + capture.driver_dropped.unwrap_or(0) + packets.untracked;
    let standard: [(u16, &[u64]); 3] = [
        (id::METERING_TEMPLATE, &[export.message_bytes, export.messages, export.sent.records]),
        (id::RELIABILITY_TEMPLATE, &[packets.ignored_packets(), dropped]),
        (id::EXPORTING_TEMPLATE, &[lost.records, lost.packets, lost.bytes]),
    ];
    for (id, values) in standard {
        write_numbers(open, id, values.iter().copied(), now_ns, sink);
    }
    if format == ExportFormat::Ipfix {
        let values = LEDGER_ACCOUNTS.iter().map(|account| (account.get)(ledger).unwrap_or(UNKNOWN_VALUE));
        write_numbers(open, id::LEDGER_TEMPLATE, values, now_ns, sink);
    }
}

/// Writes a meter's role in its group.
pub(super) fn write_membership(
    open: &mut OpenMessage,
    membership: &GroupMembership,
    now_ns: u64,
    sink: &mut impl MessageSink,
) {
    let values = membership.template_values();
    let place = RecordToAdd {
        set: id::MEMBERSHIP_TEMPLATE,
        length: 12 + 8 * values.len(),
        kind: OpenRecordKind::Options,
    };
    open.add_record(place, now_ns, sink, |out| {
        out.put_u64(membership.group);
        out.put_u32(membership.meter);
        for value in values {
            out.put_u64(value);
        }
    });
}

fn write_numbers(
    open: &mut OpenMessage,
    id: u16,
    values: impl ExactSizeIterator<Item = u64>,
    now_ns: u64,
    sink: &mut impl MessageSink,
) {
    let place = RecordToAdd { set: id, length: 12 + 8 * values.len(), kind: OpenRecordKind::Options };
    open.add_record(place, now_ns, sink, |out| {
        out.put_u32(PROCESS_ID);
        out.put_millis(now_ns);
        values.for_each(|value| out.put_u64(value));
    });
}

/// Returns the beginning of a text, at most `DESCRIPTION_FIELD_BYTES` bytes. It is cut between two characters: half a
/// character would not be UTF-8, which RFC 7011 asks for.
fn cut_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(usize::from(DESCRIPTION_FIELD_BYTES))]
}

fn text_length(value: &str, fixed: Option<usize>) -> usize {
    fixed.unwrap_or_else(|| 1 + cut_text(value).len())
}

/// Writes a text with its length in front or, if `fixed` is given, filled with zeros up to this length.
fn write_text(value: &str, fixed: Option<usize>, out: &mut Vec<u8>) {
    match fixed {
        None => {
            let value = cut_text(value);
            // RFC 7011 section 7: one byte holds lengths below 255, and texts are cut to less.
            out.put_u8(fitting_u8(value.len()));
            out.put_bytes(value.as_bytes());
        }
        Some(length) => {
            let value = &value[..value.floor_char_boundary(length)];
            out.put_bytes(value.as_bytes());
            out.put_bytes(&[0; DESCRIPTION_FIELD_BYTES as usize][..length - value.len()]);
        }
    }
}
