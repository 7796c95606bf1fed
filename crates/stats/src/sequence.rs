//! Loss, duplicates and reordering of one stream at one receiver, exact over a window of frames.
//!
//! ```text
//!   retired            |<------- window: 65 536 bits ------->|
//!   lost is final       seen? seen? seen? ...                next
//! ```
//! Numbers leave the window in order, so runs of lost frames and the seconds they fall into are counted exactly.
//! A frame that arrives after its number has left is *stale*: it stays counted as lost, and is not guessed at.
//!
//! Invariant: after [`SequenceWindow::finish_stream`], `sent = unique + lost`.

mod density;
mod leaders;
#[cfg(test)]
mod tests;

use crate::outage::{OpenGaps, OutageList};
use crate::series::QualitySeries;
use density::LossDensity;
use leaders::SequenceLeaders;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Frames a sequence window looks back.
pub const SEQUENCE_WINDOW_FRAMES: u64 = 65_536;
/// A number this far ahead of everything seen is damage, not a gap.
const MAX_SEQUENCE_GAP: u64 = 1 << 31;
const WINDOW_WORDS: usize = (SEQUENCE_WINDOW_FRAMES / 64) as usize;
/// Largest number of separate outages by default.
const DEFAULT_MAX_OUTAGES: usize = 512;

/// Meaning of one arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceArrival {
    /// The next, or beyond a gap.
    New,
    /// Missing until now (RFC 4737, type-P-reordered). `extent` by its section 4.2.2.
    Late {
        /// Number of frames that arrived since the earliest one with a higher number.
        extent: u64,
    },
    Duplicate,
    /// The number is too far behind or ahead for the window to decide.
    Stale,
}

/// Counts of a stream at a receiver. Frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceCounts {
    /// Distinct frames that arrived.
    pub unique: u64,
    /// Copies of frames already seen.
    pub duplicates: u64,
    /// Frames that arrived after a higher-numbered one.
    pub reordered: u64,
    /// Largest RFC 4737 extent.
    pub max_extent: u64,
    /// Frames beyond the window.
    pub stale: u64,
    /// Frames missing so far; final after `finish`.
    pub lost: u64,
    /// Runs of consecutive lost frames, among the frames that have left the window.
    pub loss_bursts: u64,
    /// The longest of them.
    pub longest_burst: u64,
    /// Seconds of the stream's schedule with at least one lost frame, among the frames that have left the window.
    pub loss_seconds: u64,
    /// RFC 5236 reorder density: displacement -> frames, within its threshold of 64.
    pub density: BTreeMap<i32, u64>,
}

impl SequenceCounts {
    /// Adds another receiver's counts. They may come from another machine, as large as their types allow.
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

/// The window. About 25 KiB; nothing is allocated after construction.
#[derive(Clone, Debug)]
pub struct SequenceWindow {
    seen: SequenceBitmap,
    /// One above the highest number seen.
    next: u64,
    counts: SequenceCounts,
    burst: u64,
    last_loss_second: Option<u64>,
    leaders: SequenceLeaders,
    density: LossDensity,
    /// Time of the last arrival, whatever its number.
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
    /// A window that has seen nothing, with room for some hundred outages.
    pub fn new() -> Self {
        Self::with_outages(DEFAULT_MAX_OUTAGES)
    }

    /// Creates a window like [`Self::new`], with room for this many outages.
    pub fn with_outages(limit: usize) -> Self {
        Self {
            seen: SequenceBitmap::new(),
            next: 0,
            counts: SequenceCounts::default(),
            burst: 0,
            last_loss_second: None,
            leaders: SequenceLeaders::new(),
            density: LossDensity::new(),
            last_arrival: None,
            gaps: OpenGaps::new(),
            outages: OutageList::with_limit(limit),
            quality: QualitySeries::default(),
            finished: false,
        }
    }

    /// Returns the full number for the low `bits` that arrived: the one nearest to the highest seen.
    pub fn unwrap_number(&self, low: u32, bits: u32) -> u64 {
        let span = 1u64 << bits;
        // Serial number arithmetic: numbers up to half of the span ahead count as later, all others as
        // earlier. At the start of a stream, no number is earlier.
        let ahead = u64::from(low).wrapping_sub(self.next) & (span - 1);
        if ahead < span / 2 || self.next + ahead < span {
            self.next + ahead
        } else {
            self.next + ahead - span
        }
    }

    /// Returns how far `number` is ahead of the next one to come; 0 if it is not.
    pub const fn distance_ahead(&self, number: u64) -> u64 {
        number.saturating_sub(self.next)
    }

    /// Returns whether frame `number` has arrived. A frame behind the window counts as arrived, because that is not known.
    pub fn has_seen_number(&self, number: u64) -> bool {
        number < self.next && (self.next - number > SEQUENCE_WINDOW_FRAMES || self.seen.has_bit(number))
    }

