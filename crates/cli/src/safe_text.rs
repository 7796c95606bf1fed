//! Makes text safe for a terminal: names, errors and findings come from other machines too, and a terminal obeys what it
//! reads. Control characters are shown as escapes; line ends, tabs and our own colours stay.

use std::borrow::Cow;

/// Sequences that may begin a text: what is shown anew every second takes the place of what was there.
const CLEARING: [&str; 2] = ["\u{1b}[2J\u{1b}[H", "\u{1b}[H\u{1b}[J"];
/// Longest colour sequence that is looked for.
const LONGEST_COLOUR: usize = 12;

/// The text with everything that a terminal would obey, and readers would not see, written as an escape.
pub(crate) fn safe(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let clearing = CLEARING.iter().find(|sequence| text.starts_with(**sequence)).copied().unwrap_or("");
    let mut shown = clearing.to_owned();
    let mut left = &text[clearing.len()..];
    while let Some(first) = left.chars().next() {
        let length = colour(left).unwrap_or_else(|| first.len_utf8());
        let (part, rest) = left.split_at(length);
        if length == first.len_utf8() && is_unsafe(first) {
            shown.extend(first.escape_unicode());
        } else {
            shown.push_str(part);
        }
        left = rest;
    }
    Cow::Owned(shown)
}

/// Control characters, and those that turn the direction of what follows.
fn is_unsafe(c: char) -> bool {
    let is_control = c.is_control() && !matches!(c, '\n' | '\t');
    is_control || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Length of the colour sequence that the text begins with. Hidden text is no colour.
fn colour(text: &str) -> Option<usize> {
    let codes = text.strip_prefix("\u{1b}[")?;
    let end = codes.bytes().take(LONGEST_COLOUR).position(|byte| byte == b'm')?;
    let is_known = |code: &str| match code.parse::<u8>() {
        Ok(code) => matches!(code, 0..=4 | 22..=24 | 30..=37 | 39 | 90..=97),
        Err(_) => code.is_empty(),
    };
    codes[..end].split(';').all(is_known).then_some("\u{1b}[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        let cases = [
            ("node b: \u{1b}]0;title\u{7}", "node b: \\u{1b}]0;title\\u{7}"),
            ("a\rVerdict: PASS", "a\\u{d}Verdict: PASS"),
            ("x\u{1b}[2J\u{1b}[Hy", "x\\u{1b}[2J\\u{1b}[Hy"),
            ("\u{1b}[8mhidden", "\\u{1b}[8mhidden"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("abc\u{202e}cba", "abc\\u{202e}cba"),
        ];
        for (text, shown) in cases {
            assert_eq!(safe(text), shown);
        }
    }

    #[test]
    fn lines_tabs_colours_and_our_own_clearing_stay() {
        for text in ["one\n\ttwo\n", "\u{1b}[1;32mPASS\u{1b}[0m", "\u{1b}[H\u{1b}[J  1.0 s", "größer 10 µs…"]
        {
            assert_eq!(safe(text), text);
        }
    }
}
