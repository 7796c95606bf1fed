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
    /// The longest length that can be represented, about 584 years.
    pub const MAX: Self = Self(u64::MAX);

    /// `ns` nanoseconds.
    pub const fn new(ns: u64) -> Self {
        Self(ns)
    }
    /// `us` microseconds, saturating.
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }
    /// `ms` milliseconds, saturating.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }
    /// `s` seconds, saturating.
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }
    /// The number of nanoseconds.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
    /// Seconds, for display only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// The same length for the standard library.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
    /// The difference, or zero if `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        // Saturating everywhere in this file: a time beyond 584 years can only be "never", and must not wrap to "at
        // once".
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl fmt::Display for Nanos {
    /// The largest unit that keeps the number at one or more, with at most three decimals: `1.5ms`.
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

/// A time of this node's `CLOCK_MONOTONIC`, in nanoseconds since its (arbitrary) origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MonoTime(u64);

impl MonoTime {
    /// The time `ns` nanoseconds after the clock's origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }
    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// Time from `earlier` to this one, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// Signed nanoseconds from `other` to this time, saturating.
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
