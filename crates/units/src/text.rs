//! Turns text from other machines into one line that is safe in a terminal, a log and a table.
//!
//! Invariant: the result of [`one_line`] has no character that controls a terminal, ends a line, or is invisible.

use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};
use std::fmt;

/// Returns the text with line ends, tabs and other invisible characters written as escapes. If the result has more than
/// `most` characters, it is cut, and the last character is `…`.
pub fn one_line(text: &str, most: usize) -> String {
    let mut line = String::new();
    let mut length = 0;
    for c in text.chars() {
        let shown = if is_visible_char(c) { c.to_string() } else { c.escape_unicode().to_string() };
        let added = shown.chars().count();
        // The length is counted in characters and not in bytes: tables align by characters.
        if length + added > most {
            return truncate_line(&line, most);
        }
        length += added;
        line.push_str(&shown);
    }
    line
}

/// Truncates a line to `most` characters; the last of them is an ellipsis.
fn truncate_line(line: &str, most: usize) -> String {
    line.chars().take(most.saturating_sub(1)).chain((most > 0).then_some('…')).collect()
}

/// Returns whether the character is visible. The standard library's table of Unicode categories decides. These are
/// invisible: control characters, format characters (which change the direction of text or mark it invisibly), line and
/// paragraph separators, spaces of unusual width, and characters for private use or without an assignment. A combining
/// mark after a letter is visible.
pub fn is_visible_char(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_control();
    }
    // `escape_debug` escapes exactly the unprintable characters, by the tables of the standard library. It
    // also escapes a combining mark that stands alone, so the character is put after a letter.
    let mut behind_a_letter = [b'x'; 5];
    let length = c.encode_utf8(&mut behind_a_letter[1..]).len();
    let text = std::str::from_utf8(&behind_a_letter[..=length]).unwrap_or_default();
    text.escape_debug().nth(1) != Some('\\')
}

/// Percent-encodes a text for a part of a URL path or query, so that no character of it acts as a separator.
pub fn encode_url_part(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        // Letters and digits never need an encoding (RFC 3986, section 2.3). Every other byte may be encoded, so no
        // list of characters is needed.
        if byte.is_ascii_alphanumeric() {
            encoded.push(char::from(byte));
        } else {
            encoded.extend(["%".to_owned(), format!("{byte:02X}")]);
        }
        encoded
    })
}

/// Deserializes a text from another machine with [`one_line`], cut to `MOST` characters.
pub fn deserialize_line<'de, const MOST: usize, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    from.deserialize_str(OneLineVisitor::<MOST>)
}

/// Works like [`deserialize_line`], for a text that may be absent.
pub fn deserialize_optional_line<'de, const MOST: usize, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<String>, D::Error> {
    let text: Option<ForeignLine<MOST>> = Option::deserialize(from)?;
    Ok(text.map(|line| line.0))
}

/// A text from another machine, made safe by [`one_line`].
struct ForeignLine<const MOST: usize>(String);

impl<'de, const MOST: usize> Deserialize<'de> for ForeignLine<MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        deserialize_line::<MOST, D>(from).map(Self)
    }
}

struct OneLineVisitor<const MOST: usize>;

impl<const MOST: usize> Visitor<'_> for OneLineVisitor<MOST> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        // The visitor's methods for owned and borrowed texts call this one, so it covers all of them.
        Ok(one_line(text, MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_becomes_one_bounded_line() {
        let cases = [
            ("eth0 größer 日本語", "eth0 größer 日本語"),
            ("a\nb\tc\r", "a\\u{a}b\\u{9}c\\u{d}"),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("\u{2028}\u{202e}\u{9b}", "\\u{2028}\\u{202e}\\u{9b}"),
        ];
        for (text, line) in cases {
            assert_eq!(one_line(text, 300), line);
        }
        assert_eq!(one_line("abcdef", 6), "abcdef");
        assert_eq!(one_line("abcdefg", 6), "abcde…");
        assert_eq!(one_line("abcd\n", 6), "abcd…", "an escape is not cut in two");
        assert_eq!(one_line(&"\n".repeat(1 << 20), 300).chars().count(), 300 / 5 * 5);
        assert_eq!(one_line("ab", 0), "");
    }
}
