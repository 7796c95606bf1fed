//! Who arrived first above a given number: frames that, when they arrived, had the highest number so far.
//!
//! Kept as runs in which number and arrival go up together, so a stream in order is one run. When more than
//! [`RUNS`] runs are needed the oldest are forgotten; the extent of a frame that late is then a lower bound.

const RUNS: usize = 1024;

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
        Self { runs: vec![LeaderRun::default(); RUNS].into_boxed_slice(), begun: 0 }
    }

    /// Frame `number`, the `arrival`th to arrive, is the highest so far.
    pub(super) fn lead(&mut self, number: u64, arrival: u64) {
        if self.begun > 0 {
            let last = &mut self.runs[(self.begun - 1) % RUNS];
            if last.number + last.len == number && last.arrival + last.len == arrival {
                last.len += 1;
                return;
            }
        }
        self.runs[self.begun % RUNS] = LeaderRun { number, arrival, len: 1 };
        self.begun += 1;
    }

    /// Arrival of the first leader above `number`; there is one, because `number` is late.
    pub(super) fn first_above(&self, number: u64) -> u64 {
        let (mut low, mut high) = (self.begun.saturating_sub(RUNS), self.begun - 1);
        // The first run whose last number is above.
        while low < high {
            let middle = usize::midpoint(low, high);
            let run = self.runs[middle % RUNS];
            if run.number + run.len - 1 > number { high = middle } else { low = middle + 1 }
        }
        let run = self.runs[low % RUNS];
        run.arrival + (number + 1).saturating_sub(run.number)
    }
}
