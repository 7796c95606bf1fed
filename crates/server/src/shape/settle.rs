//! Checks JSON against the descriptor and puts it into the form that the code behind it relies on.

use super::model;
use super::path::{ShapeComplaints, ValuePath, shorten_text};
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Number, Value};

const NOT_YET: &str = "not supported: packetrig does not do this yet";
/// Most values that an error lists.
const MOST_LISTED: usize = 20;

/// The document in its settled form. Problems are added to `complaints`.
pub(crate) fn settle_document(
    document: Value,
    of: &MessageDescriptor,
    complaints: &mut ShapeComplaints,
) -> Value {
    settle_message(document, of, ValuePath::Root, complaints).unwrap_or_else(|| Value::Object(Map::new()))
}

fn settle_message(
    value: Value,
    of: &MessageDescriptor,
    path: ValuePath<'_>,
    complaints: &mut ShapeComplaints,
) -> Option<Value> {
    let Value::Object(members) = value else {
        complaints.add_complaint(path, format!("must be an object, not {}", kind_of(&value)));
        return None;
    };
    let mut settled = Map::new();
    for (name, value) in members {
        let here = ValuePath::Member(&path, &name);
        let Some(field) = of.get_field_by_name(&name) else {
            unknown_member(&value, &name, of, here, complaints);
            continue;
        };
        // OTG: `null` is absent.
        if value.is_null() {
            continue;
        }
        let settled_value = if field.is_list() {
            settle_list(value, &field, here, complaints)
        } else {
            settle_value(value, &field, here, complaints)
        };
        if let Some(value) = settled_value {
            settled.insert(name, value);
        }
    }
    settle_choice(&mut settled, of, path, complaints);
    Some(Value::Object(settled))
}

fn unknown_member(
    value: &Value,
    name: &str,
    of: &MessageDescriptor,
    path: ValuePath<'_>,
    complaints: &mut ShapeComplaints,
) {
    if model::is_refused(of.full_name(), name) {
        // Clients send defaults with every object they touch, and over gRPC an empty list looks the same as none.
        let asks_nothing =
            matches!(value, Value::Null | Value::Bool(false)) || value.as_array().is_some_and(Vec::is_empty);
        if !asks_nothing {
            complaints.add_complaint(path, NOT_YET);
        }
        return;
    }
    let near = of.fields().find(|field| differs_by_one(field.name(), name));
    let hint = near.map(|field| format!("; did you mean `{}`?", field.name())).unwrap_or_default();
    complaints.add_complaint(path, format!("unknown field `{}`{hint}", shorten_text(name)));
}

/// Returns whether one insertion, removal or change turns `b` into `a`.
fn differs_by_one(a: &str, b: &str) -> bool {
    // Behind the common beginning, both must be equal but for the first byte of one or of both.
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let a = &a.as_bytes()[same..];
    let b = &b.as_bytes()[same..];
    match a.len().cmp(&b.len()) {
        std::cmp::Ordering::Less => b.get(1..) == Some(a),
        std::cmp::Ordering::Equal => a.get(1..) == b.get(1..),
        std::cmp::Ordering::Greater => a.get(1..) == Some(b),
    }
}

fn settle_list(
    value: Value,
    field: &FieldDescriptor,
    path: ValuePath<'_>,
    complaints: &mut ShapeComplaints,
) -> Option<Value> {
    let Value::Array(values) = value else {
        complaints.add_complaint(path, format!("must be a list, not {}", kind_of(&value)));
        return None;
    };
    let settled = values
        .into_iter()
        .enumerate()
        .filter_map(|(index, value)| settle_value(value, field, ValuePath::Index(&path, index), complaints));
    Some(settled.collect())
}

