//! Errors of filter expressions, with their position in the text.

use std::fmt;

/// An error in a filter expression: where it is, what is wrong, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The part of the line around the error.
    line: String,
    line_number: usize,
    /// Number of characters of `line` before the error.
    before: usize,
    /// Number of characters to underline.
    width: usize,
    what: String,
    help: String,
}

/// Maximum number of characters of a line that are shown on each side of the error.
const MAX_SHOWN_CHARACTERS: usize = 60;

impl FilterError {
    /// An error in the bytes `from..from + length` of a text.
    pub(super) fn new(
        text: &str,
        from: usize,
        length: usize,
        what: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        // Byte offsets become character boundaries: users may paste any text, and slicing inside a character panics.
        let from = text.floor_char_boundary(from);
        let until = text.ceil_char_boundary(from + length);
        let start = text[..from].rfind('\n').map_or(0, |at| at + 1);
        let end = text[from..].find('\n').map_or(text.len(), |at| from + at);
        // A filter may be one line of a megabyte: only the neighbourhood of the error is shown.
        let first = text[start..from]
            .char_indices()
            .rev()
            .nth(MAX_SHOWN_CHARACTERS - 1)
            .map_or(start, |(at, _)| start + at);
        let last = text[until.min(end)..end]
            .char_indices()
            .nth(MAX_SHOWN_CHARACTERS)
            .map_or(end, |(at, _)| until + at);
        Self {
            line: as_single_line(&text[first..last]),
            line_number: text[..from].matches('\n').count() + 1,
            before: text[first..from].chars().count(),
            width: text[from..until.min(end).max(from)].chars().count().max(1),
            // Both texts may quote the filter, which may have control characters.
            what: as_single_line(&what.into()),
            help: as_single_line(&help.into()),
        }
    }
}

/// Replaces control characters, which would break the line or act on the terminal.
fn as_single_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, line_number, before, width, what, help } = self;
        if *line_number > 1 {
            write!(f, "line {line_number}: ")?;
        }
        // Padding an empty text: `before` spaces, then `width` carets under the error.
        write!(f, "{what}\n  {line}\n  {:before$}{:^<width$}\n  {help}", "", "")
    }
}

impl std::error::Error for FilterError {}
