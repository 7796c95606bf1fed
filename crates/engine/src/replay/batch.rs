//! Batches of frames that the reader passes to the sender.

use packetrig_units::Nanos;
use packetrig_wire::foreign::PayloadTagPosition;

/// A batch is full at this many frames or bytes.
pub(super) const MAX_BATCH_FRAMES: usize = 256;
const MAX_BATCH_BYTES: usize = 256 << 10;

/// A frame ready to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchEntry {
    start: usize,
    len: usize,
    /// Due time since the start of the run.
    pub(super) due: Nanos,
    /// Position of the tag; `None` for a frame without tag.
    pub(super) place: Option<PayloadTagPosition>,
}

/// A batch: frames in the order of the file, in one buffer.
#[derive(Debug)]
pub(super) struct FrameBatch {
    bytes: Vec<u8>,
    entries: Vec<BatchEntry>,
}

impl FrameBatch {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::with_capacity(MAX_BATCH_BYTES), entries: Vec::with_capacity(MAX_BATCH_FRAMES) }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    pub(super) fn push(&mut self, frame: &[u8], due: Nanos, place: Option<PayloadTagPosition>) {
        let start = self.bytes.len();
        // Frames follow each other in one buffer: a batch is reused and allocates only until it has been full once.
        self.bytes.extend_from_slice(frame);
        self.entries.push(BatchEntry { start, len: frame.len(), due, place });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.entries.len() >= MAX_BATCH_FRAMES || self.bytes.len() >= MAX_BATCH_BYTES
    }

    /// Returns frame `index` with its bytes.
    pub(super) fn frame_at(&self, index: usize) -> Option<(&BatchEntry, &[u8])> {
        let entry = self.entries.get(index)?;
        Some((entry, &self.bytes[entry.start..entry.start + entry.len]))
    }
}
