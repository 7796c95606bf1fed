//! What sender, reader and receivers of one recording share, and the remarks about it in the result.

use super::{FileEnding, SkippedPackets};
use packetrig_plan::recording::PlannedRecording;
use packetrig_units::clamp_to_usize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Seconds of a run that are told apart: a day.
const SECONDS: usize = 86_400;

/// Why a reader has no more frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReaderEnd {
    /// All passes are read.
    Done,
    /// The sender went away.
    Unwanted,
    /// The file is not the one that was surveyed.
    Changed,
    /// It could not be read.
    Failed(String),
}

#[derive(Debug, Default)]
struct ReaderRemarks {
    skipped: SkippedPackets,
    ending: Option<FileEnding>,
    stopped: Option<ReaderEnd>,
}

/// A recording on its way through a run.
#[derive(Debug)]
pub struct ReplayTrack {
    recording: Arc<PlannedRecording>,
    /// By second of the run, the first tagged frame that was due in it or later; `u64::MAX` if none yet.
    seconds: Box<[AtomicU64]>,
    /// Written by the reader, a few times in all; read in the end.
    remarks: Mutex<ReaderRemarks>,
}

impl ReplayTrack {
    /// Nothing of it is sent yet.
    pub fn new(recording: Arc<PlannedRecording>) -> Self {
        let seconds = (0..SECONDS).map(|_| AtomicU64::new(u64::MAX)).collect();
        Self { recording, seconds, remarks: Mutex::default() }
    }

    pub fn recording(&self) -> &PlannedRecording {
        &self.recording
    }

    /// The second in which tagged frame `number` was due, as far as it was sent from here.
    pub fn second_of(&self, number: u64) -> u64 {
        let begun = self.seconds.partition_point(|first| first.load(Ordering::Relaxed) <= number);
        begun.saturating_sub(1) as u64
    }

    /// Notes that tagged frame `number` is the first that is due in `second`; `from` is the first second not noted yet.
    /// Returns the next such.
    pub(crate) fn mark(&self, from: usize, second: u64, number: u64) -> usize {
        let end = clamp_to_usize(second).saturating_add(1).min(SECONDS);
        for slot in self.seconds.get(from..end).unwrap_or_default() {
            slot.store(number, Ordering::Relaxed);
        }
        end.max(from)
    }

    /// Remarks for the result, in words, and whether each matters.
    pub fn remarks(&self) -> Vec<(String, bool)> {
        let remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = remarks.skipped.reasons().into_iter().map(|text| (text, false)).collect();
        all.extend(remarks.ending.as_ref().and_then(FileEnding::remark).map(|text| (text, false)));
        let failure = match &remarks.stopped {
            Some(ReaderEnd::Changed) => {
                Some("the file changed after the plan was made, so not all of it was sent".to_owned())
            }
            Some(ReaderEnd::Failed(why)) => Some(format!("the file could not be read to its end: {why}")),
            Some(ReaderEnd::Done | ReaderEnd::Unwanted) | None => None,
        };
        all.extend(failure.map(|text| (text, true)));
        all
    }

    fn note(&self, write: impl FnOnce(&mut ReaderRemarks)) {
        write(&mut self.remarks.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn note_ending(&self, ending: FileEnding, skipped: SkippedPackets) {
        self.note(|remarks| (remarks.ending, remarks.skipped) = (Some(ending), skipped));
    }

    pub(super) fn note_stopped(&self, stopped: ReaderEnd) {
        self.note(|remarks| remarks.stopped = Some(stopped));
    }
}
