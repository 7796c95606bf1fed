//! Reads the values of a database in MaxMind's format.

use super::parse_big_endian;

/// Deepest nesting of a value.
const MAX_DEPTH: usize = 16;
/// Maximum number of parts (nested values) of a value. A city with names in a dozen languages has about 150.
pub(super) const MAX_PARTS: usize = 4096;

/// A value. Values of types that packetrig does not need are [`Self::Other`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MmdbValue<'a> {
    Text(&'a str),
    Number(u64),
    Members(Vec<(&'a str, Self)>),
    Other,
}

impl<'a> MmdbValue<'a> {
    /// The member with this name; `None` if there is none.
    pub(super) fn member(&self, name: &str) -> Option<&Self> {
        let Self::Members(members) = self else { return None };
        members.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub(super) const fn text(&self) -> Option<&'a str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) const fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }
}

/// Reads values of a section. Pointers are offsets in the section.
pub(super) struct ValueReader<'a> {
    section: &'a [u8],
    parts_left: usize,
}

/// The beginning of a value: its kind, its size and where its bytes are.
struct ValueHeader {
    kind: u8,
    size: usize,
    at: usize,
}

// Numbers of kinds in the format.
const POINTER_TYPE: u8 = 1;
const TEXT_TYPE: u8 = 2;
const MAP_TYPE: u8 = 7;
const ARRAY_TYPE: u8 = 11;
const BOOLEAN_TYPE: u8 = 14;
/// Kinds of unsigned numbers: 16, 32, 64 and 128 bits.
const UNSIGNED_TYPES: [u8; 4] = [5, 6, 9, 10];

impl<'a> ValueReader<'a> {
    /// Makes a reader that reads at most `parts` parts of values.
    pub(super) const fn new(section: &'a [u8], parts: usize) -> Self {
        Self { section, parts_left: parts }
    }

    /// Number of parts that may still be read.
    pub(super) const fn parts_left(&self) -> usize {
        self.parts_left
    }

    /// The value at an offset; `None` if it is damaged, too deep or has too many parts.
    pub(super) fn read_value(&mut self, at: usize) -> Option<MmdbValue<'a>> {
        self.read_value_part(at, MAX_DEPTH).map(|(value, _)| value)
    }

    /// Reads a value. Returns it with the offset after it.
    fn read_value_part(&mut self, at: usize, depth: usize) -> Option<(MmdbValue<'a>, usize)> {
        // Counting the parts bounds the work, even if many pointers lead to the same values.
        self.parts_left = self.parts_left.checked_sub(1)?;
        let depth = depth.checked_sub(1)?;
        let head = self.read_head(at)?;
        match head.kind {
            POINTER_TYPE => {
                let (target, behind) = self.read_pointer(head.at, head.size)?;
                // The format forbids a pointer to a pointer, so a chain of pointers cannot be endless.
                let is_pointer = self.read_head(target)?.kind == POINTER_TYPE;
                let (value, _) = (!is_pointer).then(|| self.read_value_part(target, depth)).flatten()?;
                Some((value, behind))
            }
            MAP_TYPE => self.read_map(&head, depth),
            ARRAY_TYPE => {
                let mut at = head.at;
                for _ in 0..head.size {
                    at = self.read_value_part(at, depth)?.1;
                }
                Some((MmdbValue::Other, at))
            }
            // For this type the size field is the value itself.
            BOOLEAN_TYPE => Some((MmdbValue::Other, head.at)),
            kind => {
                let bytes = self.section.get(head.at..head.at.checked_add(head.size)?)?;
                // Bytes count, too: many pointers may lead to one long text, which is checked and copied each time.
                self.parts_left = self.parts_left.checked_sub(head.size / 16)?;
                Some((scalar_value(kind, bytes)?, head.at + head.size))
            }
        }
    }

    fn read_map(&mut self, head: &ValueHeader, depth: usize) -> Option<(MmdbValue<'a>, usize)> {
        let mut members = Vec::new();
        let mut at = head.at;
        for _ in 0..head.size {
            let (name, behind) = self.read_value_part(at, depth)?;
            let (value, behind) = self.read_value_part(behind, depth)?;
            members.push((name.text()?, value));
            at = behind;
        }
        Some((MmdbValue::Members(members), at))
    }

    fn read_head(&self, at: usize) -> Option<ValueHeader> {
        let control = *self.section.get(at)?;
        let mut at = at + 1;
        let mut kind = control >> 5;
        let small = usize::from(control & 0x1f);
        if kind == POINTER_TYPE {
            return Some(ValueHeader { kind, size: small, at });
        }
        if kind == 0 {
            kind = self.section.get(at)?.checked_add(7)?;
            at += 1;
        }
        // From 29 on, the size is in one, two or three following bytes.
        let (least, bytes) = match small {
            29 => (29, 1),
            30 => (285, 2),
            31 => (65_821, 3),
            small => (small, 0),
        };
        Some(ValueHeader { kind, size: least + self.read_big_endian(at, bytes)?, at: at + bytes })
    }

    /// Target of a pointer, and the offset after it. `bits` are the low five bits of the control byte: the length of
    /// the pointer and its highest bits.
    fn read_pointer(&self, at: usize, bits: usize) -> Option<(usize, usize)> {
        let bytes = (bits >> 3) + 1;
        let rest = self.read_big_endian(at, bytes)?;
        let first = bits & 7;
        let target = match bytes {
            1 => first << 8 | rest,
            2 => (first << 16 | rest) + 2048,
            3 => (first << 24 | rest) + 526_336,
            _ => rest,
        };
        Some((target, at + bytes))
    }

    fn read_big_endian(&self, at: usize, bytes: usize) -> Option<usize> {
        Some(parse_big_endian(self.section.get(at..at.checked_add(bytes)?)?))
    }
}

fn scalar_value(kind: u8, bytes: &[u8]) -> Option<MmdbValue<'_>> {
    if kind == TEXT_TYPE {
        return std::str::from_utf8(bytes).ok().map(MmdbValue::Text);
    }
    if UNSIGNED_TYPES.contains(&kind) && bytes.len() <= 8 {
        return Some(MmdbValue::Number(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))));
    }
    Some(MmdbValue::Other)
}
