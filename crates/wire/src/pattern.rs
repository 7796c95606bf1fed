//! The value a header field has in frame `n`.

use serde::{Deserialize, Serialize};

/// How a field varies from frame to frame. Random access: the value of frame `n` needs no earlier frame.
/// Values wrap at the width of the field. Several fields of a frame advance in lock-step with `n`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// Always the same.
    Value(u128),
    /// A list, repeated. Never empty.
    Values(Vec<u128>),
    /// `start + step * (n mod count)`, or minus if `down`. `count` is at least 1.
    Step {
        /// The first value.
        start: u128,
        /// The distance between neighbours.
        step: u128,
        /// How many values before it starts again.
        count: u64,
        /// Count down instead of up.
        down: bool,
    },
    /// `count` values drawn from `min..=max` with `seed`, then repeated. Keyed hash of `(seed, n mod count)`.
    Random {
        /// The smallest value.
        min: u128,
        /// The largest value.
        max: u128,
        /// Same seed, same values, on any node.
        seed: u64,
        /// How many values before they repeat.
        count: u64,
    },
}

impl Pattern {
    /// The value in frame `n`, within `bits` bits.
    pub fn at(&self, n: u64, bits: u32) -> u128 {
        let _ = (n, bits);
        todo!()
    }

    /// Whether two frames can differ in this field.
    pub fn varies(&self) -> bool {
        todo!()
    }
}

/// A field as the user gave it: a pattern, or "you work it out" from the neighbouring headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Field {
    /// Computed: lengths, protocol numbers, ether types.
    #[default]
    Auto,
    /// Given.
    Pattern(Pattern),
}

impl From<u128> for Field {
    fn from(value: u128) -> Self {
        Self::Pattern(Pattern::Value(value))
    }
}

/// A keyed, statistically good 64-bit mix of `(seed, n)`: the only source of randomness in a frame.
pub fn mix(seed: u64, n: u64) -> u64 {
    let _ = (seed, n);
    todo!()
}
