//! The sizes of the frames of a stream: the size of frame `n` can be computed for any `n`.

use crate::pattern::keyed_mix;
use packetrig_units::FrameSize;
use serde::{Deserialize, Serialize};

/// How the frame sizes change from frame to frame. Sizes include the FCS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizePattern {
    Fixed(FrameSize),
    /// `start, start + step, …` up to `end`; then the sizes start again.
    Increment {
        start: FrameSize,
        end: FrameSize,
        /// Difference between consecutive sizes; at least 1.
        step: u32,
    },
    /// Random sizes with a uniform distribution, determined by `seed` and `n`.
    Random {
        min: FrameSize,
        max: FrameSize,
        /// The same seed gives the same sizes.
        seed: u64,
    },
    /// A mix with exact proportions.
    Weighted(SizeMix),
}

/// Sizes with integer weights. In any S consecutive frames, where S is the sum of the weights, each size occurs
/// exactly as often as its weight says. The frames of a size are spread evenly. (The caller scales OTG's
/// fractional weights to integers.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeMix {
    /// (size, number of frames of this and all earlier sizes in a period).
    sizes: Vec<(FrameSize, u64)>,
    /// Distance in the period from one frame to the next; it has no common factor with the period.
    stride: u64,
}

impl SizeMix {
    /// Creates a mix of (size, weight); `None` if all weights are zero.
    pub fn new(weights: &[(FrameSize, u32)]) -> Option<Self> {
        // The weights are divided by their common divisor, so that the period is as short as possible.
        let divisor = weights.iter().fold(0, |d, (_, w)| greatest_common_divisor(d, u64::from(*w)));
        if divisor == 0 {
            return None;
        }
        let mut total = 0;
        let sizes: Vec<_> = weights
            .iter()
            .filter(|(_, weight)| *weight > 0)
            .map(|(size, weight)| {
                total += u64::from(*weight) / divisor;
                (*size, total)
            })
            .collect();
        // Frame n has the position n * stride (modulo the period). A stride near the golden ratio of the period
        // visits the positions evenly, so that no size comes in long runs. A stride without a common factor
        // visits every position once, so that the proportions are exact.
        let mut stride = (total * 618_034 / 1_000_000).max(1);
        while greatest_common_divisor(stride, total) != 1 {
            stride += 1;
        }
        Some(Self { sizes, stride })
    }

    fn period(&self) -> u64 {
        self.sizes.last().map_or(1, |(_, end)| *end)
    }

    fn size_at(&self, n: u64) -> FrameSize {
        let period = self.period();
        let place = multiply_modulo(n, self.stride, period);
        let index = self.sizes.partition_point(|(_, end)| *end <= place);
        self.sizes[index.min(self.sizes.len() - 1)].0
    }

    /// Returns pairs of a size and the number of its frames in a period.
    pub fn shares(&self) -> impl Iterator<Item = (FrameSize, u64)> {
        let mut before = 0;
        self.sizes.iter().map(move |(size, end)| {
            let share = end - before;
            before = *end;
            (*size, share)
        })
    }
}

impl SizePattern {
    /// Returns the size of frame `n`.
    pub fn size_at(&self, n: u64) -> FrameSize {
        match self {
            Self::Fixed(size) => *size,
            Self::Increment { start, step, .. } => {
                let place = low_32(n % self.step_count());
                FrameSize::new(start.bytes() + place * step)
            }
            Self::Random { min, max, seed } => {
                let span = u64::from(max.bytes() - min.bytes()) + 1;
                // The high half of the product is below `span`; this is faster than a remainder, which needs
                // a division.
                FrameSize::new(
                    min.bytes() + low_32(high_half(u128::from(keyed_mix(*seed, n)) * u128::from(span))),
                )
            }
            Self::Weighted(sizes) => sizes.size_at(n),
        }
    }

    /// Returns the number of different sizes of an increment; 1 for other patterns.
    fn step_count(&self) -> u64 {
        match self {
            Self::Increment { start, end, step } => {
                u64::from((end.bytes() - start.bytes()) / (*step).max(1)) + 1
            }
            _ => 1,
        }
    }

    /// Returns the smallest size that can occur.
    pub fn min_size(&self) -> FrameSize {
        match self {
            Self::Fixed(size) | Self::Increment { start: size, .. } | Self::Random { min: size, .. } => *size,
            Self::Weighted(mix) => mix.shares().map(|(size, _)| size).min().unwrap_or(FrameSize::MIN),
        }
    }

