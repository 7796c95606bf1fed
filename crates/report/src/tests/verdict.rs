//! Blame on the device: faults of the rig, of the device, and of both.

use super::*;
use packetrig_stats::content::ContentCounts;
use packetrig_stats::outage::{OutageList, StreamOutage};
use packetrig_stats::port_event::{PortEvent, PortEventKind};
use packetrig_stats::ranges::NumberRanges;
use packetrig_stats::result::{CaptureResult, MisdeliveredFrames};
use proptest::prelude::*;

/// Frames `first..=last` of the stream of 1000 frames/s are lost.
fn outage(first: u64, last: u64) -> StreamOutage {
    let arrival = |number: u64| Some(at(number + 1));
    let begin = first.checked_sub(1).and_then(arrival);
    StreamOutage { first, last, frames: last + 1 - first, gaps: 1, begin, end: arrival(last + 1) }
}

fn event(what: PortEventKind, from: u64, until: u64) -> PortEvent {
    PortEvent { what, from: at(from), until: Some(at(until)), only_sending: false }
}

/// A run that lost these frames, with these events at the sending and the receiving port.
fn run_with(lost: &[(u64, u64)], sending: Vec<PortEvent>, receiving: Vec<PortEvent>) -> NodeResult {
    let frames: u64 = lost.iter().map(|(first, last)| last + 1 - first).sum();
    let mut node = node(&[1001 - frames]);
    let mut outages = OutageList::with_limit(16);
    for (first, last) in lost {
        outages.push_outage(outage(*first, *last));
    }
    node.receive[0].outages = outages;
    node.ports[0].events = sending;
    node.ports[1].events = receiving;
    node
}

fn kernel_report_from(node: NodeResult) -> RunReport {
    assemble_report(&facts(), &plan(&["rx0"], ""), vec![node], RunOutcome::Complete { stopped: false })
}

fn verdict_of(node: NodeResult) -> &'static str {
    kernel_report_from(node).verdict.as_str()
}

#[test]
fn losses_in_rig_fault_times_are_inconclusive() {
    use PortEventKind::{CarrierLost, Declared, SwitchedDown};
    let cases = [
        (&[][..], vec![event(SwitchedDown, 100, 200)], "PASS"),
        (&[(110, 190)], vec![], "FAIL"),
        (&[(110, 190)], vec![event(SwitchedDown, 100, 200)], "INCONCLUSIVE"),
        (&[(110, 190)], vec![event(CarrierLost, 100, 200)], "INCONCLUSIVE"),
        (&[(110, 190)], vec![event(Declared, 100, 200)], "FAIL"),
        (&[(110, 190), (500, 500)], vec![event(SwitchedDown, 100, 200)], "FAIL"),
        // It began before the link went down.
        (&[(50, 190)], vec![event(SwitchedDown, 100, 200)], "FAIL"),
        // It went on after the link was back.
        (&[(110, 400)], vec![event(SwitchedDown, 100, 200)], "INCONCLUSIVE"),
    ];
    for (lost, events, wanted) in cases {
        assert_eq!(verdict_of(run_with(lost, events.clone(), vec![])), wanted, "sending {lost:?} {events:?}");
        assert_eq!(
            verdict_of(run_with(lost, vec![], events.clone())),
            wanted,
            "receiving {lost:?} {events:?}"
        );
    }
}

#[test]
fn verdict_names_port_without_carrier() {
    let dark = |from, until| PortEvent { until, ..event(PortEventKind::CarrierLost, from, 0) };
    let first_reason = |lost, sending, receiving| {
        let report = kernel_report_from(run_with(lost, sending, receiving));
        assert_eq!(report.verdict.as_str(), "INCONCLUSIVE");
        report.verdict.reasons()[0].clone()
    };
    let from_start = first_reason(&[(0, 1000)], vec![dark(0, None)], vec![]);
    assert!(from_start.contains(": no carrier from the start to the end of the run"), "{from_start}");
    let within = first_reason(&[(110, 190)], vec![], vec![dark(100, Some(at(200)))]);
    assert!(within.contains(": no carrier from 100ms to 200ms"), "{within}");
    // A link that cost nothing is no reason.
    assert_eq!(verdict_of(run_with(&[], vec![dark(100, Some(at(200)))], vec![])), "PASS");
}

