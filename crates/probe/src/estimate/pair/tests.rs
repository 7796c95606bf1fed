use super::*;
use crate::estimate::sim::{CrossTraffic, QueuedLink, SimulatedPath};
use packetrig_units::Nanos;

const SHAPE: TrainShape = TrainShape { length: 1_514, longest: 50, pause: Nanos::from_millis(50) };

fn measured(pick: PairSelection, links: Vec<QueuedLink>) -> Result<RateEstimate, NoEstimateReason> {
    let mut method = PairEstimator::new(pick, 200, SHAPE);
    SimulatedPath::new(links).run_estimator(&mut method);
    method.estimate_rate()
}

fn error(pick: PairSelection, links: Vec<QueuedLink>, truth: f64) -> f64 {
    let estimate = measured(pick, links).unwrap();
    assert!(estimate.low <= estimate.bits_per_s && estimate.bits_per_s <= estimate.high, "{estimate:?}");
    (estimate.bits_per_s / truth - 1.0).abs()
}

#[test]
fn pair_estimate_of_idle_path_is_narrowest_link() {
    for rate in [1e6, 1e7, 1e8] {
        for pick in [PairSelection::Mode, PairSelection::LeastDelay] {
            let links =
                vec![QueuedLink::new_wire(1e9), QueuedLink::new_wire(rate), QueuedLink::new_wire(5e8)];
            let error = error(pick, links, rate);
            assert!(error < 0.005, "{pick:?} {rate}: {error}");
        }
    }
}

#[test]
fn traffic_of_others_is_filtered_out() {
    for (seed, rate) in [(1, 1e7), (2, 1e7), (3, 1e8), (4, 1e8)] {
        for pick in [PairSelection::Mode, PairSelection::LeastDelay] {
            let others = |of: f64| CrossTraffic::Poisson { bits_per_s: of * 0.5, length: 1_000 };
            let links = vec![
                QueuedLink::new_wire(4e8).with_cross_traffic(others(4e8), seed),
                QueuedLink::new_wire(rate).with_cross_traffic(others(rate), seed + 10),
                QueuedLink::new_wire(2.5 * rate).with_cross_traffic(others(rate), seed + 20),
            ];
            let error = error(pick, links, rate);
            assert!(error < 0.05, "{pick:?} {rate} {seed}: {error}");
        }
    }
}

#[test]
fn token_buckets_are_emptied_by_primers() {
    for (bytes, primers) in [(1_600, 1), (4_000, 2), (15_140, 10), (32_000, 20)] {
        let estimate = measured(PairSelection::Mode, vec![QueuedLink::new_bucket(1e7, bytes)]).unwrap();
        assert!((estimate.bits_per_s / 1e7 - 1.0).abs() < 0.02, "{bytes}: {estimate:?}");
        assert!(estimate.quality.primers >= primers, "{bytes}: {estimate:?}");
    }
}

#[test]
fn unemptied_token_bucket_gives_no_pair_rate() {
    let answer = measured(PairSelection::Mode, vec![QueuedLink::new_bucket(1e7, 200_000)]);
    assert!(matches!(answer, Err(NoEstimateReason::NotSpread { train: 50, .. })), "{answer:?}");
}

#[test]
fn link_faster_than_sender_gives_no_rate() {
    let answer = measured(PairSelection::LeastDelay, vec![QueuedLink::new_wire(4e10)]);
    let Err(NoEstimateReason::NotSpread { at_least: Some(at_least), .. }) = answer else {
        panic!("{answer:?}")
    };
    assert!(at_least > 5e9 && at_least < 1e10, "{at_least}");
}

#[test]
fn a_queue_that_drops_leaves_what_came_through() {
    // 50 ms at 1 Mbit/s: four frames of eight.
    let links = vec![QueuedLink::new_wire(1e6).with_longest_wait(5e7)];
    let error = error(PairSelection::Mode, links, 1e6);
    assert!(error < 0.01, "{error}");
}

#[test]
fn least_delays_under_full_load_do_not_converge() {
    let cross = CrossTraffic::Poisson { bits_per_s: 0.97e7, length: 1_514 };
    let links = vec![
        QueuedLink::new_wire(1.2e7),
        QueuedLink::new_wire(1e7).with_cross_traffic(cross, 5),
        QueuedLink::new_wire(1.1e7).with_cross_traffic(cross, 6),
    ];
    let answer = measured(PairSelection::LeastDelay, links);
    assert!(matches!(answer, Err(NoEstimateReason::NotConverged { .. })), "{answer:?}");
}

#[test]
fn disturbed_pairs_are_discarded_and_accounted() {
    let mut method = PairEstimator::new(PairSelection::Mode, 100, SHAPE);
    let mut path = SimulatedPath::new(vec![QueuedLink::new_wire(1e7)]);
    let mut nth = 0;
    while let Some(ask) = method.next_train() {
        let mut train = path.send_train(&ask);
        nth += 1;
        if train[0].kind == ProbeKind::Primer && nth % 4 == 0 {
            train[1].disturbed = true;
        }
        if train[0].kind == ProbeKind::Primer && nth % 4 == 1 {
            train[2].left = None;
        }
        method.add_train(&train);
    }
    let quality = method.estimate_rate().unwrap().quality;
    assert!(quality.discarded.disturbed > 5 && quality.discarded.unstamped > 5, "{quality:?}");
    let accounted = quality.discarded.disturbed + quality.discarded.unstamped + quality.used;
    assert_eq!(accounted + 5, quality.trains);
}

#[test]
fn stalled_sender_is_not_mistaken_for_slow_link() {
    const GAPS_US: [u64; 8] = [0, 47, 8, 8, 8, 30, 8, 11];
    let mut method = PairEstimator::new(PairSelection::Mode, 20, TrainShape { longest: 8, ..SHAPE });
    while let Some(ask) = method.next_train() {
        let mut left = 1_000_000;
        let passed = |(probe, gap): (&crate::PlannedProbe, u64)| {
            left += gap * 1000;
            let came = Some(left + 100_000);
            TrainProbeTimes {
                kind: probe.kind,
                length: probe.length,
                left: Some(left),
                came,
                doubt: 40,
                disturbed: false,
            }
        };
        let train: Vec<_> = ask.probes.iter().zip(GAPS_US).map(passed).collect();
        method.add_train(&train);
    }
    let answer = method.estimate_rate();
    assert!(matches!(answer, Err(NoEstimateReason::NotSpread { train: 8, .. })), "{answer:?}");
}

#[test]
fn pair_position_varies_and_never_ends_burst() {
    let mut method = PairEstimator::new(PairSelection::Mode, 60, SHAPE);
    let mut path = SimulatedPath::new(vec![QueuedLink::new_bucket(1e7, 15_140)]);
    let mut places = std::collections::BTreeSet::new();
    while let Some(ask) = method.next_train() {
        let kinds: Vec<_> = ask.probes.iter().map(|probe| probe.kind).collect();
        if let [primers @ .., ProbeKind::Pair, ProbeKind::Pair, ProbeKind::Tail] = &kinds[..] {
            places.insert(primers.len());
        } else {
            assert!(kinds.iter().all(|kind| *kind == ProbeKind::Train), "{kinds:?}");
        }
        let train = path.send_train(&ask);
        method.add_train(&train);
    }
    assert!(places.len() >= 4, "{places:?}");
}
