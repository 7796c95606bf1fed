use super::*;
use crate::quick::{QuickLength, QuickPattern, QuickPlan, QuickSize};
use packetrig_units::{FrameRate, Rate};
use proptest::prelude::*;

const GIGABIT: BitRate = BitRate::new(1_000_000_000);

fn traffic(text: &str) -> Result<TrialTraffic, PlanProblems> {
    TrialTraffic::from_document(text, PlanParseOptions::default(), &|plan| {
        vec![Some(GIGABIT); plan.ports.len()]
    })
}

fn quick(streams: u32) -> TrialTraffic {
    let quick = QuickPlan {
        tx: vec!["a/eth0".to_owned()],
        rx: vec!["b/eth0".to_owned()],
        pattern: QuickPattern::ToAll,
        size: QuickSize::Fixed(FrameSize::new(128)),
        rate: Rate::Frames(FrameRate::per_second(1_000).unwrap()),
        length: QuickLength::Time(Nanos::from_secs(1)),
        streams,
        vlan: None,
        ipv6: false,
        hosts: None,
    };
    traffic(&quick.to_yaml()).unwrap()
}

fn shape(frames_per_second: f64, length: TrialAmount) -> TrialShape {
    TrialShape { size: None, frames_per_second, length, then: None }
}

fn bound(document: &str) -> crate::BoundPlan {
    let plan = Plan::from_text(document).unwrap();
    let speeds = vec![Some(GIGABIT); plan.ports.len()];
    plan.bind_to_links(&speeds).unwrap()
}

#[test]
fn a_trial_keeps_the_proportion_of_the_flows() {
    let text = r"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
flows:
- {name: one, tx_rx: {port: {tx_name: a, rx_names: [b]}}, size: {fixed: 100}, rate: {pps: 3000}, metrics: {enable: true}}
- {name: two, tx_rx: {port: {tx_name: a, rx_names: [b]}}, size: {fixed: 100}, rate: {bps: 800000}, metrics: {enable: true}}
";
    let traffic = traffic(text).unwrap();
    assert!((traffic.full_load() - 4_000.0).abs() < 1e-6, "{}", traffic.full_load());
    let document = traffic.trial_document(&shape(40_000.0, TrialAmount::Time(Nanos::from_secs(2))));
    let totals: Vec<_> =
        bound(&document).streams.iter().map(|stream| stream.timeline.total_frames().unwrap()).collect();
    assert_eq!(totals, [60_000, 20_000]);
}

const BOTH_WAYS: &str = r#"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
devices:
- {name: d, ethernets: [
{name: e, connection: {port_name: a}, mac: "02:00:00:00:00:01", ipv4_addresses: [{name: a4, address: 198.18.0.2, gateway: 0.0.0.0}]},
{name: f, connection: {port_name: b}, mac: "02:00:00:00:00:02", ipv4_addresses: [{name: b4, address: 198.18.0.3, gateway: 0.0.0.0}]}]}
flows:
- {name: f1, tx_rx: {device: {tx_names: [a4], rx_names: [b4], bidirectional: true}}, size: {fixed: 100}, rate: {pps: 2000},
   packet: [{ethernet: {}}, {ipv4: {}}, {udp: {}}], metrics: {enable: true}}
"#;

#[test]
fn both_directions_together_are_the_load() {
    let traffic = traffic(BOTH_WAYS).unwrap();
    assert!((traffic.full_load() - 4_000.0).abs() < 1e-6, "{}", traffic.full_load());
    for length in [TrialAmount::Time(Nanos::from_secs(1)), TrialAmount::Frames(3_000)] {
        let document = traffic.trial_document(&shape(3_000.0, length));
        let bound = bound(&document);
        let totals: Vec<_> =
            bound.streams.iter().map(|stream| stream.timeline.total_frames().unwrap()).collect();
        assert_eq!(totals, [1_500, 1_500]);
    }
    let wanted = ["a", "b"].map(|name| LoadedSender { name: name.to_owned(), share: 0.5 });
    assert_eq!(traffic.senders(), wanted);
}

#[test]
fn highest_load_respects_document_and_sender_rates() {
    let traffic = traffic(BOTH_WAYS).unwrap();
    let highest = |size: Option<u32>, rate: Option<&str>, wanted: f64| {
        let limit = rate.map(|rate| rate.parse().unwrap());
        let found = traffic.highest_load(size.map(FrameSize::new), limit).unwrap();
        assert!((found - wanted).abs() < 1.0, "{size:?} {rate:?}: {found} frames/s, not {wanted}");
    };
    highest(None, None, 4_000.0);
    highest(Some(1500), None, 4_000.0);
    highest(None, Some("1500pps"), 3_000.0);
    highest(None, Some("9kpps"), 4_000.0);
    // 1000 frames of 100 bytes each way; of 1000 bytes, 100.
    highest(None, Some("800kbit/s"), 2_000.0);
    highest(Some(1000), Some("800kbit/s"), 200.0);
    // 0.1 % of a gigabit are 1041.7 frames of 120 bytes on the line.
    highest(None, Some("0.1%"), 2_083.3);
    let load = traffic.total_load_for_sender_rate(None, "9kpps".parse().unwrap()).unwrap();
    assert!((load - 18_000.0).abs() < 1.0, "{load}");
}

