//! The load of a trial.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Frames per second that a trial offers, all senders together.
///
/// Searches compute loads as logarithms and means, so this is a float. A trial sends whole frames; its result has the
/// load that was really offered.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Load(f64);

impl Load {
    /// The load of a trial without frames.
    pub const ZERO: Self = Self(0.0);

    /// A load of this many frames per second. Negative values and not-a-number become 0.
    pub fn new(frames_per_second: f64) -> Self {
        // The comparison is false for not-a-number, too.
        Self(if frames_per_second > 0.0 { frames_per_second } else { 0.0 })
    }

    /// The load in frames per second.
    pub const fn frames_per_second(self) -> f64 {
        self.0
    }

    /// Multiplies the load by a factor.
    #[must_use]
    pub fn scale_by(self, factor: f64) -> Self {
        Self::new(self.0 * factor)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000.0 && self.0.fract() != 0.0 {
            return write!(f, "{:.3} frames/s", self.0);
        }
        let digits = format!("{:.0}", self.0);
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index) % 3 == 0 {
                write!(f, " ")?;
            }
            write!(f, "{digit}")?;
        }
        write!(f, " frames/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_printed_with_grouped_digits() {
        let shown = |load: f64| Load::new(load).to_string();
        assert_eq!(shown(1_488_095.24), "1 488 095 frames/s");
        assert_eq!(shown(999.5), "999.500 frames/s");
        assert_eq!(shown(100.0), "100 frames/s");
        assert_eq!(shown(f64::NAN), "0 frames/s");
    }
}
