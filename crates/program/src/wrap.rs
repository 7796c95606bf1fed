//! Wraps text at blanks: a terminal would break long lines within words.

/// Number of blanks by which continuation lines are indented more than the first line.
const HANGING_INDENT: usize = 2;

/// Wraps lines that are longer than `width`; without a width, lines may have any length.
pub fn wrap_text(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let lines: Vec<String> = text.split('\n').map(|line| wrap_line(line, width)).collect();
    lines.join("\n")
}

/// Wraps a line. A word that is longer than a line stays whole.
fn wrap_line(line: &str, width: usize) -> String {
    if visible_width(line) <= width {
        return line.to_owned();
    }
    let words = line.trim_start_matches(' ');
    let own_indent = line.len() - words.len();
    let indent = " ".repeat(own_indent + HANGING_INDENT);
    let mut wrapped = " ".repeat(own_indent);
    let mut used = own_indent;
    for word in words.split_inclusive(' ') {
        let is_first = wrapped.len() == own_indent;
        // The blank after a word may exceed the width, because it is not visible there.
        if !is_first && used + visible_width(word.trim_end_matches(' ')) > width {
            wrapped.truncate(wrapped.trim_end_matches(' ').len());
            wrapped.extend(["\n", &indent]);
            used = indent.len();
        }
        wrapped.push_str(word);
        used += visible_width(word);
    }
    wrapped
}

/// Returns the number of characters of a text without its colour codes, each of which ends with an `m`.
fn visible_width(text: &str) -> usize {
    let mut is_code = false;
    let mut width = 0;
    for c in text.chars() {
        match c {
            '\x1b' => is_code = true,
            _ if is_code => is_code = c != 'm',
            _ => width += 1,
        }
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_wraps_at_blanks_with_hanging_indent() {
        let wrapped = |text| wrap_text(text, Some(10));
        assert_eq!(wrapped("ten chars.\nshort"), "ten chars.\nshort");
        assert_eq!(wrapped("  one two three"), "  one two\n    three");
        assert_eq!(wrapped("one two three four"), "one two\n  three\n  four");
        assert_eq!(wrapped("  a-word-that-is-long ends"), "  a-word-that-is-long\n    ends");
        assert_eq!(wrap_text("one two three four", None), "one two three four");
    }

    #[test]
    fn colours_take_no_room() {
        assert_eq!(
            wrap_text("\x1b[1;31merror:\x1b[0m no way out", Some(10)),
            "\x1b[1;31merror:\x1b[0m no\n  way out"
        );
    }
}
