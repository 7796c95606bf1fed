//! What is wrong with a filter expression, and where.

use std::fmt;

/// A filter expression that cannot be understood: the place in the text, what is wrong there, what is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The line of the text that has the fault.
    line: String,
    line_number: usize,
    /// Characters of the line before the fault.
    before: usize,
    /// Characters that are wrong.
    width: usize,
    what: String,
    help: String,
}

/// As many characters of a line are shown around the fault.
const SHOWN: usize = 60;

impl FilterError {
    /// A fault of these bytes of a text.
    pub(super) fn new(
        text: &str,
        from: usize,
        length: usize,
        what: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        let from = text.floor_char_boundary(from);
        let until = text.ceil_char_boundary(from + length);
        let start = text[..from].rfind('\n').map_or(0, |at| at + 1);
        let end = text[from..].find('\n').map_or(text.len(), |at| from + at);
        let first = text[start..from].char_indices().rev().nth(SHOWN - 1).map_or(start, |(at, _)| start + at);
        let last = text[until.min(end)..end].char_indices().nth(SHOWN).map_or(end, |(at, _)| until + at);
        Self {
            line: text[first..last].chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
            line_number: text[..from].matches('\n').count() + 1,
            before: text[first..from].chars().count(),
            width: text[from..until.min(end).max(from)].chars().count().max(1),
            what: what.into(),
            help: help.into(),
        }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, line_number, before, width, what, help } = self;
        if *line_number > 1 {
            write!(f, "line {line_number}: ")?;
        }
        write!(f, "{what}\n  {line}\n  {:before$}{:^<width$}\n  {help}", "", "")
    }
}

impl std::error::Error for FilterError {}
