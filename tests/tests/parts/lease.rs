//! A lease that nobody renews ends what its node sends, on every back end that may be used under one.
//!
//! What is demanded is counted in frames, not in time: no more than were due by the deadline, and one batch.

use packetrig_engine::Error;
use packetrig_engine::gate::SendGate;
use packetrig_engine::process::EngineCommand;
use packetrig_engine::rig::{DataPlane as _, RigOptions, TestRig};
use packetrig_plan::Plan;
use packetrig_stats::caveat::CaveatKind;
use packetrig_stats::port::BackEnd;
use packetrig_stats::result::NodeResult;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::{clock, xdp};
use packetrig_testkit::Lab;
use packetrig_tests::at_once::for_all;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::skip;
use packetrig_units::MonoTime;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

const RATE: u64 = 20_000;
/// Frames that a sender hands over at once.
const BATCH: u64 = 64;
const MS: u64 = 1_000_000;
/// Says in a child of this test which back end it is to send on.
const CHILD: &str = "PACKETRIG_TEST_LEASE";

fn wait_ms(ms: u64) {
    clock::sleep_until_ns(clock::monotonic_ns() + ms * MS);
}

fn document(locations: &[String]) -> String {
    let flow = Flow::new("f", 1)
        .with("rate", json!({"choice": "pps", "pps": RATE}))
        .with("duration", json!({"choice": "continuous"}));
    Document::new(locations).flow(flow).text()
}

fn options(back_end: BackEnd, gate: SendGate) -> RigOptions {
    RigOptions {
        engine: None,
        run: String::new(),
        terms: SharedRunOptions { tag_key: 9, back_end: Some(back_end), ..SharedRunOptions::default() },
        confirmed: BTreeSet::new(),
        capture_dir: None,
        site: packetrig_engine::rig::PlanPortLocations::EveryPortHere,
        gate,
    }
}

struct Outcome {
    result: NodeResult,
    /// Frames due before the lease expired.
    due: u64,
}

/// Sends without an end under a lease that ends `ms` after the start. `meanwhile` is done once frames leave.
fn run(lab: &Lab, back_end: BackEnd, ms: u64, meanwhile: impl FnOnce()) -> Outcome {
    let plan = Plan::from_text(&document(&[lab.location(0), lab.location(1)])).unwrap();
    let gate = SendGate::under_lease();
    let mut rig = TestRig::prepare(plan, &options(back_end, gate.clone())).unwrap();
    let opened: Vec<_> = rig.ports().into_iter().map(|(_, info)| info.back_end).collect();
    assert_eq!(opened[0], back_end);
    rig.arm_ports().unwrap();
    let start = MonoTime::from_nanos(clock::monotonic_ns() + 50 * MS);
    let left = 50 * MS + ms * MS;
    gate.set_deadline(clock::boottime_ns() + left);
    let deadline = clock::monotonic_ns() + left;
    rig.start_at(start);
    let give_up = clock::monotonic_ns() + 60_000 * MS;
    while rig.sent_totals().unwrap().iter().map(|sent| sent.frames).sum::<u64>() == 0 {
        assert!(clock::monotonic_ns() < give_up, "nothing is sent");
        wait_ms(5);
    }
    meanwhile();
    while !rig.senders_done() {
        assert!(clock::monotonic_ns() < give_up, "the lease does not end it");
        wait_ms(5);
    }
    assert!(rig.lease_ended().unwrap());
    // Renewed too late: what has stopped has stopped.
    gate.set_deadline(clock::boottime_ns() + 60_000 * MS);
    wait_ms(100);
    let due = rig.plan().streams[0].timeline.frames_due_before(MonoTime::from_nanos(deadline).since(start));
    Outcome { result: rig.finish_run("node", &[]).unwrap(), due }
}

/// What every back end must make of it.
fn demand(outcome: &Outcome, what: &str) {
    let (sent, received) = (&outcome.result.send[0], &outcome.result.receive[0]);
    let frames = sent.counts.frames;
    println!("{what}: {frames} frames sent, {} were due before the lease expired", outcome.due);
    assert!(frames > 0, "{what}");
    assert!(frames <= outcome.due + BATCH, "{what}: {frames} of {}", outcome.due);
    assert!(sent.counts.lease_ended, "{what}");
    // A clock read apart from the deadline's is off by the time between the readings.
    assert!(
        sent.planned >= frames && sent.planned <= outcome.due + BATCH,
        "{what}: {} planned",
        sent.planned
    );
    assert_eq!((received.counts.sequence.unique, received.counts.sequence.lost), (frames, 0), "{what}");
    let told = outcome.result.caveats.iter().find(|caveat| caveat.doubt == CaveatKind::LeaseEnded).unwrap();
    assert!(told.matters && told.text.contains("the lease expired"), "{told:?}");
    for port in &outcome.result.ports {
        assert_eq!(port.ledger.find_imbalances(), vec![], "{what}");
    }
}

const BACK_ENDS: [BackEnd; 3] = [BackEnd::Packet, BackEnd::AfXdp, BackEnd::Xdp];

/// A lab in which every back end can send.
fn lab(back_end: BackEnd) -> Option<skip::OwnLab> {
    if back_end != BackEnd::Packet && !skip::may_use_bpf(xdp::bpf_obstacle().map_or(Ok(()), Err)) {
        return None;
    }
    skip::lab(Lab::cabled_pair)
}

