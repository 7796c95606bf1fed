//! Durations and points in time. Times belong to one node's `CLOCK_MONOTONIC`; times of other clocks are converted
//! where they enter the program.

use crate::number::format_decimals;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A length of time in whole nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(u64);

impl Nanos {
    /// A duration of zero.
    pub const ZERO: Self = Self(0);
    /// The longest duration that can be represented, about 584 years.
    pub const MAX: Self = Self(u64::MAX);

    /// Creates a duration of `ns` nanoseconds.
    pub const fn new(ns: u64) -> Self {
        Self(ns)
    }
    /// Creates a duration of `us` microseconds; at most [`Self::MAX`].
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }
    /// Creates a duration of `ms` milliseconds; at most [`Self::MAX`].
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }
    /// Creates a duration of `s` seconds; at most [`Self::MAX`].
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
    /// Returns the number of nanoseconds.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
    /// Returns the duration in seconds, for display only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// Converts to the duration type of the standard library.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
    /// Returns this duration minus `other`, or zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        // All additions in this file saturate: a time beyond 584 years can only mean "never", and must not wrap to
        // a time that has passed.
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Nanos {
    /// Writes the duration in the largest unit in which it is at least 1, with at most three decimals: `1.5ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The unit is chosen before the number is rounded: 999 999 999 ns show as `1000ms`, which is still right.
        let (scale, unit) = match self.0 {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "us"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => (1_000_000_000, "s"),
        };
        f.pad(&format!("{}{unit}", format_decimals(self.0 as f64 / f64::from(scale), 3)))
    }
}

/// A time of this node's `CLOCK_MONOTONIC`, in nanoseconds since the origin of the clock, which is arbitrary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MonoTime(u64);

impl MonoTime {
    /// Creates the time `ns` nanoseconds after the clock's origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }
    /// Returns the nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// Returns the duration from `earlier` to this time, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// Returns the signed nanoseconds from `other` to this time, clamped to the range of `i64`.
    pub fn signed_since(self, other: Self) -> i64 {
        // Clamped before the sign is applied: `i64::MIN` has no positive counterpart.
        let distance = self.0.abs_diff(other.0).min(i64::MAX.cast_unsigned()).cast_signed();
        if self.0 >= other.0 { distance } else { -distance }
    }
}

impl Add<Nanos> for MonoTime {
    type Output = Self;
    fn add(self, length: Nanos) -> Self {
        Self(self.0.saturating_add(length.0))
    }
}

impl Sub<Nanos> for MonoTime {
    type Output = Self;
    fn sub(self, length: Nanos) -> Self {
        Self(self.0.saturating_sub(length.0))
    }
}
