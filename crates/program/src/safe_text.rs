//! Makes text safe for a terminal. Names, errors and findings may come from other machines, and a terminal obeys the
//! control characters that it receives. Control characters are therefore written as escapes; line ends, tabs and the
//! colours of this program stay.

use packetrig_units::text::is_visible_char;
use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::OnceLock;

/// Sequences that clear the screen, for `--top` and `--watch`. They are allowed only at the beginning of a text.
const CLEAR_SCREEN_SEQUENCES: [&str; 2] = ["\u{1b}[2J\u{1b}[H", "\u{1b}[H\u{1b}[J"];
/// Maximum number of bytes that are searched for the end of a colour sequence.
// A key has up to 20 digits, and the longest code is `1;32`: 26 bytes with the separator and the `m`.
const MAX_COLOUR_SEQUENCE_BYTES: usize = 32;

/// Escapes all characters that a terminal would obey or would not show.
pub fn escape_unsafe_text(text: &str) -> Cow<'_, str> {
    if is_visible_ascii(text) || !text.contains(is_unsafe_char) {
        return Cow::Borrowed(text);
    }
    // Sequences that clear the screen stay only at the beginning, where this program puts them: in the middle
    // they would come from a name or a message.
    let clearing =
        CLEAR_SCREEN_SEQUENCES.iter().find(|sequence| text.starts_with(**sequence)).copied().unwrap_or("");
    let mut shown = clearing.to_owned();
    let mut left = &text[clearing.len()..];
    while let Some(first) = left.chars().next() {
        if let Some(OwnColourSequence { code, length }) = find_own_colour_sequence(left) {
            // The key is left out: a terminal does not need it, and printing would reveal it.
            shown.extend(["\u{1b}[", code, "m"]);
            left = &left[length..];
            continue;
        }
        let (part, rest) = left.split_at(first.len_utf8());
        if is_unsafe_char(first) {
            shown.extend(first.escape_unicode());
        } else {
            shown.push_str(part);
        }
        left = rest;
    }
    Cow::Owned(shown)
}

/// Returns whether the text has nothing but visible ASCII characters, spaces, tabs and line ends. Looks at eight bytes
/// at a time: millions of rows take longer to check than to read otherwise.
fn is_visible_ascii(text: &str) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    let are_visible = words.iter().all(|bytes| {
        let word = u64::from_le_bytes(*bytes);
        // The highest bit of a byte is set here if the byte is below a space, or above a tilde.
        let marks = word.wrapping_sub(0x20 * EACH) | word.wrapping_add(EACH) | word;
        marks & (0x80 * EACH) == 0 || has_only_visible_ascii(bytes)
    });
    are_visible && has_only_visible_ascii(rest)
}

fn has_only_visible_ascii(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\n' | b'\t'))
}

/// Returns true if the character is not printable and is no line end or tab.
fn is_unsafe_char(c: char) -> bool {
    !matches!(c, '\n' | '\t') && !is_visible_char(c)
}

/// Colours the text with a sequence that [`escape_unsafe_text`] accepts. Only this process can write such a
/// sequence, because it contains a secret number. So no text from elsewhere can colour or hide other text.
pub(crate) fn colour_text(text: &str, code: &str) -> String {
    let key = secret_colour_number();
    format!("\u{1b}[{code};{key}m{text}\u{1b}[0;{key}m")
}

/// Returns the secret number in colour sequences, which differs in each process.
fn secret_colour_number() -> &'static str {
    static TEXT_KEY: OnceLock<String> = OnceLock::new();
    TEXT_KEY.get_or_init(|| RandomState::new().build_hasher().finish().to_string())
}

/// A colour sequence of this program: its colour code without the secret number, and its whole length in bytes.
struct OwnColourSequence<'a> {
    code: &'a str,
    length: usize,
}

