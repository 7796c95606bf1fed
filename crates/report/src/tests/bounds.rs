//! Figures are judged by their own bounds: what the rig did is never blamed on the device, and never hides what the device did.

use super::*;
use packetrig_plan::criteria::{AcceptanceCriteria, LatencyFigure, LatencyLimit};
use packetrig_stats::jitter::JitterSummary;
use packetrig_stats::latency::Latency;
use packetrig_stats::ledger::{BalanceRuleSide, LedgerImbalance};
use packetrig_stats::outage::{OutageList, StreamOutage};
use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_stats::result::CatchUpBurst;
use packetrig_units::Share;

fn judged(node: NodeResult, criteria: AcceptanceCriteria) -> RunReport {
    judged_with(node, criteria, "")
}

fn judged_with(node: NodeResult, criteria: AcceptanceCriteria, metrics: &str) -> RunReport {
    let facts = RunFacts { criteria, ..facts() };
    assemble_report(&facts, &plan(&["rx0"], metrics), vec![node], RunOutcome::Complete { stopped: false })
}

fn result_of(report: &RunReport, criterion: &str) -> CriterionResult {
    report.judged.iter().find(|line| line.criterion == criterion).unwrap().result
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A run that lost these frames of a stream of 1000 frames/s.
fn run_without(lost: &[(u64, u64)]) -> NodeResult {
    let frames: u64 = lost.iter().map(|(first, last)| last + 1 - first).sum();
    let mut node = node(&[1001 - frames]);
    let mut outages = OutageList::with_limit(16);
    for (first, last) in lost {
        let arrival = |number: u64| Some(at(number + 1));
        let begin = first.checked_sub(1).and_then(arrival);
        let end = (*last < 1000).then(|| at(last + 2));
        outages.push_outage(StreamOutage {
            first: *first,
            last: *last,
            frames: last + 1 - first,
            gaps: 1,
            begin,
            end,
        });
    }
    node.receive[0].outages = outages;
    node
}

#[test]
fn late_departure_fails_no_latency_limit() {
    let mut node = node(&[1001]);
    let mut times = Latency::with_digits(3);
    let mut leaving = Latency::with_digits(2);
    for n in 0..1001 {
        let late = if n < 3 { 20_000_000 } else { 300 };
        times.record_time(Nanos::new(10_000 + late));
        leaving.record_time(Nanos::new(late));
    }
    node.receive[0].latency = Some(times);
    node.send[0].stamp_bound = leaving;
    let criteria = |figure, us| AcceptanceCriteria {
        latency: vec![LatencyLimit { figure, limit: Nanos::from_micros(us) }],
        ..AcceptanceCriteria::default()
    };
    for (figure, name, us, wanted) in [
        (LatencyFigure::Max, "latency max", 400, CriterionResult::Unknown),
        (LatencyFigure::P9999, "latency p99.99", 400, CriterionResult::Unknown),
        (LatencyFigure::Mean, "latency mean", 30, CriterionResult::Unknown),
        (LatencyFigure::P99, "latency p99", 400, CriterionResult::Pass),
        (LatencyFigure::P50, "latency p50", 9, CriterionResult::Fail),
    ] {
        let report = judged(node.clone(), criteria(figure, us));
        assert_eq!(result_of(&report, name), wanted, "{name}: {:?}", report.judged);
    }
}

#[test]
fn jitter_uses_stream_maximum_and_stamp_error() {
    let with = |largest: u64| {
        let mut node = node(&[1001]);
        let rfc3550_max = Nanos::new(largest);
        node.receive[0].jitter =
            Some(JitterSummary { rfc3550_max, samples: 1000, ..JitterSummary::default() });
        let criteria = AcceptanceCriteria { max_jitter: Some(Nanos::from_micros(500)), ..Default::default() };
        result_of(&judged(node, criteria), "jitter")
    };
    assert_eq!(with(2_852_000), CriterionResult::Fail, "whatever it was at the end");
    assert_eq!(with(100_000), CriterionResult::Pass);
    assert_eq!(with(500_200), CriterionResult::Unknown, "stamps are off by up to 700 ns");
}

#[test]
fn rate_counts_distinct_frames_over_planned_time() {
    let criteria = AcceptanceCriteria {
        max_loss: Share::WHOLE_LINK,
        max_duplicates: Share::WHOLE_LINK,
        min_rate: Some("99%".parse().unwrap()),
        ..Default::default()
    };
    let rate = |node: NodeResult| result_of(&judged(node, criteria.clone()), "rate");
    assert_eq!(rate(node(&[1001])), CriterionResult::Pass);
    let mut dead = run_without(&[(500, 1000)]);
    dead.receive[0].counts.last = Some(at(500));
    assert_eq!(rate(dead), CriterionResult::Fail, "half of the time nothing came");
    let mut copied = run_without(&[(10, 109)]);
    copied.receive[0].counts.sequence.duplicates = 100;
    copied.receive[0].counts.frames += 100;
    assert_eq!(rate(copied), CriterionResult::Fail, "copies are not frames delivered");
    // All arrived, but the sender took three times as long as planned.
    let mut late = node(&[1001]);
    late.send[0].counts.last = Some(at(3000));
    late.receive[0].counts.last = Some(at(3001));
    assert_eq!(rate(late.clone()), CriterionResult::Unknown);
    late.send[0].counts.last = Some(at(1000));
    assert_eq!(rate(late.clone()), CriterionResult::Fail, "the device took as long");
    late.send[0].stamp_bound.record_time(ms(2000));
    assert_eq!(rate(late), CriterionResult::Unknown, "the last frame may have left long after its stamp");
}

#[test]
fn final_outage_lasts_until_planned_end() {
    let longest = |lost: &[(u64, u64)]| {
        let mut node = run_without(lost);
        // One frame took long, and receivers listened for longer still.
        node.receive[0].latency = Some(latency(&[1_000_000, 16_000_000]));
        node.ended = at(9_000);
        let report = judged(node, AcceptanceCriteria { max_outage: Some(ms(50)), ..Default::default() });
        report.streams[0].outages.clone().unwrap().longest_length.unwrap()
    };
    let last = longest(&[(1000, 1000)]);
    assert_eq!(last.value, ms(1));
    assert!(last.least <= Nanos::ZERO && last.most < ms(2), "{last:?}");
    let many = longest(&[(876, 1000)]);
    assert_eq!(many.value, ms(125));
    assert!(many.least > ms(123) && many.most < ms(126), "{many:?}");
    assert_eq!(longest(&[(0, 9)]).value, ms(10));
    assert_eq!(longest(&[(500, 509)]).value, ms(11), "between two arrivals");
}

#[test]
fn send_burst_explains_losses_up_to_its_frames() {
    // The frames around each loss arrived within a millisecond: all between them left in a burst.
    let doubtful = |lost: &[(u64, u64)], bursts: &[(u64, u64, u64)]| {
        let mut node = run_without(lost);
        for outage in &mut node.receive[0].outages.outages {
            outage.end = outage.begin.map(|begin| begin + ms(1));
        }
        let burst = |(from, until, frames): &(u64, u64, u64)| CatchUpBurst {
            from: at(*from),
            until: at(*until),
            frames: *frames,
        };
        node.ports[0].sent_ahead = bursts.iter().map(burst).collect();
        let report = judged(node, AcceptanceCriteria::default());
        (report.streams[0].loss.unwrap().in_doubt, result_of(&report, "loss"))
    };
    use CriterionResult::{Fail, Unknown};
    assert_eq!(doubtful(&[(210, 229)], &[]), (0, Fail));
    assert_eq!(doubtful(&[(210, 229)], &[(200, 300, 20)]), (20, Unknown));
    assert_eq!(doubtful(&[(210, 229)], &[(200, 300, 19)]), (19, Fail), "one more than the burst explains");
    assert_eq!(doubtful(&[(210, 219), (230, 239)], &[(200, 300, 15)]), (15, Fail), "each of them once");
    assert_eq!(doubtful(&[(110, 129)], &[(200, 300, 20)]), (0, Fail), "it was lost before");
    assert_eq!(doubtful(&[(810, 829)], &[(200, 300, 20)]), (0, Fail), "it was lost long after");
    // They left as planned: no device that carries the plan drops them, but perhaps the first.
    let mut node = run_without(&[(210, 229)]);
    node.ports[0].sent_ahead = vec![CatchUpBurst { from: at(200), until: at(300), frames: 1000 }];
    let report = judged(node.clone(), AcceptanceCriteria::default());
    assert_eq!((report.streams[0].loss.unwrap().in_doubt, result_of(&report, "loss")), (1, Fail));
    // So they seem to have left if the sender was held up and caught up between the frames around them.
    let stalled = |node: &NodeResult, most_late: u64| {
        let mut node = node.clone();
        node.ports[0].events = vec![PortEvent {
            what: PortEventKind::SenderStalled { most_late: ms(most_late) },
            from: at(200),
            until: Some(at(300)),
            only_sending: true,
        }];
        let report = judged(node, AcceptanceCriteria::default());
        (report.streams[0].loss.unwrap().in_doubt, result_of(&report, "loss"))
    };
    assert_eq!(stalled(&node, 30), (20, Unknown));
    assert_eq!(stalled(&node, 12), (13, Fail), "no more than were due meanwhile");
}

#[test]
fn rx_tx_ratio_two_expects_two_copies() {
    let run = |unique: u64, copies: u64| {
        let mut node = node(&[unique]);
        node.receive[0].counts.sequence.duplicates = copies;
        node.receive[0].counts.frames = unique + copies;
        let report =
            judged_with(node, AcceptanceCriteria::default(), "rx_tx_ratio: {choice: value, value: 2}, ");
        let loss = report.streams[0].loss.unwrap();
        let end_to_end = |wrong: &&LedgerImbalance| wrong.place == BalanceRuleSide::EndToEnd;
        assert_eq!(report.imbalances.iter().find(end_to_end), None);
        (loss.expected, loss.lost, result_of(&report, "loss"), result_of(&report, "duplicates"))
    };
    use CriterionResult::{Fail, Pass};
    assert_eq!(run(1001, 1001), (2002, 0, Pass, Pass));
    assert_eq!(run(1001, 1000), (2002, 1, Fail, Pass));
    assert_eq!(run(1001, 1002), (2002, 0, Pass, Fail));
    assert_eq!(run(1000, 1002), (2002, 2, Fail, Fail), "one never came, and two came too often");
}
