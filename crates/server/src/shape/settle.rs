//! Checks JSON against the descriptor and normalises it.
//!
//! The document is written while it is read, without a tree of values, because the tree of a document with small
//! objects takes thirty times the memory of its text. If there are problems, the text contains only the valid
//! parts of the document.

use super::model;
use super::object::{MembersReadSoFar, NoRequestSeed, NormalisedMember};
use super::path::{DocumentProblems, ValuePath, shorten_text};
use super::scalar::{UNSUPPORTED_TEXT, check_enum_value, describe_value, json_kind_name, normalise_scalar};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Returns the normalised document as text; an empty text if the document is not an object. Problems are added to
/// `complaints`. Fails if the document cannot be read to its end.
pub(super) fn normalise_text<'de, D: Deserializer<'de>>(
    document: D,
    of: &MessageDescriptor,
    complaints: &mut DocumentProblems,
) -> Result<String, D::Error> {
    let mut settler = DocumentNormaliser { text: String::new(), complaints };
    let wanted = WantedValue::Message(of.clone());
    let root = NormalisedValue { settler: &mut settler, wanted, path: ValuePath::Root, may_be_absent: false };
    document.deserialize_any(root)?;
    Ok(settler.text)
}

/// Returns the document in normalised form, as text. Problems are added to `complaints`.
pub(crate) fn normalise_value(
    document: Value,
    of: &MessageDescriptor,
    complaints: &mut DocumentProblems,
) -> String {
    // A `Value` can always be read to its end. If the document is not an object, this has been added to `complaints`.
    let settled = normalise_text(document, of, complaints).ok().filter(|text| !text.is_empty());
    settled.unwrap_or_else(|| "{}".to_owned())
}

/// Returns the document in normalised form. Problems are added to `complaints`.
pub(crate) fn normalise_document(
    document: Value,
    of: &MessageDescriptor,
    complaints: &mut DocumentProblems,
) -> Value {
    // `normalise_value` writes valid JSON, so parsing it cannot fail.
    serde_json::from_str(&normalise_value(document, of, complaints)).unwrap_or_default()
}

/// The text and the problems of the part that was read so far.
struct DocumentNormaliser<'c> {
    text: String,
    complaints: &'c mut DocumentProblems,
}

/// Outcome of normalising a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NormaliseOutcome {
    /// The value is refused or `null`, and nothing was written.
    Nothing,
    EmptyList,
    Something,
}

/// Kind that a value must have.
enum WantedValue {
    Message(MessageDescriptor),
    List(FieldDescriptor),
    Scalar(Kind),
}

impl WantedValue {
    fn from_field(field: FieldDescriptor) -> Self {
        if field.is_list() { Self::List(field) } else { Self::from_kind(field.kind()) }
    }

    fn from_kind(kind: Kind) -> Self {
        match kind {
            Kind::Message(of) => Self::Message(of),
            kind => Self::Scalar(kind),
        }
    }
}

/// Reads a value and writes its normalised form.
struct NormalisedValue<'s, 'c, 'p> {
    settler: &'s mut DocumentNormaliser<'c>,
    wanted: WantedValue,
    path: ValuePath<'p>,
    /// True for members of objects: in OTG, a member with the value `null` is absent.
    may_be_absent: bool,
}

