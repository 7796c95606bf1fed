use super::*;
use crate::answer::PathFailure;
use crate::{PlannedProbe, ProbeKind, StampSource};
use packetrig_units::{MonoTime, Nanos};

const MS: u64 = 1_000_000;

fn at(ns: u64) -> ProbeStamp {
    ProbeStamp::with_bound(StampSource::Kernel, MonoTime::from_nanos(MS + ns), 10)
}

/// Ten probes, a millisecond apart; the first is flagged, the last was not allowed.
fn series() -> ProbeSeries {
    let mut series = ProbeSeries::new();
    for number in 0..10 {
        let planned =
            PlannedProbe { number, train: number, kind: ProbeKind::Single, at: Nanos::ZERO, length: 60 };
        let leaves = u64::from(number) * MS;
        let mut record = ProbeRecord::from_planned(planned, MonoTime::from_nanos(leaves));
        record.released = Some(at(leaves));
        if number == 0 {
            record.add_flag(ProbeFlag::First);
        }
        if number == 9 {
            record.add_flag(ProbeFlag::Unsent);
        }
        series.add_sent_probe(record);
    }
    series
}

fn reply(number: u32, says: ReplyMeaning, is_sound: bool) -> ProbeReply {
    ProbeReply { number, says, is_sound, far_arrival: None, far_departure: None }
}

#[test]
fn hardware_stamp_keeps_round_trip_available() {
    use crate::{DepartureStage, DepartureStamp, StampClock};
    let planned = PlannedProbe { number: 0, train: 0, kind: ProbeKind::Single, at: Nanos::ZERO, length: 60 };
    let mut record = ProbeRecord::from_planned(planned, MonoTime::from_nanos(0));
    record.released = Some(at(0));
    let wire = ProbeStamp { clock: StampClock::Device(0), ..at(77 * MS) };
    record.departures = vec![
        DepartureStamp { stage: DepartureStage::Driver, stamp: at(100) },
        DepartureStamp { stage: DepartureStage::Wire, stamp: wire },
    ];
    let mut series = ProbeSeries::new();
    series.add_sent_probe(record);
    let meaning = series.add_answer(&reply(0, ReplyMeaning::Echo, true), at(900));
    assert_eq!(meaning, AnswerMeaning::First(Some(MeasuredTime { ns: 800, bound_ns: 20 })));
    assert_eq!(series.summary().rtt.unwrap().min_ns, 800);
}

#[test]
fn every_probe_is_in_one_account() {
    let mut series = series();
    let mut answer = |number: u32, says, is_sound, after: u64| {
        series.add_answer(&reply(number, says, is_sound), at(u64::from(number) * MS + after))
    };
    let echo = ReplyMeaning::Echo;
    assert_eq!(
        answer(0, echo, true, 900),
        AnswerMeaning::First(Some(MeasuredTime { ns: 900, bound_ns: 20 }))
    );
    assert_eq!(answer(0, echo, true, 950), AnswerMeaning::Duplicate);
    assert_eq!(
        answer(2, echo, true, 100),
        AnswerMeaning::First(Some(MeasuredTime { ns: 100, bound_ns: 20 }))
    );
    assert_eq!(
        answer(1, echo, true, 3 * MS),
        AnswerMeaning::First(Some(MeasuredTime { ns: 3_000_000, bound_ns: 20 }))
    );
    assert_eq!(answer(3, echo, false, 100), AnswerMeaning::Corrupted);
    let prohibited = ReplyMeaning::Trouble(PathFailure::Prohibited);
    assert_eq!(answer(4, prohibited, true, 100), AnswerMeaning::Refused);
    assert_eq!(answer(5, prohibited, true, 100), AnswerMeaning::Refused);
    assert_eq!(
        answer(5, echo, true, 300),
        AnswerMeaning::First(Some(MeasuredTime { ns: 300, bound_ns: 20 }))
    );
    assert_eq!(answer(9, echo, true, 100), AnswerMeaning::Stray);
    assert_eq!(answer(77, echo, true, 100), AnswerMeaning::Stray);
    let counts = series.counts();
    let expected = SeriesCounts {
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
    assert_eq!(series.count_losses_after_timeout(4), TimedOutCounts { sent: 4, lost: 1 });
    assert_eq!(series.count_losses_after_timeout(100), TimedOutCounts { sent: 9, lost: 5 });
    let rtt = series.summary().rtt.unwrap();
    // The time of the first probe does not count.
    assert_eq!((rtt.samples, rtt.min_ns, rtt.p50_ns, rtt.max_ns, rtt.bound_ns), (3, 100, 300, 3_000_000, 20));
    assert!(rtt.jitter_ns.is_some());
}

#[test]
fn quantiles_are_values_that_were_seen() {
    let taken: Vec<MeasuredTime> = (1..=100).map(|ns| MeasuredTime { ns, bound_ns: 5 }).collect();
    let times = summarize_times(&taken, None).unwrap();
    assert_eq!((times.p50_ns, times.p95_ns, times.p99_ns, times.max_ns), (50, Some(95), Some(99), 100));
    assert!((times.mean_ns - 50.5).abs() < 1e-9 && (times.mdev_ns - 28.866).abs() < 1e-3);
    assert_eq!(summarize_times(&[], None), None);
}

#[test]
fn stamps_of_two_clocks_give_no_time() {
    let far = ProbeStamp { clock: StampClock::Far, ..at(5) };
    assert_eq!(time_between(at(1), far), None);
    assert_eq!(time_between(far, far), None);
}
