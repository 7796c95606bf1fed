//! Labs and the device on real interfaces, judged by raw rings at both ends. Needs rights; without them the tests
//! say so and end.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns;
use packetrig_sys::packet::{RxOptions, RxRing, TxOptions, TxRing};
use packetrig_testkit::device::{
    ExpectedCounts, FaultPlan, FaultRule, FrameClassifier, FrameFault, HeaderEdit, KeyFrameTruth,
    RulePositions,
};
use packetrig_testkit::lab::{INTERFACE, Lab, LabPort};
use packetrig_units::Nanos;

/// Longest that a test waits for frames that must come.
const LONG_NS: u64 = 20_000_000_000;

/// `None`, said aloud, where rights are missing; any other failure is one.
#[expect(clippy::print_stdout, reason = "a skipped test has to be seen")]
fn lab(made: Result<Lab, packetrig_testkit::device::Error>) -> Option<Lab> {
    match made {
        Ok(lab) => Some(lab),
        Err(packetrig_testkit::device::Error::Kernel(error)) if error.is_permission_error() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Frames that arrive at a port.
struct Arrivals {
    ring: RxRing,
    /// Key and position of each frame.
    frames: Vec<(u16, u64)>,
}

impl Arrivals {
    fn listen(port: &LabPort) -> Self {
        let ring = RxRing::open_on_interface(port.netns(), port.link.index, INTERFACE, RxOptions::default())
            .unwrap();
        Self { ring, frames: Vec::new() }
    }

    fn take(&mut self) {
        let frames = &mut self.frames;
        self.ring.receive_frames(usize::MAX, &mut |frame| {
            let at = frame.bytes.len() - 10;
            let key = u16::from_be_bytes(frame.bytes[10..12].try_into().unwrap());
            frames.push((key, u64::from_be_bytes(frame.bytes[at..at + 8].try_into().unwrap())));
        });
    }

    /// Waits until so many frames have come, and looks once more for what should not.
    fn await_frames(&mut self, count: usize) {
        let until = clock::monotonic_ns() + LONG_NS;
        while self.frames.len() < count && clock::monotonic_ns() < until {
            self.ring.wait_for_frames(10_000_000).unwrap();
            self.take();
        }
        self.ring.wait_for_frames(20_000_000).unwrap();
        self.take();
        assert_eq!(self.frames.len(), count, "frames have arrived");
        let stats = self.ring.read_stats().unwrap();
        assert_eq!((stats.received, stats.dropped), (count as u64, 0));
    }

    fn positions(&self, key: u16) -> Vec<u64> {
        self.frames.iter().filter(|(of, _)| *of == key).map(|(_, position)| *position).collect()
    }
}

fn sender(port: &LabPort) -> TxRing {
    TxRing::open_on_interface(port.netns(), port.link.index, INTERFACE, TxOptions::default()).unwrap()
}

fn frame(key: u16, position: u64) -> Vec<u8> {
    let mut frame = vec![0u8; 80];
    frame[..10].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0]);
    frame[10..12].copy_from_slice(&key.to_be_bytes());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[70..78].copy_from_slice(&position.to_be_bytes());
    frame
}

/// Sends `count` frames of each key in turn. Frames that arrive meanwhile are taken; the rest may still be under way.
fn exchange(from: &LabPort, to: &LabPort, keys: u16, count: u64) -> Arrivals {
    let (mut tx, mut arrivals) = (sender(from), Arrivals::listen(to));
    for position in 0..count {
        for key in 0..keys {
            let frame = frame(key, position);
            while tx.next_slot().is_none() {
                tx.kick_kernel().unwrap();
            }
            tx.next_slot().unwrap()[..frame.len()].copy_from_slice(&frame);
            tx.commit_frame(frame.len());
        }
        tx.kick_kernel().unwrap();
        arrivals.take();
    }
    while tx.pending_frames() > 0 {
        tx.kick_kernel().unwrap();
    }
    arrivals
}

