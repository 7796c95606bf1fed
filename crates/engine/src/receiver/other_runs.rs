//! Counts frames of other runs. A device may deliver such frames long after their run has ended.

use crate::stream::EarlierRun;
use packetrig_stats::result::OtherRunFrames;
use packetrig_units::MonoTime;
use packetrig_wire::foreign::{KnownRun, OtherRun, find_other_run};

/// Counts frames of other runs, by run.
#[derive(Debug, Default)]
pub(super) struct OtherRuns {
    names: Vec<String>,
    /// Keys and frame counts, in the order of `names`.
    known: Vec<KnownRun>,
    of_unknown_runs: u64,
}

impl OtherRuns {
    pub(super) fn new(runs: Vec<EarlierRun>) -> Self {
        let known = runs.iter().map(|run| (run.key, 0)).collect();
        Self { names: runs.into_iter().map(|run| run.name).collect(), known, of_unknown_runs: 0 }
    }

    /// Counts a frame if it belongs to another run; returns whether it does. `began` is the start of this run,
    /// if it has started.
    pub(super) fn count_if_other_run(
        &mut self,
        frame: &[u8],
        began: Option<MonoTime>,
        arrived: MonoTime,
    ) -> bool {
        // Everything that arrives before this run starts was sent before it.
        let began = began.unwrap_or(arrived);
        match find_other_run(frame, &self.known, began.as_nanos(), arrived.as_nanos()) {
            Some(OtherRun::Known(place)) => self.known[place].1 += 1,
            Some(OtherRun::Unknown) => self.of_unknown_runs += 1,
            None => return false,
        }
        true
    }

    pub(super) fn total_frames(&self) -> u64 {
        self.known.iter().map(|(_, frames)| frames).sum::<u64>() + self.of_unknown_runs
    }

    pub(super) fn into_frames(self, port: usize) -> Vec<OtherRunFrames> {
        let frames = self.known.into_iter().map(|(_, frames)| frames);
        let known = self.names.into_iter().map(Some).zip(frames);
        let all = known.chain([(None, self.of_unknown_runs)]);
        let seen = all.filter(|(_, frames)| *frames > 0);
        seen.map(|(run, frames)| OtherRunFrames { port, run, frames }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_wire::foreign::PayloadTagPosition;
    use packetrig_wire::tag::{TagKey, TagStamp};

    /// An IPv4/UDP frame of another run, sent at this time.
    fn frame(sent: u64) -> Vec<u8> {
        let mut bytes = vec![0x55; 102];
        bytes[12..14].copy_from_slice(&[0x08, 0x00]);
        bytes[14] = 0x45;
        bytes[16..18].copy_from_slice(&88_u16.to_be_bytes());
        bytes[20..22].fill(0);
        bytes[23] = 17;
        bytes[38..40].copy_from_slice(&68_u16.to_be_bytes());
        bytes[40..42].fill(0);
        let stamp = TagStamp { key: TagKey(77), stream: 0, time: sent };
        PayloadTagPosition::from_frame(&bytes.clone()).expect("it has room").write_tag(1, stamp, &mut bytes);
        bytes
    }

    #[test]
    fn frame_sent_before_start_belongs_to_other_run() {
        let at = MonoTime::from_nanos;
        let mut runs = OtherRuns::new(Vec::new());
        assert!(runs.count_if_other_run(&frame(900), None, at(1000)), "the start is not set yet");
        assert!(runs.count_if_other_run(&frame(900), Some(at(2000)), at(2100)));
        assert!(
            !runs.count_if_other_run(&frame(2050), Some(at(2000)), at(2100)),
            "sent in this run: a damaged mark"
        );
        assert_eq!((runs.total_frames(), runs.into_frames(3)[0].frames), (2, 2));
    }
}
