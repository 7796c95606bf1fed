//! Reorder density (RFC 5236): how far frames arrive from their position in the order of all frames that arrive.
//!
//! The k-th arrival is assigned the k-th smallest number that arrives (lost numbers are skipped); its
//! displacement is the assigned number minus its own number. Which numbers arrive is known only a little
//! later, so arrivals wait in a ring of [`DENSITY_THRESHOLD`] frames. A frame that is later than that counts
//! as lost here, as the threshold of the RFC says.

use packetrig_units::clamp_to_usize;
use std::collections::BTreeMap;

const DENSITY_THRESHOLD: usize = 64;
/// The threshold as a displacement.
const FARTHEST_DISPLACEMENT: i32 = 64;
const DISPLACEMENT_SLOTS: usize = 2 * DENSITY_THRESHOLD + 1;

#[derive(Clone, Debug)]
pub(super) struct ReorderDensity {
    waiting: Box<[u64; DENSITY_THRESHOLD]>,
    /// Number of arrivals that have been added to `waiting` so far.
    taken: usize,
    judged: usize,
    /// All sequence numbers below this are assigned to an arrival or skipped as lost.
    next: u64,
    /// Highest sequence number so far, plus one.
    end: u64,
    /// Number of frames, indexed by displacement + `DENSITY_THRESHOLD`.
    frames: Box<[u64; DISPLACEMENT_SLOTS]>,
}

impl ReorderDensity {
    pub(super) fn new() -> Self {
        Self {
            waiting: Box::new([0; DENSITY_THRESHOLD]),
            taken: 0,
            judged: 0,
            next: 0,
            end: 0,
            frames: Box::new([0; DISPLACEMENT_SLOTS]),
        }
    }

    pub(super) fn on_arrival(&mut self, number: u64, window_start: u64, has_arrived: impl Fn(u64) -> bool) {
        // A frame later than the threshold remains lost here, because its number was skipped.
        if number < self.next {
            return;
        }
        // Lower numbers may still arrive. So an arrival is judged only after `DENSITY_THRESHOLD` more arrivals;
        // frames that arrive even later count as lost.
        if self.taken - self.judged == DENSITY_THRESHOLD {
            self.count_oldest_displacement(window_start, &has_arrived);
        }
        self.end = self.end.max(number + 1);
        self.waiting[self.taken % DENSITY_THRESHOLD] = number;
        self.taken += 1;
    }

    fn count_oldest_displacement(&mut self, window_start: u64, has_arrived: &impl Fn(u64) -> bool) {
        let oldest = self.waiting[self.judged % DENSITY_THRESHOLD];
        self.judged += 1;
        self.skip_lost_numbers(window_start, has_arrived);
        // A displacement of d is counted in slot `DENSITY_THRESHOLD` + d; larger ones are counted in the
        // first or last slot.
        let late = clamp_to_usize(self.next.saturating_sub(oldest)).min(DENSITY_THRESHOLD);
        let early = clamp_to_usize(oldest.saturating_sub(self.next)).min(DENSITY_THRESHOLD);
        // One of the two is always 0.
        self.frames[DENSITY_THRESHOLD + late - early] += 1;
        self.next += 1;
    }

    /// Moves `next` to the next number that has arrived. There is one: each arrival that was judged before has been
    /// assigned one number, and the arrival that is being judged has none yet. Of the numbers below the start of the
    /// window, only those of the waiting frames are known to have arrived.
    fn skip_lost_numbers(&mut self, window_start: u64, has_arrived: &impl Fn(u64) -> bool) {
        // At most 64 frames wait and the window is far longer, so the window's start has passed `next` only
        // after a long gap.
        if self.next < window_start {
            let waiting = (self.judged - 1..self.taken).map(|i| self.waiting[i % DENSITY_THRESHOLD]);
            let lowest = waiting.filter(|number| *number >= self.next).min();
            self.next = lowest.unwrap_or(window_start).min(window_start);
        }
        while self.next >= window_start && self.next < self.end && !has_arrived(self.next) {
            self.next += 1;
        }
    }

    pub(super) fn finish_stream(&mut self, window_start: u64, has_arrived: impl Fn(u64) -> bool) {
        while self.judged < self.taken {
            self.count_oldest_displacement(window_start, &has_arrived);
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<i32, u64> {
        (-FARTHEST_DISPLACEMENT..)
            .zip(self.frames.iter().copied())
            .filter(|(_, frames)| *frames > 0)
            .collect()
    }
}
