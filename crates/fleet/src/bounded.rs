//! Deserializes texts and lists from other machines with limits: a text is cut to one line of limited length, a list
//! to its first elements.
//!
//! Invariant: input beyond a limit is skipped while it is read, and never stored.

use crate::hello::{MAX_HELLO_LIST_ENTRIES, MAX_TEXT_CHARACTERS};
use packetrig_units::text::deserialize_line;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Element of a list of texts, read by [`deserialize_bounded_line`].
#[derive(Deserialize)]
#[serde(transparent)]
struct BoundedLine(#[serde(deserialize_with = "deserialize_bounded_line")] String);

/// Reads a text field as one line of at most [`MAX_TEXT_CHARACTERS`] characters.
pub(crate) fn deserialize_bounded_line<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    deserialize_line::<MAX_TEXT_CHARACTERS, D>(from)
}

/// Reads the first [`MAX_HELLO_LIST_ENTRIES`] texts of a list, each as one line, and skips the others.
pub(crate) fn deserialize_bounded_lines<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let lines: Vec<BoundedLine> = deserialize_first_elements::<MAX_HELLO_LIST_ENTRIES, _, _>(from)?;
    Ok(lines.into_iter().map(|line| line.0).collect())
}

/// Reads the first `MOST` elements of a list, and skips the others.
pub(crate) fn deserialize_first_elements<
    'de,
    const MOST: usize,
    T: Deserialize<'de>,
    D: Deserializer<'de>,
>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(FirstElementsVisitor::<MOST, T>(PhantomData))
}

struct FirstElementsVisitor<const MOST: usize, T>(PhantomData<T>);

impl<'de, const MOST: usize, T: Deserialize<'de>> Visitor<'de> for FirstElementsVisitor<MOST, T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MOST {
            let Some(element) = list.next_element()? else { return Ok(kept) };
            kept.push(element);
        }
        // The remaining entries are parsed and dropped: a deserializer must consume the whole list.
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(kept)
    }
}
