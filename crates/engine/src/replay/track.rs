//! State that the sender, the reader and the receivers of one recording share, with the remarks for the result.

use super::{FileEnding, SkippedPackets};
use packetrig_plan::recording::PlannedRecording;
use packetrig_units::clamp_to_usize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of seconds of a run for which the first frame is recorded: one day. Later frames count to the last second.
const MAX_RECORDED_SECONDS: usize = 86_400;

/// Reason why a reader has no more frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReaderEndReason {
    /// All passes have been read.
    Done,
    /// The sender stopped before the end.
    Unwanted,
    /// The file is not the one that was surveyed.
    Changed,
    /// The file could not be read, for this reason.
    Failed(String),
}

#[derive(Debug, Default)]
struct ReaderRemarks {
    skipped: SkippedPackets,
    ending: Option<FileEnding>,
    stopped: Option<ReaderEndReason>,
}

/// A recording that a run sends, with what its threads share about it.
#[derive(Debug)]
pub struct ReplayTrack {
    recording: Arc<PlannedRecording>,
    /// For each second of the run, the number of the first tagged frame due in that second or later; `u64::MAX` until
    /// the sender has reached that second.
    seconds: Box<[AtomicU64]>,
    /// Written by the reader a few times, read at the end.
    remarks: Mutex<ReaderRemarks>,
}

impl ReplayTrack {
    /// Creates the track of a recording of which no frame has been sent.
    pub fn new(recording: Arc<PlannedRecording>) -> Self {
        let seconds = (0..MAX_RECORDED_SECONDS).map(|_| AtomicU64::new(u64::MAX)).collect();
        Self { recording, seconds, remarks: Mutex::default() }
    }

    pub fn recording(&self) -> &PlannedRecording {
        &self.recording
    }

    /// Returns the second of the run in which tagged frame `number` was due. For a frame that was not sent yet, this is
    /// the latest second in which a frame was due so far.
    pub fn due_second_of_sent_frame(&self, number: u64) -> u64 {
        // The numbers increase with the seconds, and unknown seconds hold the maximum.
        let begun = self.seconds.partition_point(|first| first.load(Ordering::Relaxed) <= number);
        begun.saturating_sub(1) as u64
    }

    /// Records that tagged frame `number` is the first that is due in `second`. `from` is the first second without a
    /// record; returns the first second without a record after this call.
    pub(crate) fn store_first_number_of_seconds(&self, from: usize, second: u64, number: u64) -> usize {
        let end = clamp_to_usize(second).saturating_add(1).min(MAX_RECORDED_SECONDS);
        for slot in self.seconds.get(from..end).unwrap_or_default() {
            // Relaxed is enough: a receiver that reads an old value assigns a loss to an earlier second, no worse.
            slot.store(number, Ordering::Relaxed);
        }
        end.max(from)
    }

    /// Returns the remarks for the result, and whether each of them affects the result.
    pub fn remarks(&self) -> Vec<(String, bool)> {
        let remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> =
            remarks.skipped.describe_reasons().into_iter().map(|text| (text, false)).collect();
        all.extend(
            remarks.ending.as_ref().and_then(FileEnding::describe_for_replay).map(|text| (text, false)),
        );
        let failure = match &remarks.stopped {
            Some(ReaderEndReason::Changed) => {
                Some("the file changed after the plan was made, so not all of it was sent".to_owned())
            }
            Some(ReaderEndReason::Failed(why)) => {
                Some(format!("the file could not be read to its end: {why}"))
            }
            Some(ReaderEndReason::Done | ReaderEndReason::Unwanted) | None => None,
        };
        // Only a failure affects the result: the other remarks were known before the run.
        all.extend(failure.map(|text| (text, true)));
        all
    }

    fn update_remarks(&self, write: impl FnOnce(&mut ReaderRemarks)) {
        write(&mut self.remarks.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn record_file_ending(&self, ending: FileEnding, skipped: SkippedPackets) {
        self.update_remarks(|remarks| (remarks.ending, remarks.skipped) = (Some(ending), skipped));
    }

    pub(super) fn record_reader_end(&self, stopped: ReaderEndReason) {
        self.update_remarks(|remarks| remarks.stopped = Some(stopped));
    }
}
