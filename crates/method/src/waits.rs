//! The waits before and after a trial. A method defines them; the caller that makes the trial observes them.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Times that a trial needs in addition to its sending time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialWaits {
    /// Time from the learning frames to the first test frame, so that the device knows its addresses and routes.
    pub before_ns: Nanos,
    /// Time for frames that are still in transit after the last one was sent.
    pub late_frames_ns: Nanos,
    /// Time for the device to settle before the next trial.
    pub settle_ns: Nanos,
}

impl TrialWaits {
    /// The waits of RFC 2544, section 23.
    pub const RFC2544: Self = Self {
        before_ns: Nanos::from_secs(2),
        late_frames_ns: Nanos::from_secs(2),
        settle_ns: Nanos::from_secs(5),
    };

    /// The shortest waits for devices that keep no frame longer than 200 ms and know their routes.
    pub const QUICK: Self =
        Self { before_ns: Nanos::ZERO, late_frames_ns: Nanos::from_millis(200), settle_ns: Nanos::ZERO };

    /// Returns the sum of all waits of a trial.
    pub fn total_wait(&self) -> Nanos {
        self.before_ns + self.late_frames_ns + self.settle_ns
    }
}

impl Default for TrialWaits {
    fn default() -> Self {
        Self::QUICK
    }
}
