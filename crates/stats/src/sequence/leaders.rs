//! The first arrival above a given number, found among the *leaders*: frames that had the highest number so
//! far when they arrived.
//!
//! The leaders are kept as runs in which number and arrival go up together, so a stream in order is one run. When more than
//! [`MAX_LEADER_RUNS`] runs are needed, the oldest runs are dropped; for a frame that is so late, the extent is then a lower bound.

const MAX_LEADER_RUNS: usize = 1024;

#[derive(Clone, Copy, Debug, Default)]
struct LeaderRun {
    number: u64,
    arrival: u64,
    len: u64,
}

#[derive(Clone, Debug)]
pub(super) struct SequenceLeaders {
    /// A ring of runs, ascending.
    runs: Box<[LeaderRun]>,
    begun: usize,
}

impl SequenceLeaders {
    pub(super) fn new() -> Self {
        Self { runs: vec![LeaderRun::default(); MAX_LEADER_RUNS].into_boxed_slice(), begun: 0 }
    }

    /// Frame `number`, the `arrival`th to arrive, is the highest so far.
    pub(super) fn add_leader(&mut self, number: u64, arrival: u64) {
        if self.begun > 0 {
            let last = &mut self.runs[(self.begun - 1) % MAX_LEADER_RUNS];
            // Lost frames and late ones in between both end a run: then number and arrival differ by another amount.
            if last.number + last.len == number && last.arrival + last.len == arrival {
                last.len += 1;
                return;
            }
        }
        self.runs[self.begun % MAX_LEADER_RUNS] = LeaderRun { number, arrival, len: 1 };
        self.begun += 1;
    }

    /// Returns the arrival of the first leader above `number`; there is one, because `number` is late.
    pub(super) fn first_arrival_above(&self, number: u64) -> u64 {
        // RFC 4737 section 4.2.2: the extent counts from the earliest frame with a higher number, which is always a leader.
        // Older runs are overwritten in the ring.
        let mut low = self.begun.saturating_sub(MAX_LEADER_RUNS);
        let mut high = self.begun - 1;
        // Runs ascend, so a binary search finds the first one whose last number is above.
        while low < high {
            let middle = usize::midpoint(low, high);
            let run = self.runs[middle % MAX_LEADER_RUNS];
            if run.number + run.len - 1 > number { high = middle } else { low = middle + 1 }
        }
        let run = self.runs[low % MAX_LEADER_RUNS];
        // Within the run, numbers and arrivals go up together.
        // If the whole run is above the number, its first frame is the one.
        run.arrival + (number + 1).saturating_sub(run.number)
    }
}