#[test]
fn lab_cable_carries_frames_and_vanishes_on_drop() {
    let Some(lab) = lab(Lab::cabled_pair()) else { return };
    let mut arrivals = exchange(&lab.ports()[0], &lab.ports()[1], 1, 500);
    arrivals.await_frames(500);
    assert_eq!(arrivals.positions(0), (0..500).collect::<Vec<_>>());
    let names: Vec<String> = lab.ports().iter().map(|port| port.namespace().to_owned()).collect();
    assert!(names.iter().all(|name| netns::list_named_namespaces().contains(name)));
    drop(lab);
    assert!(!names.iter().any(|name| netns::list_named_namespaces().contains(name)));
}

#[test]
fn lab_bridge_floods_and_sends_nothing_itself() {
    let Some(lab) = lab(Lab::with_bridge(3)) else { return };
    let third = Arrivals::listen(&lab.ports()[2]);
    let second = exchange(&lab.ports()[0], &lab.ports()[1], 1, 200);
    for mut arrivals in [second, third] {
        arrivals.await_frames(200);
        assert_eq!(arrivals.positions(0), (0..200).collect::<Vec<_>>());
    }
}

#[test]
fn impaired_device_follows_plan_and_reports_truth() {
    let rules = vec![
        FaultRule::new(RulePositions::draw_positions(1, 20, 0..1900), FrameFault::Drop).for_key(0),
        FaultRule::new(RulePositions::Within(100..107), FrameFault::Drop).for_key(0),
        FaultRule::new(RulePositions::draw_positions(2, 15, 0..1900), FrameFault::Duplicate { copies: 2 })
            .for_key(1),
        FaultRule::new(
            RulePositions::At((0..15).map(|n| n * 100 + 7).collect()),
            FrameFault::HoldBack { frames: 9 },
        )
        .for_key(2),
        FaultRule::new(
            RulePositions::All,
            FrameFault::Rewrite(HeaderEdit::PushVlan { tpid: 0x8100, tci: 5 }),
        )
        .for_key(3),
        FaultRule::new(RulePositions::All, FrameFault::Delay(Nanos::new(3_000_000))).for_key(4),
    ];
    let plan =
        FaultPlan { seed: 9, classifier: FrameClassifier::SourceMac, rules, ..FaultPlan::without_faults() };
    let Some(mut lab) = lab(Lab::with_device(2, plan)) else { return };
    let mut arrivals = exchange(&lab.ports()[0], &lab.ports()[1], 6, 2000);
    // It forwards first what has arrived by now. Nothing else says how many frames have to come.
    let report = lab.stop_device().unwrap();
    assert_eq!(report.own_losses, 0);
    let truths: Vec<KeyFrameTruth> = (0..6).map(|key| report.truth(0, key)).collect();
    arrivals.await_frames(truths.iter().map(|truth| truth.departures.len()).sum());
    for (key, truth) in (0u16..).zip(&truths) {
        assert_eq!(truth.received, 2000, "key {key}");
        assert_eq!(arrivals.positions(key), truth.departures, "key {key}");
    }
    let accounts: Vec<ExpectedCounts> = truths.iter().map(KeyFrameTruth::expected_counts).collect();
    assert!((20..=27).contains(&accounts[0].lost) && accounts[0].longest_burst >= 7);
    assert_eq!((accounts[1].duplicates, accounts[2].reordered, accounts[2].max_extent), (30, 15, 9));
    assert_eq!((accounts[3].altered, truths[4].delayed, accounts[5].unique), (2000, 2000, 2000));
}

#[test]
fn duplicate_lab_name_is_refused_without_harming_first() {
    let prefix = format!("twice{}-", std::process::id());
    let build = || Lab::build_named(&prefix, &["a", "b"], packetrig_testkit::PortConnection::Cable);
    let Some(first) = lab(build()) else { return };
    assert!(build().is_err());
    let port = &first.ports()[0];
    assert!(NamespaceLinks::open_in(port.netns()).unwrap().find_link_by_name(INTERFACE).unwrap().carrier);
    assert!(netns::list_named_namespaces().contains(&port.namespace().to_owned()));
}
