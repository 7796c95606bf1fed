//! Collects, on the capturing thread, the facts about the current file for the file keeper, and counts the numbers in
//! the trailers of a tap.

use super::file_keeper::RecordedFileFacts;
use crate::capture::numbers::{TapNumbers, TrailerCounter};
use packetrig_units::{MonoTime, Nanos};
use packetrig_wire::trailer;

/// Interval between two checks of the files by the file keeper.
const FILE_CHECK_INTERVAL: Nanos = Nanos::from_secs(5);

/// Frames lost since the recording began, by the stage that lost them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LostFrames {
    pub(super) kernel: u64,
    pub(super) queue: u64,
}

#[derive(Debug)]
pub(super) struct CurrentFileFacts {
    /// Facts about the current file.
    part: RecordedFileFacts,
    /// Losses counted before the current file.
    lost_before: LostFrames,
    counter: TrailerCounter,
    looked: MonoTime,
}

impl CurrentFileFacts {
    /// Starts the facts of file `number`; the trailer counters continue from `known`.
    pub(super) fn new(number: u64, known: TapNumbers, now: MonoTime) -> Self {
        let part = RecordedFileFacts { number, ..RecordedFileFacts::default() };
        Self { part, lost_before: LostFrames::default(), counter: TrailerCounter::new(known), looked: now }
    }

    /// Counts the trailer of a frame that arrives during the current file, even if the frame is then dropped.
    pub(super) fn on_arrival(&mut self, bytes: &[u8]) {
        if let Some((_, trailer)) = trailer::split_trailer(bytes) {
            self.counter.count_trailer(&trailer);
        }
    }

    /// Adds a frame that was handed to the disk. `bytes` is its length on the wire.
    pub(super) fn on_frame_written(&mut self, bytes: usize, at_ns: u64) {
        self.part.frame_bytes += bytes as u64;
        let first = self.part.arrivals_ns.map_or(at_ns, |(first, _)| first);
        self.part.arrivals_ns = Some((first, at_ns));
    }

    /// Returns the trailer counters so far.
    pub(super) fn tap_numbers(&self) -> TapNumbers {
        self.counter.tap_numbers()
    }

    /// Returns whether the files are due for a check; if so, restarts the interval.
    pub(super) fn restart_check_interval_if_due(&mut self, now: MonoTime) -> bool {
        let is_due = now.since(self.looked) >= FILE_CHECK_INTERVAL;
        if is_due {
            self.looked = now;
        }
        is_due
    }

    /// Returns the facts of the current file and starts those of the next one. `lost` are all losses so far.
    pub(super) fn end_file(&mut self, span_ns: (u64, u64), lost: LostFrames) -> RecordedFileFacts {
        let next = RecordedFileFacts { number: self.part.number + 1, ..RecordedFileFacts::default() };
        let part = std::mem::replace(&mut self.part, next);
        // Counters run over the whole recording; a file reports only its own losses.
        let before = std::mem::replace(&mut self.lost_before, lost);
        RecordedFileFacts {
            span_ns,
            kernel_dropped: lost.kernel - before.kernel,
            queue_dropped: lost.queue - before.queue,
            numbers: self.tap_numbers(),
            ..part
        }
    }
}
