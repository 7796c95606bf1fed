//! Loss, duplicates and reordering of one stream at one receiver, which are exact over a window of frames.
//!
//! ```text
//!   retired            |<------- window: 65 536 bits ------->|
//!   lost is final       seen? seen? seen? ...                next
//! ```
//! Numbers leave the window in order, so the runs of lost frames and the seconds with losses are counted
//! exactly. A frame that arrives after its number has left the window is *stale*: it remains counted as lost,
//! because it cannot be distinguished from a copy.
//!
//! Invariant: after [`SequenceWindow::finish_stream`], `sent = unique + lost`.

mod density;
mod leaders;
#[cfg(test)]
mod tests;

use crate::outage::{OpenGaps, OutageList};
use crate::series::QualitySeries;
use density::ReorderDensity;
use leaders::HighestNumberArrivals;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of frames in the window of sequence numbers.
pub const SEQUENCE_WINDOW_FRAMES: u64 = 65_536;
/// A number that is further ahead of all earlier numbers than this is taken for damage, not for a gap.
const MAX_SEQUENCE_GAP: u64 = 1 << 31;
const WINDOW_WORDS: usize = (SEQUENCE_WINDOW_FRAMES / 64) as usize;
/// Default of the maximum number of separate outages.
const DEFAULT_MAX_OUTAGES: usize = 512;

/// How an arriving frame was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceArrival {
    /// The frame has a higher number than all earlier frames.
    New,
    /// The frame was missing until now (RFC 4737: type-P-reordered). `extent` is defined in section 4.2.2 of the RFC.
    Late {
        /// Number of frames that arrived since the earliest one with a higher number.
        extent: u64,
    },
    Duplicate,
    /// The number is too far behind or ahead of the window.
    Stale,
}

/// Counts of a stream at a receiver, in frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceCounts {
    /// Distinct frames that arrived, without further copies.
    pub unique: u64,
    /// Copies of frames that had arrived before.
    pub duplicates: u64,
    /// Frames that arrived after a frame with a higher number.
    pub reordered: u64,
    /// The largest reordering extent (RFC 4737).
    pub max_extent: u64,
    /// Frames with numbers too far behind or ahead of the window.
    pub stale: u64,
    /// Frames that are missing so far; final after [`SequenceWindow::finish_stream`].
    pub lost: u64,
    /// Runs of consecutive lost frames, among the frames that have left the window.
    pub loss_bursts: u64,
    /// Length of the longest of these runs, in frames.
    pub longest_burst: u64,
    /// Number of seconds of the stream's schedule with at least one lost frame, among the frames that
    /// have left the window.
    pub loss_seconds: u64,
    /// RFC 5236 reorder density: number of frames for each displacement, within the threshold of 64.
    pub density: BTreeMap<i32, u64>,
}

impl SequenceCounts {
    /// Adds the counts of another receiver. They may come from another machine and be as large as their types
    /// allow, so the sums saturate.
    pub fn merge(&mut self, other: &Self) {
        self.unique = self.unique.saturating_add(other.unique);
        self.duplicates = self.duplicates.saturating_add(other.duplicates);
        self.reordered = self.reordered.saturating_add(other.reordered);
        self.max_extent = self.max_extent.max(other.max_extent);
        self.stale = self.stale.saturating_add(other.stale);
        self.lost = self.lost.saturating_add(other.lost);
        self.loss_bursts = self.loss_bursts.saturating_add(other.loss_bursts);
        self.longest_burst = self.longest_burst.max(other.longest_burst);
        self.loss_seconds = self.loss_seconds.saturating_add(other.loss_seconds);
        for (displacement, frames) in &other.density {
            let sum = self.density.entry(*displacement).or_default();
            *sum = sum.saturating_add(*frames);
        }
    }
}

/// The window of sequence numbers, and the counts of its stream. With room for 512 outages it allocates about 150 KiB,
/// most of it for gaps and outages. Nothing is allocated after its construction.
#[derive(Clone, Debug)]
pub struct SequenceWindow {
    seen: SequenceBitmap,
    /// The highest number so far, plus one.
    next: u64,
    counts: SequenceCounts,
    burst: u64,
    last_loss_second: Option<u64>,
    leaders: HighestNumberArrivals,
    density: ReorderDensity,
    /// Time of the last arrival, whatever number it had.
    last_arrival: Option<MonoTime>,
    gaps: OpenGaps,
    outages: OutageList,
    quality: QualitySeries,
    finished: bool,
}

impl Default for SequenceWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl SequenceWindow {
    /// Creates an empty window with room for the default number of outages.
    pub fn new() -> Self {
        Self::with_outages(DEFAULT_MAX_OUTAGES)
    }

