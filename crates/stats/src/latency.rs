//! A distribution of times, log-linear, mergeable, with exact minimum, maximum, count and sum.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Distribution of times from 1 ns to about 100 s, three significant digits or two (see `with_digits`).
/// Serialised sparsely as (value, count) pairs plus the exact figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    placeholder: (),
}

impl Latency {
    /// An empty distribution with `digits` significant digits (1 to 3).
    pub fn with_digits(digits: u8) -> Self {
        let _ = digits;
        todo!()
    }
    /// Takes in one time. Never allocates; beyond the range it saturates and is counted.
    pub fn record(&mut self, time: Nanos) {
        let _ = time;
        todo!()
    }
    /// Adds another distribution to this one.
    pub fn merge(&mut self, other: &Self) {
        let _ = other;
        todo!()
    }
    /// How many times were taken in.
    pub fn count(&self) -> u64 {
        todo!()
    }
    /// The smallest, exact; `None` if empty.
    pub fn min(&self) -> Option<Nanos> {
        todo!()
    }
    /// The largest, exact.
    pub fn max(&self) -> Option<Nanos> {
        todo!()
    }
    /// The mean, exact to the nanosecond.
    pub fn mean(&self) -> Option<Nanos> {
        todo!()
    }
    /// The value at or below which `per_mille_mille` millionths of the samples lie: 999_900 is p99.99.
    pub fn quantile(&self, millionths: u32) -> Option<Nanos> {
        let _ = millionths;
        todo!()
    }
}