/// A frame that the device holds back may be lost long after the frames around it in the order of sending.
#[test]
fn reordering_extends_doubt_by_frame_delay() {
    let verdict = |reordered: u64, delay: u64| {
        let down = event(PortEventKind::SwitchedDown, 100, 200);
        let mut node = run_with(&[(80, 80)], vec![], vec![down]);
        let mut times = Latency::with_digits(3);
        times.record_time(Nanos::from_millis(delay));
        node.receive[0].latency = Some(times);
        node.receive[0].counts.sequence.reordered = reordered;
        verdict_of(node)
    };
    assert_eq!(verdict(0, 30), "FAIL");
    assert_eq!(verdict(5, 30), "INCONCLUSIVE");
    assert_eq!(verdict(5, 10), "FAIL");
}

#[test]
fn stalled_sender_casts_doubt_beyond_tolerance() {
    let stalled = |ms| {
        let what = PortEventKind::SenderStalled { most_late: Nanos::from_millis(ms) };
        vec![PortEvent { only_sending: true, ..event(what, 100, 200) }]
    };
    assert_eq!(verdict_of(run_with(&[(110, 190)], stalled(150), vec![])), "FAIL");
    assert_eq!(verdict_of(run_with(&[(110, 190)], stalled(250), vec![])), "INCONCLUSIVE");
    let mut late = node(&[1001]);
    late.send[0].send_error = latency(&[1000, 2_000_000_000]);
    assert_eq!(verdict_of(late), "INCONCLUSIVE");
}

#[test]
fn unsent_interface_frames_are_not_blamed_on_device() {
    let vanished = |frames: u64| {
        let mut node = run_with(&[(110, 190)], vec![], vec![]);
        node.ports[0].tx.on_wire = Some(1001 - frames);
        node
    };
    assert_eq!(verdict_of(vanished(0)), "FAIL");
    assert_eq!(verdict_of(vanished(40)), "FAIL", "41 of 81 are the device's all the same");
    assert_eq!(verdict_of(vanished(81)), "INCONCLUSIVE");
    // Drops while the link was down explain no loss at another time.
    let mut both =
        run_with(&[(110, 190), (500, 509)], vec![event(PortEventKind::SwitchedDown, 100, 200)], vec![]);
    both.ports[0].tx.on_wire = Some(1001 - 81);
    assert_eq!(verdict_of(both), "FAIL");
}

#[test]
fn unseen_arrivals_during_link_down_doubted_once() {
    let down = || vec![event(PortEventKind::SwitchedDown, 400, 500)];
    let unseen = |frames: u64, ring_dropped| {
        let mut node = run_with(&[(110, 190), (410, 490)], vec![], down());
        let rx = &mut node.ports[1].rx;
        (rx.seen, rx.arrived, rx.ring_dropped) = (1001 - 162, Some(1001 - 162 + frames), ring_dropped);
        kernel_report_from(node)
    };
    let certain = |report: &RunReport| {
        let loss = report.streams[0].loss.unwrap();
        loss.lost - loss.in_doubt
    };
    let of_seven = unseen(7, 0);
    assert_eq!(certain(&of_seven), 81, "the seven are among those that the link cost");
    assert_eq!((of_seven.lost.receiver, of_seven.lost.in_doubt, of_seven.lost.path), (Some(7), 74, Some(81)));
    assert_eq!(certain(&unseen(91, 0)), 71, "the link explains 81 of them");
    assert_eq!(certain(&unseen(7, 7)), 74, "the ring was full at any time");
}

