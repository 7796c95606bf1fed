//! The size of frame `n`.

use packetrig_units::FrameSize;
use serde::{Deserialize, Serialize};

/// How frame sizes vary. FCS included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizePattern {
    /// Always the same.
    Fixed(FrameSize),
    /// `start, start + step, …` up to `end`, then again.
    Increment {
        /// First and smallest.
        start: FrameSize,
        /// Largest.
        end: FrameSize,
        /// Distance; at least 1.
        step: u32,
    },
    /// Drawn uniformly, keyed by `seed` and `n`.
    Random {
        /// Smallest.
        min: FrameSize,
        /// Largest.
        max: FrameSize,
        /// Same seed, same sizes.
        seed: u64,
    },
    /// A mix with exact proportions: every `sum of weights` frames hold exactly that many of each size, spread
    /// evenly. Weights are whole numbers (OTG's fractions are scaled at the edge). Never empty, sum at least 1.
    Weighted(Vec<(FrameSize, u32)>),
}

impl SizePattern {
    /// The size of frame `n`.
    pub fn at(&self, n: u64) -> FrameSize {
        let _ = n;
        todo!()
    }
    /// The smallest size that can occur.
    pub fn min(&self) -> FrameSize {
        todo!()
    }
    /// The largest size that can occur.
    pub fn max(&self) -> FrameSize {
        todo!()
    }
    /// The mean size as an exact fraction: (sum of bytes, number of frames) over one period or, for random
    /// sizes, of the distribution.
    pub fn mean(&self) -> (u64, u64) {
        todo!()
    }
}
