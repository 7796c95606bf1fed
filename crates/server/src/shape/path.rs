//! Problems of a document and their paths.

use std::fmt;

/// Maximum number of problems that are listed. A hostile document can have millions.
const MAX_LISTED_PROBLEMS: usize = 1_000;
/// Maximum number of characters of the document's text that a message repeats.
const MAX_QUOTED_CHARACTERS: usize = 80;

/// The path to a value: a linked list on the call stack. It is only formatted as text if the value has a problem.
#[derive(Clone, Copy)]
pub(super) enum ValuePath<'a> {
    Root,
    Member(&'a Self, &'a str),
    Index(&'a Self, usize),
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValuePath::Root => Ok(()),
            ValuePath::Member(ValuePath::Root, name) => f.write_str(&shorten_text(name)),
            ValuePath::Member(parent, name) => write!(f, "{parent}.{}", shorten_text(name)),
            ValuePath::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Shortens a text of the document to a readable length.
pub(super) fn shorten_text(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Problem of a document, with its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentProblem {
    /// JSON path: `flows[0].packet[2].ipv4.src`; empty for the document itself.
    pub(crate) path: String,
    /// Description of the problem, often with the found value and the allowed values.
    pub(crate) message: String,
}

impl fmt::Display for DocumentProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// The problems of a document: the first [`MAX_LISTED_PROBLEMS`], and the number of all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct DocumentProblems {
    noted: Vec<DocumentProblem>,
    unlisted: usize,
}

impl DocumentProblems {
    pub(super) fn add_complaint(&mut self, path: ValuePath<'_>, message: impl Into<String>) {
        // The path is formatted only for listed problems. The others are only counted.
        if self.noted.len() < MAX_LISTED_PROBLEMS {
            self.noted.push(DocumentProblem { path: path.to_string(), message: message.into() });
        } else {
            self.unlisted += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.noted.is_empty()
    }

    /// The problems that are listed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &DocumentProblem> {
        self.noted.iter()
    }

    /// Formats the problems for the client, one line each. A last line gives the number of problems
    /// that are not listed.
    pub(crate) fn into_lines(self) -> Vec<String> {
        let mut lines: Vec<String> = self.noted.iter().map(ToString::to_string).collect();
        if self.unlisted > 0 {
            lines.push(format!("{} more problems are not listed", self.unlisted));
        }
        lines
    }
}
