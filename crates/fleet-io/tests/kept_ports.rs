//! Runs in a row on ports that stay open between them: each counts as if it were the first.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says if it is skipped"
)]

use packetrig_engine::packet::interface_lock_name;
use packetrig_fleet_io::{EnginePlaneSource, Error, LocalExecutor, RunOptions, run_document};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{RunOutcome, RunState};
use packetrig_report::{AcceptanceCriteria, RunId, RunReport};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::ethtool::{EthtoolCalls, Offload};
use packetrig_sys::link::{NamespaceLinks, VethEnd};
use packetrig_sys::lock;
use packetrig_testkit::Lab;
use packetrig_testkit::device::{self, FaultPlan, FaultRule, FrameFault, RulePositions};
use packetrig_testkit::lab::INTERFACE;
use packetrig_units::Nanos;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

const FRAMES: u64 = 100;
/// Runs in a row through the device.
const RUNS: u64 = 10;
/// Such rows, each with a lab of its own.
const ROWS: u64 = 3;

/// A lab, or `None` for a caller without rights.
fn lab(made: Result<Lab, device::Error>) -> Option<Lab> {
    match made {
        Ok(lab) => Some(lab),
        Err(error) if !ThreadRights::current().has_capability("CAP_NET_ADMIN") => {
            println!("skipped: no rights for a lab ({error})");
            None
        }
        Err(error) => panic!("a lab cannot be made: {error}"),
    }
}

fn keeping() -> LocalExecutor {
    LocalExecutor(EnginePlaneSource::default().with_ports_kept_open())
}

/// Sends from the lab's first port to its second. `mtu`: as the plan wants it.
fn document(lab: &Lab, frames: u64, mtu: Option<u32>) -> String {
    let [from, to] = [lab.location(0), lab.location(1)];
    let layer1 =
        mtu.map_or(String::new(), |mtu| format!("layer1: [{{name: l, port_names: [a, b], mtu: {mtu}}}]\n"));
    format!(
        "ports: [{{name: a, location: {from}}}, {{name: b, location: {to}}}]
{layer1}flows:
- {{name: f, tx_rx: {{choice: port, port: {{tx_name: a, rx_names: [b]}}}}, size: {{choice: fixed, fixed: 128}},
   rate: {{choice: pps, pps: 5000}}, duration: {{choice: fixed_packets, fixed_packets: {{packets: {frames}}}}},
   metrics: {{enable: true, latency: {{enable: true}}}}}}
"
    )
}

fn options(key: u64) -> RunOptions {
    RunOptions {
        run: RunId(format!("kept-{key}")),
        name: "kept".to_owned(),
        started_wall_ns: 1,
        terms: SharedRunOptions {
            tag_key: key,
            seed: 1,
            back_end: Some(BackEnd::Packet),
            ..SharedRunOptions::default()
        },
        confirmed: Vec::new(),
        capture_dir: None,
        drain: Nanos::from_millis(300),
        criteria: AcceptanceCriteria::default(),
    }
}

fn run(ground: &mut LocalExecutor, document: &str, key: u64) -> Result<RunReport, Error> {
    run_document(ground, document, options(key), (&|| false, &mut |_| ()))
}

/// A run with the numbers of a run on new ports: nothing of another run is in any account.
fn assert_clean(report: &RunReport, lost: u64) {
    assert_eq!(report.outcome, RunOutcome::Complete { stopped: false });
    assert!(report.imbalances.is_empty(), "{:?}", report.imbalances);
    let stream = &report.streams[0];
    assert_eq!(stream.sent.as_ref().unwrap().frames, FRAMES);
    assert_eq!(stream.received.as_ref().unwrap().frames, FRAMES - lost);
    assert_eq!(stream.loss.unwrap().lost, lost);
    let [from, to] = &report.ports[..] else { panic!("two ports: {:?}", report.ports) };
    assert_eq!((from.tx.handed_over, from.tx.on_wire), (FRAMES, Some(FRAMES)));
    assert_eq!((to.rx.seen, to.rx.ring_dropped), (FRAMES - lost, 0));
    assert_eq!(to.rx.arrived, Some(FRAMES - lost));
}