    /// Creates an empty window with room for this many outages.
    pub fn with_outages(limit: usize) -> Self {
        Self {
            seen: SequenceBitmap::new(),
            next: 0,
            counts: SequenceCounts::default(),
            burst: 0,
            last_loss_second: None,
            leaders: HighestNumberArrivals::new(),
            density: ReorderDensity::new(),
            last_arrival: None,
            gaps: OpenGaps::new(),
            outages: OutageList::with_limit(limit),
            quality: QualitySeries::default(),
            finished: false,
        }
    }

    /// Returns the full number of a frame from its low `bits` bits: of the possible numbers, the one that is
    /// nearest to the highest number so far.
    pub fn restore_full_number(&self, low: u32, bits: u32) -> u64 {
        let span = 1u64 << bits;
        // This is serial number arithmetic (RFC 1982): numbers that are less than half of the span ahead
        // count as later, all others as earlier. At the start of a stream, no number is earlier.
        let ahead = u64::from(low).wrapping_sub(self.next) & (span - 1);
        if ahead < span / 2 || self.next + ahead < span {
            self.next + ahead
        } else {
            self.next + ahead - span
        }
    }

    /// Returns how far `number` is above the next expected number; 0 if it is not above it.
    pub const fn distance_ahead(&self, number: u64) -> u64 {
        number.saturating_sub(self.next)
    }

    /// Returns whether frame `number` has arrived. For a number behind the window this is not known, and
    /// the result is true.
    pub fn has_seen_number(&self, number: u64) -> bool {
        number < self.next && (self.next - number > SEQUENCE_WINDOW_FRAMES || self.seen.has_bit(number))
    }

    /// Counts frame `number`, which arrived at `at`. `second_of` returns the second of the schedule in which
    /// a frame was due.
    pub fn on_arrival(
        &mut self,
        number: u64,
        at: MonoTime,
        second_of: impl Fn(u64) -> u64,
    ) -> SequenceArrival {
        let before = self.last_arrival;
        // A damaged number would move the window, and all numbers in between would count as lost. Tags have a
        // check, but only of 16 bits, so a jump of more than `MAX_SEQUENCE_GAP` is not believed.
        if number >= self.next {
            if number - self.next > MAX_SEQUENCE_GAP {
                self.counts.stale += 1;
                return SequenceArrival::Stale;
            }
            self.last_arrival = Some(at);
            if number > self.next {
                self.gaps.open_gap(self.next, number, before, at);
            }
            self.advance_window(number, second_of);
            // The frame is added as a leader before it is counted, so that arrivals are numbered from 0.
            self.leaders.add_leader(number, self.counts.unique);
            self.count_unique_number(number);
            return SequenceArrival::New;
        }
        // The arrival of a copy or of a stale frame counts here, too: the path carried a frame, so an outage
        // can begin only after it.
        self.last_arrival = Some(at);
        if self.next - number > SEQUENCE_WINDOW_FRAMES {
            self.counts.stale += 1;
            return SequenceArrival::Stale;
        }
        if self.seen.has_bit(number) {
            self.counts.duplicates += 1;
            return SequenceArrival::Duplicate;
        }
        // RFC 4737 counts a frame as reordered if a frame with a higher number arrived before it. Only
        // different frames count, not copies.
        let extent = self.counts.unique - self.leaders.first_arrival_above(number);
        self.counts.reordered += 1;
        self.counts.max_extent = self.counts.max_extent.max(extent);
        self.count_unique_number(number);
        SequenceArrival::Late { extent }
    }

    fn count_unique_number(&mut self, number: u64) {
        self.seen.set_bit(number);
        self.counts.unique += 1;
        let start = self.next.saturating_sub(SEQUENCE_WINDOW_FRAMES);
        self.density.on_arrival(number, start, |number| self.seen.has_bit(number));
    }

    /// Moves the window so that `number` is its last number, and retires the numbers that leave it at its start.
    fn advance_window(&mut self, number: u64, second_of: impl Fn(u64) -> u64) {
        let start = self.next;
        // There are at most as many steps as numbers in the window, however far the number jumps.
        for entering in start..=number.min(start + SEQUENCE_WINDOW_FRAMES - 1) {
            // A number shares its bit with the number one window length before it. The old number is judged
            // before the bit is cleared.
            if let Some(leaving) = entering.checked_sub(SEQUENCE_WINDOW_FRAMES) {
                self.finalise_number(leaving, self.seen.has_bit(leaving), &second_of);
            }
            self.seen.clear_bit(entering);
        }
        // After a jump of more than a window length, the skipped numbers never had a bit. All of them are
        // lost and are counted at once: a jump of 2^31 must not take 2^31 steps.
        let never_entered = (number + 1).saturating_sub(SEQUENCE_WINDOW_FRAMES);
        if never_entered > start {
            self.count_lost_frames(start, never_entered, &second_of);
        }
        self.next = number + 1;
    }

