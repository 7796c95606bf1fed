//! Converts protobuf to JSON and back. Unknown fields of requests are refused.

use super::model;
use super::path::{DocumentProblems, ValuePath};
use prost_reflect::prost::Message;
use prost_reflect::prost::encoding::WireType;
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, UnknownField,
    Value as Wire,
};
use serde_json::{Map, Number, Value};

/// Decodes a message into JSON that is not normalised yet. If the bytes are not a message of this type, adds a
/// complaint and returns `None`.
pub(crate) fn decode_message(
    bytes: &[u8],
    of: &MessageDescriptor,
    complaints: &mut DocumentProblems,
) -> Option<Value> {
    match DynamicMessage::decode(of.clone(), bytes) {
        Ok(decoded) => Some(message_to_json(&decoded, ValuePath::Root, complaints)),
        Err(error) => {
            complaints.add_complaint(
                ValuePath::Root,
                format!("the request is not a protobuf message `{}`: {error}", of.name()),
            );
            None
        }
    }
}

/// Decodes the only member of a wrapper message. Paths in complaints begin in that member. If the member is absent,
/// the result is an empty object.
pub(crate) fn decode_member(
    bytes: &[u8],
    wrapper: &MessageDescriptor,
    complaints: &mut DocumentProblems,
) -> Option<Value> {
    let decoded = match DynamicMessage::decode(wrapper.clone(), bytes) {
        Ok(decoded) => decoded,
        Err(error) => {
            complaints.add_complaint(
                ValuePath::Root,
                format!("the request is not a protobuf message `{}`: {error}", wrapper.name()),
            );
            return None;
        }
    };
    for unknown in decoded.unknown_fields() {
        report_unknown_field(wrapper, unknown, ValuePath::Root, complaints);
    }
    let member = decoded.fields().next().map(|(_, member)| member);
    match member.and_then(Wire::as_message) {
        Some(inner) => Some(message_to_json(inner, ValuePath::Root, complaints)),
        None => Some(Value::Object(Map::new())),
    }
}

fn message_to_json(
    message: &DynamicMessage,
    path: ValuePath<'_>,
    complaints: &mut DocumentProblems,
) -> Value {
    let of = message.descriptor();
    // prost-reflect keeps fields that the descriptor does not have. No such field may be ignored silently.
    for unknown in message.unknown_fields() {
        report_unknown_field(&of, unknown, path, complaints);
    }
    let mut members = Map::new();
    for (field, value) in message.fields() {
        let here = ValuePath::Member(&path, field.name());
        let value = match value {
            Wire::List(items) => {
                let items = items.iter().enumerate();
                items
                    .filter_map(|(index, item)| {
                        value_to_json(item, &field, ValuePath::Index(&here, index), complaints)
                    })
                    .collect()
            }
            value => match value_to_json(value, &field, here, complaints) {
                Some(value) => value,
                // The value was refused with a complaint, or is an enumeration with 0, which means absent.
                None => continue,
            },
        };
        members.insert(field.name().to_owned(), value);
    }
    Value::Object(members)
}

fn report_unknown_field(
    of: &MessageDescriptor,
    unknown: &UnknownField,
    path: ValuePath<'_>,
    complaints: &mut DocumentProblems,
) {
    let number = unknown.number();
    match model::refused_member_name(of, number) {
        // Clients send defaults with every object that they touch: a refused flag that is off requests nothing.
        Some(_) if encodes_false(unknown) => {}
        Some(name) => {
            complaints.add_complaint(
                ValuePath::Member(&path, name),
                "not supported: packetrig does not do this yet",
            );
        }
        None => complaints.add_complaint(path, format!("field {number} of {} is unknown", of.name())),
    }
}

fn encodes_false(unknown: &UnknownField) -> bool {
    // An encoded field is a tag and a value. The last byte of a varint in its shortest form is 0 only if
    // the value is 0.
    let mut bytes = Vec::with_capacity(unknown.encoded_len());
    unknown.encode(&mut bytes);
    unknown.wire_type() == WireType::Varint && bytes.last() == Some(&0)
}

