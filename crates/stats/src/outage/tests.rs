use super::*;
use proptest::prelude::*;

fn at(ms: u64) -> MonoTime {
    MonoTime::from_nanos(ms * 1_000_000)
}

fn outage(first: u64, last: u64, begin: u64, end: u64) -> StreamOutage {
    StreamOutage {
        first,
        last,
        frames: last + 1 - first,
        gaps: 1,
        begin: Some(at(begin)),
        end: Some(at(end)),
    }
}

#[test]
fn full_outage_list_merges_and_keeps_longest_gap() {
    let mut list = OutageList::with_limit(4);
    for n in 0..9 {
        let length = if n == 1 { 7 } else { 2 };
        list.push_outage(outage(10 * n, 10 * n, 10 * n, 10 * n + length));
    }
    assert!(list.outages.len() <= 4);
    assert_eq!((list.gaps, list.outages.iter().map(|o| o.frames).sum::<u64>()), (9, 9));
    assert_eq!(list.longest, Some(Nanos::from_millis(7)));
    assert_eq!(list.outages[0].length(), None, "frames arrived between its first and last lost frame");
}

#[test]
fn late_filled_gap_keeps_its_surrounding_arrivals() {
    let mut gaps = OpenGaps::new();
    gaps.open_gap(10, 20, Some(at(9)), at(20));
    gaps.open_gap(30, 31, Some(at(29)), at(31));
    assert_eq!(gaps.take_outage_of_lost_frames(12, 15), outage(12, 15, 9, 20));
    assert_eq!(gaps.take_outage_of_lost_frames(30, 30), outage(30, 30, 29, 31));
    let tail = gaps.take_outage_of_lost_frames(40, 49);
    assert_eq!((tail.begin, tail.end, tail.frames), (None, None, 10));
}

/// A device that drops every other frame has more gaps than can be kept.
#[test]
fn longest_of_many_gaps_keeps_its_arrivals() {
    const GAPS: u64 = 1500;
    let mut gaps = OpenGaps::new();
    let mut list = OutageList::with_limit(4);
    let arrival = |number: u64| at(number + if number > 2 * 1400 { 50 } else { 0 });
    for n in 1..GAPS {
        gaps.open_gap(2 * n, 2 * n + 1, Some(arrival(2 * n - 1)), arrival(2 * n + 1));
    }
    for n in 1..GAPS {
        list.push_outage(gaps.take_outage_of_lost_frames(2 * n, 2 * n));
    }
    assert_eq!(list.longest, Some(Nanos::from_millis(52)));
}

proptest! {
    #[test]
    fn no_lost_frame_is_forgotten(gaps in prop::collection::vec((1u64..5, 1u64..5), 0..200), room in 2usize..20) {
        let mut list = OutageList::with_limit(room);
        let (mut number, mut lost) = (0, 0);
        for (arrived, missing) in &gaps {
            let first = number + arrived;
            number = first + missing;
            lost += missing;
            list.push_outage(outage(first, number - 1, first - 1, number));
        }
        prop_assert_eq!(list.outages.iter().map(|o| o.frames).sum::<u64>(), lost);
        prop_assert_eq!(list.gaps, gaps.len() as u64);
        prop_assert_eq!(list.longest, gaps.iter().map(|(_, missing)| Nanos::from_millis(missing + 1)).max());
        prop_assert!(list.outages.is_sorted_by(|a, b| a.last < b.first));
    }
}
