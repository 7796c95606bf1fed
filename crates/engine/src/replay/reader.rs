//! The reader thread: from the file into batches, as far ahead of the sender as there are batches.

use super::batch::Batch;
use super::input::{Input, Picked};
use super::track::{Stopped, Track};
use crossbeam_channel::{Receiver, Sender};
use packetrig_plan::recording::Recording;
use packetrig_units::Nanos;
use packetrig_wire::foreign::TagPlace;
use packetrig_wire::tag::{SHORT_STREAMS, TagForm};
use std::io;
use std::sync::Arc;

/// Reads one recording, pass after pass, until the sender goes away.
pub(super) struct Reader {
    pub(super) track: Arc<Track>,
    /// The stream's number.
    pub(super) stream: u16,
    pub(super) input: Input,
    pub(super) free: Receiver<Batch>,
    pub(super) full: Sender<Batch>,
}

/// The schedule of frames as they are read.
struct Clockwork {
    pass: u64,
    /// Time of the first frame of the pass, by the file.
    first: Option<u64>,
    /// Of the frame before, from the start of the run.
    latest: Nanos,
}

impl Clockwork {
    /// When a frame captured at `at` is due. One without a time is due with its predecessor, as is one out of order.
    fn due(&mut self, recording: &Recording, at: Option<u64>) -> Nanos {
        if let Some(at) = at {
            let since = at.saturating_sub(*self.first.get_or_insert(at));
            self.latest = self.latest.max(recording.due(self.pass, Nanos::new(since)));
        }
        self.latest
    }
}

impl Reader {
    pub(super) fn run(mut self) {
        let stopped = self.passes();
        self.track.note_stopped(stopped);
    }

    /// Ends with why there are no more frames.
    fn passes(&mut self) -> Stopped {
        let loops = self.track.recording().loops;
        let Ok(mut batch) = self.free.recv() else { return Stopped::Unwanted };
        let mut clockwork = Clockwork { pass: 0, first: None, latest: Nanos::ZERO };
        while loops == 0 || clockwork.pass < loops {
            match self.pass(&mut batch, &mut clockwork) {
                Ok(None) => {}
                Ok(Some(stopped)) => return stopped,
                Err(error) => return Stopped::Failed(error.to_string()),
            }
            clockwork.pass += 1;
            clockwork.first = None;
            if let Err(error) = self.input.rewind() {
                return Stopped::Failed(error.to_string());
            }
        }
        if !batch.is_empty() && self.full.send(batch).is_err() {
            return Stopped::Unwanted;
        }
        Stopped::Done
    }

    /// Reads the file once. `Some`: it is over.
    fn pass(&mut self, batch: &mut Batch, clockwork: &mut Clockwork) -> io::Result<Option<Stopped>> {
        let Self { track, stream, input, free, full } = self;
        let recording = track.recording();
        let longest = recording.facts.largest.kernel_len();
        let (mut scratch, mut any, mut too_long) = (Vec::with_capacity(2048), false, false);
        // Counted once, not once a pass.
        let skipped_before = (clockwork.pass > 0).then_some(input.skipped);
        loop {
            let ending = input.next(&mut |picked: Picked<'_>| {
                let due = clockwork.due(recording, picked.at_ns);
                let mut frame = picked.frame(recording.facts.has_fcs);
                if !recording.rewrite.is_empty() {
                    scratch.clear();
                    scratch.extend_from_slice(frame);
                    recording.rewrite.apply(&mut scratch);
                    frame = &scratch;
                }
                too_long |= frame.len() > longest;
                if !too_long {
                    batch.push(frame, due, place(recording, *stream, frame));
                    any = true;
                }
            })?;
            if too_long {
                return Ok(Some(Stopped::Changed));
            }
            if let Some(ending) = ending {
                input.skipped = skipped_before.unwrap_or(input.skipped);
                track.note_ending(ending, input.skipped);
                return Ok((!any).then_some(Stopped::Changed));
            }
            if batch.is_full() {
                let Ok(next) = free.recv() else { return Ok(Some(Stopped::Unwanted)) };
                if full.send(std::mem::replace(batch, next)).is_err() {
                    return Ok(Some(Stopped::Unwanted));
                }
            }
        }
    }
}

/// Where the tag of a frame goes.
fn place(recording: &Recording, stream: u16, frame: &[u8]) -> Option<TagPlace> {
    let place = TagPlace::of(frame).filter(|_| recording.tagged)?;
    let is_nameable = place.form() == TagForm::Full || usize::from(stream) < SHORT_STREAMS;
    is_nameable.then_some(place)
}
