//! The kernel's packet generator as a back end: what is asked for is on the cable, and it counts what it sends.

use super::{document, inside};
use packetrig_engine::Error;
use packetrig_engine::clock::RealClock;
use packetrig_engine::gate::SendGate;
use packetrig_engine::port::WorkerClock;
use packetrig_engine::rig::{DataPlane as _, RigOptions, TestRig};
use packetrig_plan::Plan;
use packetrig_stats::port::BackEnd;
use packetrig_stats::result::NodeResult;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::pktgen::Pktgen;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::{Document, Flow, ethernet, tcp, udp, value, vlan};
use packetrig_tests::{skip, tools};
use packetrig_units::Nanos;
use serde_json::{Value, json};
use std::path::Path;

/// No run of these tests takes longer than this, by far.
const PATIENCE: Nanos = Nanos::from_millis(60_000);

/// A flow without measurements, for the generator has none.
fn flow(key: u16) -> Flow {
    Flow::new(format!("f{key}"), key).with("metrics", json!({"enable": false}))
}

/// An endless flow.
fn endless(key: u16) -> Flow {
    flow(key).with("duration", json!({"choice": "continuous"}))
}

fn prepare(document: &Document, captures: &Path) -> Result<TestRig, Error> {
    let options = RigOptions {
        engine: None,
        run: String::new(),
        terms: SharedRunOptions {
            tag_key: 1,
            back_end: Some(BackEnd::Pktgen),
            ..SharedRunOptions::default()
        },
        confirmed: std::collections::BTreeSet::default(),
        capture_dir: Some(captures.to_owned()),
        site: packetrig_engine::rig::PlanPortLocations::EveryPortHere,
        gate: SendGate::without_lease(),
    };
    let mut rig = TestRig::prepare(Plan::from_text(&document.text()).unwrap(), &options)?;
    rig.arm_ports()?;
    Ok(rig)
}

/// Runs until `enough`, which is told the frames sent so far, or until all is sent.
fn run(document: &Document, captures: &Path, enough: impl Fn(u64) -> bool) -> NodeResult {
    let mut rig = prepare(document, captures).unwrap();
    let clock = RealClock::new();
    rig.start_at(clock.now());
    let give_up = clock.now() + PATIENCE;
    while !rig.senders_done() && !enough(rig.sent_totals().unwrap().iter().map(|sent| sent.frames).sum()) {
        assert!(clock.now() < give_up, "the run is stuck");
        clock.wait_until(clock.now() + Nanos::from_millis(10));
    }
    rig.stop_senders();
    // What is on its way arrives before the receivers stop.
    clock.wait_until(clock.now() + Nanos::from_millis(300));
    rig.finish_run("guest", &[]).unwrap()
}

/// What holds of every run of the generator from the first port to the second.
fn assert_sound(result: &NodeResult) {
    let sent: u64 = result.send.iter().map(|sent| sent.counts.frames).sum();
    let (tx, rx) = (&result.ports[0], &result.ports[1]);
    assert_eq!((tx.info.back_end, rx.info.back_end), (BackEnd::Pktgen, BackEnd::Packet));
    assert_eq!((tx.tx.handed_over, tx.tx.on_wire, tx.tx.dropped), (sent, Some(sent), Some(0)));
    assert_eq!(rx.rx.foreign + rx.rx.unnumbered, sent, "all arrive, and none has our tag");
    for port in [tx, rx] {
        assert_eq!(port.ledger.find_imbalances(), [], "{:?}", port.ledger);
    }
    let grave: Vec<_> = result.caveats.iter().filter(|caveat| caveat.matters).collect();
    assert!(grave.is_empty(), "{grave:?}");
}

/// Offloads of the sending port that are on.
fn offloads(lab: &Lab) -> Vec<Offload> {
    let ethtool = EthtoolCalls::open_in(lab.ports()[0].netns()).unwrap();
    let on = |offload: &Offload| ethtool.is_offload_on(INTERFACE, *offload).unwrap_or(false);
    Offload::ALL.into_iter().filter(on).collect()
}

