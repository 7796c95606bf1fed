use super::*;
use crate::estimate::sim::{CrossTraffic, QueuedLink, SimulatedPath};

const SHAPE: TrainShape = TrainShape { length: 1_514, longest: 100, pause: Nanos::from_millis(20) };
const FLEETS: FleetShape = FleetShape { probes: 100, streams: 12, most: 25 };

fn measured(links: Vec<QueuedLink>) -> Result<RateEstimate, NoEstimateReason> {
    let mut method = PathloadEstimator::new(FLEETS, SHAPE);
    SimulatedPath::new(links).run_estimator(&mut method);
    method.estimate_rate()
}

#[test]
fn the_range_holds_what_is_free() {
    let mut held = 0;
    for seed in 0..10 {
        let cross = CrossTraffic::Poisson { bits_per_s: 4e6, length: 700 };
        let links = vec![
            QueuedLink::new_wire(1e8),
            QueuedLink::new_wire(1e7).with_cross_traffic(cross, seed),
            QueuedLink::new_wire(5e7),
        ];
        let estimate = measured(links).unwrap();
        assert!(estimate.high - estimate.low < 0.6e7, "{estimate:?}");
        held += i32::from(estimate.low <= 6.3e6 && estimate.high >= 5.7e6);
    }
    assert!(held >= 9, "{held} of 10");
}

#[test]
fn pathload_finds_tight_link_other_than_narrow() {
    // 20 Mbit/s idle, then 50 Mbit/s with 40 of others: 10 are free.
    let cross = CrossTraffic::Poisson { bits_per_s: 4e7, length: 1_000 };
    let estimate =
        measured(vec![QueuedLink::new_wire(2e7), QueuedLink::new_wire(5e7).with_cross_traffic(cross, 9)])
            .unwrap();
    assert!(estimate.low <= 1.1e7 && estimate.high >= 0.9e7, "{estimate:?}");
}

#[test]
fn pathload_reports_whole_idle_link_behind_bucket() {
    for link in [
        QueuedLink::new_wire(1e7),
        QueuedLink::new_bucket(1e7, 3_100),
        QueuedLink::new_wire(1e6),
        QueuedLink::new_wire(1e8),
    ] {
        let truth = rate_of(&link).unwrap();
        let estimate = measured(vec![link]).unwrap();
        assert!(estimate.low <= 1.02 * truth && estimate.high >= 0.95 * truth, "{truth}: {estimate:?}");
        assert!(estimate.high - estimate.low <= 0.15 * truth, "{truth}: {estimate:?}");
    }
}

#[test]
fn pathload_handles_large_bucket_with_cross_traffic() {
    for seed in 0..5 {
        let cross = CrossTraffic::Poisson { bits_per_s: 5e6, length: 700 };
        let mut method = PathloadEstimator::new(FLEETS, SHAPE);
        SimulatedPath::new(vec![QueuedLink::new_bucket(1e7, 12_000).with_cross_traffic(cross, seed)])
            .run_estimator(&mut method);
        let estimate = method.estimate_rate().unwrap();
        assert!(estimate.low <= 5.5e6 && estimate.high >= 4.5e6, "{estimate:?}");
        assert!(estimate.high - estimate.low < 6e6, "{estimate:?}");
    }
}

#[test]
fn jittery_sender_gives_no_rate_and_stops_soon() {
    let mut path = SimulatedPath::new(vec![QueuedLink::new_wire(1e8)]);
    // Gaps at this rate are 121 us.
    path.jitter_ns = 3_000_000.0;
    let mut method = PathloadEstimator::new(FLEETS, SHAPE);
    let trains = path.run_estimator(&mut method);
    let answer = method.estimate_rate();
    assert!(matches!(answer, Err(NoEstimateReason::TooFew { .. })), "{answer:?}");
    assert!(trains < 100, "{trains}");
}

/// Asks the link how long a full queue takes.
fn rate_of(link: &QueuedLink) -> Result<f64, NoEstimateReason> {
    let mut method = super::super::TrainEstimator::new(5, SHAPE);
    SimulatedPath::new(vec![link.clone()]).run_estimator(&mut method);
    method.estimate_rate().map(|estimate| estimate.bits_per_s)
}

#[test]
fn fleets_without_agreement_widen_the_grey_region_only() {
    let mut search = RateSearch::new(1e7);
    search.add_verdict(6e6, DelayTrend::Unclear);
    search.add_verdict(8e6, DelayTrend::Rising);
    search.add_verdict(4e6, DelayTrend::Level);
    let grey = GreyRegion { low: 6e6, high: 6e6 };
    assert_eq!((search.low, search.grey, search.high), (4e6, Some(grey), 8e6));
    assert_eq!(search.choose_next_rate(), Some(7e6));
    search.add_verdict(5e6, DelayTrend::Rising);
    assert_eq!((search.grey, search.high), (None, 5e6));
}
