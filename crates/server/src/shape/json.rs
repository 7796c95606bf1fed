//! Reads JSON and refuses a key that is given twice: one of its values would be ignored silently.

use super::path::{ShapeComplaints, ValuePath};
use serde_json::{Map, Value};

/// Limits memory: a value may take two bytes in the document, and dozens once it is parsed.
const MOST_VALUES: usize = 4_000_000;

/// Parses a document. An empty one is `{}`, as clients mean it. `None` after a complaint.
pub(crate) fn parse_document(bytes: &[u8], complaints: &mut ShapeComplaints) -> Option<Value> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Some(Value::Object(Map::new()));
    }
    // An upper bound without parsing: every value but the first follows one of these bytes.
    let at_most = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if at_most > MOST_VALUES {
        complaints.add_complaint(
            ValuePath::Root,
            format!("the document has {at_most} values; at most {MOST_VALUES} are read"),
        );
        return None;
    }
    match serde_json::from_slice::<unique::JsonDocument>(bytes) {
        Ok(document) => Some(document.0),
        Err(error) => {
            complaints.add_complaint(ValuePath::Root, format!("this is not a JSON document: {error}"));
            None
        }
    }
}

mod unique {
    use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
    use serde_json::{Map, Number, Value};
    use std::fmt;

    pub(super) struct JsonDocument(pub(super) Value);

    impl<'de> Deserialize<'de> for JsonDocument {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_any(AnyValue).map(Self)
        }
    }

    struct AnyValue;

    impl<'de> Visitor<'de> for AnyValue {
        type Value = Value;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a JSON value")
        }

        fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
            Ok(Value::Bool(flag))
        }

        fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
            Ok(Value::from(number))
        }

        fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
            Ok(Value::from(number))
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
            Number::from_f64(number).map(Value::Number).ok_or_else(|| E::custom("a number is too large"))
        }

        fn visit_str<E>(self, text: &str) -> Result<Value, E> {
            Ok(Value::String(text.to_owned()))
        }

        fn visit_string<E>(self, text: String) -> Result<Value, E> {
            Ok(Value::String(text))
        }

        fn visit_unit<E>(self) -> Result<Value, E> {
            Ok(Value::Null)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
            let mut list = Vec::new();
            while let Some(JsonDocument(item)) = items.next_element()? {
                list.push(item);
            }
            Ok(Value::Array(list))
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
            let mut object = Map::new();
            while let Some((name, JsonDocument(value))) = members.next_entry::<String, JsonDocument>()? {
                // serde_json's own map would keep the last of two values without a word.
                if object.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("`{name}` is given twice")));
                }
                object.insert(name, value);
            }
            Ok(Value::Object(object))
        }
    }
}