fn counting(start: impl Into<Value>, step: impl Into<Value>, count: u64) -> Value {
    json!({"choice": "increment", "increment": {"start": start.into(), "step": step.into(), "count": count}})
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn frames_are_as_the_plan_says() {
    if !skip::has_tool("tshark") {
        return;
    }
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let ip = json!({"choice": "ipv4", "ipv4": {"src": value("198.18.0.1"), "dst": counting("198.19.0.1", "0.0.0.1", 5),
        "priority": {"choice": "dscp", "dscp": {"phb": value(46)}}, "time_to_live": value(32)}});
    let ports = json!({"choice": "udp", "udp": {"src_port": counting(1000, 1, 4), "dst_port": value(2000)}});
    let inner = json!({"choice": "vlan", "vlan": {"id": value(6), "priority": value(3)}});
    let flow = flow(1).size(200).packets(20).packet([ethernet(1), vlan(5), inner, ip, ports]);
    let directory = tempfile::tempdir().unwrap();
    let result = run(&document(&lab).flow(flow).capture(1, "pcap"), directory.path(), |_| false);
    assert_sound(&result);
    assert_eq!(
        (result.send[0].planned, result.send[0].counts.frames, result.send[0].counts.bytes),
        (20, 20, 4000)
    );
    let fields = [
        "frame.len",
        "eth.src",
        "eth.dst",
        "vlan.id",
        "vlan.priority",
        "ip.src",
        "ip.dsfield.dscp",
        "ip.ttl",
        "udp.dstport",
        "ip.checksum.status",
        "udp.checksum.status",
        "ip.dst",
        "udp.srcport",
    ];
    let frames = tools::tshark(Path::new(&result.captures[0].file), &fields);
    assert_eq!(frames.len(), 20);
    let constant = [
        "200",
        "02:00:00:00:00:01",
        "02:00:00:01:00:01",
        "5,6",
        "0,3",
        "198.18.0.1",
        "46",
        "32",
        "2000",
        "1",
        "1",
    ];
    for (number, frame) in (1..).zip(&frames) {
        assert_eq!(frame[..11], constant);
        // Ranges begin with their second value.
        let varying = [format!("198.19.0.{}", number % 5 + 1), (1000 + number % 4).to_string()];
        assert_eq!(frame[11..], varying, "frame {number}");
    }
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn ipv6_is_sent_as_well() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let flow = flow(1).packets(10).packet([ethernet(1), packetrig_tests::document::ipv6(), udp()]);
    let directory = tempfile::tempdir().unwrap();
    let result = run(&document(&lab).flow(flow).capture(1, "pcap"), directory.path(), |_| false);
    assert_sound(&result);
    let frames = tools::frames_of(Path::new(&result.captures[0].file));
    assert_eq!(frames.len(), 10);
    let source = "2001:2::1".parse::<std::net::Ipv6Addr>().unwrap().octets();
    assert!(frames.iter().all(|frame| frame[12..14] == [0x86, 0xdd] && frame[22..38] == source));
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn several_streams_share_a_port() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let flows = [flow(1).pps(2000).packets(700), flow(2).packets(30), flow(3).packets(1)];
    let directory = tempfile::tempdir().unwrap();
    let result = run(&document(&lab).flows(flows), directory.path(), |_| false);
    assert_sound(&result);
    assert_eq!(result.send.iter().map(|sent| sent.counts.frames).collect::<Vec<_>>(), [700, 30, 1]);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn timed_pktgen_stream_ends_by_itself() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let second = json!({"choice": "fixed_seconds", "fixed_seconds": {"seconds": 1}});
    let directory = tempfile::tempdir().unwrap();
    let document = document(&lab).flow(flow(1).pps(500).with("duration", second));
    let result = run(&document, directory.path(), |_| false);
    // A slow machine may not reach its rate; then the rest is unsent, and said to be.
    let sent = result.send[0].counts.frames;
    assert_eq!(result.send[0].planned, 500);
    assert!((1..=500).contains(&sent), "{sent}");
    assert_eq!(result.ports[0].tx.on_wire, Some(sent));
    assert_eq!(result.ports[0].ledger.find_imbalances(), []);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn an_endless_stream_ends_when_it_is_stopped() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let directory = tempfile::tempdir().unwrap();
    let result = run(&document(&lab).flow(endless(1).pps(1000)), directory.path(), |sent| sent >= 300);
    assert!(result.send[0].counts.frames >= 300);
    let sent = result.send[0].counts.frames;
    assert_eq!(result.ports[0].tx.on_wire, Some(sent));
    assert_eq!(result.ports[1].rx.foreign + result.ports[1].rx.unnumbered, sent);
    // Stopped before the generator has noticed that it was started.
    let result = run(&document(&lab).flow(endless(1).pps(1000)), directory.path(), |_| true);
    assert_eq!(result.ports[0].tx.on_wire, Some(result.send[0].counts.frames));
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn abandoned_pktgen_run_stops_and_cleans_up() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let before = offloads(&lab);
    let directory = tempfile::tempdir().unwrap();
    let mut rig = prepare(&document(&lab).flow(endless(1).pps(1000)), directory.path()).unwrap();
    let clock = RealClock::new();
    rig.start_at(clock.now());
    let give_up = clock.now() + PATIENCE;
    while rig.sent_totals().unwrap().iter().all(|sent| sent.frames == 0) {
        assert!(clock.now() < give_up, "nothing is sent");
        clock.wait_until(clock.now() + Nanos::from_millis(10));
    }
    drop(rig);
    let port = &lab.ports()[0];
    inside(port.netns(), "! grep -q eth0 /proc/thread-self/net/pktgen/kpktgend_*");
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    let sent = links.read_counters(port.link.index).unwrap().tx_frames;
    clock.wait_until(clock.now() + Nanos::from_millis(200));
    assert_eq!(links.read_counters(port.link.index).unwrap().tx_frames, sent);
    assert_eq!(offloads(&lab), before);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn pktgen_refuses_unsupported_flows_by_name() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let before = offloads(&lab);
    let directory = tempfile::tempdir().unwrap();
    let wrong = Flow::new("f", 1).packet([ethernet(1), packetrig_tests::document::ipv4(), tcp()]);
    let Err(Error::Plan(problems)) = prepare(&document(&lab).flow(flow(2)).flow(wrong), directory.path())
    else {
        panic!("it is not refused");
    };
    let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(
        problems[0].starts_with("flows[1].metrics.enable: back end pktgen writes no test tag"),
        "{problems:?}"
    );
    assert_eq!(problems[1], "flows[1].packet[2].tcp: back end pktgen can send only UDP");
    inside(lab.ports()[0].netns(), "! grep -q eth0 /proc/thread-self/net/pktgen/kpktgend_*");
    let result = run(&document(&lab).flow(flow(1)), directory.path(), |_| false);
    assert_eq!(result.send[0].counts.frames, 100);
    assert_eq!(offloads(&lab), before);
}

#[test]
#[ignore = "runs in the guest: make test-vm"]
fn the_generator_of_a_namespace_has_one_user() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let directory = tempfile::tempdir().unwrap();
    let document = document(&lab).flow(flow(1));
    let first = prepare(&document, directory.path()).unwrap();
    let netns = lab.ports()[0].netns();
    let second = Pktgen::open_in(netns).unwrap_err().to_string();
    assert!(second.contains("in use by process"), "{second}");
    drop(first);
    inside(netns, "echo add_device eth0 > /proc/thread-self/net/pktgen/kpktgend_0");
    let third = Pktgen::open_in(netns).unwrap_err().to_string();
    assert!(third.contains("rem_device_all"), "{third}");
    inside(netns, "echo rem_device_all > /proc/thread-self/net/pktgen/kpktgend_0");
    Pktgen::open_in(netns).unwrap();
}
