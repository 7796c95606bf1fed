//! Figures of a result: the numbers that are compared between results, for every kind of result.
//!
//! Runs and test methods each define their figures. [`compare_figures`] compares the figures of two results and judges
//! them by limits; [`compute_figure_trends`] follows each figure over many results. Neither depends on the kind of measurement.
//!
//! Invariant: an unknown figure is absent or has no value. It is never zero, and it never satisfies a limit.

mod comparison;
mod limit;
mod trend;
mod words;

pub use comparison::{ComparedFigure, FigureChange, FigureComparison, FigureVerdict, compare_figures};
pub use limit::{AllowedChange, FigureLimit, FigureLimits, InvalidFigureLimit};
pub use trend::{FigureTrend, compute_figure_trends, compute_median_figures};
pub use words::{format_figure_difference, format_figure_value, format_signed_percent};

use serde::{Deserialize, Serialize};

/// A number of a result that can be compared with the same number of another result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportFigure {
    /// Name in lower case with hyphens, for example `throughput` or `latency-p99`.
    pub name: String,
    /// Subject of the figure: a stream, a frame size or the whole run.
    pub subject: String,
    /// The value; absent if it is not known.
    pub value: Option<f64>,
    /// Unit of the value: `frames/s`, `ns`, `%`; empty for plain numbers.
    pub unit: String,
    /// Whether higher or lower values are better.
    pub better: BetterDirection,
    /// The true value differs from `value` by at most this; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<f64>,
}

/// Whether higher or lower values of a figure are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BetterDirection {
    Higher,
    Lower,
    /// Neither is better: the figure describes the test, not the device.
    Neither,
}

impl ReportFigure {
    pub fn new(
        name: impl Into<String>,
        subject: impl Into<String>,
        value: Option<f64>,
        unit: impl Into<String>,
        better: BetterDirection,
    ) -> Self {
        // A division by 0 gives NaN or infinity. These are not known values.
        let value = value.filter(|value| value.is_finite());
        Self {
            name: name.into(),
            subject: subject.into(),
            value,
            unit: unit.into(),
            better,
            uncertainty: None,
        }
    }

    /// Sets the uncertainty of the value.
    #[must_use]
    pub fn with_uncertainty(self, uncertainty: Option<f64>) -> Self {
        Self { uncertainty: uncertainty.filter(|doubt| doubt.is_finite()), ..self }
    }

    /// Returns whether both are the same figure, of two different results.
    fn is_same_figure_as(&self, other: &Self) -> bool {
        self.name == other.name && self.subject == other.subject
    }
}

fn figure_title(name: &str, subject: &str) -> String {
    if subject.is_empty() { name.to_owned() } else { format!("{name} of {subject}") }
}
