//! Departure times of trains through the outlet, and the resolution of clashes between trains. The *outlet* is the
//! release mechanism that all clients share: it sends one frame at a time.
//!
//! If trains clash, these rules apply in this order: the train with higher priority keeps its time; then the
//! train of the user with less recent traffic; then the train of the client with less recent traffic; then
//! the train that is due first; then the train that was handed over first. The other train leaves as soon as
//! there is a gap for the whole train. If that is later than its client allows, it does not leave at all. A
//! train with a reserved time keeps it.
//!
//! Invariant: reserved times do not overlap, and no train leaves before it is due.

use packetrig_units::{MonoTime, Nanos};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Time that the outlet needs for a frame; no other frame can leave during it. A system call that sends a
/// frame takes 5 to 15 us.
const SEND_TIME_PER_FRAME: Nanos = Nanos::from_micros(15);
/// If two frames of a train are closer together than this, no frame of another train leaves between them.
const TRAIN_JOIN_DISTANCE: Nanos = Nanos::from_micros(200);
/// Maximum number of departure times that are tried for a train. If none of them is free, the train is
/// refused because of the clash.
const MAX_TRIES: usize = 1_000;

/// Rank of a train: trains choose their departure times in the order of this rank, the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TrainPriority {
    pub priority: Reverse<u8>,
    /// Frames that all clients of its user have sent lately.
    pub usage_of_user: u64,
    /// Frames that the client has sent lately.
    pub usage: u64,
    pub due: MonoTime,
    /// The order in which trains were handed over.
    pub order: u64,
}

/// A time span in which the outlet sends frames of one train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TrainTimeSpan {
    from: MonoTime,
    until: MonoTime,
}

/// A departure time at which a train meets no other train.
#[derive(Debug)]
pub struct FreeDepartureTime {
    /// Time spans of the train's frames if it left when it is due; `delay` moves all of them.
    spans: Vec<TrainTimeSpan>,
    delay: Nanos,
}

impl FreeDepartureTime {
    /// Difference between the departure time of the train and its due time.
    pub const fn delay(&self) -> Nanos {
        self.delay
    }
}

/// The reserved times of the outlet.
#[derive(Debug)]
pub struct ReleaseCalendar {
    /// The end of each reserved span, by its beginning.
    reserved: BTreeMap<MonoTime, MonoTime>,
    together: Nanos,
}

impl ReleaseCalendar {
    /// Makes a calendar for a mechanism that keeps the time of each frame.
    pub const fn new() -> Self {
        Self { reserved: BTreeMap::new(), together: TRAIN_JOIN_DISTANCE }
    }

    /// Makes a calendar for a mechanism that sends each train back to back: no frame of another train leaves within it.
    pub const fn for_whole_trains() -> Self {
        Self { reserved: BTreeMap::new(), together: Nanos::from_secs(3_600) }
    }

    /// Forgets reserved times that are over.
    pub fn forget_past_times(&mut self, now: MonoTime) {
        // Reserved times do not overlap, so the times that begin first also end first.
        while let Some(first) = self.reserved.first_entry().filter(|first| *first.get() <= now) {
            first.remove();
        }
    }

    /// Finds the first time from `earliest` on at which all frames of a train can leave with their distances. `due`
    /// contains the due times of the frames in order. `None` if the time would be more than `latest` after the train is
    /// due, or after too many clashes. Nothing is reserved, so that a train that its target's limits refuse takes no
    /// time from other trains.
    pub fn find_free_departure(
        &self,
        due: &[MonoTime],
        earliest: MonoTime,
        latest: Option<Nanos>,
    ) -> Option<FreeDepartureTime> {
        let spans = self.group_train_into_spans(due);
        let mut delay = earliest.since(*due.first()?);
        // The number of tries is limited, because a client could fill the calendar so that every try meets
        // another train.
        for _ in 0..MAX_TRIES {
            if latest.is_some_and(|latest| delay > latest) {
                return None;
            }
            let Some(more) = spans.iter().find_map(|span| self.compute_delay_past_clash(*span, delay)) else {
                return Some(FreeDepartureTime { spans, delay });
            };
            // After one reserved span, the train may meet the next one.
            delay += more;
        }
        None
    }

    /// Reserves a time. The caller must have found it after the last reservation; otherwise it may be taken.
    pub fn reserve_departure_time(&mut self, time: FreeDepartureTime) {
        let FreeDepartureTime { spans, delay } = time;
        self.reserved.extend(spans.into_iter().map(|span| (span.from + delay, span.until + delay)));
    }

    /// Divides a train into the time spans that must be free of other trains.
    fn group_train_into_spans(&self, due: &[MonoTime]) -> Vec<TrainTimeSpan> {
        let groups = due.chunk_by(|one, next| next.since(*one) < self.together);
        groups
            .filter_map(|group| {
                Some(TrainTimeSpan { from: *group.first()?, until: *group.last()? + SEND_TIME_PER_FRAME })
            })
            .collect()
    }

    /// Extra delay that moves a span, already `later` than due, past the last reserved span that it overlaps; `None`
    /// if it overlaps none.
    fn compute_delay_past_clash(&self, span: TrainTimeSpan, later: Nanos) -> Option<Nanos> {
        let TrainTimeSpan { from, until } = span;
        // Reserved spans do not overlap, so the last one that begins before the end of this one ends last.
        let (_, reserved_until) = self.reserved.range(..until + later).next_back()?;
        let more = reserved_until.since(from + later);
        (more > Nanos::ZERO).then_some(more)
    }
}

