//! A figure with a lower and an upper bound of its true value, and the reasons why it is not known exactly.
//!
//! Every value that a criterion judges has this form, so a figure with an unknown error cannot be judged at
//! all. A doubt can only widen the bounds: it alone never causes a FAIL and never a PASS.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A figure. The true value is between `least` and `most`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounded<T> {
    pub value: T,
    pub least: T,
    pub most: T,
    /// Reasons why the bounds may differ; empty for a figure without any doubt.
    #[serde(default, skip_serializing_if = "BoundReasons::is_empty")]
    pub why: BoundReasons,
}

impl<T: Copy + Ord> Bounded<T> {
    /// Returns a figure that is known exactly.
    pub const fn exactly(value: T) -> Self {
        Self { value, least: value, most: value, why: BoundReasons::NONE }
    }

    /// Lowers the lower bound to `least` for this reason. A `least` above the lower bound has no effect.
    #[must_use]
    pub fn lower_lower_bound(self, least: T, why: BoundReason) -> Self {
        // A doubt only widens the bounds: it must not make a figure look more certain.
        if least < self.least { Self { least, why: self.why.with_reason(why), ..self } } else { self }
    }

    /// Raises the upper bound to `most` for this reason. A `most` below the upper bound has no effect.
    #[must_use]
    pub fn raise_upper_bound(self, most: T, why: BoundReason) -> Self {
        if most > self.most { Self { most, why: self.why.with_reason(why), ..self } } else { self }
    }

    /// Returns the maximum of two figures, with its bounds.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            // The maximum lies between the greater of both lower bounds and the greater of both upper bounds.
            value: self.value.max(other.value),
            least: self.least.max(other.least),
            most: self.most.max(other.most),
            why: self.why.union_with(other.why),
        }
    }

    /// Returns whether the figure is known exactly.
    pub fn is_exact(&self) -> bool {
        self.least == self.most
    }

    /// Converts the figure to another unit. `convert` must keep the order of the values.
    pub fn map<U>(self, convert: impl Fn(T) -> U) -> Bounded<U> {
        Bounded {
            value: convert(self.value),
            least: convert(self.least),
            most: convert(self.most),
            why: self.why,
        }
    }
}

/// Reason why a figure is not known exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundReason {
    /// Frames left some time after their send timestamp was taken.
    SendStamps,
    /// Arrival timestamps come from another clock of the machine.
    ArrivalStamps,
    /// The comparison of the clocks of two nodes has an error.
    Clocks,
    /// Frames left later than planned.
    SentLate,
    /// Planned frames were not sent.
    Unsent,
    /// The rig, or a link without carrier, may have lost frames.
    RigLosses,
    /// Frames arrived too late to be distinguished from copies.
    Stale,
    /// Outages were joined, because the list of outages was full.
    Joined,
    /// The number of frames within a time is exact only to one frame.
    Counting,
    /// The beginning or the end of an outage is known only from planned times, not from an arrival.
    NoArrival,
}

impl BoundReason {
    const ALL: [Self; 10] = [
        Self::SendStamps,
        Self::ArrivalStamps,
        Self::Clocks,
        Self::SentLate,
        Self::Unsent,
        Self::RigLosses,
        Self::Stale,
        Self::Joined,
        Self::Counting,
        Self::NoArrival,
    ];

    const fn bit_mask(self) -> u16 {
        // Each variant has its own bit, so a set of reasons takes two bytes and can be copied cheaply.
        1 << self as u16
    }
}

impl fmt::Display for BoundReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SendStamps => "frames left some time after their send timestamps",
            Self::ArrivalStamps => "arrival timestamps come from another clock",
            Self::Clocks => "the comparison of the clocks has an error",
            Self::SentLate => "frames left later than planned",
            Self::Unsent => "frames were not sent",
            Self::RigLosses => "the rig may have lost frames",
            Self::Stale => "frames arrived too late to be distinguished from copies",
            Self::Joined => "outages were joined, because there were too many",
            Self::Counting => "the count may be off by one frame",
            Self::NoArrival => "the outage begins or ends without an arrived frame",
        })
    }
}

/// A set of reasons. In JSON it is the list of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<BoundReason>", from = "Vec<BoundReason>")]
pub struct BoundReasons(u16);

impl BoundReasons {
    pub const NONE: Self = Self(0);

    #[must_use]
    pub const fn with_reason(self, reason: BoundReason) -> Self {
        Self(self.0 | reason.bit_mask())
    }

    #[must_use]
    pub const fn union_with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn is_empty(&self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = BoundReason> {
        BoundReason::ALL.into_iter().filter(move |reason| self.0 & reason.bit_mask() != 0)
    }
}

impl From<BoundReasons> for Vec<BoundReason> {
    fn from(reasons: BoundReasons) -> Self {
        reasons.iter().collect()
    }
}

impl From<Vec<BoundReason>> for BoundReasons {
    fn from(reasons: Vec<BoundReason>) -> Self {
        reasons.into_iter().fold(Self::NONE, Self::with_reason)
    }
}

impl fmt::Display for BoundReasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.iter().map(|reason| reason.to_string()).collect();
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubt_only_widens_and_says_why() {
        let figure = Bounded::exactly(100_u64);
        let doubtful =
            figure.lower_lower_bound(90, BoundReason::SendStamps).raise_upper_bound(80, BoundReason::Clocks);
        assert_eq!((doubtful.least, doubtful.most), (90, 100));
        assert_eq!(doubtful.why.iter().collect::<Vec<_>>(), [BoundReason::SendStamps]);
        assert!(figure.is_exact() && !doubtful.is_exact());
        let text = serde_json::to_string(&doubtful).unwrap();
        assert_eq!(text, r#"{"value":100,"least":90,"most":100,"why":["send_stamps"]}"#);
        assert_eq!(serde_json::from_str::<Bounded<u64>>(&text).unwrap(), doubtful);
    }

    #[test]
    fn bounded_max_takes_larger_lower_bound() {
        let one = Bounded::exactly(100_u64).lower_lower_bound(10, BoundReason::SentLate);
        let other = Bounded::exactly(50_u64).raise_upper_bound(200, BoundReason::Joined);
        let both = one.max(other);
        assert_eq!((both.value, both.least, both.most), (100, 50, 200));
        assert_eq!(both.why.iter().count(), 2);
    }
}
