//! The waits around a trial. A method names them; the shell keeps them.

use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// What a trial needs beside the time that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialWaits {
    /// From the learning frames to the first test frame, so that the device knows its addresses and routes.
    pub before_ns: Nanos,
    /// For frames that are still on their way after the last one was sent.
    pub late_frames_ns: Nanos,
    /// For the device to settle before the next trial.
    pub settle_ns: Nanos,
}

impl TrialWaits {
    /// Those of RFC 2544, section 23.
    pub const RFC2544: Self = Self {
        before_ns: Nanos::from_secs(2),
        late_frames_ns: Nanos::from_secs(2),
        settle_ns: Nanos::from_secs(5),
    };

    /// Just long enough for devices that keep no frame longer than 200 ms and know their routes.
    pub const QUICK: Self =
        Self { before_ns: Nanos::ZERO, late_frames_ns: Nanos::from_millis(200), settle_ns: Nanos::ZERO };

    /// All waits of a trial.
    pub fn sum(&self) -> Nanos {
        self.before_ns + self.late_frames_ns + self.settle_ns
    }
}

impl Default for TrialWaits {
    fn default() -> Self {
        Self::QUICK
    }
}