impl Default for ReleaseCalendar {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> MonoTime {
        MonoTime::from_nanos(us * 1_000)
    }

    /// Reserves the first free time for a train. Returns how much later than due it leaves.
    fn reserve_train(
        calendar: &mut ReleaseCalendar,
        due: &[MonoTime],
        earliest: MonoTime,
        latest: Option<Nanos>,
    ) -> Option<Nanos> {
        let time = calendar.find_free_departure(due, earliest, latest)?;
        let delay = time.delay();
        calendar.reserve_departure_time(time);
        Some(delay)
    }

    /// Microseconds by which each of these trains leaves later, in the order of their reservations.
    fn later(calendar: &mut ReleaseCalendar, trains: &[&[u64]]) -> Vec<Option<u64>> {
        let reserve = |due: &&[u64]| {
            let due: Vec<_> = due.iter().map(|us| at(*us)).collect();
            reserve_train(calendar, &due, at(0), None).map(|later| later.as_u64() / 1_000)
        };
        trains.iter().map(reserve).collect()
    }

    #[test]
    fn trains_that_do_not_meet_leave_on_time() {
        let mut calendar = ReleaseCalendar::new();
        assert_eq!(later(&mut calendar, &[&[100, 110], &[125], &[85], &[1_000]]), [Some(0); 4]);
    }

    #[test]
    fn second_train_leaves_in_first_sufficient_gap() {
        let mut calendar = ReleaseCalendar::new();
        // The gap from 115 to 140 has room for one frame of 15 us and not for a pair that takes 30.
        assert_eq!(later(&mut calendar, &[&[100], &[140], &[101, 116]]), [Some(0), Some(0), Some(54)]);
        assert_eq!(later(&mut calendar, &[&[101]]), [Some(14)]);
    }

    #[test]
    fn other_frames_fit_into_train_pauses_not_bursts() {
        let sparse: Vec<u64> = (0..10).map(|n| n * 1_000).collect();
        let dense: Vec<u64> = (0..10).map(|n| n * 100).collect();
        assert_eq!(later(&mut ReleaseCalendar::new(), &[&sparse, &[500]]), [Some(0), Some(0)]);
        assert_eq!(later(&mut ReleaseCalendar::new(), &[&dense, &[450]]), [Some(0), Some(465)]);
        let mut whole = ReleaseCalendar::for_whole_trains();
        assert_eq!(later(&mut whole, &[&sparse, &[500]]), [Some(0), Some(8_515)]);
    }

    #[test]
    fn refused_late_train_reserves_no_time() {
        let mut calendar = ReleaseCalendar::new();
        reserve_train(&mut calendar, &[at(100)], at(0), None).unwrap();
        assert_eq!(reserve_train(&mut calendar, &[at(100)], at(0), Some(Nanos::from_micros(14))), None);
        assert_eq!(reserve_train(&mut calendar, &[at(115)], at(0), None), Some(Nanos::ZERO));
        assert_eq!(
            reserve_train(&mut calendar, &[at(50)], at(70), Some(Nanos::from_micros(10))),
            None,
            "it is overdue"
        );
        assert_eq!(reserve_train(&mut calendar, &[at(50)], at(70), None), Some(Nanos::from_micros(20)));
    }

    #[test]
    fn time_that_is_only_found_stays_free() {
        let mut calendar = ReleaseCalendar::new();
        assert_eq!(calendar.find_free_departure(&[at(100)], at(0), None).unwrap().delay(), Nanos::ZERO);
        assert_eq!(reserve_train(&mut calendar, &[at(100)], at(0), None), Some(Nanos::ZERO));
    }

    #[test]
    fn past_reservations_are_forgotten() {
        let mut calendar = ReleaseCalendar::new();
        reserve_train(&mut calendar, &[at(100)], at(0), None).unwrap();
        calendar.forget_past_times(at(114));
        assert_eq!(calendar.reserved.len(), 1);
        calendar.forget_past_times(at(115));
        assert!(calendar.reserved.is_empty());
    }

    proptest! {
        #[test]
        fn reserved_times_never_overlap_and_none_is_early(
            trains in prop::collection::vec((0_u64..20_000, prop::collection::vec(0_u64..600, 0..6)), 1..40),
            earliest in 0_u64..5_000,
        ) {
            let mut calendar = ReleaseCalendar::new();
            let mut sent: Vec<MonoTime> = Vec::new();
            for (first, gaps) in &trains {
                let mut due = vec![at(*first)];
                for gap in gaps {
                    due.push(*due.last().unwrap() + Nanos::from_micros(*gap));
                }
                let later = reserve_train(&mut calendar, &due, at(earliest), None).unwrap();
                prop_assert!(due[0] + later >= at(earliest));
                // Frames of one train may be nearer to each other than the outlet takes; trains may not.
                for other in &sent {
                    for frame in &due {
                        let frame = *frame + later;
                        let apart = frame.since(*other).max(other.since(frame));
                        prop_assert!(apart >= SEND_TIME_PER_FRAME, "{apart}");
                    }
                }
                sent.extend(due.iter().map(|frame| *frame + later));
            }
        }
    }
}
