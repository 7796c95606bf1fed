//! What evaluations share: tables, plots and goal lines ([`output`], [`plot`]), and generators to stand beside ([`peers`]).
//!
//! An evaluation runs the built program as a user does, next to its peers in the same lab in the same minutes, and judges by
//! the kernel's counters and the reference device's own list, never by what a program says of itself.
#![forbid(unsafe_code)]

pub mod draw;
pub mod output;
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