/// Finds the colour sequence at the beginning of the text, if this program has written it.
fn find_own_colour_sequence(text: &str) -> Option<OwnColourSequence<'_>> {
    let codes = text.strip_prefix("\u{1b}[")?;
    // The search is bounded: otherwise a text of many escapes would be searched to its end for each escape.
    let end = codes.bytes().take(MAX_COLOUR_SEQUENCE_BYTES).position(|byte| byte == b'm')?;
    let (code, key) = codes[..end].rsplit_once(';')?;
    let length = "\u{1b}[".len() + end + 1;
    (key == secret_colour_number()).then_some(OwnColourSequence { code, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        let cases = [
            ("node b: \u{1b}]0;title\u{7}", "node b: \\u{1b}]0;title\\u{7}"),
            ("a\rVerdict: PASS", "a\\u{d}Verdict: PASS"),
            ("x\u{1b}[2J\u{1b}[Hy", "x\\u{1b}[2J\\u{1b}[Hy"),
            ("\u{1b}[8mhidden", "\\u{1b}[8mhidden"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("abc\u{202e}cba", "abc\\u{202e}cba"),
            ("a\u{61c}b", "a\\u{61c}b"),
            ("PASS\u{2028}FAIL\u{2029}", "PASS\\u{2028}FAIL\\u{2029}"),
            ("name\u{e0001}\u{e0041}\u{e007f}", "name\\u{e0001}\\u{e0041}\\u{e007f}"),
            ("zero\u{200b}width\u{feff}", "zero\\u{200b}width\\u{feff}"),
            (
                "soft\u{ad}hyphen, \u{e000} private, \u{378} unassigned",
                "soft\\u{ad}hyphen, \\u{e000} private, \\u{378} unassigned",
            ),
        ];
        for (text, shown) in cases {
            assert_eq!(escape_unsafe_text(text), shown);
        }
    }

    #[test]
    fn only_colours_of_this_program_are_shown() {
        let text = format!("{} b\u{1b}[31mred", colour_text("PASS", "1;32"));
        assert_eq!(escape_unsafe_text(&text), "\u{1b}[1;32mPASS\u{1b}[0m b\\u{1b}[31mred");
        assert_eq!(escape_unsafe_text("\u{1b}[1;31;12345mx"), "\\u{1b}[1;31;12345mx", "a guess");
        assert_eq!(escape_unsafe_text("\u{1b}[0m\u{1b}["), "\\u{1b}[0m\\u{1b}[");
    }

    #[test]
    fn visible_ascii_is_told_at_each_byte_of_a_word() {
        for byte in 0..128 {
            for place in 0..10 {
                let mut text = vec![b'~'; 10];
                text[place] = byte;
                let is_visible = matches!(byte, b' '..=b'~' | b'\n' | b'\t');
                assert_eq!(
                    is_visible_ascii(std::str::from_utf8(&text).unwrap()),
                    is_visible,
                    "{byte} {place}"
                );
            }
        }
        assert!(is_visible_ascii("") && !is_visible_ascii("12345678\u{80}") && !is_visible_ascii("é"));
    }

    #[test]
    fn lines_tabs_and_our_own_clearing_stay() {
        for text in
            ["one\n\ttwo\n", "\u{1b}[H\u{1b}[J  1.0 s", "größer 10 µs…", "gro\u{308}ßer ─│ ✓ 日本語 عربي 🚀"]
        {
            assert_eq!(escape_unsafe_text(text), text);
        }
    }

    /// Ranges of general category Cc, Cf, Zl and Zp, from UnicodeData.txt 15.0.
    const CONTROLS_FORMATS_AND_SEPARATORS: [(u32, u32); 23] = [
        (0x0, 0x1f),
        (0x7f, 0x9f),
        (0xad, 0xad),
        (0x600, 0x605),
        (0x61c, 0x61c),
        (0x6dd, 0x6dd),
        (0x70f, 0x70f),
        (0x890, 0x891),
        (0x8e2, 0x8e2),
        (0x180e, 0x180e),
        (0x200b, 0x200f),
        (0x2028, 0x202e),
        (0x2060, 0x2064),
        (0x2066, 0x206f),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffb),
        (0x110bd, 0x110bd),
        (0x110cd, 0x110cd),
        (0x13430, 0x1343f),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0001, 0xe0001),
        (0xe0020, 0xe007f),
    ];

    #[test]
    fn unsafe_unicode_categories_are_always_escaped() {
        for c in CONTROLS_FORMATS_AND_SEPARATORS
            .into_iter()
            .flat_map(|(first, last)| first..=last)
            .filter_map(char::from_u32)
        {
            let escaped = c.escape_unicode().to_string();
            let shown = escape_unsafe_text(c.encode_utf8(&mut [0; 4])).into_owned();
            assert_eq!(shown == escaped, !matches!(c, '\n' | '\t'), "{escaped}");
        }
    }
}
