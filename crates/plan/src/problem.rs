//! What is wrong with a document: all of it at once, each with where and what to do.

use serde::Serialize;
use std::fmt;

/// How bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The plan runs all the same.
    Warning,
    /// It cannot run.
    Error,
}

/// One remark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// JSON path: `flows[0].packet[2].ipv4.src`.
    pub path: String,
    /// What was found and what is allowed; a lower-case fragment.
    pub message: String,
    /// What to do, if that is not plain.
    pub hint: Option<String>,
    /// Byte range in the source text, when it came from text.
    pub span: Option<(usize, usize)>,
    /// Line and column, from 1.
    pub position: Option<(usize, usize)>,
}

/// Why there is no plan: at least one error, perhaps warnings too, in document order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{}: {}", problem.path, problem.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