fn settle_value(
    value: Value,
    field: &FieldDescriptor,
    path: ValuePath<'_>,
    complaints: &mut ShapeComplaints,
) -> Option<Value> {
    let settled = match field.kind() {
        Kind::Message(of) => return settle_message(value, &of, path, complaints),
        Kind::Enum(of) => return settle_word(value, &of, path, complaints),
        Kind::String if value.is_string() => return Some(value),
        Kind::Bool if value.is_boolean() => return Some(value),
        Kind::String => Err("text".to_owned()),
        Kind::Bool => Err("true or false".to_owned()),
        Kind::Uint32 => read_integer(&value, 0, u32::MAX.into()).map(narrow_number),
        Kind::Int32 => read_integer(&value, i32::MIN.into(), i32::MAX.into()).map(narrow_number),
        Kind::Uint64 => read_integer(&value, 0, u64::MAX.into()).map(|wide| Value::String(wide.to_string())),
        Kind::Float => read_float(&value, f32::MAX.into()),
        Kind::Double => read_float(&value, f64::MAX),
        other => Err(format!("something of kind {other:?}, which has no JSON form here")),
    };
    settled
        .map_err(|wanted| {
            complaints.add_complaint(path, format!("must be {wanted}, not {}", describe_value(&value)));
        })
        .ok()
}

/// The value as an integer: a number, or a text of one.
fn read_integer(value: &Value, least: i128, most: i128) -> Result<i128, String> {
    // The JSON form of protobuf (ProtoJSON) writes 64-bit integers as text, and lets readers accept `100.0` for 100.
    let read = match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_i128().or_else(|| whole_number(number.as_f64()?)),
        _ => None,
    };
    read.filter(|read| (least..=most).contains(read))
        .ok_or_else(|| format!("a whole number from {least} to {most}"))
}

/// An integer of at most 32 bits, which is a JSON number; those of 64 bits are text.
fn narrow_number(number: i128) -> Value {
    i64::try_from(number).map_or(Value::Null, Value::from)
}

/// `100.0` and `1e3` are whole numbers.
fn whole_number(number: f64) -> Option<i128> {
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

fn settle_word(
    value: Value,
    of: &EnumDescriptor,
    path: ValuePath<'_>,
    complaints: &mut ShapeComplaints,
) -> Option<Value> {
    match &value {
        Value::String(word) if is_value_of(of, word) => return Some(value),
        Value::String(word) if model::is_refused(of.full_name(), word) => {
            complaints.add_complaint(path, format!("`{word}` is {NOT_YET}"));
        }
        _ => {
            let words: Vec<String> = of
                .values()
                .filter(|value| value.number() != 0)
                .map(|value| value.name().to_owned())
                .collect();
            let more = if words.len() > MOST_LISTED { ", …" } else { "" };
            let words = words[..words.len().min(MOST_LISTED)].join(", ");
            complaints
                .add_complaint(path, format!("must be one of {words}{more}, not {}", describe_value(&value)));
        }
    }
    None
}

/// Returns whether an enumeration has this value; 0 is `unspecified`, which no document may name.
fn is_value_of(of: &EnumDescriptor, word: &str) -> bool {
    of.get_value_by_name(word).is_some_and(|value| value.number() != 0)
}

/// Returns whether a member is given. Over gRPC, an empty list looks the same as none.
fn is_given(settled: &Map<String, Value>, name: &str) -> bool {
    settled.get(name).is_some_and(|value| !value.as_array().is_some_and(Vec::is_empty))
}

/// Checks that `choice` names the member that says what an object is. Adds `choice` if it is missing.
fn settle_choice(
    settled: &mut Map<String, Value>,
    of: &MessageDescriptor,
    path: ValuePath<'_>,
    complaints: &mut ShapeComplaints,
) {
    let Some(Kind::Enum(choices)) = of.get_field_by_name("choice").map(|field| field.kind()) else { return };
    let members: Vec<String> = choices
        .values()
        .map(|value| value.name().to_owned())
        .filter(|name| is_given(settled, name))
        .collect();
    // OTG makes `choice` optional, and clients differ: snappi writes it, hand-written documents often do not.
    let chosen = settled.get("choice").and_then(Value::as_str);
    match (chosen, members.as_slice()) {
        (None, [one]) => {
            settled.insert("choice".to_owned(), Value::String(one.clone()));
        }
        (None, [_, _, ..]) => {
            complaints.add_complaint(path, format!("only one of {} is allowed", members.join(", ")));
        }
        (Some(chosen), members) => {
            for other in members.iter().filter(|member| *member != chosen) {
                complaints
                    .add_complaint(path, format!("`choice` is `{chosen}`, but `{other}` is also given"));
            }
        }
        (None, []) => {}
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", shorten_text(text)),
        Value::Number(number) => format!("{number}"),
        Value::Bool(flag) => format!("{flag}"),
        other => kind_of(other).to_owned(),
    }
}
