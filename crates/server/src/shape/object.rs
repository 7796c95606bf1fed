//! The members of an object while it is being read, and the values of members that packetrig does not support.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Maximum number of names of one object that are compared with each other. The model has fewer, so a longer
/// object has an unknown name.
const MAX_NAMES: usize = 1_000;

/// The members of an object that have been read so far.
#[derive(Default)]
pub(super) struct MembersReadSoFar {
    names: HashSet<String>,
    pub(super) choice: Option<String>,
    /// Names of the members with a value. `choice` and empty lists do not count.
    pub(super) given: Vec<String>,
}

/// Outcome of normalising a member.
pub(super) enum NormalisedMember {
    /// The member was left out, or is an empty list.
    Absent,
    Given,
    /// The member is `choice`, and its value is this name.
    Choice(String),
}

impl MembersReadSoFar {
    /// Adds the name of a member. Returns `false` if the object has it already.
    pub(super) fn add_member_name(&mut self, name: &str) -> bool {
        // The model has fewer names, so at this point some name is unknown, and the document is refused anyway.
        self.names.len() >= MAX_NAMES || self.names.insert(name.to_owned())
    }

    pub(super) fn record_written_member(&mut self, name: String, written: NormalisedMember) {
        match written {
            NormalisedMember::Absent => {}
            NormalisedMember::Given => self.given.push(name),
            NormalisedMember::Choice(chosen) => self.choice = Some(chosen),
        }
    }
}

/// Reads the value of a member that packetrig does not support, and returns whether it requests nothing: `null`,
/// `false` or an empty list. Clients send defaults with every object they touch, and over gRPC an empty list looks the
/// same as a missing one.
pub(super) struct NoRequestSeed;

impl<'de> DeserializeSeed<'de> for NoRequestSeed {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<bool, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NoRequestSeed {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<bool, E> {
        Ok(!flag)
    }

    fn visit_i64<E>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let mut is_empty = true;
        while items.next_element::<IgnoredAny>()?.is_some() {
            is_empty = false;
        }
        Ok(is_empty)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        // Even an empty object is a request: over gRPC it differs from an absent one.
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}
