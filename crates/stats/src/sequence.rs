//! Loss, duplicates and reordering of one stream at one receiver, exact over a window of frames.
//!
//! ```text
//!   retired            |<------- window: 65 536 bits ------->|
//!   lost is final       seen? seen? seen? ...                next
//! ```
//! Numbers leave the window in order, so runs of lost frames and the seconds they fall into are counted exactly.
//! A frame that arrives after its number has left is *stale*: it stays counted as lost, and is not guessed at.
//!
//! Invariant: after [`SequenceWindow::finish`], `sent = unique + lost`.

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
pub const WINDOW: u64 = 65_536;
/// A number this far ahead of everything seen is damage, not a gap.
const LONGEST_GAP: u64 = 1 << 31;
const WORDS: usize = (WINDOW / 64) as usize;
/// Outages that are kept apart, unless told otherwise.
const OUTAGES: usize = 512;

/// What one arrival meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceArrival {
    /// The next, or beyond a gap.
    New,
    /// Missing until now (RFC 4737, type-P-reordered). `extent` by its section 4.2.2.
    Late {
        /// How many frames arrived since the earliest one with a higher number.
        extent: u64,
    },
    Duplicate,
    /// So far behind (or absurdly far ahead) that the window cannot tell.
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
    /// Runs of consecutive lost frames, of those that have left the window.
    pub loss_bursts: u64,
    /// The longest of them.
    pub longest_burst: u64,
    /// Seconds of the stream's schedule in which at least one frame was lost, of those that have left the window.
    pub loss_seconds: u64,
    /// RFC 5236 reorder density: displacement -> frames, within its threshold of 64.
    pub density: BTreeMap<i32, u64>,
}

impl SequenceCounts {
    /// Adds another receiver's counts.
    pub fn merge(&mut self, other: &Self) {
        self.unique += other.unique;
        self.duplicates += other.duplicates;
        self.reordered += other.reordered;
        self.max_extent = self.max_extent.max(other.max_extent);
        self.stale += other.stale;
        self.lost += other.lost;
        self.loss_bursts += other.loss_bursts;
        self.longest_burst = self.longest_burst.max(other.longest_burst);
        self.loss_seconds += other.loss_seconds;
        for (displacement, frames) in &other.density {
            *self.density.entry(*displacement).or_default() += frames;
        }
    }
}

