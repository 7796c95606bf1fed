//! Many streams, many ports, several receivers.

use super::{found, found_in_row};
use packetrig_testkit::Lab;
use packetrig_testkit::device::{FaultPlan, FaultRule, FrameFault, RulePositions};
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::judged_run::LONG_DRAIN;
use packetrig_tests::program::{Running, run};
use packetrig_tests::skip;
use serde_json::json;

fn locations(lab: &Lab) -> Vec<String> {
    lab.ports().iter().map(packetrig_testkit::lab::LabPort::location).collect()
}

#[test]
fn streams_with_identical_headers_are_told_apart() {
    const STREAMS: u64 = 4096;
    const EACH: u64 = 3;
    // Keys cannot tell identical headers apart: the device drops by place among all frames.
    let rules =
        vec![FaultRule::new(RulePositions::draw_positions(1, 50, 0..STREAMS * EACH), FrameFault::Drop)];
    let plan = FaultPlan { seed: 1, rules, ..FaultPlan::without_faults() };
    let Some(mut lab) = skip::lab(|| Lab::with_device(2, plan)) else { return };
    let flows = (0..STREAMS).map(|n| Flow::new(format!("s{n}"), 1).size(64).pps(2).packets(EACH));
    let document = Document::new(&locations(&lab)).flows(flows);
    let report = Running::run(&document, &["--quiet", "--drain", LONG_DRAIN]).finish().report();
    let device = lab.stop_device().unwrap();
    assert_eq!((device.own_losses, device.truth(0, 0).received), (0, STREAMS * EACH));
    // By their places: to look for 4096 names in as many rows takes seconds.
    let rows = report.0["streams"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, (0..STREAMS).map(|n| format!("s{n}")).collect::<Vec<_>>());
    let accounts: Vec<_> = rows.iter().map(found_in_row).collect();
    assert!(
        accounts
            .iter()
            .all(|a| a.sent == EACH && a.unique + a.lost == EACH && a.duplicates + a.reordered == 0)
    );
    assert_eq!(accounts.iter().map(|a| a.lost).sum::<u64>(), 50);
    assert_eq!(report.lost_between(), 50);
}

#[test]
fn every_port_sends_to_every_other_at_once() {
    const PORTS: usize = 4;
    const FRAMES: u64 = 400;
    let Some(lab) = skip::lab(|| Lab::with_bridge(PORTS)) else { return };
    let pairs =
        || (0..PORTS).flat_map(|from| (0..PORTS).filter(move |to| *to != from).map(move |to| (from, to)));
    let flow = |(key, (from, to)): (u16, (usize, usize))| {
        Flow::new(format!("{from} to {to}"), key).between(from, &[to]).packets(FRAMES)
    };
    let report = run(&Document::new(&locations(&lab)).flows((1..).zip(pairs()).map(flow))).report();
    for (from, to) in pairs() {
        let accounts = found(&report, &format!("{from} to {to}"));
        assert_eq!(
            (accounts.sent, accounts.unique, accounts.lost, accounts.duplicates),
            (FRAMES, FRAMES, 0, 0)
        );
    }
    let sent: u64 =
        report.0["ports"].as_array().unwrap().iter().map(|p| p["tx"]["on_wire"].as_u64().unwrap()).sum();
    assert_eq!(sent, 12 * FRAMES);
}

#[test]
fn a_flooded_frame_is_counted_at_each_receiver() {
    const FRAMES: u64 = 300;
    let Some(lab) = skip::lab(|| Lab::with_bridge(4)) else { return };
    let metrics = json!({"enable": true, "loss": true, "rx_tx_ratio": {"choice": "rx_count"}});
    let flow = Flow::new("flooded", 1).between(0, &[1, 2, 3]).packets(FRAMES).with("metrics", metrics);
    let report = run(&Document::new(&locations(&lab)).flow(flow)).report();
    report.assert_clean();
    assert_eq!(report.number("flooded", "/received/sequence/unique"), 3 * FRAMES);
    let shares = report.stream("flooded")["per_port"].as_array().unwrap();
    let counts: Vec<_> =
        shares.iter().map(|share| share["received"]["sequence"]["unique"].as_u64()).collect();
    assert_eq!(counts, [Some(FRAMES); 3]);
}

#[test]
fn a_stream_without_receivers_ends_normally() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let document = Document::new(&locations(&lab))
        .flow(Flow::new("measured", 1))
        .flow(Flow::new("to nobody", 2).between(0, &[]));
    let report = run(&document).report();
    assert_eq!(report.number("to nobody", "/sent/frames"), 100);
    assert_eq!(found(&report, "measured").unique, 100);
}
