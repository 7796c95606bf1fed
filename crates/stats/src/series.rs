//! Frames and bytes per second of a run.

use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// Counts per whole second since an origin. A worker reserves room ahead, so that counting does not allocate; what comes
/// after the last second with room goes into `beyond`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateSeries {
    /// (frames, bytes) of second 0, 1, 2 …
    pub seconds: Vec<(u64, u64)>,
    /// (frames, bytes) later than that.
    pub beyond: (u64, u64),
    #[serde(skip)]
    room: usize,
}

impl RateSeries {
    /// A series with room for `seconds` entries.
    pub fn with_room(seconds: usize) -> Self {
        Self { seconds: Vec::with_capacity(seconds), beyond: (0, 0), room: seconds }
    }

    /// Counts `frames` and `bytes` at `at`; before `origin` counts as second 0.
    pub fn add(&mut self, origin: MonoTime, at: MonoTime, frames: u64, bytes: u64) {
        let second = usize::try_from(at.since(origin).as_u64() / 1_000_000_000).unwrap_or(usize::MAX);
        if second >= self.seconds.len() && second < self.room {
            self.seconds.resize(second + 1, (0, 0));
        }
        let entry = self.seconds.get_mut(second).unwrap_or(&mut self.beyond);
        entry.0 += frames;
        entry.1 += bytes;
    }

    /// Adds another series, second by second.
    pub fn merge(&mut self, other: &Self) {
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), (0, 0));
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            mine.0 += theirs.0;
            mine.1 += theirs.1;
        }
        self.beyond.0 += other.beyond.0;
        self.beyond.1 += other.beyond.1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_units::Nanos;

    #[test]
    fn counts_go_into_their_second_and_none_is_lost() {
        let origin = MonoTime::from_nanos(500);
        let mut series = RateSeries::with_room(3);
        for ms in [0, 999, 1000, 2999, 3000, 9000] {
            series.add(origin, origin + Nanos::from_millis(ms), 1, 64);
        }
        series.add(origin, MonoTime::from_nanos(0), 1, 64);
        assert_eq!(series.seconds, [(3, 192), (1, 64), (1, 64)]);
        assert_eq!(series.beyond, (2, 128));
        let mut sum = RateSeries::with_room(0);
        sum.merge(&series);
        sum.merge(&series);
        assert_eq!(sum.seconds[0], (6, 384));
    }
}
