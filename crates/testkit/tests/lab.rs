//! Labs and the device on real interfaces, judged by raw rings at both ends. Needs rights; without them the tests say
//! so and end.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns;
use packetrig_sys::packet::{RxOptions, RxRing, TxOptions, TxRing};
use packetrig_testkit::device::{
    ExpectedCounts, FaultPlan, FaultRule, FrameClassifier, FrameFault, HeaderEdit, KeyTruth, RulePositions,
};
use packetrig_testkit::lab::{INTERFACE, Lab, LabPort};
use packetrig_units::Nanos;

/// `None`, said aloud, where rights are missing; any other failure is one.
#[expect(clippy::print_stdout, reason = "a skipped test has to be seen")]
fn lab(made: Result<Lab, packetrig_testkit::device::Error>) -> Option<Lab> {
    match made {
        Ok(lab) => Some(lab),
        Err(packetrig_testkit::device::Error::Kernel(error)) if error.is_permission() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn receiver(port: &LabPort) -> RxRing {
    RxRing::open(port.netns(), port.link.index, INTERFACE, RxOptions::default()).unwrap()
}

fn sender(port: &LabPort) -> TxRing {
    TxRing::open(port.netns(), port.link.index, INTERFACE, TxOptions::default()).unwrap()
}

fn frame(key: u16, position: u64) -> Vec<u8> {
    let mut frame = vec![0u8; 80];
    frame[..10].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0]);
    frame[10..12].copy_from_slice(&key.to_be_bytes());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[70..78].copy_from_slice(&position.to_be_bytes());
    frame
}

/// Sends `count` frames of each key in turn and returns (key, position) of what arrives until nothing more comes.
fn exchange(from: &LabPort, to: &LabPort, keys: u16, count: u64) -> Vec<(u16, u64)> {
    let (mut tx, mut rx) = (sender(from), receiver(to));
    let mut arrived = Vec::new();
    let mut take = |rx: &mut RxRing| {
        rx.receive(usize::MAX, &mut |frame| {
            let at = frame.bytes.len() - 10;
            let key = u16::from_be_bytes(frame.bytes[10..12].try_into().unwrap());
            arrived.push((key, u64::from_be_bytes(frame.bytes[at..at + 8].try_into().unwrap())));
        })
    };
    for position in 0..count {
        for key in 0..keys {
            let frame = frame(key, position);
            while tx.next_slot().is_none() {
                tx.kick().unwrap();
            }
            tx.next_slot().unwrap()[..frame.len()].copy_from_slice(&frame);
            tx.commit(frame.len());
        }
        tx.kick().unwrap();
        take(&mut rx);
    }
    while tx.pending() > 0 {
        tx.kick().unwrap();
    }
    let mut quiet = 0;
    while quiet < 20 {
        rx.wait(10_000_000).unwrap();
        quiet = if take(&mut rx) > 0 { 0 } else { quiet + 1 };
    }
    assert_eq!(rx.stats().unwrap().dropped, 0);
    arrived
}

fn positions(arrived: &[(u16, u64)], key: u16) -> Vec<u64> {
    arrived.iter().filter(|(k, _)| *k == key).map(|(_, position)| *position).collect()
}

#[test]
fn a_cable_carries_frames_and_is_gone_when_dropped() {
    let Some(lab) = lab(Lab::pair()) else { return };
    let arrived = exchange(&lab.ports()[0], &lab.ports()[1], 1, 500);
    assert_eq!(positions(&arrived, 0), (0..500).collect::<Vec<_>>());
    let names: Vec<String> = lab.ports().iter().map(|port| port.namespace().to_owned()).collect();
    assert!(names.iter().all(|name| netns::names().contains(name)));
    drop(lab);
    assert!(!names.iter().any(|name| netns::names().contains(name)));
}

#[test]
fn a_bridge_floods_to_all_other_ports_and_says_nothing_itself() {
    let Some(lab) = lab(Lab::bridged(3)) else { return };
    let mut third = receiver(&lab.ports()[2]);
    let arrived = exchange(&lab.ports()[0], &lab.ports()[1], 1, 200);
    assert_eq!(positions(&arrived, 0), (0..200).collect::<Vec<_>>());
    let mut flooded = 0;
    third.receive(usize::MAX, &mut |frame| flooded += u64::from(frame.bytes[12..14] == [0x88, 0xb5]));
    assert_eq!(flooded, 200);
    assert_eq!(third.stats().unwrap().received, 200);
}

#[test]
fn the_device_does_what_its_plan_says_and_its_truth_is_what_arrives() {
    let rules = vec![
        FaultRule::new(RulePositions::scattered(1, 20, 0..1900), FrameFault::Drop).for_key(0),
        FaultRule::new(RulePositions::Within(100..107), FrameFault::Drop).for_key(0),
        FaultRule::new(RulePositions::scattered(2, 15, 0..1900), FrameFault::Duplicate { copies: 2 })
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
    let plan = FaultPlan { seed: 9, classifier: FrameClassifier::SourceMac, rules, ..FaultPlan::none() };
    let Some(mut lab) = lab(Lab::with_device(2, plan)) else { return };
    let arrived = exchange(&lab.ports()[0], &lab.ports()[1], 6, 2000);
    let report = lab.stop_device().unwrap();
    assert_eq!(report.own_losses, 0);
    let truths: Vec<KeyTruth> = (0..6).map(|key| report.truth(0, key)).collect();
    for (key, truth) in (0u16..).zip(&truths) {
        assert_eq!(truth.received, 2000, "key {key}");
        assert_eq!(positions(&arrived, key), truth.departures, "key {key}");
    }
    let accounts: Vec<ExpectedCounts> = truths.iter().map(KeyTruth::accounts).collect();
    assert!((20..=27).contains(&accounts[0].lost) && accounts[0].longest_burst >= 7);
    assert_eq!((accounts[1].duplicates, accounts[2].reordered, accounts[2].max_extent), (30, 15, 9));
    assert_eq!((accounts[3].altered, truths[4].delayed, accounts[5].unique), (2000, 2000, 2000));
}

#[test]
fn a_second_lab_of_the_same_names_is_refused_and_leaves_the_first_alone() {
    let prefix = format!("twice{}-", std::process::id());
    let build = || Lab::build(&prefix, &["a", "b"], packetrig_testkit::Middle::Cable);
    let Some(first) = lab(build()) else { return };
    assert!(build().is_err());
    let port = &first.ports()[0];
    assert!(NamespaceLinks::open(port.netns()).unwrap().by_name(INTERFACE).unwrap().carrier);
    assert!(netns::names().contains(&port.namespace().to_owned()));
}
