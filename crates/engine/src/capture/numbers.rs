//! Counts the missing copies of frames that a tap sends to a log. The numbers in the trailers that the tap appends to
//! the copies show the gaps, separately for each direction.
//!
//! The tap numbers its copies from 1 without a gap. If a number is missing between two that arrive, the copy was lost
//! between the tap and this log. If numbers are missing between two runs of the log, the tap sent the copies while no
//! log ran. A tap that restarts numbers its copies from 1 again, which shows as a lower number at a later time. Copies
//! before the first number that ever arrived may have had another receiver, so they are not counted here. The counters
//! of the tap itself include them.
//!
//! Invariant, for a tap that did not restart: `last = first - 1 + seen + missing + absent`.

use packetrig_stats::sequence::{SequenceArrival, SequenceWindow};
use packetrig_units::MonoTime;
use packetrig_wire::trailer::TapTrailer;
use serde::{Deserialize, Serialize};

/// A tap has restarted if a frame's number is not higher than the last one and its time is later by more than this.
const SEQUENCE_RESTART_AGE_NS: u64 = 1_000_000_000;

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedDirection {
    /// First number from which gaps count: the first that ever arrived, or 1 after a restart of the tap.
    pub first: u64,
    /// Highest number since the last restart of the tap.
    pub last: u64,
    /// Time at which the frame with the highest number arrived at the tap, nanoseconds since 1970.
    pub last_at_ns: u64,
    /// Distinct numbers that arrived, over all restarts of the tap.
    pub seen: u64,
    /// Numbers missing while a log ran.
    pub missing: u64,
    /// Numbers missing between two runs of the log: the tap sent the copies while no log ran.
    pub absent: u64,
    /// Numbers that arrived more than once.
    pub duplicates: u64,
    /// Frames that arrived after one with a higher number.
    pub late: u64,
    /// Restarts of the tap.
    pub anew: u64,
}

/// Counters of both directions; `None` until a frame of that direction has arrived.
pub type TapNumbers = [Option<NumberedDirection>; 2];

#[derive(Debug)]
pub struct TrailerCounter {
    directions: [DirectionState; 2],
}

#[derive(Debug, Default)]
struct DirectionState {
    /// Counters from before the window began.
    before: Option<NumberedDirection>,
    window: Option<SequenceWindow>,
    /// The tap's number that the window counts as zero.
    base: u64,
    last: u64,
    last_at_ns: u64,
}

impl TrailerCounter {
    /// Creates a counter that continues from `known`, the counters of earlier runs of the log.
    pub fn new(known: TapNumbers) -> Self {
        Self { directions: known.map(|before| DirectionState { before, ..DirectionState::default() }) }
    }

    /// Counts the trailer of a frame.
    pub fn count_trailer(&mut self, trailer: &TapTrailer) {
        // A tap counts from 1. Trailers come from the wire, so a frame of another sender may have any number.
        if trailer.number == 0 {
            return;
        }
        if let Some(direction) = self.directions.get_mut(usize::from(trailer.direction)) {
            direction.count_number(trailer.number, trailer.at_ns);
        }
    }

    /// Returns the counters up to now.
    pub fn tap_numbers(&self) -> TapNumbers {
        [self.directions[0].counters_so_far(), self.directions[1].counters_so_far()]
    }
}

impl DirectionState {
    fn count_number(&mut self, number: u64, at_ns: u64) {
        // A lower number alone is only a late frame: copies overtake each other in mirrors and switches. After a
        // restart of the tap the time is much later, too.
        let known = if self.window.is_some() {
            (self.last, self.last_at_ns)
        } else {
            self.last_known_number_and_time()
        };
        let is_anew = number <= known.0 && at_ns > known.1.saturating_add(SEQUENCE_RESTART_AGE_NS);
        if self.window.is_none() || is_anew {
            self.start_window(number, is_anew);
        }
        // The window counts from zero at `base`, the first number of this run of the tap or of the log.
        let Some(window) = &mut self.window else { return };
        // A number below `base` belongs to a copy from before the window. It is not counted.
        let arrival =
            number.checked_sub(self.base).map(|index| window.on_arrival(index, MonoTime::default(), |_| 0));
        if matches!(arrival, Some(SequenceArrival::New)) {
            self.last = number;
            self.last_at_ns = self.last_at_ns.max(at_ns);
        }
    }

    fn last_known_number_and_time(&self) -> (u64, u64) {
        self.before.map_or((0, 0), |before| (before.last, before.last_at_ns))
    }

