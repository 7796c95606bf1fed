use super::*;
use crate::lab::ProbeLab;
use crate::listener::WantedPackets;
use crate::path;
use crate::release::{self, ReleaseOptions};
use packetrig_probe::estimate::{NoEstimateReason, PairEstimator, PairSelection, TrainShape};
use packetrig_probe::method::EchoMethod;
use packetrig_probe::{BudgetExceeded, ProbeBudget, ProbeKind, ProbePermit, ReleaseMechanism};

const OWNERS: &str =
    "[[target]]\nnetwork = \"192.0.2.0/24\"\nprobes_per_s = 100000\nbits_per_s = \"1Gbps\"\nburst = 100\n";

fn with(lab: &ProbeLab, owners: &str, test: impl FnOnce(&mut TrainSender<'_>)) {
    let permit = ProbePermit::from_text(owners).unwrap();
    let target = permit.permit_target("192.0.2.2".parse().unwrap(), "2026-11-22").unwrap();
    let way = path::find_path(Some(&lab.near), target, None).unwrap();
    let options = ReleaseOptions { priority: None, ..ReleaseOptions::common() };
    let release = release::open_release(&way.location, ReleaseMechanism::Spin, options).unwrap();
    let wanted = WantedPackets { addresses: vec![way.ends.source], port: None };
    let listener = PacketListener::open_at_interface(&way.location, way.index, &wanted).unwrap();
    let method = Box::new(EchoMethod::new(way.ends, 5, None));
    let dispatcher = ReleaseDispatcher::new(release, ProbeBudget::new(target.limits()));
    test(&mut TrainSender::new(&way, method, dispatcher, listener, MeasuredArrival::Near));
}

fn ask(of: u32) -> TrainRequest {
    let probe =
        |number| PlannedProbe { number, train: 0, kind: ProbeKind::Train, at: Nanos::ZERO, length: 1_000 };
    TrainRequest { probes: (0..of).map(probe).collect(), pause: Nanos::from_millis(5) }
}

#[test]
fn train_probes_leave_and_arrive_in_order() {
    let Some(lab) = ProbeLab::new() else { return };
    with(&lab, OWNERS, |trains| {
        for _ in 0..3 {
            let passed = trains.measure_train(&ask(20), &|| false).unwrap();
            assert_eq!(passed.len(), 20);
            assert!(passed.iter().all(|probe| probe.left.is_some() && probe.came > probe.left), "{passed:?}");
            assert!(passed.windows(2).all(|two| two[0].left <= two[1].left && two[0].came <= two[1].came));
        }
        let numbers: Vec<_> = trains.records().iter().map(|record| (record.number, record.train)).collect();
        assert_eq!(numbers, (0..60).map(|n| (n, n / 20)).collect::<Vec<_>>());
    });
}

#[test]
fn train_longer_than_burst_is_refused() {
    let Some(lab) = ProbeLab::new() else { return };
    with(&lab, OWNERS, |trains| {
        let refused = trains.measure_train(&ask(101), &|| false);
        assert!(matches!(refused, Err(Error::Limits(BudgetExceeded::Probes(_)))), "{refused:?}");
        assert!(trains.records().is_empty());
    });
}

#[test]
fn a_cable_is_faster_than_the_sender() {
    let Some(lab) = ProbeLab::new() else { return };
    with(&lab, OWNERS, |trains| {
        let shape = TrainShape { length: 1_514, longest: 16, pause: Nanos::from_millis(2) };
        let mut pair = PairEstimator::new(PairSelection::Mode, 20, shape);
        assert_eq!(
            trains.run_estimator(&mut pair, &|| false, &mut |_| {}).unwrap(),
            TrainSeriesEndReason::Done
        );
        // Work of the processors may look like spreading, but not like a rate below 50 Mbit/s. How
        // far up a bound from below reaches depends on that work alone.
        match pair.estimate_rate() {
            Ok(estimate) => assert!(estimate.bits_per_s > 5e7, "{estimate:?}"),
            Err(NoEstimateReason::NotSpread { at_least, .. }) => {
                assert!(at_least.is_none_or(|rate| rate > 0.0), "{at_least:?}");
            }
            Err(NoEstimateReason::TooFew { .. } | NoEstimateReason::NoMode { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    });
}

/// Shapes what the far end sends: answers.
fn shape(lab: &ProbeLab, words: &str) {
    let far = packetrig_sys::netns::NetNs::open_named_namespace(&lab.far).unwrap();
    let mut tc = std::process::Command::new("tc");
    tc.args(["qdisc", "add", "dev", "b", "root"]).args(words.split(' '));
    assert!(far.run_in_namespace(|| tc.status().unwrap().success()).unwrap(), "{words}");
}

#[test]
fn a_shaped_way_back_is_measured_from_here() {
    for (words, rate) in [
        ("tbf rate 2mbit burst 5000 limit 200000", 2_000_000_u64),
        ("tbf rate 10mbit burst 5000 limit 200000", 10_000_000),
    ] {
        let Some(lab) = ProbeLab::new() else { return };
        shape(&lab, words);
        with(&lab, OWNERS, |trains| {
            let pause = Nanos::new(200_000_000_000_000 / rate);
            let mut pair =
                PairEstimator::new(PairSelection::Mode, 60, TrainShape { length: 1_514, longest: 50, pause });
            assert_eq!(
                trains.run_estimator(&mut pair, &|| false, &mut |_| {}).unwrap(),
                TrainSeriesEndReason::Done
            );
            let estimate = pair.estimate_rate().unwrap();
            assert!((estimate.bits_per_s / rate as f64 - 1.0).abs() < 0.05, "{words}: {estimate:?}");
        });
    }
}
