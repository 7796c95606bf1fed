//! Copies a JSON document as text, without a tree of its values, which would take many times its length.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use std::fmt;

/// Copies a configuration as compact JSON. A port location that is a key of `locations` is replaced by the
/// value of that key.
pub(crate) fn copy_config(config: &[u8], locations: &BTreeMap<String, String>) -> serde_json::Result<String> {
    let mut text = String::new();
    let mut reader = serde_json::Deserializer::from_slice(config);
    CopiedValue { text: &mut text, locations, place: ConfigLocation::Root }.deserialize(&mut reader)?;
    // Text after the end of the document is an error.
    reader.end().map(|()| text)
}

/// Where a value is in a configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConfigLocation {
    Root,
    Ports,
    Port,
    /// The location of a port.
    Location,
    Elsewhere,
}

impl ConfigLocation {
    fn location_of_member(self, name: &str) -> Self {
        match (self, name) {
            (Self::Root, "ports") => Self::Ports,
            (Self::Port, "location") => Self::Location,
            _ => Self::Elsewhere,
        }
    }

    fn location_of_item(self) -> Self {
        if self == Self::Ports { Self::Port } else { Self::Elsewhere }
    }
}

struct CopiedValue<'a> {
    text: &'a mut String,
    locations: &'a BTreeMap<String, String>,
    place: ConfigLocation,
}

impl CopiedValue<'_> {
    fn copy_scalar(self, value: &Value) {
        self.text.push_str(&value.to_string());
    }
}

impl<'de> DeserializeSeed<'de> for CopiedValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CopiedValue<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.copy_scalar(&Value::Null);
        Ok(())
    }

    fn visit_bool<E>(self, flag: bool) -> Result<(), E> {
        self.copy_scalar(&Value::Bool(flag));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.copy_scalar(&Value::from(number));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.copy_scalar(&Value::from(number));
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("a number is too large"))?;
        self.copy_scalar(&Value::Number(number));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        let meant = (self.place == ConfigLocation::Location).then(|| self.locations.get(text)).flatten();
        let text = meant.map_or(text, String::as_str);
        self.copy_scalar(&Value::from(text));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.text.push('[');
        let first = self.text.len();
        loop {
            let before = self.text.len();
            if before > first {
                self.text.push(',');
            }
            let item = CopiedValue {
                text: self.text,
                locations: self.locations,
                place: self.place.location_of_item(),
            };
            if items.next_element_seed(item)?.is_none() {
                // The comma was written before it was known that no item follows.
                self.text.truncate(before);
                self.text.push(']');
                return Ok(());
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        self.text.push('{');
        let first = self.text.len();
        while let Some(name) = members.next_key::<String>()? {
            if self.text.len() > first {
                self.text.push(',');
            }
            let place = self.place.location_of_member(&name);
            // Reading the name has removed its JSON escapes, so they are added again.
            self.text.push_str(&Value::String(name).to_string());
            self.text.push(':');
            members.next_value_seed(CopiedValue { text: self.text, locations: self.locations, place })?;
        }
        self.text.push('}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_locations_of_ports_are_replaced() {
        let aliases = BTreeMap::from([("a".to_owned(), "eth\"1".to_owned())]);
        let config = json!({
            "ports": [{"name": "a", "location": "a"}, {"location": "b", "x": {"location": "a"}}, "a", []],
            "flows": [{"location": "a", "n": [1, -2, 0.5, true, null, "\u{1f600}\n"]}],
            "location": "a",
        });
        let mut expected = config.clone();
        expected["ports"][0]["location"] = json!("eth\"1");
        let copied = copy_config(config.to_string().as_bytes(), &aliases).expect("it is JSON");
        assert_eq!(copied, expected.to_string());
        let same = copy_config(b" {\"b\" : [ ], \"a\":\"\\/\"} ", &BTreeMap::new());
        assert_eq!(same.expect("it is JSON"), r#"{"b":[],"a":"/"}"#);
        assert!(copy_config(b"{} {}", &aliases).is_err() && copy_config(b"{", &aliases).is_err());
    }
}
