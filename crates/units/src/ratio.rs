//! Shares of a count, such as loss: the two counts stay, the percentage is only printed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// `part` of `whole`, both counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ratio {
    pub part: u64,
    /// The count that `part` is taken from.
    pub whole: u64,
}

impl Ratio {
    /// `part` of `whole`.
    pub const fn new(part: u64, whole: u64) -> Self {
        Self { part, whole }
    }
    /// Percent, for display only; zero of nothing is zero.
    pub fn percent(self) -> f64 {
        if self.whole == 0 { 0.0 } else { self.part as f64 * 100.0 / self.whole as f64 }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.percent() {
            // Four decimals would show a small loss as `0.0000 %`, as if nothing were lost.
            p if p > 0.0 && p < 0.0001 => f.pad("< 0.0001 %"),
            p => f.pad(&format!("{p:.4} %")),
        }
    }
}
