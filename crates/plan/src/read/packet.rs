//! Header stacks: turns `packet` of a flow into headers of the crate `wire`. The tables of `wire` have the names of the
//! fields, so this file has code only for headers that OTG writes differently.

use super::UNSUPPORTED_TEXT;
use crate::reader::{DocumentItem, DocumentObject};
use crate::{PlanParseOptions, PlanProblem};
use packetrig_wire::header::{
    AbsentValue, ExtraPatternChoice, FieldDef, FieldNotation, FieldSetting, HeaderKind, PacketHeader,
    UNSUPPORTED_HEADERS,
};
use packetrig_wire::pattern::{FieldPattern, keyed_mix};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Values that are needed to read a flow's headers and sizes, but that are not in them.
#[derive(Clone, Copy)]
pub(super) struct HeaderContext {
    pub(super) options: PlanParseOptions,
    /// Number of the flow; the seeds of its random values depend on it.
    pub(super) flow: u64,
    /// Number of the header in the frame; 0 outside headers.
    pub(super) header: u64,
    /// True if the flow connects emulated interfaces: `auto` then means their addresses.
    pub(super) device: bool,
}

pub(super) fn read_headers(flow: &DocumentObject<'_>, context: HeaderContext) -> Vec<PacketHeader> {
    let items = flow.read_items("packet");
    let headers = items.iter().zip(0..).map(|(item, header)| (item, HeaderContext { header, ..context }));
    headers.filter_map(|(item, context)| read_header(item, context)).collect()
}

fn read_header(item: &DocumentItem<'_>, context: HeaderContext) -> Option<PacketHeader> {
    let union = item.as_object()?;
    let mut words: Vec<&'static str> = HeaderKind::ALL.iter().map(|kind| kind.name()).collect();
    // The choice must accept these words, so that the error is "not supported" and not "unknown".
    words.extend(UNSUPPORTED_HEADERS);
    union.exclude_from_hints(UNSUPPORTED_HEADERS);
    let choice = union.read_choice(&words, "ethernet");
    let kind = HeaderKind::ALL.into_iter().find(|kind| kind.name() == choice);
    let Some(kind) = kind else {
        item.add_item_error(format!("header `{choice}` is not supported: {UNSUPPORTED_TEXT}"));
        return None;
    };
    let object = union.chosen_member_object(choice)?;
    union.refuse_unread_members();
    let header = match kind {
        HeaderKind::Custom => read_custom_header(&object),
        _ => read_fields(kind, &object, context),
    };
    if kind == HeaderKind::Ethernet {
        object.ignore_members(&["pfc_queue"], "packetrig has no priority queues of its own");
    }
    object.refuse_unread_members();
    header
}

fn read_custom_header(object: &DocumentObject<'_>) -> Option<PacketHeader> {
    object.refuse_members(&["metric_tags"], UNSUPPORTED_TEXT);
    let item = object.require_member("bytes")?;
    let bytes = parse_hex_bytes(item.as_text()?);
    if bytes.is_none() {
        item.add_item_error("must be an even number of hexadecimal digits");
    }
    bytes.map(PacketHeader::custom)
}