    fn finalise_number(&mut self, number: u64, seen: bool, second_of: &impl Fn(u64) -> u64) {
        if seen {
            self.burst = 0;
        } else {
            self.count_lost_frames(number, number + 1, second_of);
        }
    }

    /// Counts the frames `from..to` as lost. Their numbers are above those of all frames that were
    /// counted as lost before.
    fn count_lost_frames(&mut self, from: u64, to: u64, second_of: &impl Fn(u64) -> u64) {
        // Numbers leave the window in order, so a run of lost frames that continues is always the last one.
        if self.burst == 0 {
            self.counts.loss_bursts += 1;
        }
        self.burst += to - from;
        self.outages.push_outage(self.gaps.take_outage_of_lost_frames(from, to - 1));
        self.counts.longest_burst = self.counts.longest_burst.max(self.burst);
        let first = second_of(from);
        let last = second_of(to - 1);
        self.count_lost_by_second(from, to, second_of);
        // A run of n frames touches every second between its ends, unless the stream has less than
        // one frame per second.
        let touched = (last - first + 1).min(to - from);
        let repeated = u64::from(self.last_loss_second == Some(first));
        self.counts.loss_seconds += touched - repeated;
        self.last_loss_second = Some(last);
    }

    /// Adds the lost frames `from..to` to the seconds in which they were due.
    fn count_lost_by_second(&mut self, from: u64, to: u64, second_of: &impl Fn(u64) -> u64) {
        let mut next = from;
        while next < to {
            // There is one search for each second, not one for each frame: a gap may have 2^31 frames.
            let second = second_of(next);
            // The search finds the first frame of a later second: the due times are in the order of the numbers.
            let mut low = next + 1;
            let mut high = to;
            while low < high {
                let middle = u64::midpoint(low, high);
                if second_of(middle) > second { high = middle } else { low = middle + 1 }
            }
            self.quality.add_lost_frames(second, low - next);
            next = low;
        }
    }

    /// Returns the losses and delays of each second. This window adds the losses; the caller adds the delays.
    pub const fn quality_mut(&mut self) -> &mut QualitySeries {
        &mut self.quality
    }

    /// Ends the stream: every frame that was sent and has not arrived is lost. A second call has no effect.
    pub fn finish_stream(&mut self, sent: u64, second_of: impl Fn(u64) -> u64) {
        // The first call has judged all numbers of the window. A second time, they would be counted twice.
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        for number in self.next.saturating_sub(SEQUENCE_WINDOW_FRAMES)..self.next {
            self.finalise_number(number, self.seen.has_bit(number), &second_of);
        }
        let start = self.next.saturating_sub(SEQUENCE_WINDOW_FRAMES);
        self.density.finish_stream(start, |number| self.seen.has_bit(number));
        // These frames were lost at the end of the stream: no later frame has shown that they are missing.
        if sent > self.next {
            self.gaps.open_gap_at_end(self.next, sent, self.last_arrival);
            self.count_lost_frames(self.next, sent, &second_of);
            self.next = sent;
        }
    }

    /// Takes the outages of the frames that have left the window; after [`Self::finish_stream`], these are all outages.
    pub fn take_outages(&mut self) -> OutageList {
        std::mem::take(&mut self.outages)
    }

    /// Returns the counts like [`Self::counts`], but without the density: this is cheap enough to be called
    /// ten times a second for thousands of streams.
    pub fn live_counts(&self) -> SequenceCounts {
        // Every number below `next` has either arrived once or is missing.
        SequenceCounts { lost: self.next - self.counts.unique, ..self.counts.clone() }
    }

    /// Returns the counts so far. Before [`Self::finish_stream`], `lost` contains every number below the
    /// highest one so far that has not arrived.
    pub fn counts(&self) -> SequenceCounts {
        SequenceCounts { density: self.density.counts(), ..self.live_counts() }
    }
}

/// One bit for each number of the window. Numbers with a distance of one window length share a bit.
#[derive(Clone, Debug)]
struct SequenceBitmap(Box<[u64; WINDOW_WORDS]>);

impl SequenceBitmap {
    fn new() -> Self {
        Self(Box::new([0; WINDOW_WORDS]))
    }

    fn has_bit(&self, number: u64) -> bool {
        self.0[Self::word_index(number)] & Self::bit_mask(number) != 0
    }

    fn set_bit(&mut self, number: u64) {
        self.0[Self::word_index(number)] |= Self::bit_mask(number);
    }

    fn clear_bit(&mut self, number: u64) {
        self.0[Self::word_index(number)] &= !Self::bit_mask(number);
    }

    const fn word_index(number: u64) -> usize {
        (number % SEQUENCE_WINDOW_FRAMES / 64) as usize
    }

    const fn bit_mask(number: u64) -> u64 {
        1 << (number % 64)
    }
}
