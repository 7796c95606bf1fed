//! What the capturing thread notes for the shelf: facts about the current file, and the trailer numbers of a tap.

use super::shelf::FilePart;
use crate::capture::numbers::{TapNumbers, TrailerCounter};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::trailer;

/// How often the shelf is asked to look at its files.
const LOOK: Nanos = Nanos::from_secs(5);

/// Frames lost since the recording began, by place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostFrames {
    pub(super) kernel: u64,
    pub(super) queue: u64,
}

#[derive(Debug)]
pub(super) struct KeptFrames {
    /// Of the file at hand.
    part: FilePart,
    /// Losses when it was begun.
    lost_before: LostFrames,
    counter: TrailerCounter,
    looked: MonoTime,
}

impl KeptFrames {
    /// Of the file with this number, the first.
    pub(super) fn new(number: u64, known: TapNumbers, now: MonoTime) -> Self {
        let part = FilePart { number, ..FilePart::default() };
        Self { part, lost_before: LostFrames::default(), counter: TrailerCounter::new(known), looked: now }
    }

    /// A frame arrived that is to be in the file at hand.
    pub(super) fn arrived(&mut self, bytes: &[u8]) {
        if let Some((_, trailer)) = trailer::split(bytes) {
            self.counter.take(&trailer);
        }
    }

    /// It was handed to the disk. `bytes` are those on the wire.
    pub(super) fn written(&mut self, bytes: usize, at_ns: u64) {
        self.part.frame_bytes += bytes as u64;
        let first = self.part.arrivals_ns.map_or(at_ns, |(first, _)| first);
        self.part.arrivals_ns = Some((first, at_ns));
    }

    /// What trailers said so far.
    pub(super) fn numbers(&self) -> TapNumbers {
        self.counter.numbers()
    }

    /// Whether it is time to look at the files; then it is not again for a while.
    pub(super) fn is_look_due(&mut self, now: MonoTime) -> bool {
        let is_due = now.since(self.looked) >= LOOK;
        if is_due {
            self.looked = now;
        }
        is_due
    }

    /// The file at hand has ended, and another one follows. `lost` are all losses so far.
    pub(super) fn end_file(&mut self, span_ns: (u64, u64), lost: LostFrames) -> FilePart {
        let next = FilePart { number: self.part.number + 1, ..FilePart::default() };
        let part = std::mem::replace(&mut self.part, next);
        let before = std::mem::replace(&mut self.lost_before, lost);
        FilePart {
            span_ns,
            kernel_dropped: lost.kernel - before.kernel,
            queue_dropped: lost.queue - before.queue,
            numbers: self.numbers(),
            ..part
        }
    }
}
