//! The sender's end of a recording: the next frame and its due time, without waiting for the file.

use super::batch::FrameBatch;
use super::input::ReplayInput;
use super::reader::RecordingReader;
use super::recording_error;
use super::track::ReplayTrack;
use crate::Error;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use packetrig_units::Nanos;
use packetrig_wire::tag::TagStamp;
use std::fs::File;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Batches between reader and sender: together about 4 MiB, and at most a few thousand frames.
const MAX_QUEUED_BATCHES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextFrame {
    /// A frame that is due at this time since the start of the run.
    Due(Nanos),
    /// The reader has not read it yet.
    NotYet,
    /// No more frames follow: all repetitions were played, or the reader stopped early.
    Ended,
}

/// A frame that was written into a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenFrame {
    pub(crate) len: usize,
    pub(crate) has_tag: bool,
}

#[derive(Debug)]
pub(crate) struct ReplayPlayer {
    /// Returns used batches to the reader. `None` when the player is dropped, which makes the reader stop.
    free: Option<Sender<FrameBatch>>,
    full: Option<Receiver<FrameBatch>>,
    current: Option<FrameBatch>,
    index: usize,
    reader: Option<JoinHandle<()>>,
}

impl ReplayPlayer {
    /// Opens the file and starts the thread that reads it. `stream` is the number of the stream in its tags.
    pub(crate) fn start_reader(track: &Arc<ReplayTrack>, stream: u16) -> Result<Self, Error> {
        let recording = track.recording();
        let path = &recording.file;
        let input =
            File::open(path).and_then(ReplayInput::new).map_err(|error| recording_error(path, error))?;
        // The plan was made from a survey of this file. Another file of the same name would send unchecked frames.
        if input.size() != recording.facts.file_size {
            return Err(recording_error(path, "the file changed after the plan was made"));
        }
        let (free, free_out) = bounded(MAX_QUEUED_BATCHES);
        let (full_in, full) = bounded(MAX_QUEUED_BATCHES);
        for _ in 0..MAX_QUEUED_BATCHES {
            free.send(FrameBatch::new()).map_err(|_| Error::Bug("a new channel is closed"))?;
        }
        let reader =
            RecordingReader { track: Arc::clone(track), stream, input, free: free_out, full: full_in };
        let thread = Builder::new().name("replay".into()).spawn(move || reader.read_recording());
        let reader = thread.map_err(|error| recording_error(path, error))?;
        Ok(Self { free: Some(free), full: Some(full), current: None, index: 0, reader: Some(reader) })
    }

    /// Returns the next frame's due time. Does not wait.
    pub(crate) fn peek_frame(&mut self) -> NextFrame {
        loop {
            let entry = self.current.as_ref().and_then(|batch| batch.frame_at(self.index));
            if let Some((entry, _)) = entry {
                return NextFrame::Due(entry.due);
            }
            if let Some(ended) = self.advance_to_next_batch() {
                return ended;
            }
        }
    }

    /// Returns the used batch to the reader and takes the next one. Returns `None` on success, otherwise why there
    /// is no next batch.
    fn advance_to_next_batch(&mut self) -> Option<NextFrame> {
        if let (Some(mut used), Some(free)) = (self.current.take(), &self.free) {
            used.clear();
            // The channel is never full, because it has room for all batches. If the reader has ended, this
            // call drops the batch.
            drop(free.try_send(used));
        }
        self.index = 0;
        match self.full.as_ref()?.try_recv() {
            Ok(batch) => {
                self.current = Some(batch);
                None
            }
            Err(TryRecvError::Empty) => Some(NextFrame::NotYet),
            Err(TryRecvError::Disconnected) => Some(NextFrame::Ended),
        }
    }

    /// Writes the frame that [`Self::peek_frame`] showed into `slot`. If the frame gets a tag, the tag has number `n`.
    /// Returns `None` if no frame is ready.
    pub(crate) fn write_frame(&mut self, n: u64, stamp: TagStamp, slot: &mut [u8]) -> Option<WrittenFrame> {
        let (entry, bytes) = self.current.as_ref()?.frame_at(self.index)?;
        let frame = &mut slot[..bytes.len()];
        // The frame is copied, because the slot belongs to the ring and the batch goes back to the reader.
        frame.copy_from_slice(bytes);
        if let Some(place) = entry.place {
            place.write_tag(n, stamp, frame);
        }
        let written = WrittenFrame { len: bytes.len(), has_tag: entry.place.is_some() };
        self.index += 1;
        Some(written)
    }

    /// Counts and discards the frames that are due before `elapsed` since the start, as far as they have been read from
    /// the file.
    pub(crate) fn discard_frames_due_before(&mut self, elapsed: Nanos) -> u64 {
        let mut frames = 0;
        while matches!(self.peek_frame(), NextFrame::Due(due) if due < elapsed) {
            self.index += 1;
            frames += 1;
        }
        frames
    }
}

impl Drop for ReplayPlayer {
    fn drop(&mut self) {
        // The reader may wait at either channel, so both close before it is joined.
        self.free = None;
        self.full = None;
        if let Some(reader) = self.reader.take() {
            // The track has the reader's remarks. A panic of the reader is a bug, and its message is already
            // on the terminal.
            drop(reader.join());
        }
    }
}
