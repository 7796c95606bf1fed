//! The reader thread: reads frames from the file into batches, and waits while no batch is free.

use super::batch::FrameBatch;
use super::input::{ReplayInput, ReplayPacket};
use super::track::{ReaderEndReason, ReplayTrack};
use crossbeam_channel::{Receiver, Sender};
use packetrig_plan::recording::PlannedRecording;
use packetrig_units::Nanos;
use packetrig_wire::foreign::PayloadTagPosition;
use packetrig_wire::tag::{MAX_SHORT_TAG_STREAMS, TagForm};
use std::io;
use std::sync::Arc;

/// Reads a recording, pass after pass, until all passes are read or the sender stops.
pub(super) struct RecordingReader {
    pub(super) track: Arc<ReplayTrack>,
    pub(super) stream: u16,
    pub(super) input: ReplayInput,
    pub(super) free: Receiver<FrameBatch>,
    pub(super) full: Sender<FrameBatch>,
}

/// Computes the due times of the frames that are read.
struct ReplaySchedule {
    pass: u64,
    /// Capture time of the first frame of the pass; `None` until it is read.
    first: Option<u64>,
    /// Due time of the previous frame, from the start of the run.
    latest: Nanos,
}

impl ReplaySchedule {
    /// Returns when a frame captured at `at` is due. A frame without a time, or with an earlier time than its
    /// predecessor, is due together with the predecessor.
    fn due_time(&mut self, recording: &PlannedRecording, at: Option<u64>) -> Nanos {
        if let Some(at) = at {
            let since = at.saturating_sub(*self.first.get_or_insert(at));
            // Times in capture files sometimes go backwards (several queues, a clock that was set). The order matters
            // more than the time: a frame is never due before the previous one.
            self.latest = self.latest.max(recording.due_time(self.pass, Nanos::new(since)));
        }
        self.latest
    }
}

impl RecordingReader {
    pub(super) fn read_recording(mut self) {
        let stopped = self.read_all_passes();
        self.track.record_reader_end(stopped);
    }

    /// Reads all passes; returns why no more frames follow.
    fn read_all_passes(&mut self) -> ReaderEndReason {
        let loops = self.track.recording().loops;
        // A closed channel means that the sender has dropped its player.
        let Ok(mut batch) = self.free.recv() else { return ReaderEndReason::Unwanted };
        let mut schedule = ReplaySchedule { pass: 0, first: None, latest: Nanos::ZERO };
        while loops == 0 || schedule.pass < loops {
            match self.read_recording_once(&mut batch, &mut schedule) {
                Ok(None) => {}
                Ok(Some(stopped)) => return stopped,
                Err(error) => return ReaderEndReason::Failed(error.to_string()),
            }
            schedule.pass += 1;
            schedule.first = None;
            // After the last pass, frames may still be in the batch: a failure of the file must not lose them.
            let has_next = loops == 0 || schedule.pass < loops;
            if has_next && let Err(error) = self.input.rewind() {
                return ReaderEndReason::Failed(error.to_string());
            }
        }
        if !batch.is_empty() && self.full.send(batch).is_err() {
            return ReaderEndReason::Unwanted;
        }
        ReaderEndReason::Done
    }

    /// Reads the file once. Returns `None` if the next pass may follow, otherwise why no more frames follow.
    fn read_recording_once(
        &mut self,
        batch: &mut FrameBatch,
        schedule: &mut ReplaySchedule,
    ) -> io::Result<Option<ReaderEndReason>> {
        let Self { track, stream, input, free, full } = self;
        // Skipped packets are counted in the first pass only.
        let skipped = (schedule.pass > 0).then_some(input.skipped);
        let mut pass = FilePass::new(track.recording(), *stream, batch, schedule);
        loop {
            // Only the wait for a free batch below stops the reader, so it is ahead of the sender by at most all
            // batches, whatever the size of the file.
            let ending = input.next_packet_or_ending(&mut |picked| pass.add_packet(&picked))?;
            if pass.is_other {
                return Ok(Some(ReaderEndReason::Changed));
            }
            if let Some(ending) = ending {
                input.skipped = skipped.unwrap_or(input.skipped);
                track.record_file_ending(ending, input.skipped);
                // The survey found frames. Without any, an endless replay would read the file over and over.
                return Ok(pass.is_empty.then_some(ReaderEndReason::Changed));
            }
            if pass.batch.is_full() {
                let Ok(next) = free.recv() else { return Ok(Some(ReaderEndReason::Unwanted)) };
                if full.send(std::mem::replace(pass.batch, next)).is_err() {
                    return Ok(Some(ReaderEndReason::Unwanted));
                }
            }
        }
    }
}

/// State of one pass through the file.
struct FilePass<'a> {
    recording: &'a PlannedRecording,
    stream: u16,
    batch: &'a mut FrameBatch,
    schedule: &'a mut ReplaySchedule,
    scratch: Vec<u8>,
    /// Whether no frame has been read yet in this pass.
    is_empty: bool,
    /// Whether a frame is longer than every frame of the survey, so the file must have changed.
    is_other: bool,
}

impl<'a> FilePass<'a> {
    fn new(
        recording: &'a PlannedRecording,
        stream: u16,
        batch: &'a mut FrameBatch,
        schedule: &'a mut ReplaySchedule,
    ) -> Self {
        Self { recording, stream, batch, schedule, scratch: Vec::new(), is_empty: true, is_other: false }
    }

    /// Adds a packet to the batch as it will be sent: without FCS, and rewritten as the plan asks.
    fn add_packet(&mut self, picked: &ReplayPacket<'_>) {
        let due = self.schedule.due_time(self.recording, picked.at_ns);
        let mut frame = picked.without_fcs(self.recording.facts.has_fcs);
        if !self.recording.rewrite.is_empty() {
            self.scratch.clear();
            self.scratch.extend_from_slice(frame);
            self.recording.rewrite.rewrite_frame(&mut self.scratch);
            frame = &self.scratch;
        }
        // The ports were checked for the longest frame of the survey. A longer one comes from a changed file.
        if frame.len() > self.recording.facts.largest.kernel_len() {
            self.is_other = true;
            return;
        }
        self.batch.push(frame, due, find_tag_position(self.recording, self.stream, frame));
        self.is_empty = false;
    }
}

/// Returns where the frame's tag will be written; `None` if the frame gets no tag.
fn find_tag_position(recording: &PlannedRecording, stream: u16, frame: &[u8]) -> Option<PayloadTagPosition> {
    let place = PayloadTagPosition::from_frame(frame).filter(|_| recording.tagged)?;
    // The short tag has 12 bits for the stream. A tag that names another stream would be worse than none.
    let is_nameable = place.form() == TagForm::Full || usize::from(stream) < MAX_SHORT_TAG_STREAMS;
    is_nameable.then_some(place)
}