/// Reads an even number of hexadecimal digits, after an optional `0x`. Ignores spaces, colons and line breaks.
pub(super) fn parse_hex_bytes(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .trim_start_matches("0x")
        .chars()
        .filter(|c| !matches!(c, ' ' | ':' | '\n'))
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn read_fields(
    kind: HeaderKind,
    object: &DocumentObject<'_>,
    context: HeaderContext,
) -> Option<PacketHeader> {
    let mut header = PacketHeader::new(kind);
    match kind {
        HeaderKind::Icmp | HeaderKind::Icmpv6 => {
            object.read_choice(&["echo"], "echo");
            read_nested_fields(&mut header, object, "echo", "echo.", context);
        }
        HeaderKind::Ipv4 => {
            read_prefixed_fields(&mut header, object, "", context);
            if let Some(priority) = object.read_object("priority") {
                let choice = priority.read_choice(&["raw", "tos", "dscp"], "dscp");
                match choice {
                    "raw" => read_prefixed_fields(&mut header, &priority, "priority.", context),
                    "tos" => read_nested_fields(&mut header, &priority, "tos", "priority.tos.", context),
                    _ => read_nested_fields(&mut header, &priority, "dscp", "priority.dscp.", context),
                }
                priority.refuse_unread_members();
            }
            read_ip_options(&mut header, object);
        }
        HeaderKind::Ipv6 => {
            read_prefixed_fields(&mut header, object, "", context);
            object.refuse_members(&["dst_usids"], UNSUPPORTED_TEXT);
        }
        HeaderKind::Geneve => {
            read_prefixed_fields(&mut header, object, "", context);
            read_geneve_options(&mut header, object);
        }
        _ => read_prefixed_fields(&mut header, object, "", context),
    }
    let checksum = header.field_setting("checksum_present");
    if kind == HeaderKind::Gre && matches!(checksum, Some(FieldSetting::Pattern(p)) if p.varies()) {
        object.item.add_item_error("`checksum_present` must not vary: the header would change its length");
        return None;
    }
    Some(header)
}

fn read_nested_fields(
    header: &mut PacketHeader,
    object: &DocumentObject<'_>,
    name: &'static str,
    prefix: &str,
    context: HeaderContext,
) {
    if let Some(inner) = object.chosen_member_object(name) {
        read_prefixed_fields(header, &inner, prefix, context);
        if inner.item.path != object.item.path {
            inner.refuse_unread_members();
        }
    }
}

/// Reads the fields with names that consist of `prefix` and one more word.
fn read_prefixed_fields(
    header: &mut PacketHeader,
    object: &DocumentObject<'_>,
    prefix: &str,
    context: HeaderContext,
) {
    for field in header.kind().fields() {
        let Some(name) = field.name.strip_prefix(prefix).filter(|name| !name.contains('.')) else { continue };
        // OTG's TCP header has no such field, so the key must stay unknown.
        if name == "urgent_pointer" {
            continue;
        }
        let setting = object.read_member(name).and_then(|item| read_setting(&item, field, context));
        if let Some(setting) =
            setting.filter(|setting| !is_placeholder_setting(header.kind(), field, setting))
        {
            header.set_field(field.name, setting);
        }
    }
}

/// True for values that mean "compute this field" in OTG.
fn is_placeholder_setting(kind: HeaderKind, field: &FieldDef, setting: &FieldSetting) -> bool {
    let literal = match setting {
        FieldSetting::Pattern(FieldPattern::Value(value)) => *value,
        _ => return false,
    };
    matches!(
        (kind, field.name, literal),
        (HeaderKind::Udp, "length", 0)
            | (HeaderKind::Tcp, "data_offset", 0)
            | (HeaderKind::Vlan, "tpid", 65_535)
    )
}

/// Reads IPv4 options: router alert and end of options. Other options are refused.
fn read_ip_options(header: &mut PacketHeader, object: &DocumentObject<'_>) {
    for item in object.read_items("options") {
        let Some(option) = item.as_object() else { continue };
        option.exclude_from_hints(&["custom", "timestamp"]);
        match option.read_choice(&["router_alert", "custom", "timestamp", "end_of_options"], "router_alert") {
            // RFC 2113: copied, number 20, four bytes, value 0.
            "router_alert" => header.append_options(&[0x94, 4, 0, 0]),
            "end_of_options" => header.append_options(&[0]),
            other => {
                item.add_item_error(format!("IPv4 option `{other}` is not supported: {UNSUPPORTED_TEXT}"));
            }
        }
        option.refuse_unread_members();
    }
    // The header length field counts up to 15 words of four bytes (RFC 791, 3.1).
    if header.len() > 60 {
        object.item.add_item_error("the options make the header longer than 60 bytes");
    }
}

/// Reads the options of Geneve, which are given as hexadecimal digits.
fn read_geneve_options(header: &mut PacketHeader, object: &DocumentObject<'_>) {
    let Some(item) = object.read_member("options") else { return };
    let Some(options) = item.as_text().map(parse_hex_bytes) else { return };
    // RFC 8926, 3.4: the length of the options has six bits and counts words of four bytes.
    match options.filter(|options| options.len() <= 252 && options.len().is_multiple_of(4)) {
        Some(options) => header.append_options(&options),
        None => item.add_item_error("must be hexadecimal digits: whole 4-byte words, at most 252 bytes"),
    }
}

fn read_setting(item: &DocumentItem<'_>, field: &FieldDef, context: HeaderContext) -> Option<FieldSetting> {
    let object = item.as_object()?;
    let setting = if field.form == FieldNotation::Checksum {
        read_checksum(&object, field)
    } else {
        read_pattern(&object, field, context)
    };
    object.refuse_members(&["metric_tags"], UNSUPPORTED_TEXT);
    object.refuse_unread_members();
    setting
}

fn read_checksum(object: &DocumentObject<'_>, field: &FieldDef) -> Option<FieldSetting> {
    if object.read_choice(&["generated", "custom"], "generated") == "custom" {
        let value = object.require_member("custom")?.as_number(0, field_maximum(field))?;
        return Some(FieldSetting::Pattern(FieldPattern::Value(value)));
    }
    // Without a setting, the template computes a correct checksum, so "good" needs none.
    (object.read_word("generated", &["good", "bad"], "good") == "bad").then_some(FieldSetting::BadChecksum)
}

fn read_pattern(
    object: &DocumentObject<'_>,
    field: &FieldDef,
    context: HeaderContext,
) -> Option<FieldSetting> {
    let mut words = vec!["value", "values", "increment", "decrement"];
    // OTG defines no `auto` for a source MAC. On device flows packetrig accepts it: it means the MAC of the interface.
    let has_auto = context.device && matches!(field.form, FieldNotation::Mac(_)) && field.name == "src"
        || matches!(
            field.extra,
            ExtraPatternChoice::Auto | ExtraPatternChoice::Device | ExtraPatternChoice::RandomOrDevice
        );
    if has_auto {
        words.push("auto");
    }
    if matches!(field.extra, ExtraPatternChoice::Random | ExtraPatternChoice::RandomOrDevice) {
        words.push("random");
    }
    let default = if field.extra == ExtraPatternChoice::Auto { "auto" } else { "value" };
    let choice = object.read_choice(&words, default);
    let pattern = match choice {
        "value" => FieldPattern::Value(read_field_value(object, "value", field, field_default(field))?),
        "values" => read_values(object, field)?,
        "increment" => read_step_pattern(object, "increment", field)?,
        "decrement" => read_step_pattern(object, "decrement", field)?,
        "random" => read_random_pattern(object, field, context)?,
        // `auto`: no setting. The template computes the field, or the pair of interfaces fills it in.
        _ if field.extra == ExtraPatternChoice::Auto || context.device => return None,
        _ => {
            let problem = PlanProblem::error(
                &*object.item.path,
                "`auto` uses the address of a device, but this flow goes from port to port",
            );
            object.item.add_problem(problem.with_hint("give an address, or use `tx_rx.device` in the flow"));
            return None;
        }
    };
    Some(FieldSetting::Pattern(pattern))
}

fn read_values(object: &DocumentObject<'_>, field: &FieldDef) -> Option<FieldPattern> {
    let Some(items) = object.iter_items("values").filter(|items| items.len() > 0) else {
        object.item.add_item_error("`values` needs at least one value");
        return None;
    };
    // The list gets exactly the needed memory: there may be millions of values.
    let mut values = Vec::with_capacity(items.len());
    for item in items {
        values.push(read_scalar(&item, field)?);
    }
    Some(FieldPattern::Values(values))
}

fn read_step_pattern(
    object: &DocumentObject<'_>,
    name: &'static str,
    field: &FieldDef,
) -> Option<FieldPattern> {
    let steps = object.chosen_member_object(name)?;
    let pattern = FieldPattern::Step {
        start: read_field_value(&steps, "start", field, field_default(field))?,
        step: read_field_value(&steps, "step", field, 1)?,
        count: steps.read_number("count", 1, 1, u64::MAX),
        down: name == "decrement",
    };
    steps.refuse_unread_members();
    Some(pattern)
}

fn read_random_pattern(
    object: &DocumentObject<'_>,
    field: &FieldDef,
    context: HeaderContext,
) -> Option<FieldPattern> {
    let draw = object.chosen_member_object("random")?;
    let min = read_field_value(&draw, "min", field, 0)?;
    let max = read_field_value(&draw, "max", field, field_maximum(field))?;
    let seed = draw.read_number("seed", 1, 0, u64::MAX);
    let count = draw.read_number("count", 1, 1, u64::MAX);
    if min > max {
        draw.item.add_item_error("`min` is above `max`");
        return None;
    }
    draw.refuse_unread_members();
    // OTG: seed 0 means "not repeatable". The seed is then drawn from the run's seed, which the report names.
    // The header's number and the field's offset are part of the draw, so that two random fields of a frame differ.
    let seed = if seed == 0 {
        keyed_mix(context.options.seed, context.header << 48 ^ context.flow << 16 ^ u64::from(field.at))
    } else {
        seed
    };
    Some(FieldPattern::Random { min, max, seed, count })
}

fn read_field_value(
    object: &DocumentObject<'_>,
    name: &'static str,
    field: &FieldDef,
    default: u128,
) -> Option<u128> {
    match object.read_member(name) {
        Some(item) => read_scalar(&item, field),
        None => Some(default),
    }
}

fn field_default(field: &FieldDef) -> u128 {
    match field.absent {
        AbsentValue::Value(value) => value,
        AbsentValue::Computed(_) | AbsentValue::Nothing => 0,
    }
}

fn field_maximum(field: &FieldDef) -> u128 {
    if field.bits >= 128 { u128::MAX } else { (1 << field.bits) - 1 }
}

fn read_scalar(item: &DocumentItem<'_>, field: &FieldDef) -> Option<u128> {
    let text = item.as_text()?;
    let value = match field.form {
        FieldNotation::Number | FieldNotation::Checksum => return item.as_number(0, field_maximum(field)),
        FieldNotation::Mac(_) => parse_mac(text),
        FieldNotation::Ipv4(_) => text.parse::<Ipv4Addr>().ok().map(|a| u128::from(a.to_bits())),
        FieldNotation::Ipv6(_) => text.parse::<Ipv6Addr>().ok().map(Ipv6Addr::to_bits),
    };
    if value.is_none() {
        item.add_item_error(format!("`{text}` is not {}", describe_form(field.form)));
    }
    value
}

const fn describe_form(form: FieldNotation) -> &'static str {
    match form {
        FieldNotation::Number | FieldNotation::Checksum => "a number",
        FieldNotation::Mac(_) => "a MAC address like 02:00:00:00:00:01",
        FieldNotation::Ipv4(_) => "an IPv4 address like 198.18.0.1",
        FieldNotation::Ipv6(_) => "an IPv6 address like 2001:2::1",
    }
}

fn parse_mac(text: &str) -> Option<u128> {
    let bytes = crate::recording::parse_mac(&text.replace('-', ":"))?;
    Some(bytes.iter().fold(0, |mac, byte| mac << 8 | u128::from(*byte)))
}
