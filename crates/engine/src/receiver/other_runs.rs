//! Frames of other runs: those that a device delivers long after their own run has ended.

use crate::stream::EarlierRun;
use packetrig_stats::result::OtherRunFrames;
use packetrig_units::MonoTime;
use packetrig_wire::foreign::{OtherRun, other_run};
use packetrig_wire::tag::TagKey;

/// Counts frames of other runs by run.
#[derive(Debug, Default)]
pub(super) struct OtherRuns {
    runs: Vec<EarlierRun>,
    keys: Vec<TagKey>,
    /// Frames of each known run.
    frames: Vec<u64>,
    of_unknown_runs: u64,
}

impl OtherRuns {
    pub(super) fn new(runs: Vec<EarlierRun>) -> Self {
        let keys = runs.iter().map(|run| run.key).collect();
        Self { keys, frames: vec![0; runs.len()], runs, of_unknown_runs: 0 }
    }

    /// Takes in a frame if it is of another run.
    pub(super) fn take(&mut self, frame: &[u8], began: MonoTime, arrived: MonoTime) -> bool {
        match other_run(frame, &self.keys, began.as_nanos(), arrived.as_nanos()) {
            Some(OtherRun::Known(place)) => self.frames[place] += 1,
            Some(OtherRun::Unknown) => self.of_unknown_runs += 1,
            None => return false,
        }
        true
    }

    pub(super) fn total(&self) -> u64 {
        self.frames.iter().sum::<u64>() + self.of_unknown_runs
    }

    pub(super) fn finish(self, port: usize) -> Vec<OtherRunFrames> {
        let known = self.runs.into_iter().map(|run| Some(run.name)).zip(self.frames);
        let all = known.chain([(None, self.of_unknown_runs)]);
        let seen = all.filter(|(_, frames)| *frames > 0);
        seen.map(|(run, frames)| OtherRunFrames { port, run, frames }).collect()
    }
}