#[test]
fn frames_in_flight_at_port_deletion_are_doubtful() {
    let deleted_at_310 = |last_arrival: u64| {
        let mut node = run_with(&[(110, 1000)], vec![], vec![]);
        let mut outages = OutageList::with_limit(16);
        outages.push_outage(StreamOutage { begin: Some(at(last_arrival)), end: None, ..outage(110, 1000) });
        node.receive[0].outages = outages;
        node.ports[1].events = vec![PortEvent { until: None, ..event(PortEventKind::Deleted, 310, 310) }];
        verdict_of(node)
    };
    assert_eq!(deleted_at_310(110), "FAIL", "200 should have come by then");
    assert_eq!(deleted_at_310(309), "INCONCLUSIVE", "the delay has grown to 200 ms");
}

#[test]
fn wrong_engine_counts_are_not_blamed_on_device() {
    let run = |said: u64, arrived: u64, on_wire: Option<u64>| {
        let mut node = node(&[arrived]);
        node.send[0].counts.frames = said;
        node.ports[0].info.back_end = BackEnd::Process;
        node.ports[0].tx.handed_over = said;
        node.ports[0].tx.on_wire = on_wire;
        node
    };
    assert_eq!(verdict_of(run(1001, 1001, Some(1001))), "PASS");
    assert_eq!(verdict_of(run(1001, 991, Some(1001))), "FAIL", "the device lost ten");
    assert_eq!(verdict_of(run(1001, 991, Some(991))), "INCONCLUSIVE", "ten were never sent");
    assert_eq!(verdict_of(run(1001, 991, None)), "INCONCLUSIVE", "nobody else counted them");
    assert_eq!(verdict_of(run(991, 1001, Some(1001))), "INCONCLUSIVE", "ten were not counted");
    assert_eq!(verdict_of(run(0, 1001, None)), "INCONCLUSIVE", "it died");
    // A reordered frame of our own sender would be a copy.
    let mut own = run(991, 1001, Some(1001));
    own.ports[0].info.back_end = BackEnd::Packet;
    assert_eq!(verdict_of(own), "FAIL");
}

#[test]
fn incomplete_capture_forbids_pass() {
    let mut node = node(&[1001]);
    node.captures.push(CaptureResult { port: 1, file: "rx.pcapng".into(), written: 3, dropped: 5 });
    let report = kernel_report_from(node);
    assert_eq!(report.verdict.as_str(), "INCONCLUSIVE");
    assert!(report.verdict.reasons()[0].contains("3 of 8 frames are in the file"), "{:?}", report.verdict);
}

#[test]
fn capture_at_failed_port_has_unknown_completeness() {
    let mut node = node(&[1001]);
    node.captures.push(CaptureResult { port: 1, file: "rx.pcapng".into(), written: 8, dropped: 0 });
    let judged = |node: NodeResult| {
        let report = kernel_report_from(node);
        let line = report.judged.iter().find(|line| line.criterion == "capture").unwrap();
        line.result
    };
    assert_eq!(judged(node.clone()), CriterionResult::Pass);
    node.ports[1].events = vec![event(PortEventKind::PortFailed, 100, 200)];
    assert_eq!(judged(node.clone()), CriterionResult::Unknown);
    node.ports[1].events[0].only_sending = true;
    assert_eq!(judged(node), CriterionResult::Pass);
}

#[test]
fn untagged_frames_are_judged_by_content() {
    let contents = |hashes: std::ops::Range<u64>| {
        let mut counts = ContentCounts::default();
        for hash in hashes {
            counts.add_frame(hash);
        }
        counts
    };
    let arrived = |hashes: std::ops::Range<u64>, ring_dropped| {
        let mut node = node(&[901]);
        node.send[0].counts.untagged = 100;
        node.send[0].untagged_contents = contents(0..100);
        node.receive[0].counts.sequence.lost = 0;
        node.ports[1].untagged_contents = contents(hashes);
        node.ports[1].rx.ring_dropped = ring_dropped;
        node
    };
    assert_eq!(verdict_of(arrived(0..100, 0)), "PASS");
    assert_eq!(verdict_of(arrived(0..99, 0)), "FAIL");
    assert_eq!(verdict_of(arrived(0..99, 1)), "INCONCLUSIVE");
    // Nothing is known of frames that could not be compared.
    let mut unknown = arrived(0..100, 0);
    unknown.send[0].counts.untagged = 101;
    unknown.send[0].untagged_contents.uncounted = 1;
    unknown.receive[0].counts.sequence.unique = 900;
    assert_eq!(verdict_of(unknown), "INCONCLUSIVE");
}

