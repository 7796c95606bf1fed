//! When each frame of a stream is due, counted from the start of the run: an absolute schedule without drift.

use packetrig_units::{FrameRate, Nanos};
use serde::{Deserialize, Serialize};

/// How many frames, in which rhythm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// Until stopped.
    Endless,
    /// This many frames.
    Frames(u64),
    /// All frames due before this much time has passed since the first.
    Within(Nanos),
    /// Bursts of `frames`; `pause` between the end of a burst's last frame slot and the next burst. `bursts` 0 = for ever.
    Bursts {
        /// Number of bursts.
        bursts: u64,
        /// Frames in each.
        frames: u64,
        /// Idle time between bursts.
        pause: Nanos,
    },
}

/// The schedule of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Rhythm of the frames.
    pub rate: FrameRate,
    /// From the start of the run to frame 0.
    pub delay: Nanos,
    /// Amount.
    pub shape: Shape,
}

impl Timeline {
    /// When frame `n` is due, from the start of the run.
    pub fn due(&self, n: u64) -> Nanos {
        let _ = n;
        todo!()
    }

    /// How many frames there are in all; `None` if it goes on until stopped.
    pub fn total(&self) -> Option<u64> {
        todo!()
    }

    /// How many frames are due before `elapsed` since the start of the run (never more than `total`).
    pub fn due_before(&self, elapsed: Nanos) -> u64 {
        let _ = elapsed;
        todo!()
    }
    /// When the last slot ends, from the start of the run; `None` if it goes on until stopped.
    pub fn end(&self) -> Option<Nanos> {
        todo!()
    }
}
