//! Patterns that determine the value of a header field in each frame.

use serde::{Deserialize, Serialize};

/// How the values of a field change from frame to frame. The value of frame `n` can be computed without
/// earlier frames. Values wrap at the width of the field. All fields of a frame use the same `n`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldPattern {
    Value(u128),
    /// A list that is repeated; it is never empty.
    Values(Vec<u128>),
    /// `start + step * (n mod count)`, or `start - step * (n mod count)` if `down` is true. `count` is at least 1.
    Step {
        start: u128,
        /// Difference between consecutive values.
        step: u128,
        /// Number of values before the pattern starts again.
        count: u64,
        /// True to count down instead of up.
        down: bool,
    },
    /// `count` values between `min` and `max`, both included, which are then repeated. The values are a keyed
    /// hash of `seed` and `n mod count`.
    Random {
        min: u128,
        max: u128,
        /// The same seed gives the same values on all nodes.
        seed: u64,
        /// Number of values before they repeat.
        count: u64,
    },
}

impl FieldPattern {
    /// Returns the value in frame `n`, limited to `bits` bits.
    pub fn value_at(&self, n: u64, bits: u32) -> u128 {
        let value = match self {
            Self::Value(value) => *value,
            Self::Values(values) => values[index_of(n, values.len() as u64)],
            Self::Step { start, step, count, down } => {
                let distance = step.wrapping_mul(u128::from(n % (*count).max(1)));
                if *down { start.wrapping_sub(distance) } else { start.wrapping_add(distance) }
            }
            Self::Random { min, max, seed, count } => draw_value(*min, *max, *seed, n % (*count).max(1)),
        };
        value & low_mask(bits)
    }

    /// Returns a pattern of the values in the frames `index`, `index + of`, `index + 2 * of` …, for one of
    /// `of` senders that share a stream. `None` if this would need a list of more than [`MAX_EVERY_NTH_VALUES`] values.
    pub fn every_nth(&self, index: u64, of: u64) -> Option<Self> {
        // If a pattern has the period p, every `of`th of its frames repeats after p / gcd(p, of) frames.
        let period = self.period() / greatest_common_divisor(self.period(), of);
        match self {
            Self::Value(_) => Some(self.clone()),
            Self::Step { start, step, count, down } if count % of == 0 => {
                // The arithmetic wraps, because a field wraps at its width; `value_at` masks the result.
                let distance = step.wrapping_mul(u128::from(index));
                let start = if *down { start.wrapping_sub(distance) } else { start.wrapping_add(distance) };
                let step = step.wrapping_mul(u128::from(of));
                Some(Self::Step { start, step, count: count / of, down: *down })
            }
            _ if period > MAX_EVERY_NTH_VALUES => None,
            _ => {
                let frames = (0..period).map(|n| index.wrapping_add(n.wrapping_mul(of)) % self.period());
                Some(Self::Values(frames.map(|frame| self.value_at(frame, 128)).collect()))
            }
        }
    }

    /// Returns the number of frames before the values repeat; 1 for a constant.
    pub fn period(&self) -> u64 {
        match self {
            Self::Value(_) => 1,
            Self::Values(values) => values.len() as u64,
            Self::Step { count, .. } | Self::Random { count, .. } => *count,
        }
    }

    /// Returns whether two frames can differ in this field.
    pub fn varies(&self) -> bool {
        self.period() > 1
    }
}

/// Maximum length of a list that [`FieldPattern::every_nth`] returns.
pub const MAX_EVERY_NTH_VALUES: u64 = 65_536;

const fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    if a == 0 { 1 } else { a }
}

impl From<u128> for FieldPattern {
    fn from(value: u128) -> Self {
        Self::Value(value)
    }
}

/// Returns a mask of the low `bits` bits.
pub(crate) const fn low_mask(bits: u32) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}

#[expect(clippy::cast_possible_truncation, reason = "below the length of a list in memory")]
const fn index_of(n: u64, len: u64) -> usize {
    (n % len) as usize
}

fn draw_value(min: u128, max: u128, seed: u64, n: u64) -> u128 {
    // The sum overflows if the range contains all values of 128 bits. Then every value is in the range.
    let Some(span) = max.saturating_sub(min).checked_add(1) else {
        return u128::from(keyed_mix(seed, n)) << 64 | u128::from(keyed_mix(!seed, n));
    };
    if let Ok(span) = u64::try_from(span) {
        // The high half of the product distributes 64 random bits over the span. The bias is below 2^-32 for
        // fields of 32 bits.
        return min + ((u128::from(keyed_mix(seed, n)) * u128::from(span)) >> 64);
    }
    min + (u128::from(keyed_mix(seed, n)) << 64 | u128::from(keyed_mix(!seed, n))) % span
}

/// Returns a keyed 64-bit hash of `(seed, n)` with good statistical properties, which is the only source of randomness
/// in a frame. It applies the finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014) to both words.
pub fn keyed_mix(seed: u64, n: u64) -> u64 {
    // The seed is hashed first, so that neighbouring seeds give unrelated values.
    mix_hash_word(
        mix_hash_word(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
    )
}

fn mix_hash_word(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn step_pattern_wraps_at_field_width_and_repeats() {
        let up = FieldPattern::Step { start: 254, step: 1, count: 4, down: false };
        assert_eq!((0..6).map(|n| up.value_at(n, 8)).collect::<Vec<_>>(), [254, 255, 0, 1, 254, 255]);
        let down = FieldPattern::Step { start: 1, step: 2, count: 3, down: true };
        assert_eq!((0..4).map(|n| down.value_at(n, 16)).collect::<Vec<_>>(), [1, 65535, 65533, 1]);
    }

    #[test]
    fn values_cycle() {
        let list = FieldPattern::Values(vec![5, 7]);
        assert_eq!((0..3).map(|n| list.value_at(n, 16)).collect::<Vec<_>>(), [5, 7, 5]);
    }

    #[test]
    fn random_values_cover_their_range_evenly() {
        let random = FieldPattern::Random { min: 10, max: 19, seed: 1, count: u64::MAX };
        let mut hits = [0u32; 10];
        for n in 0..10_000 {
            hits[usize::try_from(random.value_at(n, 16)).unwrap() - 10] += 1;
        }
        assert!(hits.iter().all(|h| (850..1150).contains(h)), "{hits:?}");
    }

    proptest! {
        #[test]
        fn dealt_patterns_together_are_the_whole(
            pattern in prop_oneof![
                any::<u128>().prop_map(FieldPattern::Value),
                prop::collection::vec(any::<u128>(), 1..9).prop_map(FieldPattern::Values),
                (any::<u128>(), any::<u128>(), 1u64..40, any::<bool>())
                    .prop_map(|(start, step, count, down)| FieldPattern::Step { start, step, count, down }),
                (any::<u64>(), 1u64..40).prop_map(|(seed, count)| FieldPattern::Random { min: 3, max: 99, seed, count }),
            ],
            of in 1u64..9, n in 0u64..500
        ) {
            let part = pattern.every_nth(n % of, of).unwrap();
            prop_assert_eq!(part.value_at(n / of, 32), pattern.value_at(n, 32));
        }

        #[test]
        fn random_values_stay_inside_and_repeat(min: u64, span in 0u64..1000, seed: u64, count in 1u64..50, n: u64) {
            let max = u128::from(min) + u128::from(span);
            let random = FieldPattern::Random { min: min.into(), max, seed, count };
            let value = random.value_at(n, 128);
            prop_assert!(value >= u128::from(min) && value <= max);
            prop_assert_eq!(value, random.value_at(n % count, 128));
        }
    }
}