#[test]
fn trial_problems_have_no_document_position() {
    let order = TrialShape { size: Some(FrameSize::new(1518)), ..shape(1e9, TrialAmount::Frames(5)) };
    let problems = traffic(BOTH_WAYS).unwrap().check_trial(&order).unwrap_err();
    assert!(problems.0.iter().all(|problem| problem.position.is_none() && problem.span.is_none()));
    assert!(problems.to_string().contains("the speed of its link is 1.000 Gbit/s"), "{problems}");
}

#[test]
fn trial_document_keeps_texts_like_numbers() {
    let text = r"
ports: [{name: 1.00, location: eth1}, {name: '0123', location: eth2}]
flows:
- {name: 1e10, tx_rx: {port: {tx_name: 1.00, rx_names: ['0123']}}, rate: {pps: 3000}, metrics: {enable: true}}
";
    let document = traffic(text).unwrap().trial_document(&shape(3_000.0, TrialAmount::Frames(1)));
    let plan = bound(&document).plan;
    assert_eq!(plan.streams[0].flow_name, "1e10");
    assert_eq!([0, 1].map(|port: usize| &plan.ports[port].name[..]), ["1.00", "0123"]);
    assert!(document.contains(r#""enable":true"#), "{document}");
}

#[test]
fn following_load_begins_when_first_ends() {
    let then = Some((500.0, Nanos::from_secs(3)));
    let length = TrialAmount::Time(Nanos::from_secs(2));
    let document = quick(1).trial_document(&TrialShape { then, ..shape(2_000.0, length) });
    let bound = bound(&document);
    let times: Vec<_> = bound
        .streams
        .iter()
        .map(|stream| {
            (stream.timeline.due_time(0), stream.timeline.end_time().unwrap(), stream.timeline.total_frames())
        })
        .collect();
    let seconds = Nanos::from_secs;
    assert_eq!(times, [(seconds(0), seconds(2), Some(4_000)), (seconds(2), seconds(5), Some(1_500))]);
}

#[test]
fn trials_capture_nothing() {
    let text = r"
ports: [{name: a, location: eth1}, {name: b, location: eth2}]
flows: [{name: f, tx_rx: {port: {tx_name: a, rx_names: [b]}}, rate: {pps: 10}, metrics: {enable: true}}]
captures: [{name: c, port_names: [b]}]
";
    assert_eq!(Plan::from_text(text).unwrap().captures.len(), 1);
    let document = traffic(text).unwrap().trial_document(&shape(10.0, TrialAmount::Frames(5)));
    assert!(Plan::from_text(&document).unwrap().captures.is_empty());
}

#[test]
fn unscalable_flows_are_refused_by_name() {
    let flow = |more: &str| {
        format!(
            "ports: [{{name: a, location: eth1}}, {{name: b, location: eth2}}]\nflows:\n- {{name: f, tx_rx: {{port: \
             {{tx_name: a, rx_names: [b]}}}}, metrics: {{enable: true}}, {more}}}"
        )
    };
    let burst = flow("duration: {burst: {packets: 5}}, rate: {pps: 10}");
    let error = traffic(&burst).unwrap_err();
    assert!(error.0[0].message.contains("flow `f` sends bursts"), "{error}");
    assert!(traffic(&flow("rate: {pps: 10}")).is_ok());
}

proptest! {
    #[test]
    fn trial_sends_ordered_frame_count(load in 1.0f64..1_000_000.0, streams in 1u32..5, size in 64u32..1518, ms in 100u64..5_000) {
        let mut order = shape(load, TrialAmount::Time(Nanos::from_millis(ms)));
        order.size = Some(FrameSize::new(size));
        prop_assume!(load * f64::from(size + 20) * 8.0 < 0.99e9 && load / f64::from(streams) >= 2.0);
        let document = quick(streams).trial_document(&order);
        let sent: u64 = bound(&document).streams.iter().map(|stream| stream.timeline.total_frames().unwrap()).sum();
        let wanted = load * ms as f64 / 1000.0;
        // A frame per stream for the slots at the edges, and a thousandth for rates in whole units.
        let tolerance = f64::from(streams) + wanted * 1e-3;
        prop_assert!((sent as f64 - wanted).abs() <= tolerance, "{sent} frames for {wanted}");
    }

    #[test]
    fn bursts_have_as_many_frames_as_ordered(frames in 1u64..100_000) {
        let document = quick(1).trial_document(&shape(800_000.0, TrialAmount::Frames(frames)));
        prop_assert_eq!(bound(&document).streams[0].timeline.total_frames(), Some(frames));
    }
}