    /// Counts frame `number`, which arrived at `at`. `second_of` gives the second of the schedule in which a frame was due.
    pub fn on_arrival(
        &mut self,
        number: u64,
        at: MonoTime,
        second_of: impl Fn(u64) -> u64,
    ) -> SequenceArrival {
        let before = self.last_arrival;
        // A damaged number would move the window and make everything in between lost. Tags are checked, but only by 16 bits, so
        // a jump of that size is not believed.
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
            // The leader is added before the frame is counted, so that arrivals are numbered from 0.
            self.leaders.add_leader(number, self.counts.unique);
            self.count_unique_number(number);
            return SequenceArrival::New;
        }
        // A copy or a stale frame counts here, too: the path carried a frame, so an outage begins only after it.
        self.last_arrival = Some(at);
        if self.next - number > SEQUENCE_WINDOW_FRAMES {
            self.counts.stale += 1;
            return SequenceArrival::Stale;
        }
        if self.seen.has_bit(number) {
            self.counts.duplicates += 1;
            return SequenceArrival::Duplicate;
        }
        // RFC 4737 counts a frame as reordered if a higher number came before it. Distinct frames count, copies do not.
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

    /// Moves the window's end to just behind `number`, and retires the numbers that fall out at the other end.
    fn advance_window(&mut self, number: u64, second_of: impl Fn(u64) -> u64) {
        let start = self.next;
        // At most one window of steps, however far the number jumps.
        for entering in start..=number.min(start + SEQUENCE_WINDOW_FRAMES - 1) {
            // A number and the one a window before it share a bit: the old number is judged before
            // the bit is cleared.
            if let Some(leaving) = entering.checked_sub(SEQUENCE_WINDOW_FRAMES) {
                self.retire_number(leaving, self.seen.has_bit(leaving), &second_of);
            }
            self.seen.clear_bit(entering);
        }
        // After a jump of more than a window, the skipped numbers never had a bit. All of them are lost and
        // are counted at once: a jump of 2^31 must not take 2^31 steps.
        let never_entered = (number + 1).saturating_sub(SEQUENCE_WINDOW_FRAMES);
        if never_entered > start {
            self.count_lost(start, never_entered, &second_of);
        }
        self.next = number + 1;
    }

    fn retire_number(&mut self, number: u64, seen: bool, second_of: &impl Fn(u64) -> u64) {
        if seen {
            self.burst = 0;
        } else {
            self.count_lost(number, number + 1, second_of);
        }
    }

    /// Counts `from..to`, all lost and all later than anything lost before.
    fn count_lost(&mut self, from: u64, to: u64, second_of: &impl Fn(u64) -> u64) {
        // Numbers leave the window in order, so a burst that continues is always the last one.
        if self.burst == 0 {
            self.counts.loss_bursts += 1;
        }
        self.burst += to - from;
        self.outages.push_outage(self.gaps.outage_of_lost_frames(from, to - 1));
        self.counts.longest_burst = self.counts.longest_burst.max(self.burst);
        let first = second_of(from);
        let last = second_of(to - 1);
        self.count_lost_by_second(from, to, second_of);
        // A run of n frames touches every second between its ends, unless the stream is slower than one frame per second.
        let touched = (last - first + 1).min(to - from);
        let repeated = u64::from(self.last_loss_second == Some(first));
        self.counts.loss_seconds += touched - repeated;
        self.last_loss_second = Some(last);
    }

    /// Adds the lost frames `from..to` to the seconds in which they were due.
    fn count_lost_by_second(&mut self, from: u64, to: u64, second_of: &impl Fn(u64) -> u64) {
        let mut next = from;
        while next < to {
            // Each second needs one search, not one for each frame: a gap may have 2^31 frames.
            let second = second_of(next);
            // The first frame of a later second: times are in the order of numbers.
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

    /// Returns losses per second, and room for delays.
    pub const fn quality_mut(&mut self) -> &mut QualitySeries {
        &mut self.quality
    }

    /// Ends the stream: every frame that was sent and not seen is lost. A second call changes nothing.
    pub fn finish_stream(&mut self, sent: u64, second_of: impl Fn(u64) -> u64) {
        // The window's bits were judged by the first call. Judged again, they would be lost a second time.
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        for number in self.next.saturating_sub(SEQUENCE_WINDOW_FRAMES)..self.next {
            self.retire_number(number, self.seen.has_bit(number), &second_of);
        }
        let start = self.next.saturating_sub(SEQUENCE_WINDOW_FRAMES);
        self.density.finish_stream(start, |number| self.seen.has_bit(number));
        // These frames were lost at the end of the stream: no later frame has shown that they were missing.
        if sent > self.next {
            self.gaps.open_gap_at_end(self.next, sent, self.last_arrival);
            self.count_lost(self.next, sent, &second_of);
            self.next = sent;
        }
    }

    /// Returns the outages of frames that have left the window; all of them after [`Self::finish_stream`].
    pub fn take_outages(&mut self) -> OutageList {
        std::mem::take(&mut self.outages)
    }

    /// Returns [`Self::counts`] without the density: cheap enough to be called ten times a second for thousands of streams.
    pub fn live_counts(&self) -> SequenceCounts {
        // Every number below `next` was either seen once or is missing.
        SequenceCounts { lost: self.next - self.counts.unique, ..self.counts.clone() }
    }

    /// Returns the counts so far. Before `finish`, `lost` is everything missing below the highest number seen.
    pub fn counts(&self) -> SequenceCounts {
        SequenceCounts { density: self.density.counts(), ..self.live_counts() }
    }
}

/// A bit for each number of the window. Numbers that are a window apart share one.
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
