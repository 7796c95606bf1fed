//! Converts the words of a filter to values.

use super::AddressPrefix;
use super::condition::mac_number;
use super::ranges::ValueRange;
use super::terms::TermSyntax;
use crate::protocols;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use packetrig_flow::element::ElementKind;

const NANOS_PER_MILLI: u128 = 1_000_000;

const DECIMAL_MULTIPLIERS: [(&str, u64); 4] =
    [("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000), ("t", 1_000_000_000_000)];
/// Units of times, in milliseconds.
const TIME_UNITS_MS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)];

/// Returns how users write values of this kind in a filter.
pub(super) const fn syntax_for_kind(kind: ElementKind) -> TermSyntax {
    match kind {
        ElementKind::Unsigned(64) => TermSyntax::Count,
        ElementKind::Unsigned(_) | ElementKind::Flag => TermSyntax::Number,
        ElementKind::Time => TermSyntax::Moment,
        ElementKind::Address => TermSyntax::Address,
        ElementKind::Mac => TermSyntax::Mac,
        // `FilterParser::parse_subject` never returns the column `otherFields`.
        ElementKind::Word | ElementKind::Fields => TermSyntax::Word,
    }
}

fn single_value_range(value: u64) -> ValueRange {
    ValueRange::from_value(value.into())
}

/// Converts a word to the range of values that it means; `None` if the word is not valid for the syntax.
pub(super) fn parse_value(syntax: TermSyntax, text: &str) -> Option<ValueRange> {
    match syntax {
        TermSyntax::Address => text.parse::<AddressPrefix>().ok().map(|prefix| prefix.address_range()),
        TermSyntax::Mac => parse_mac(text).map(|mac| single_value_range(mac_number(mac))),
        TermSyntax::Protocol => {
            protocols::parse_protocol_number(text).map(|number| single_value_range(number.into()))
        }
        TermSyntax::Count => parse_count(text).map(single_value_range),
        TermSyntax::Moment => parse_moment(text),
        TermSyntax::Time => parse_scaled_number(text, &TIME_UNITS_MS).map(single_value_range),
        _ => parse_plain_number(text).map(single_value_range),
    }
}

fn parse_plain_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a point in time. With up to three decimals it means the whole millisecond: nfdump stores milliseconds, and
/// many exporters send no finer times.
fn parse_moment(text: &str) -> Option<ValueRange> {
    if let Some(number) = parse_plain_number(text) {
        return Some(single_value_range(number));
    }
    // The format with an offset is tried first: the parser of civil times would ignore the offset.
    let time = match text.parse() {
        Ok(time) => time,
        Err(_) => text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp(),
    };
    let least = u128::try_from(Timestamp::as_nanosecond(time)).ok()?;
    let decimals = text.rsplit_once('.').map_or("", |(_, decimals)| decimals);
    let decimals = decimals.bytes().take_while(u8::is_ascii_digit).count();
    Some(ValueRange { least, greatest: least + if decimals > 3 { 0 } else { NANOS_PER_MILLI - 1 } })
}

/// Parses a number with one of the units in `units`, or without a unit.
fn parse_scaled_number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    // A unit may match by chance, as `s` matches `5ms`. Then the rest is not a number, and the next unit is tried.
    let scaled = units
        .iter()
        .find_map(|(unit, factor)| lower.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*factor));
    scaled.or_else(|| parse_plain_number(&lower))
}

/// Parses a number with or without one of the suffixes `k`, `m`, `g` and `t`.
pub(crate) fn parse_count(text: &str) -> Option<u64> {
    parse_scaled_number(text, &DECIMAL_MULTIPLIERS)
}

pub(super) fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<_>>()?;
    bytes.try_into().ok()
}