#[test]
fn misdelivered_frames_are_classified_by_missing_numbers() {
    let mut node = run_with(&[(110, 119)], vec![], vec![]);
    let mut numbers = NumberRanges::default();
    for number in 110..130 {
        numbers.add_number(number);
    }
    let astray =
        |port| MisdeliveredFrames { stream: 0, port, frames: 20, to_groups: 0, numbers: numbers.clone() };
    node.misdelivered = vec![astray(0), MisdeliveredFrames { to_groups: 20, ..astray(1) }];
    let report = kernel_report_from(node);
    let found = report.streams[0].misdelivery.clone().unwrap();
    assert_eq!(
        (found.frames, found.reflected, found.instead, found.flooded, found.to_groups),
        (40, 20, 10, 10, 20)
    );
    let line = report.judged.iter().find(|line| line.criterion == "misdelivery").unwrap();
    assert_eq!(line.result, CriterionResult::Fail);
}

#[test]
fn each_criterion_has_a_line_with_its_result() {
    let limits = AcceptanceCriteria {
        latency: vec![LatencyLimit { figure: LatencyFigure::Max, limit: Nanos::from_millis(1) }],
        max_outage: Some(Nanos::from_millis(50)),
        min_rate: Some(Share::WHOLE_LINK),
        max_loss: Share::from_billionths(500_000_000),
        ..AcceptanceCriteria::default()
    };
    let facts = RunFacts { criteria: limits, ..facts() };
    let node = run_with(&[(110, 190)], vec![], vec![]);
    let report =
        assemble_report(&facts, &plan(&["rx0"], ""), vec![node], RunOutcome::Complete { stopped: false });
    let result =
        |name: &str| report.judged.iter().find(|line| line.criterion == name).map(|line| line.result);
    assert_eq!(result("loss"), Some(CriterionResult::Pass));
    assert_eq!(result("latency max"), Some(CriterionResult::Fail));
    assert_eq!(result("outage"), Some(CriterionResult::Fail));
    assert_eq!(result("rate"), Some(CriterionResult::Fail));
    assert_eq!(result("reordering"), None, "it has no limit");
}

proptest! {
    #[test]
    fn verdict_never_fails_rig_nor_passes_device_fault(
        lost in prop::collection::vec((0u64..90, 0u64..9), 0..4),
        events in prop::collection::vec((0u64..1000, 1u64..300, prop::bool::ANY), 0..3),
        more in (0u64..1000, 1u64..300, prop::bool::ANY),
        device in 91u64..99,
    ) {
        let lost: Vec<(u64, u64)> = lost.iter().enumerate().map(|(n, (at, length))| {
            let first = 200 * n as u64 + at;
            (first, first + length)
        }).collect();
        let split = |events: &[(u64, u64, bool)], sending: bool| -> Vec<PortEvent> {
            let of_side = events.iter().filter(|(.., side)| *side == sending);
            of_side.map(|(from, length, _)| event(PortEventKind::SwitchedDown, *from, from + length)).collect()
        };
        let judged = |lost: &[(u64, u64)], events: &[(u64, u64, bool)]| {
            verdict_of(run_with(lost, split(events, true), split(events, false)))
        };
        let before = judged(&lost, &events);
        let with_rig_fault = judged(&lost, &[events.as_slice(), &[more]].concat());
        prop_assert!(with_rig_fault != "FAIL" || before == "FAIL");
        let worse = [lost.as_slice(), &[(900 + device, 900 + device)]].concat();
        let with_device_fault = judged(&worse, &events);
        prop_assert_ne!(with_device_fault, "PASS");
        prop_assert!(before != "FAIL" || with_device_fault == "FAIL");
    }
}