fn value_to_json(
    value: &Wire,
    field: &FieldDescriptor,
    path: ValuePath<'_>,
    complaints: &mut DocumentProblems,
) -> Option<Value> {
    match (value, field.kind()) {
        (Wire::Message(inner), _) => Some(message_to_json(inner, path, complaints)),
        (Wire::EnumNumber(number), Kind::Enum(of)) => enum_number_to_json(*number, &of, path, complaints),
        (Wire::Bool(flag), _) => Some(Value::Bool(*flag)),
        (Wire::String(text), _) => Some(Value::String(text.clone())),
        (Wire::I32(number), _) => Some(Value::from(*number)),
        (Wire::U32(number), _) => Some(Value::from(*number)),
        (Wire::I64(number), _) => Some(Value::from(*number)),
        (Wire::U64(number), _) => Some(Value::from(*number)),
        (Wire::F32(number), _) => float_to_json(parse_shortest_decimal(*number), path, complaints),
        (Wire::F64(number), _) => float_to_json(*number, path, complaints),
        _ => {
            complaints.add_complaint(path, "cannot be converted to JSON");
            None
        }
    }
}

/// Returns the shortest decimal number that rounds to this float, as the sender wrote it: 99.9 and not 99.9000015.
fn parse_shortest_decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

fn float_to_json(number: f64, path: ValuePath<'_>, complaints: &mut DocumentProblems) -> Option<Value> {
    // A message can carry NaN and infinity, which JSON cannot represent.
    let read = Number::from_f64(number).map(Value::Number);
    if read.is_none() {
        complaints.add_complaint(path, format!("must be a number, not {number}"));
    }
    read
}

fn enum_number_to_json(
    number: i32,
    of: &EnumDescriptor,
    path: ValuePath<'_>,
    complaints: &mut DocumentProblems,
) -> Option<Value> {
    if let Some(value) = of.get_value(number) {
        // In this model 0 is `unspecified`, which means absent.
        return (number != 0).then(|| Value::String(value.name().to_owned()));
    }
    let message = match model::refused_value_name(of, number) {
        Some(name) => format!("`{name}` is not supported: packetrig does not do this yet"),
        None => format!("value {number} is unknown"),
    };
    complaints.add_complaint(path, message);
    None
}

/// Encodes normalised JSON as a protobuf message. An error is a bug, because normalised JSON always matches the model.
pub(crate) fn encode_message(document: &Value, of: &MessageDescriptor) -> Result<Vec<u8>, String> {
    build_message(document, of).map(|message| message.encode_to_vec())
}

fn build_message(document: &Value, of: &MessageDescriptor) -> Result<DynamicMessage, String> {
    let members = document.as_object().ok_or_else(|| format!("{} is not an object", of.name()))?;
    let mut message = DynamicMessage::new(of.clone());
    for (name, value) in members {
        let field = of.get_field_by_name(name).ok_or_else(|| format!("{} has no `{name}`", of.name()))?;
        let wire = match value {
            Value::Array(items) if field.is_list() => {
                Wire::List(items.iter().map(|item| json_to_wire(item, &field)).collect::<Result<_, _>>()?)
            }
            value => json_to_wire(value, &field)?,
        };
        message.try_set_field(&field, wire).map_err(|error| error.to_string())?;
    }
    Ok(message)
}

fn json_to_wire(value: &Value, field: &FieldDescriptor) -> Result<Wire, String> {
    let wire = match (field.kind(), value) {
        (Kind::Message(of), value) => Some(Wire::Message(build_message(value, &of)?)),
        (Kind::Enum(of), Value::String(word)) => {
            of.get_value_by_name(word).map(|value| Wire::EnumNumber(value.number()))
        }
        (Kind::Bool, Value::Bool(flag)) => Some(Wire::Bool(*flag)),
        (Kind::String, Value::String(text)) => Some(Wire::String(text.clone())),
        (Kind::Uint64, Value::String(text)) => text.parse().ok().map(Wire::U64),
        (Kind::Uint32, value) => value.as_u64().and_then(|wide| u32::try_from(wide).ok()).map(Wire::U32),
        (Kind::Int32, value) => value.as_i64().and_then(|wide| i32::try_from(wide).ok()).map(Wire::I32),
        (Kind::Double, value) => value.as_f64().map(Wire::F64),
        // The range was checked when the document was normalised.
        #[expect(clippy::cast_possible_truncation, reason = "the model's field is that wide")]
        (Kind::Float, value) => value.as_f64().map(|wide| Wire::F32(wide as f32)),
        _ => None,
    };
    wire.ok_or_else(|| format!("{value} does not fit `{}`", field.full_name()))
}