    /// Returns the largest size that can occur.
    pub fn max_size(&self) -> FrameSize {
        match self {
            Self::Fixed(size) | Self::Random { max: size, .. } => *size,
            // `end` is not used, because the last step may end below it.
            Self::Increment { .. } => self.size_at(self.step_count() - 1),
            Self::Weighted(mix) => mix.shares().map(|(size, _)| size).max().unwrap_or(FrameSize::MIN),
        }
    }

    /// Returns all sizes that can occur, in ascending order and each once.
    pub fn all_sizes(&self) -> Vec<FrameSize> {
        let mut sizes: Vec<FrameSize> = match self {
            Self::Fixed(size) => vec![*size],
            Self::Increment { .. } => (0..self.step_count()).map(|n| self.size_at(n)).collect(),
            Self::Random { min, max, .. } => (min.bytes()..=max.bytes()).map(FrameSize::new).collect(),
            Self::Weighted(mix) => mix.shares().map(|(size, _)| size).collect(),
        };
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// Returns the mean size as an exact fraction: (sum of bytes, number of frames), over one period or, for
    /// random sizes, for the distribution.
    pub fn mean_size(&self) -> (u64, u64) {
        match self {
            Self::Fixed(size) => (u64::from(size.bytes()), 1),
            Self::Increment { .. } | Self::Random { .. } => {
                (u64::from(self.min_size().bytes() + self.max_size().bytes()), 2)
            }
            Self::Weighted(mix) => {
                (mix.shares().map(|(size, share)| u64::from(size.bytes()) * share).sum(), mix.period())
            }
        }
    }
}

/// Returns `a * b` modulo `period`, without overflow.
#[expect(clippy::cast_possible_truncation, reason = "a remainder is below its divisor, which has 64 bits")]
fn multiply_modulo(a: u64, b: u64, period: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(period)) as u64
}

/// Returns the upper 64 bits of a product.
const fn high_half(product: u128) -> u64 {
    (product >> 64) as u64
}

/// Converts a number that is below 2^32, because frame sizes have 32 bits.
const fn low_32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes(list: &[(u32, u32)]) -> Vec<(FrameSize, u32)> {
        list.iter().map(|(s, w)| (FrameSize::new(*s), *w)).collect()
    }

    #[test]
    fn imix_keeps_seven_four_one_without_long_runs() {
        let pattern = SizePattern::Weighted(SizeMix::new(&sizes(&[(64, 7), (570, 4), (1518, 1)])).unwrap());
        let period: Vec<u32> = (24..36).map(|n| pattern.size_at(n).bytes()).collect();
        assert_eq!(period.iter().filter(|s| **s == 64).count(), 7);
        assert_eq!(period.iter().filter(|s| **s == 570).count(), 4);
        assert_eq!(pattern.mean_size(), (7 * 64 + 4 * 570 + 1518, 12));
        let longest = period.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
        assert!(longest <= Some(3), "{period:?}");
    }

    #[test]
    fn size_increment_ends_at_last_fitting_step() {
        let pattern =
            SizePattern::Increment { start: FrameSize::new(64), end: FrameSize::new(100), step: 20 };
        assert_eq!((0..3).map(|n| pattern.size_at(n).bytes()).collect::<Vec<_>>(), [64, 84, 64]);
        assert_eq!((pattern.max_size().bytes(), pattern.mean_size()), (84, (148, 2)));
    }

    proptest! {
        #[test]
        fn a_mix_is_exact_over_any_period(list in prop::collection::vec((64u32..1518, 0u32..50), 1..6)) {
            let list = sizes(&list);
            let Some(mix) = SizeMix::new(&list) else { return Ok(()) };
            let period = mix.period();
            let pattern = SizePattern::Weighted(mix);
            let sum: u64 = (period..2 * period).map(|n| u64::from(pattern.size_at(n).bytes())).sum();
            prop_assert_eq!((sum, period), pattern.mean_size());
        }

        #[test]
        fn random_sizes_stay_inside(min in 64u32..500, span in 0u32..1000, seed: u64, n: u64) {
            let pattern = SizePattern::Random { min: FrameSize::new(min), max: FrameSize::new(min + span), seed };
            prop_assert!((min..=min + span).contains(&pattern.size_at(n).bytes()));
        }
    }
}