impl<'de> DeserializeSeed<'de> for NormalisedValue<'_, '_, '_> {
    type Value = NormaliseOutcome;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<NormaliseOutcome, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NormalisedValue<'_, '_, '_> {
    type Value = NormaliseOutcome;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<NormaliseOutcome, E> {
        Ok(self.normalise_single(&Value::Bool(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<NormaliseOutcome, E> {
        Ok(self.normalise_single(&Value::from(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<NormaliseOutcome, E> {
        Ok(self.normalise_single(&Value::from(number)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<NormaliseOutcome, E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("a number is too large"))?;
        Ok(self.normalise_single(&Value::Number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<NormaliseOutcome, E> {
        Ok(self.normalise_single(&Value::String(text.to_owned())))
    }

    fn visit_unit<E>(self) -> Result<NormaliseOutcome, E> {
        if self.may_be_absent {
            return Ok(NormaliseOutcome::Nothing);
        }
        Ok(self.normalise_single(&Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NormaliseOutcome, A::Error> {
        if let WantedValue::List(field) = &self.wanted {
            return self.settler.normalise_items(field, self.path, items);
        }
        // A deserializer must consume the whole list.
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(self.normalise_single(&Value::Array(Vec::new())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<NormaliseOutcome, A::Error> {
        if let WantedValue::Message(of) = &self.wanted {
            return self.settler.normalise_members(of, self.path, members);
        }
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self.normalise_single(&Value::Object(Map::new())))
    }
}

impl NormalisedValue<'_, '_, '_> {
    /// Normalises a single value. A value of the wrong kind, for example a list in place of a number, is not written,
    /// and a problem is added to the list.
    fn normalise_single(self, value: &Value) -> NormaliseOutcome {
        let Self { settler, wanted, path, .. } = self;
        let settled = match wanted {
            WantedValue::Message(_) => Err(format!("must be an object, not {}", json_kind_name(value))),
            WantedValue::List(_) => Err(format!("must be a list, not {}", json_kind_name(value))),
            WantedValue::Scalar(Kind::Enum(of)) => check_enum_value(value, &of),
            WantedValue::Scalar(kind) => normalise_scalar(value, &kind)
                .map_err(|wanted| format!("must be {wanted}, not {}", describe_value(value))),
        };
        match settled {
            Ok(settled) => {
                settler.text.push_str(&settled.to_string());
                NormaliseOutcome::Something
            }
            Err(complaint) => {
                settler.complaints.add_complaint(path, complaint);
                NormaliseOutcome::Nothing
            }
        }
    }
}

impl DocumentNormaliser<'_> {
    fn normalise_items<'de, A: SeqAccess<'de>>(
        &mut self,
        field: &FieldDescriptor,
        path: ValuePath<'_>,
        mut items: A,
    ) -> Result<NormaliseOutcome, A::Error> {
        self.text.push('[');
        let first = self.text.len();
        for index in 0.. {
            let before = self.text.len();
            if before > first {
                self.text.push(',');
            }
            let item = NormalisedValue {
                settler: self,
                wanted: WantedValue::from_kind(field.kind()),
                path: ValuePath::Index(&path, index),
                may_be_absent: false,
            };
            let written = items.next_element_seed(item)?;
            if written.is_none_or(|written| written == NormaliseOutcome::Nothing) {
                // This removes the comma, too.
                self.text.truncate(before);
            }
            if written.is_none() {
                break;
            }
        }
        let is_empty = self.text.len() == first;
        self.text.push(']');
        Ok(if is_empty { NormaliseOutcome::EmptyList } else { NormaliseOutcome::Something })
    }

    fn normalise_members<'de, A: MapAccess<'de>>(
        &mut self,
        of: &MessageDescriptor,
        path: ValuePath<'_>,
        mut members: A,
    ) -> Result<NormaliseOutcome, A::Error> {
        self.text.push('{');
        let first = self.text.len();
        let mut known = MembersReadSoFar::default();
        while let Some(name) = members.next_key::<String>()? {
            let here = ValuePath::Member(&path, &name);
            // A name that is given twice is an error: one of its two values would be ignored silently.
            if !known.add_member_name(&name) {
                return Err(A::Error::custom(format_args!("`{}` is given twice", shorten_text(&name))));
            }
            let Some(field) = of.get_field_by_name(&name) else {
                // A deserializer must consume every value, also that of an unknown name.
                let asks_nothing = members.next_value_seed(NoRequestSeed)?;
                self.refuse_unknown_member(&name, asks_nothing, of, here);
                continue;
            };
            let written = self.normalise_member(field, &name, here, first, &mut members)?;
            known.record_written_member(name, written);
        }
        // The choice is checked at the end, because members come in any order.
        self.normalise_choice(&known, of, path, first);
        self.text.push('}');
        Ok(NormaliseOutcome::Something)
    }

    /// Writes the name and the normalised value of a member, or nothing if the value is refused or `null`. `first` is
    /// where the members of its object begin in the text.
    fn normalise_member<'de, A: MapAccess<'de>>(
        &mut self,
        field: FieldDescriptor,
        name: &str,
        path: ValuePath<'_>,
        first: usize,
        members: &mut A,
    ) -> Result<NormalisedMember, A::Error> {
        let before = self.text.len();
        self.write_member_name(first, name);
        let begin = self.text.len();
        let wanted = WantedValue::from_field(field);
        let value = NormalisedValue { settler: self, wanted, path, may_be_absent: true };
        Ok(match members.next_value_seed(value)? {
            NormaliseOutcome::Nothing => {
                self.text.truncate(before);
                NormalisedMember::Absent
            }
            // Over gRPC, an empty list looks the same as none.
            NormaliseOutcome::EmptyList => NormalisedMember::Absent,
            NormaliseOutcome::Something if name == "choice" => {
                NormalisedMember::Choice(self.text[begin..].trim_matches('"').to_owned())
            }
            NormaliseOutcome::Something => NormalisedMember::Given,
        })
    }

    /// Writes the name of a member. `first` is where the members of its object begin.
    fn write_member_name(&mut self, first: usize, name: &str) {
        if self.text.len() > first {
            self.text.push(',');
        }
        // Names of the model need no escapes.
        self.text.extend(["\"", name, "\":"]);
    }

    fn refuse_unknown_member(
        &mut self,
        name: &str,
        asks_nothing: bool,
        of: &MessageDescriptor,
        path: ValuePath<'_>,
    ) {
        if model::is_member_refused(of.full_name(), name) {
            if !asks_nothing {
                self.complaints.add_complaint(path, UNSUPPORTED_TEXT);
            }
            return;
        }
        let near = of.fields().find(|field| differ_by_one_edit(field.name(), name));
        let hint = near.map(|field| format!("; did you mean `{}`?", field.name())).unwrap_or_default();
        self.complaints.add_complaint(path, format!("unknown field `{}`{hint}", shorten_text(name)));
    }

    /// Checks that an object has no other alternative than the one that `choice` names. If `choice` is missing and one
    /// alternative is given, adds `choice`.
    fn normalise_choice(
        &mut self,
        known: &MembersReadSoFar,
        of: &MessageDescriptor,
        path: ValuePath<'_>,
        first: usize,
    ) {
        let Some(Kind::Enum(choices)) = of.get_field_by_name("choice").map(|field| field.kind()) else {
            return;
        };
        let members: Vec<String> = choices
            .values()
            .map(|value| value.name().to_owned())
            .filter(|name| known.given.contains(name))
            .collect();
        // OTG makes `choice` optional, and clients differ: snappi writes it, hand-written documents often do not.
        match (&known.choice, members.as_slice()) {
            (None, [one]) => {
                self.write_member_name(first, "choice");
                self.text.extend(["\"", one, "\""]);
            }
            (None, [_, _, ..]) => {
                let complaint = format!("only one of {} is allowed", members.join(", "));
                self.complaints.add_complaint(path, complaint);
            }
            (Some(chosen), members) => {
                for other in members.iter().filter(|member| *member != chosen) {
                    let complaint = format!("`choice` is `{chosen}`, but `{other}` is also given");
                    self.complaints.add_complaint(path, complaint);
                }
            }
            // No value is added here: OTG's default applies, which only the `plan` crate knows.
            (None, []) => {}
        }
    }
}

/// Returns whether inserting, removing or replacing one byte turns `b` into `a`.
fn differ_by_one_edit(a: &str, b: &str) -> bool {
    // After the common beginning, both must be equal except for the first byte of one or of both.
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let a = &a.as_bytes()[same..];
    let b = &b.as_bytes()[same..];
    match a.len().cmp(&b.len()) {
        std::cmp::Ordering::Less => b.get(1..) == Some(a),
        std::cmp::Ordering::Equal => a.get(1..) == b.get(1..),
        std::cmp::Ordering::Greater => a.get(1..) == Some(b),
    }
}