/// The packet sockets of a port's namespace, by their inodes.
fn sockets(lab: &Lab, port: usize) -> Vec<String> {
    let read = || std::fs::read_to_string("/proc/thread-self/net/packet").unwrap();
    let table = lab.ports()[port].netns().run_in_namespace(read).unwrap();
    table.lines().skip(1).filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

fn is_locked(lab: &Lab, port: usize) -> bool {
    let port = &lab.ports()[port];
    let index = NamespaceLinks::open_in(port.netns()).unwrap().find_link_by_name(INTERFACE).unwrap().index;
    lock::is_name_held(port.netns(), &interface_lock_name(index)).unwrap()
}

fn links(lab: &Lab, port: usize) -> NamespaceLinks {
    NamespaceLinks::open_in(lab.ports()[port].netns()).unwrap()
}

fn segments_in_hardware(lab: &Lab) -> bool {
    EthtoolCalls::open_in(lab.ports()[0].netns()).unwrap().is_offload_on(INTERFACE, Offload::Gso).unwrap()
}

#[test]
fn kept_port_runs_count_losses_exactly() {
    // Each run mostly waits for frames that may still come, so several rows of runs do so at the same time.
    std::thread::scope(|scope| {
        for row in 0..ROWS {
            scope.spawn(move || assert_row_counts_exactly(row * RUNS..(row + 1) * RUNS));
        }
    });
}

/// Makes these runs in a row; run n loses n mod 7 frames, beginning with its tenth.
fn assert_row_counts_exactly(numbers: Range<u64>) {
    let lost = |(run, number): (u64, u64)| (run * FRAMES + 10)..(run * FRAMES + 10 + number % 7);
    let positions = RulePositions::At((0..).zip(numbers.clone()).flat_map(lost).collect());
    let rules = vec![FaultRule::new(positions, FrameFault::Drop)];
    let plan = FaultPlan { rules, ..FaultPlan::default() };
    let Some(mut lab) = lab(Lab::with_device(2, plan)) else { return };
    let document = document(&lab, FRAMES, None);
    let mut ground = keeping();
    let mut first = None;
    for number in numbers {
        // The device may be kept from the processor while it has frames.
        let options = RunOptions { drain: Nanos::from_secs(1), ..options(number + 1) };
        let report = run_document(&mut ground, &document, options, (&|| false, &mut |_| ())).unwrap();
        assert_clean(&report, number % 7);
        let now = sockets(&lab, 0);
        assert_eq!(
            &now,
            first.get_or_insert_with(|| now.clone()),
            "the ports of run {number} were opened anew"
        );
    }
    drop(ground);
    assert!(sockets(&lab, 0).is_empty() && !is_locked(&lab, 0));
    assert_eq!(lab.stop_device().unwrap().own_losses, 0);
}

#[test]
fn run_after_stopped_run_counts_own_frames() {
    let Some(lab) = lab(Lab::cabled_pair()) else { return };
    let mut ground = keeping();
    for number in [1, 3] {
        let is_running = AtomicBool::new(false);
        let long = document(&lab, 1_000_000, None);
        let mut note = |event: &packetrig_report::event::RunEvent| {
            let begins = event.kind == RunEventKind::StateChanged(RunState::Running);
            is_running.fetch_or(begins, Ordering::Relaxed);
        };
        let stopped = run_document(
            &mut ground,
            &long,
            options(number),
            (&|| is_running.load(Ordering::Relaxed), &mut note),
        )
        .unwrap();
        assert_eq!(stopped.outcome, RunOutcome::Complete { stopped: true });
        assert_clean(&run(&mut ground, &document(&lab, FRAMES, None), number + 1).unwrap(), 0);
    }
}

#[test]
fn changed_interface_is_reopened_between_runs() {
    let Some(lab) = lab(Lab::cabled_pair()) else { return };
    let document = document(&lab, FRAMES, None);
    let mut ground = keeping();
    assert_clean(&run(&mut ground, &document, 1).unwrap(), 0);
    let before = sockets(&lab, 0);
    let index = links(&lab, 0).find_link_by_name(INTERFACE).unwrap().index;
    links(&lab, 0).set_mtu(index, 1400).unwrap();
    let report = run(&mut ground, &document, 2).unwrap();
    assert_clean(&report, 0);
    assert_eq!(report.ports[0].info.max_frame, 1418);
    assert_ne!(sockets(&lab, 0), before);
    // Both ends go with it.
    links(&lab, 0).delete_link(index).unwrap();
    let far = VethEnd { name: INTERFACE, netns: Some(lab.ports()[1].netns()), mac: None };
    links(&lab, 0).create_veth(VethEnd { name: INTERFACE, netns: None, mac: None }, far).unwrap();
    for number in [3, 4] {
        let report = run(&mut ground, &document, number).unwrap();
        assert_clean(&report, 0);
        assert_eq!(report.ports[0].info.max_frame, 1518);
    }
    let index = links(&lab, 0).find_link_by_name(INTERFACE).unwrap().index;
    links(&lab, 0).switch_interface(index, false).unwrap();
    assert_clean(&run(&mut ground, &document, 5).unwrap(), 0);
}

#[test]
fn kept_interface_stays_locked_until_executor_drops() {
    let Some(lab) = lab(Lab::cabled_pair()) else { return };
    assert!(segments_in_hardware(&lab), "a cable has this on");
    let document = document(&lab, FRAMES, Some(1300));
    let mtu = links(&lab, 0).find_link_by_name(INTERFACE).unwrap().mtu;
    let mut ground = keeping();
    assert_clean(&run(&mut ground, &document, 1).unwrap(), 0);
    assert!(is_locked(&lab, 0) && is_locked(&lab, 1) && !segments_in_hardware(&lab));
    let refused = run(&mut LocalExecutor::default(), &document, 2).unwrap_err();
    assert!(matches!(refused, Error::Engine(_)), "{refused}");
    assert!(refused.to_string().contains("in use"), "{refused}");
    assert_clean(&run(&mut ground, &document, 3).unwrap(), 0);
    drop(ground);
    assert!(!is_locked(&lab, 0) && segments_in_hardware(&lab));
    assert_eq!(links(&lab, 0).find_link_by_name(INTERFACE).unwrap().mtu, mtu);
    assert_clean(&run(&mut LocalExecutor::default(), &document, 4).unwrap(), 0);
}

#[test]
fn lab_guard_rechecks_kept_port() {
    let Some(lab) = lab(Lab::cabled_pair()) else { return };
    let document = document(&lab, FRAMES, None);
    let mut ground = keeping();
    assert_clean(&run(&mut ground, &document, 1).unwrap(), 0);
    let index = links(&lab, 0).find_link_by_name(INTERFACE).unwrap().index;
    links(&lab, 0).add_address(index, "10.1.2.3".parse().unwrap(), 24).unwrap();
    let refused = run(&mut ground, &document, 2).unwrap_err();
    assert!(refused.to_string().contains("10.1.2.3"), "{refused}");
    assert!(!is_locked(&lab, 0), "a port that may not be used is given back");
    let confirmed = RunOptions { confirmed: vec![lab.location(0)], ..options(3) };
    assert_clean(&run_document(&mut ground, &document, confirmed, (&|| false, &mut |_| ())).unwrap(), 0);
}
