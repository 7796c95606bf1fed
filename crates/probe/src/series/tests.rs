use super::*;
use crate::answer::Trouble;
use crate::{Kind, Planned, Source};
use packetrig_units::{MonoTime, Nanos};

const MS: u64 = 1_000_000;

fn at(ns: u64) -> Stamp {
    Stamp::around(Source::Kernel, MonoTime::from_nanos(MS + ns), 10)
}

/// Ten probes, a millisecond apart; the first is flagged, the last was not allowed.
fn series() -> Series {
    let mut series = Series::new();
    for number in 0..10 {
        let planned = Planned { number, train: number, kind: Kind::Single, at: Nanos::ZERO, length: 60 };
        let leaves = u64::from(number) * MS;
        let mut record = Record::planned(planned, MonoTime::from_nanos(leaves));
        record.released = Some(at(leaves));
        if number == 0 {
            record.flag(Flag::First);
        }
        if number == 9 {
            record.flag(Flag::Unsent);
        }
        series.sent(record);
    }
    series
}

fn reply(number: u32, says: Says, is_sound: bool) -> Reply {
    Reply { number, says, is_sound, far_arrival: None, far_departure: None }
}

#[test]
fn a_cards_own_stamp_does_not_take_the_round_trip_away() {
    use crate::{Clock, Departure, Stage};
    let planned = Planned { number: 0, train: 0, kind: Kind::Single, at: Nanos::ZERO, length: 60 };
    let mut record = Record::planned(planned, MonoTime::from_nanos(0));
    record.released = Some(at(0));
    let wire = Stamp { clock: Clock::Device(0), ..at(77 * MS) };
    record.departures = vec![
        Departure { stage: Stage::Driver, stamp: at(100) },
        Departure { stage: Stage::Wire, stamp: wire },
    ];
    let mut series = Series::new();
    series.sent(record);
    let meaning = series.answered(&reply(0, Says::Echo, true), at(900));
    assert_eq!(meaning, Meaning::First(Some(Took { ns: 800, bound_ns: 20 })));
    assert_eq!(series.summary().rtt.unwrap().min_ns, 800);
}

#[test]
fn every_probe_is_in_one_account() {
    let mut series = series();
    let mut answer = |number: u32, says, is_sound, after: u64| {
        series.answered(&reply(number, says, is_sound), at(u64::from(number) * MS + after))
    };
    let echo = Says::Echo;
    assert_eq!(answer(0, echo, true, 900), Meaning::First(Some(Took { ns: 900, bound_ns: 20 })));
    assert_eq!(answer(0, echo, true, 950), Meaning::Duplicate);
    assert_eq!(answer(2, echo, true, 100), Meaning::First(Some(Took { ns: 100, bound_ns: 20 })));
    assert_eq!(answer(1, echo, true, 3 * MS), Meaning::First(Some(Took { ns: 3_000_000, bound_ns: 20 })));
    assert_eq!(answer(3, echo, false, 100), Meaning::Corrupted);
    let prohibited = Says::Trouble(Trouble::Prohibited);
    assert_eq!(answer(4, prohibited, true, 100), Meaning::Refused);
    assert_eq!(answer(5, prohibited, true, 100), Meaning::Refused);
    assert_eq!(answer(5, echo, true, 300), Meaning::First(Some(Took { ns: 300, bound_ns: 20 })));
    assert_eq!(answer(9, echo, true, 100), Meaning::Stray);
    assert_eq!(answer(77, echo, true, 100), Meaning::Stray);
    let counts = series.counts();
    let expected = Counts {
        sent: 9,
        unsent: 1,
        answered: 4,
        refused: 1,
        lost: 4,
        duplicates: 1,
        reordered: 1,
        corrupted: 1,
    };
    assert_eq!(counts, expected);
    assert_eq!(counts.sent, counts.answered + counts.refused + counts.lost);
    assert_eq!(series.losses(4), (4, 1));
    assert_eq!(series.losses(100), (9, 5));
    let rtt = series.summary().rtt.unwrap();
    // Without that of the first probe.
    assert_eq!((rtt.samples, rtt.min_ns, rtt.p50_ns, rtt.max_ns, rtt.bound_ns), (3, 100, 300, 3_000_000, 20));
    assert!(rtt.jitter_ns.is_some());
}

#[test]
fn quantiles_are_values_that_were_seen() {
    let taken: Vec<Took> = (1..=100).map(|ns| Took { ns, bound_ns: 5 }).collect();
    let times = times(&taken, None).unwrap();
    assert_eq!((times.p50_ns, times.p95_ns, times.p99_ns, times.max_ns), (50, 95, 99, 100));
    assert!((times.mean_ns - 50.5).abs() < 1e-9 && (times.mdev_ns - 28.866).abs() < 1e-3);
    assert_eq!(super::times(&[], None), None);
}

#[test]
fn stamps_of_two_clocks_give_no_time() {
    let far = Stamp { clock: Clock::Far, ..at(5) };
    assert_eq!(took(at(1), far), None);
    assert_eq!(took(far, far), None);
}
