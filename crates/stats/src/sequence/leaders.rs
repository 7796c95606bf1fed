//! Finds the first arrival with a number above a given one. It is always a *leader*: a frame that had the
//! highest number so far when it arrived.
//!
//! The leaders are stored as runs in which number and arrival increase together, so a stream in order is one
//! run. If there are more than [`MAX_LEADER_RUNS`] runs, the oldest ones are dropped; for frames that are
//! later than those, the extent is only a lower bound.

const MAX_LEADER_RUNS: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct HighestNumberRun {
    number: u64,
    arrival: u64,
    len: u64,
}

#[derive(Clone, Debug)]
pub(super) struct HighestNumberArrivals {
    /// A ring of runs in ascending order.
    runs: Box<[HighestNumberRun]>,
    begun: usize,
}

impl HighestNumberArrivals {
    pub(super) fn new() -> Self {
        Self { runs: vec![HighestNumberRun::default(); MAX_LEADER_RUNS].into_boxed_slice(), begun: 0 }
    }

    /// Adds a leader: frame `number`, which is the `arrival`th frame to arrive and has the highest number so far.
    pub(super) fn add_leader(&mut self, number: u64, arrival: u64) {
        if self.begun > 0 {
            let last = &mut self.runs[(self.begun - 1) % MAX_LEADER_RUNS];
            // A run ends at lost frames and at late frames: after these, number and arrival differ by another amount.
            if last.number + last.len == number && last.arrival + last.len == arrival {
                last.len += 1;
                return;
            }
        }
        self.runs[self.begun % MAX_LEADER_RUNS] = HighestNumberRun { number, arrival, len: 1 };
        self.begun += 1;
    }

    /// Returns the arrival of the first leader with a number above `number`. There is one, because `number` is late.
    pub(super) fn first_arrival_above(&self, number: u64) -> u64 {
        // RFC 4737 section 4.2.2: the extent is counted from the earliest arrival with a higher number, which
        // is always a leader. Runs that the ring has overwritten are not searched.
        let mut low = self.begun.saturating_sub(MAX_LEADER_RUNS);
        let mut high = self.begun - 1;
        // The runs are in ascending order, so a binary search finds the first one whose last
        // number is above `number`.
        while low < high {
            let middle = usize::midpoint(low, high);
            let run = self.runs[middle % MAX_LEADER_RUNS];
            if run.number + run.len - 1 > number { high = middle } else { low = middle + 1 }
        }
        let run = self.runs[low % MAX_LEADER_RUNS];
        // Within the run, numbers and arrivals increase together. If the whole run is above `number`, the
        // result is its first frame.
        run.arrival + (number + 1).saturating_sub(run.number)
    }
}
