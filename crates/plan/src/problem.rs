//! Problems of a document, each with its path and, if they are known, its position and a remedy.

use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProblemSeverity {
    /// The plan can run in spite of the problem.
    Warning,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanProblem {
    pub severity: ProblemSeverity,
    /// JSON path: `flows[0].packet[2].ipv4.src`.
    pub path: String,
    /// What is wrong, as a fragment in lower case, for example the value that was found and the allowed values.
    pub message: String,
    /// The remedy, if the message does not say it.
    pub hint: Option<String>,
    /// Byte range of the value in the text of the document; `None` if the problem has no position.
    pub span: Option<(usize, usize)>,
    /// Line and column in the text of the document, both counted from 1.
    pub position: Option<(usize, usize)>,
}

/// Maximum number of characters of a path, a message or a hint.
const MAX_PROBLEM_TEXT_CHARACTERS: usize = 600;

impl PlanProblem {
    /// An error without a position in a text.
    pub fn error(path: impl Into<String>, message: impl Into<String>) -> Self {
        let severity = ProblemSeverity::Error;
        Self { severity, path: path.into(), message: message.into(), hint: None, span: None, position: None }
    }

    /// A warning without a position in a text.
    pub fn warning(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: ProblemSeverity::Warning, ..Self::error(path, message) }
    }

    /// Cuts the texts to a readable length: texts quoted from a document can be of any length.
    pub(crate) fn shorten(mut self) -> Self {
        let hint = self.hint.iter_mut();
        for text in [&mut self.path, &mut self.message].into_iter().chain(hint) {
            // The length is counted in characters: `truncate` panics inside a character of several bytes.
            if let Some((end, _)) = text.char_indices().nth(MAX_PROBLEM_TEXT_CHARACTERS) {
                text.truncate(end);
                text.push('…');
            }
        }
        self
    }

    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for PlanProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.position {
            write!(f, "line {line}, column {column}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// The reasons why there is no plan: at least one error, perhaps warnings too, in document order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanProblems(pub Vec<PlanProblem>);

impl PlanProblems {
    /// Removes the positions from all problems. Used for documents that packetrig wrote itself: the user has never
    /// seen their line numbers.
    #[must_use]
    pub fn without_line_numbers(mut self) -> Self {
        for problem in &mut self.0 {
            (problem.span, problem.position) = (None, None);
        }
        self
    }
}

impl fmt::Display for PlanProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for PlanProblems {}
