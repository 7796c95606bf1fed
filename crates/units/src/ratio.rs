//! A part of a count, such as lost frames of sent frames. Both counts are stored; the percentage is only for display.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A part of a whole, stored as two counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ratio {
    pub part: u64,
    /// The count that contains `part`.
    pub whole: u64,
}

impl Ratio {
    /// Creates the ratio `part` of `whole`.
    pub const fn new(part: u64, whole: u64) -> Self {
        Self { part, whole }
    }
    /// Returns the percentage, for display only; 0 if `whole` is 0.
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
