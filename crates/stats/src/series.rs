//! Frames and bytes per second of a run.

use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// Counts per whole second since an origin. Grows by one entry per second; capacity is reserved ahead so that a
/// worker does not allocate in its loop.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateSeries {
    /// (frames, bytes) of second 0, 1, 2 …
    pub seconds: Vec<(u64, u64)>,
    /// Counts beyond the reserved capacity.
    pub beyond: (u64, u64),
}

impl RateSeries {
    /// A series with room for `seconds` entries.
    pub fn with_room(seconds: usize) -> Self {
        Self { seconds: Vec::with_capacity(seconds), beyond: (0, 0) }
    }
    /// Counts `frames` and `bytes` at `at`; before `origin` counts as second 0.
    pub fn add(&mut self, origin: MonoTime, at: MonoTime, frames: u64, bytes: u64) {
        let _ = (origin, at, frames, bytes);
        todo!()
    }
    /// Adds another series, second by second.
    pub fn merge(&mut self, other: &Self) {
        let _ = other;
        todo!()
    }
}