    /// Starts a new window whose first number is `number`.
    fn start_window(&mut self, number: u64, is_anew: bool) {
        let mut before = self.counters_so_far();
        if let Some(before) = &mut before {
            if is_anew {
                // The tap restarted with 1, either while this log ran or while none did.
                before.anew += 1;
                before.first = 1;
                let gap = if self.window.is_some() { &mut before.missing } else { &mut before.absent };
                // The restarted tap counted from 1, so everything below the first number seen was sent
                // and did not arrive.
                *gap = gap.saturating_add(number - 1);
            } else {
                let absent = number.saturating_sub(before.last.saturating_add(1));
                before.absent = before.absent.saturating_add(absent);
            }
        }
        *self = Self { before, window: Some(SequenceWindow::new()), base: number, last: 0, last_at_ns: 0 };
    }

    fn counters_so_far(&self) -> Option<NumberedDirection> {
        let Some(window) = &self.window else { return self.before };
        let counts = window.live_counts();
        let before = self
            .before
            .unwrap_or_else(|| NumberedDirection { first: self.base, ..NumberedDirection::default() });
        // The window is added to the counters from before it, so a restarted log or tap loses no history.
        Some(NumberedDirection {
            last: self.last,
            last_at_ns: self.last_at_ns,
            seen: before.seen + counts.unique,
            missing: before.missing + counts.lost,
            duplicates: before.duplicates + counts.duplicates,
            late: before.late + counts.reordered + counts.stale,
            ..before
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// One direction after these numbers, a millisecond apart from `at_ns` on.
    fn after(known: TapNumbers, at_ns: u64, numbers: impl IntoIterator<Item = u64>) -> TapNumbers {
        let mut counter = TrailerCounter::new(known);
        for (index, number) in numbers.into_iter().enumerate() {
            let at_ns = at_ns + index as u64 * 1_000_000;
            counter.count_trailer(&TapTrailer { direction: 1, full_len: 60, number, at_ns });
        }
        assert_eq!(counter.tap_numbers()[0], known[0]);
        counter.tap_numbers()
    }

    fn rule(numbered: NumberedDirection) {
        assert_eq!(numbered.last, numbered.first - 1 + numbered.seen + numbered.missing + numbered.absent);
    }

    #[test]
    fn gaps_are_missing_and_late_ones_are_not() {
        let known = after([None; 2], SECOND, [5, 6, 8, 7, 10, 10, 12])[1].unwrap();
        assert_eq!((known.first, known.last, known.seen, known.missing), (5, 12, 6, 2));
        assert_eq!((known.duplicates, known.late, known.absent, known.anew), (1, 1, 0, 0));
        rule(known);
    }

    #[test]
    fn gap_between_log_runs_counts_as_absent() {
        let first = after([None; 2], SECOND, 1..=100);
        let known = after(first, 5 * SECOND, [121, 122, 124])[1].unwrap();
        assert_eq!((known.first, known.seen, known.missing, known.absent, known.anew), (1, 103, 1, 20, 0));
        rule(known);
    }

    #[test]
    fn forged_trailer_numbers_do_not_overflow_accounts() {
        let first = after([None; 2], SECOND, 1..=100);
        assert_eq!(after(first, 9 * SECOND, [0])[1], first[1], "no tap sends a 0");
        let known = after(first, 9 * SECOND, [u64::MAX, u64::MAX, 1])[1].unwrap();
        assert!(known.absent > 1 << 63, "{known:?}");
    }

    #[test]
    fn restarted_tap_counts_no_gap_or_duplicate() {
        let first = after([None; 2], SECOND, 1..=100);
        let known = after(first, 9 * SECOND, [1, 2, 4])[1].unwrap();
        assert_eq!((known.first, known.last, known.seen, known.missing), (1, 4, 103, 1));
        assert_eq!((known.duplicates, known.absent, known.anew), (0, 0, 1));
        let known = after(first, 9 * SECOND, [4, 5])[1].unwrap();
        assert_eq!((known.first, known.absent, known.missing, known.anew), (1, 3, 0, 1), "nobody logged");
        let mut counter = TrailerCounter::new([None; 2]);
        for (number, at_ns) in
            [(1, SECOND), (2, SECOND + 1), (3, 9 * SECOND - 1), (2, 11 * SECOND), (3, 11 * SECOND)]
        {
            counter.count_trailer(&TapTrailer { direction: 0, full_len: 60, number, at_ns });
        }
        let known = counter.tap_numbers()[0].unwrap();
        assert_eq!((known.seen, known.missing, known.duplicates, known.anew, known.last), (5, 1, 0, 1, 3));
    }
}
