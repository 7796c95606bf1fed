//! Checks and normalises single values by their type in the model: numbers, enumeration values, booleans and texts.

use super::model;
use super::path::shorten_text;
use prost_reflect::{EnumDescriptor, Kind};
use serde_json::{Number, Value};

pub(super) const UNSUPPORTED_TEXT: &str = "not supported: packetrig does not do this yet";
/// Maximum number of values that an error lists.
const MAX_LISTED: usize = 20;

/// Normalises a number, text or flag. The error says which kind of value is required.
pub(super) fn normalise_scalar(value: &Value, kind: &Kind) -> Result<Value, String> {
    match kind {
        Kind::String if value.is_string() => Ok(value.clone()),
        Kind::Bool if value.is_boolean() => Ok(value.clone()),
        Kind::String => Err("text".to_owned()),
        Kind::Bool => Err("true or false".to_owned()),
        Kind::Uint32 => read_integer(value, 0, u32::MAX.into()).map(to_json_integer),
        Kind::Int32 => read_integer(value, i32::MIN.into(), i32::MAX.into()).map(to_json_integer),
        // The number is written as text: many readers of JSON round numbers above 2^53.
        Kind::Uint64 => read_integer(value, 0, u64::MAX.into()).map(|wide| Value::String(wide.to_string())),
        // A larger number would become infinite in the protobuf message.
        Kind::Float => read_float(value, f32::MAX.into()),
        Kind::Double => read_float(value, f64::MAX),
        other => Err(format!("something of kind {other:?}, which has no JSON form here")),
    }
}

/// Reads an integer from a JSON number, or from a text that contains one.
fn read_integer(value: &Value, least: i128, most: i128) -> Result<i128, String> {
    // The JSON form of protobuf (ProtoJSON) writes 64-bit integers as text, and lets readers accept `100.0` for 100.
    let read = match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_i128().or_else(|| to_whole_number(number.as_f64()?)),
        _ => None,
    };
    read.filter(|read| (least..=most).contains(read))
        .ok_or_else(|| format!("a whole number from {least} to {most}"))
}

/// Writes an integer of at most 32 bits as a JSON number. Integers of 64 bits are written as text instead.
fn to_json_integer(number: i128) -> Value {
    i64::try_from(number).map_or(Value::Null, Value::from)
}

/// Converts a float such as `100.0` or `1e3` to an integer; `None` if it has a fraction or is too large to be exact.
fn to_whole_number(number: f64) -> Option<i128> {
    // Below 2^53, about 9.007e15, a float is exact for whole numbers.
    #[expect(clippy::cast_possible_truncation, reason = "whole and small enough to be exact")]
    (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i128)
}

fn read_float(value: &Value, most: f64) -> Result<Value, String> {
    let read = match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_f64(),
        _ => None,
    };
    // NaN compares as false, so it is refused here, too.
    let in_range = read.filter(|read: &f64| read.abs() <= most);
    in_range.and_then(Number::from_f64).map(Value::Number).ok_or_else(|| "a number".to_owned())
}

/// Returns the value if the enumeration has it and packetrig supports it, otherwise the text of the problem.
pub(super) fn check_enum_value(value: &Value, of: &EnumDescriptor) -> Result<Value, String> {
    match value {
        Value::String(word) if is_enum_value(of, word) => Ok(value.clone()),
        Value::String(word) if model::is_member_refused(of.full_name(), word) => {
            Err(format!("`{word}` is {UNSUPPORTED_TEXT}"))
        }
        _ => {
            let words = of.values().filter(|value| value.number() != 0);
            let words: Vec<String> = words.map(|value| value.name().to_owned()).collect();
            let more = if words.len() > MAX_LISTED { ", …" } else { "" };
            let words = words[..words.len().min(MAX_LISTED)].join(", ");
            Err(format!("must be one of {words}{more}, not {}", describe_value(value)))
        }
    }
}

/// Returns whether an enumeration has this value; 0 is `unspecified`, which no document may name.
fn is_enum_value(of: &EnumDescriptor, word: &str) -> bool {
    of.get_value_by_name(word).is_some_and(|value| value.number() != 0)
}

pub(super) fn json_kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub(super) fn describe_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", shorten_text(text)),
        Value::Number(number) => format!("{number}"),
        Value::Bool(flag) => format!("{flag}"),
        other => json_kind_name(other).to_owned(),
    }
}