#[test]
fn nothing_is_sent_after_the_lease() {
    for_all(&BACK_ENDS, |back_end| {
        let Some(lab) = lab(*back_end) else { return };
        demand(&run(&lab, *back_end, 400, || ()), back_end.name());
    });
}

#[test]
fn expired_lease_limits_stalled_sender_to_batch() {
    for_all(&BACK_ENDS, |back_end| {
        // As much as to say whether it can be run here; the child makes its own.
        if lab(*back_end).is_none() {
            return;
        }
        let me = std::env::current_exe().unwrap();
        let arguments = ["--exact", "lease::child", "--nocapture", "--include-ignored"];
        let mut child = Command::new(me)
            .args(arguments)
            .env(CHILD, back_end.name())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.ends_with("sending")), "{}", back_end.name());
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).unwrap();
        wait_ms(1_500);
        kill_process(pid, Signal::CONT).unwrap();
        let rest: Vec<String> = lines.collect();
        assert!(child.wait().unwrap().success(), "{}: {rest:?}", back_end.name());
        assert!(rest.iter().any(|line| line.contains("frames sent")), "{rest:?}");
        println!("{}", rest.join("\n"));
    });
}

/// What the test above stops and continues.
#[test]
#[ignore = "run by another test"]
fn child() {
    let name = std::env::var(CHILD).unwrap();
    let back_end = BACK_ENDS.into_iter().find(|back_end| back_end.name() == name).unwrap();
    let lab = Lab::cabled_pair().unwrap();
    let outcome = run(&lab, back_end, 1_000, || {
        println!("sending");
        std::io::stdout().flush().unwrap();
    });
    demand(&outcome, &format!("{name}, asleep for a second and a half"));
}

#[test]
fn lease_refuses_back_ends_it_cannot_stop() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let plan = || Plan::from_text(&document(&[lab.location(0), lab.location(1)])).unwrap();
    for back_end in [BackEnd::Pktgen, BackEnd::Process] {
        // Also with a program that could be started: a lease and another program do not go together.
        let engine = Some(EngineCommand::Program("/bin/true".into()));
        let options = RigOptions { engine, ..options(back_end, SendGate::under_lease()) };
        let error = TestRig::prepare(plan(), &options).unwrap_err();
        assert!(matches!(error, Error::NoLease { .. }), "{error}");
        assert!(error.to_string().contains(back_end.name()), "{error}");
    }
}

#[test]
fn process_back_end_without_engine_is_refused() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let plan = Plan::from_text(&document(&[lab.location(0), lab.location(1)])).unwrap();
    let error = TestRig::prepare(plan, &options(BackEnd::Process, SendGate::without_lease())).unwrap_err();
    assert!(matches!(error, Error::NoEngine { .. }), "{error}");
}

/// A device on each port, and an endless flow.
fn devices(lab: &Lab) -> Plan {
    let device = |number: u8| {
        let other = 3 - number;
        json!({"name": format!("device {number}"), "ethernets": [{"name": format!("e{number}"),
            "connection": {"choice": "port_name", "port_name": format!("port {}", number - 1)},
            "mac": format!("02:00:00:00:00:{number:02x}"),
            "ipv4_addresses": [{"name": format!("i{number}"), "address": format!("198.18.0.{number}"),
                "gateway": format!("198.18.0.{other}"), "prefix": 24}]}]})
    };
    let text = document(&[lab.location(0), lab.location(1)]);
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    document["devices"] = json!([device(1), device(2)]);
    Plan::from_text(&document.to_string()).unwrap()
}

#[test]
fn emulated_interfaces_send_only_under_lease() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let gate = SendGate::under_lease();
    let mut rig = TestRig::prepare(devices(&lab), &options(BackEnd::Packet, gate.clone())).unwrap();
    let found = |rig: &TestRig| rig.neighbour_states().iter().all(|neighbour| neighbour.mac.is_some());
    let eventually = |rig: &TestRig, is_found: bool| {
        let give_up = clock::monotonic_ns() + 20_000 * MS;
        while found(rig) != is_found {
            assert!(clock::monotonic_ns() < give_up, "never so: {is_found}");
            wait_ms(5);
        }
    };
    let sent = |port: &packetrig_testkit::lab::LabPort| {
        let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
        let index = links.find_link_by_name(packetrig_testkit::lab::INTERFACE).unwrap().index;
        links.read_counters(index).unwrap().tx_frames
    };
    let count = || lab.ports().iter().map(sent).sum::<u64>();
    let quiet = count();
    wait_ms(600);
    assert_eq!(count(), quiet, "nothing is sent before it is armed");
    gate.set_deadline(clock::boottime_ns() + 60_000 * MS);
    eventually(&rig, true);
    gate.set_deadline(clock::boottime_ns());
    eventually(&rig, false);
    let before = count();
    assert!(before > quiet);
    rig.start_ping("i1", "198.18.0.2".parse().unwrap()).unwrap().unwrap();
    wait_ms(1_000);
    assert_eq!(count(), before, "neither questions nor answers nor echoes");
    gate.set_deadline(clock::boottime_ns() + 60_000 * MS);
    eventually(&rig, true);
}