/// The window. About 25 KiB; nothing is allocated after construction.
#[derive(Clone, Debug)]
pub struct SequenceWindow {
    seen: Box<[u64; WORDS]>,
    /// One above the highest number seen.
    next: u64,
    counts: SequenceCounts,
    burst: u64,
    last_loss_second: Option<u64>,
    leaders: SequenceLeaders,
    density: LossDensity,
    /// When the last frame arrived, whatever its number.
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
        Self::with_outages(OUTAGES)
    }

    /// As [`Self::new`], with room for this many outages.
    pub fn with_outages(room: usize) -> Self {
        Self {
            seen: Box::new([0; WORDS]),
            next: 0,
            counts: SequenceCounts::default(),
            burst: 0,
            last_loss_second: None,
            leaders: SequenceLeaders::new(),
            density: LossDensity::new(),
            last_arrival: None,
            gaps: OpenGaps::new(),
            outages: OutageList::with_room(room),
            quality: QualitySeries::default(),
            finished: false,
        }
    }

    /// The full number of which only the low `bits` arrived: the one nearest to the highest seen.
    pub fn unwrap(&self, low: u32, bits: u32) -> u64 {
        let span = 1u64 << bits;
        let ahead = u64::from(low).wrapping_sub(self.next) & (span - 1);
        if ahead < span / 2 || self.next + ahead < span {
            self.next + ahead
        } else {
            self.next + ahead - span
        }
    }

    /// How far `number` is ahead of the next one to come; 0 if it is not.
    pub const fn ahead(&self, number: u64) -> u64 {
        number.saturating_sub(self.next)
    }

    /// Takes in frame `number`, which arrived at `at`. `second_of` gives the second of the schedule in which a frame was due.
    pub fn arrive(&mut self, number: u64, at: MonoTime, second_of: impl Fn(u64) -> u64) -> SequenceArrival {
        let before = self.last_arrival;
        if number >= self.next {
            if number - self.next > LONGEST_GAP {
                self.counts.stale += 1;
                return SequenceArrival::Stale;
            }
            self.last_arrival = Some(at);
            if number > self.next {
                self.gaps.open(self.next, number, before, at);
            }
            self.advance(number, second_of);
            self.leaders.lead(number, self.counts.unique);
            self.count_unique(number);
            return SequenceArrival::New;
        }
        self.last_arrival = Some(at);
        if self.next - number > WINDOW {
            self.counts.stale += 1;
            return SequenceArrival::Stale;
        }
        if self.is_seen(number) {
            self.counts.duplicates += 1;
            return SequenceArrival::Duplicate;
        }
        let extent = self.counts.unique - self.leaders.first_above(number);
        self.counts.reordered += 1;
        self.counts.max_extent = self.counts.max_extent.max(extent);
        self.count_unique(number);
        SequenceArrival::Late { extent }
    }

    fn count_unique(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.seen[word] |= bit;
        self.counts.unique += 1;
        let (seen, start) = (&self.seen, self.next.saturating_sub(WINDOW));
        self.density.arrive(number, start, |number| {
            let (word, bit) = place(number);
            seen[word] & bit != 0
        });
    }

    /// Moves the window's end to just behind `number`, retiring what falls out at the other end.
    fn advance(&mut self, number: u64, second_of: impl Fn(u64) -> u64) {
        let start = self.next;
        for entering in start..=number.min(start + WINDOW - 1) {
            let (word, bit) = place(entering);
            if let Some(leaving) = entering.checked_sub(WINDOW) {
                self.retire(leaving, self.seen[word] & bit != 0, &second_of);
            }
            self.seen[word] &= !bit;
        }
        // Beyond a whole window, numbers that nobody has seen pass through it.
        let never_entered = (number + 1).saturating_sub(WINDOW);
        if never_entered > start {
            self.lose(start, never_entered, &second_of);
        }
        self.next = number + 1;
    }

    fn retire(&mut self, number: u64, seen: bool, second_of: &impl Fn(u64) -> u64) {
        if seen {
            self.burst = 0;
        } else {
            self.lose(number, number + 1, second_of);
        }
    }

    /// Counts `from..to`, all lost and all later than anything lost before.
    fn lose(&mut self, from: u64, to: u64, second_of: &impl Fn(u64) -> u64) {
        if self.burst == 0 {
            self.counts.loss_bursts += 1;
        }
        self.burst += to - from;
        self.outages.push(self.gaps.outage(from, to - 1));
        self.counts.longest_burst = self.counts.longest_burst.max(self.burst);
        let (first, last) = (second_of(from), second_of(to - 1));
        self.lose_by_second(from, to, second_of);
        // A run of n frames touches every second between its ends, unless the stream is slower than one frame per second.
        let touched = (last - first + 1).min(to - from);
        let repeated = u64::from(self.last_loss_second == Some(first));
        self.counts.loss_seconds += touched - repeated;
        self.last_loss_second = Some(last);
    }

    /// Adds the lost frames `from..to` to the seconds in which they were due.
    fn lose_by_second(&mut self, from: u64, to: u64, second_of: &impl Fn(u64) -> u64) {
        let mut next = from;
        while next < to {
            let second = second_of(next);
            // The first frame of a later second: times are in the order of numbers.
            let (mut low, mut high) = (next + 1, to);
            while low < high {
                let middle = u64::midpoint(low, high);
                if second_of(middle) > second { high = middle } else { low = middle + 1 }
            }
            self.quality.add_lost(second, low - next);
            next = low;
        }
    }

    /// Losses per second, and room for delays.
    pub const fn quality_mut(&mut self) -> &mut QualitySeries {
        &mut self.quality
    }

    /// The end: whatever was sent and not seen is lost. A second call changes nothing.
    pub fn finish(&mut self, sent: u64, second_of: impl Fn(u64) -> u64) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        for number in self.next.saturating_sub(WINDOW)..self.next {
            self.retire(number, self.is_seen(number), &second_of);
        }
        let (seen, start) = (&self.seen, self.next.saturating_sub(WINDOW));
        self.density.finish(start, |number| {
            let (word, bit) = place(number);
            seen[word] & bit != 0
        });
        if sent > self.next {
            self.gaps.open_end(self.next, sent, self.last_arrival);
            self.lose(self.next, sent, &second_of);
            self.next = sent;
        }
    }

    /// The outages of frames that have left the window; all of them after [`Self::finish`].
    pub fn take_outages(&mut self) -> OutageList {
        std::mem::take(&mut self.outages)
    }

    /// As [`Self::counts`] without the density: cheap enough to be asked ten times a second for thousands of streams.
    pub fn live_counts(&self) -> SequenceCounts {
        SequenceCounts { lost: self.next - self.counts.unique, ..self.counts.clone() }
    }

    /// Counts so far. Before `finish`, `lost` is everything missing below the highest number seen.
    pub fn counts(&self) -> SequenceCounts {
        SequenceCounts { density: self.density.counts(), ..self.live_counts() }
    }

    fn is_seen(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.seen[word] & bit != 0
    }
}

fn place(number: u64) -> (usize, u64) {
    let slot = number % WINDOW;
    (usize::try_from(slot / 64).unwrap_or(0), 1 << (slot % 64))
}
