//! What evaluations share: tables, plots and goal lines ([`output`], [`plot`]), and generators to stand beside ([`peers`]).
//!
//! An evaluation runs the built program as a user does, next to its peers in the same lab in the same minutes, and judges by
//! the kernel's counters and the reference device's own list, never by what a program says of itself.
#![forbid(unsafe_code)]

pub mod draw;
pub mod fleet;
pub mod mix;
pub mod output;
pub mod parts;
pub mod peers;
pub mod plot;
pub mod process;
pub mod traffic;

use std::path::PathBuf;

/// How much time is taken.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// A short run.
    pub quick: bool,
}

impl Effort {
    /// As `EVAL_QUICK` says.
    pub fn from_environment() -> Self {
        Self { quick: std::env::var("EVAL_QUICK").is_ok_and(|value| value == "1") }
    }
}

/// Where results go: the first argument.
pub fn directory(name: &str) -> PathBuf {
    std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/eval").join(name), PathBuf::from)
}

/// The middle one.
pub fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Five numbers that stand for many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quartiles {
    /// The least.
    pub least: f64,
    /// A quarter is below it.
    pub first: f64,
    /// The middle one.
    pub median: f64,
    /// A quarter is above it.
    pub third: f64,
    /// The greatest.
    pub most: f64,
}

impl Quartiles {
    /// Of figures; `None` if there are none. Between two figures lies what is between them.
    pub fn of(figures: &[f64]) -> Option<Self> {
        Some(Self {
            least: quantile(figures, 0.0)?,
            first: quantile(figures, 0.25)?,
            median: quantile(figures, 0.5)?,
            third: quantile(figures, 0.75)?,
            most: quantile(figures, 1.0)?,
        })
    }

    /// Quartiles of a table, times a factor.
    pub fn text(&self, factor: f64) -> String {
        let [first, median, third] = [self.first, self.median, self.third].map(|value| value * factor);
        format!("{first:.1} / {median:.1} / {third:.1}")
    }
}

/// What this share of the figures is not above, 0 to 1; `None` if there are none.
pub fn quantile(figures: &[f64], share: f64) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share.clamp(0.0, 1.0) * (sorted.len().checked_sub(1)? as f64);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place among figures")]
    let below = place.floor() as usize;
    let above = sorted.get(below + 1).or_else(|| sorted.get(below))?;
    Some(sorted[below] + (above - sorted[below]) * (place - place.floor()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_those_of_the_sorted_figures() {
        assert_eq!(Quartiles::of(&[]), None);
        let of_five = Quartiles::of(&[5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(of_five, Some(Quartiles { least: 1.0, first: 2.0, median: 3.0, third: 4.0, most: 5.0 }));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }
}
