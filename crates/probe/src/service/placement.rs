//! Resolves clashes: packets that are due while the outlet still sends others.
//!
//! The rule, in this order: the burst of higher priority keeps its time; then that of the client that has sent less lately; then the one
//! that is due first; then the one that was handed over first. The loser leaves as soon as the outlet is free for all of it. If that is
//! later than its client allows, it does not leave at all.
//!
//! Invariant: placed bursts do not overlap, and none leaves before it is due.

use packetrig_units::{MonoTime, Nanos};
use std::cmp::Reverse;

/// Time that the outlet takes for a frame, in which no other can leave. A system call that sends a frame takes 5 to 15 us.
pub const FRAME_TIME: Nanos = Nanos::from_micros(15);

/// The order in which bursts choose their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BurstRank {
    pub priority: Reverse<u8>,
    /// Frames that the client has sent lately.
    pub usage: u64,
    pub due: MonoTime,
    /// The order in which bursts were handed over.
    pub order: u64,
}

/// The time that a burst needs the outlet for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstSpan {
    pub rank: BurstRank,
    /// From its first frame to its last one.
    pub length: Nanos,
    /// How much later than due it may leave; `None`: however late.
    pub latest: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BurstPlacement {
    /// It leaves this much later than it is due.
    Later(Nanos),
    /// It would leave later than its client allows.
    Clash,
}

/// A time in which the outlet is taken.
#[derive(Clone, Copy, Debug)]
struct TakenSpan {
    from: MonoTime,
    until: MonoTime,
}

/// Gives each burst its time. Before `free_from` the outlet is taken.
pub fn place(bursts: &[BurstSpan], free_from: MonoTime) -> Vec<BurstPlacement> {
    let mut order: Vec<usize> = (0..bursts.len()).collect();
    order.sort_by_key(|index| bursts[*index].rank);
    let mut taken = vec![TakenSpan { from: MonoTime::default(), until: free_from }];
    let mut placements = vec![BurstPlacement::Clash; bursts.len()];
    for index in order {
        let burst = bursts[index];
        let needs = burst.length + FRAME_TIME;
        let begins = first_gap(&taken, burst.rank.due, needs);
        let later = begins.since(burst.rank.due);
        if burst.latest.is_none_or(|latest| later <= latest) {
            placements[index] = BurstPlacement::Later(later);
            let at = taken.partition_point(|span| span.from <= begins);
            taken.insert(at, TakenSpan { from: begins, until: begins + needs });
        }
    }
    placements
}

/// The first time from `due` on at which the outlet is free for `needs`. `taken` is in the order of time.
fn first_gap(taken: &[TakenSpan], due: MonoTime, needs: Nanos) -> MonoTime {
    let mut begins = due;
    for span in taken {
        if begins + needs <= span.from {
            break;
        }
        begins = begins.max(span.until);
    }
    begins
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn burst(priority: u8, usage: u64, due: u64, length: u64) -> BurstSpan {
        let rank =
            BurstRank { priority: Reverse(priority), usage, due: MonoTime::from_nanos(due), order: due };
        BurstSpan { rank, length: Nanos::new(length), latest: None }
    }

    fn later(us: u64) -> BurstPlacement {
        BurstPlacement::Later(Nanos::from_micros(us))
    }

    #[test]
    fn bursts_that_do_not_meet_leave_on_time() {
        let bursts = [burst(0, 0, 100_000, 10_000), burst(0, 0, 130_000, 0), burst(7, 0, 10_000, 0)];
        assert_eq!(place(&bursts, MonoTime::from_nanos(10_000)), [later(0); 3]);
    }

    #[test]
    fn priority_then_usage_then_time_decide() {
        let free = MonoTime::default();
        assert_eq!(place(&[burst(0, 0, 100_000, 0), burst(1, 9, 105_000, 0)], free), [later(20), later(0)]);
        assert_eq!(place(&[burst(0, 5, 100_000, 0), burst(0, 4, 105_000, 0)], free), [later(20), later(0)]);
        assert_eq!(place(&[burst(0, 4, 105_000, 0), burst(0, 4, 100_000, 0)], free), [later(10), later(0)]);
    }

    #[test]
    fn a_loser_leaves_where_all_of_it_fits() {
        let bursts = [burst(1, 0, 100_000, 0), burst(1, 0, 130_000, 50_000), burst(0, 0, 101_000, 10_000)];
        // Between the first two there are 15 us, and 25 are needed.
        assert_eq!(place(&bursts, MonoTime::default())[2], later(94));
    }

    #[test]
    fn what_would_be_later_than_allowed_does_not_leave_and_takes_no_time() {
        let mut second = burst(0, 1, 100_000, 0);
        second.latest = Some(Nanos::from_micros(10));
        let bursts = [burst(0, 0, 100_000, 0), second, burst(0, 2, 115_000, 0)];
        assert_eq!(place(&bursts, MonoTime::default()), [later(0), BurstPlacement::Clash, later(0)]);
        second.latest = Some(Nanos::from_micros(15));
        assert_eq!(place(&[burst(0, 0, 100_000, 0), second], MonoTime::default())[1], later(15));
    }

    proptest! {
        #[test]
        fn placed_bursts_never_overlap_and_never_leave_early(
            all in prop::collection::vec((0_u8..3, 0_u64..4, 0_u64..500_000, 0_u64..60_000, prop::option::of(0_u64..100_000)), 1..40),
            free in 0_u64..300_000,
        ) {
            let bursts: Vec<_> = all
                .iter()
                .map(|(priority, usage, due, length, latest)| BurstSpan {
                    latest: latest.map(Nanos::new),
                    ..burst(*priority, *usage, *due, *length)
                })
                .collect();
            let mut spans = Vec::new();
            for (burst, placement) in bursts.iter().zip(place(&bursts, MonoTime::from_nanos(free))) {
                if let BurstPlacement::Later(later) = placement {
                    prop_assert!(burst.latest.is_none_or(|latest| later <= latest));
                    let begins = burst.rank.due + later;
                    prop_assert!(begins.as_nanos() >= free);
                    spans.push((begins, begins + burst.length + FRAME_TIME));
                }
            }
            spans.sort();
            prop_assert!(spans.windows(2).all(|two| two[0].1 <= two[1].0));
            let first = bursts.iter().min_by_key(|burst| burst.rank).unwrap();
            if first.rank.due.as_nanos() >= free {
                let at = bursts.iter().position(|burst| burst == first).unwrap();
                prop_assert_eq!(place(&bursts, MonoTime::from_nanos(free))[at], later(0), "the first in rank keeps its time");
            }
        }
    }
}
