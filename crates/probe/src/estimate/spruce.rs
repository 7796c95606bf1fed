//! Estimates the available rate of a path from pairs whose distance is the time that the narrow link needs
//! for one probe (the method of Spruce).
//!
//! Such a pair keeps the link busy. Other traffic that comes between the two probes makes their distance
//! longer by the time that the link needs for it. The capacity must be known; otherwise [`PairEstimator`]
//! measures it first. The narrow link must also be the busy one. Primers before each pair empty token buckets
//! and keep the link busy between the two probes.
//!
//! Invariant: the measured distance at departure is used, not the planned one.

use super::gaps::{CompleteTrain, mean, quantile, standard_error};
use super::settle::{TrainSettler, TrainShape, plan_spaced_probes};
use super::{
    DiscardedTrains, EstimateQuality, NoEstimateReason, PairEstimator, PairSelection, RateEstimate,
    RateEstimator, SettledTrains, TrainProbeTimes, TrainRequest, clamp_to_nanos, packets_per_frame,
};
use crate::ProbeKind;
use packetrig_units::Nanos;
use packetrig_wire::pattern::keyed_mix;

#[derive(Clone, Debug)]
pub struct SpruceEstimator {
    before: SpruceSetup,
    ready: Option<Result<SprucePairSetup, NoEstimateReason>>,
    pairs: usize,
    shape: TrainShape,
    seed: u64,
    samples: Vec<f64>,
    doubts: Vec<f64>,
    discarded: DiscardedTrains,
    before_sent: usize,
    sent: usize,
}

/// The measurements before the first pair.
#[derive(Clone, Debug)]
enum SpruceSetup {
    /// The caller gave the capacity; the settling trains find the number of primers.
    Primers(f64, TrainSettler),
    Capacity(PairEstimator),
}

#[derive(Clone, Copy, Debug)]
struct SprucePairSetup {
    capacity: f64,
    primers: u32,
    /// Time that all primers take to leave.
    primed_ns: f64,
    /// Time after the settling trains until the link has recovered from them.
    over: Nanos,
}

impl SpruceSetup {
    /// Returns the next train of the setup. `Err` contains the result of the setup if no train is needed any more.
    fn next_setup_train(&mut self) -> Result<TrainRequest, Result<SprucePairSetup, NoEstimateReason>> {
        match self {
            Self::Primers(capacity, settle) => {
                let Some(settled) = settle.settling_result() else { return Ok(settle.next_train()) };
                Err(settled.clone().map(|settled| SprucePairSetup::new(*capacity, settled)))
            }
            Self::Capacity(pair) => pair.next_train().ok_or_else(|| {
                pair.measured_capacity()
                    .map(|measured| SprucePairSetup::new(measured.bits_per_s, measured.settled))
            }),
        }
    }
}

impl SprucePairSetup {
    const fn new(capacity: f64, settled: SettledTrains) -> Self {
        Self { capacity, primers: settled.primers, primed_ns: settled.primed_ns, over: settled.over }
    }
}

/// The first probe of a pair is due after this many times the time that its primers take to leave. Then all
/// primers have left, and the link is still busy with them.
const FIRST_PROBE_DELAY_FACTOR: f64 = 1.5;

/// Maximum number of pairs that measure the capacity.
const MAX_CAPACITY_PAIRS: usize = 60;
/// Least number of usable pairs for an answer.
const MIN_USABLE_PAIRS: usize = 20;
/// Minimum relative uncertainty of the capacity.
const MIN_CAPACITY_UNCERTAINTY: f64 = 0.005;
/// Spruce's limits for the load of its own pairs: in bit/s, and as a share of the capacity.
const MAX_LOAD: f64 = 240_000.0;
const MAX_LOAD_SHARE: f64 = 0.05;

impl SpruceEstimator {
    /// Creates an estimator that sends pairs on a path with this capacity (in bits of frames per second) until `pairs`
    /// of them can be used, but not more than three times as many. If the capacity is `None`, it is measured first.
    pub fn new(capacity: Option<f64>, pairs: usize, shape: TrainShape, seed: u64) -> Self {
        let before = capacity.map_or_else(
            || SpruceSetup::Capacity(PairEstimator::new(PairSelection::Mode, MAX_CAPACITY_PAIRS, shape)),
            |capacity| SpruceSetup::Primers(capacity, TrainSettler::new(shape)),
        );
        Self {
            before,
            ready: None,
            // Fewer pairs could never give an answer.
            pairs: pairs.max(MIN_USABLE_PAIRS),
            shape,
            seed,
            samples: Vec::new(),
            doubts: Vec::new(),
            discarded: DiscardedTrains::default(),
            before_sent: 0,
            sent: 0,
        }
    }

    fn frame_bits(&self) -> f64 {
        f64::from(self.shape.length) * 8.0
    }

    fn pair_setup(&self) -> Option<SprucePairSetup> {
        self.ready.as_ref().and_then(|ready| ready.as_ref().ok()).copied()
    }
}

impl RateEstimator for SpruceEstimator {
    fn name(&self) -> &'static str {
        "spruce"
    }

    fn next_train(&mut self) -> Option<TrainRequest> {
        if self.ready.is_none() {
            match self.before.next_setup_train() {
                Ok(ask) => {
                    self.before_sent += 1;
                    return Some(ask);
                }
                Err(ready) => self.ready = Some(ready),
            }
        }
        let SprucePairSetup { capacity, primers, primed_ns, over } = self.pair_setup()?;
        if self.samples.len() >= self.pairs || self.sent >= 3 * self.pairs {
            return None;
        }
        self.sent += 1;
        // Pauses are exponential (a Poisson process), so that the pairs see the mean load and not a periodic
        // part of it. A float holds 53 bits; the share is in (0, 1], so its logarithm is finite.
        let share = ((keyed_mix(self.seed, self.sent as u64) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        // The mean pause that keeps the load of pairs and primers within both of Spruce's limits.
        let mean = f64::from(primers + 2) * self.frame_bits() * 1e9 / MAX_LOAD.min(MAX_LOAD_SHARE * capacity);
        let gap = clamp_to_nanos(self.frame_bits() * 1e9 / capacity);
        let pause = self.shape.pause.max(clamp_to_nanos(-share.ln() * mean));
        let pause = if self.sent == 1 { pause.max(over) } else { pause };
        let mut probes = plan_spaced_probes(primers, 2, ProbeKind::Pair, self.shape.length, gap);
        let behind = clamp_to_nanos(FIRST_PROBE_DELAY_FACTOR * primed_ns);
        probes.iter_mut().filter(|probe| probe.kind == ProbeKind::Pair).for_each(|probe| probe.at += behind);
        Some(TrainRequest { probes, pause })
    }

    fn add_train(&mut self, train: &[TrainProbeTimes]) {
        let Some(SprucePairSetup { capacity, .. }) = self.pair_setup() else {
            return match &mut self.before {
                SpruceSetup::Primers(_, settle) => settle.add_train(train),
                SpruceSetup::Capacity(pair) => pair.add_train(train),
            };
        };
        let Some(whole) = CompleteTrain::from_train(train, &mut self.discarded) else { return };
        let second = whole.last_index();
        let first = second - 1;
        let sent = whole.departure_gap(first, second);
        let came = whole.arrival_gap(first, second);
        let nominal = self.frame_bits() * 1e9 / capacity;
        // If the probes left closer together than the link needs for one probe, the second waits for the first;
        // if they left further apart, the link goes idle in between.
        if !(0.8 * nominal..=1.2 * nominal).contains(&sent) {
            self.discarded.unlike += 1;
            return;
        }
        // The link was busy from one probe to the other: it sent `capacity * came` bits, the second probe among them. The rest is other
        // traffic, which came while the pair was sent.
        let others = (capacity * came / 1e9 - self.frame_bits()) / (sent / 1e9);
        self.samples.push(capacity - others);
        self.doubts.push(whole.gap_uncertainty(first, second) / sent);
    }

    fn estimate_rate(&self) -> Result<RateEstimate, NoEstimateReason> {
        let have = self.samples.len();
        let trains = self.before_sent + self.sent;
        if let Some(Err(none)) = &self.ready {
            return Err(none.clone());
        }
        let known = self.pair_setup().filter(|_| have >= MIN_USABLE_PAIRS);
        let Some(SprucePairSetup { capacity, primers, .. }) = known else {
            return Err(NoEstimateReason::TooFew {
                have,
                wanted: MIN_USABLE_PAIRS,
                trains,
                discarded: self.discarded,
            });
        };

        // Single stamps are as often too early as too late, so their error is part of the spread of the
        // samples. The error that all stamps have in common is added.
        let stamps = mean(&self.doubts);
        let middle = mean(&self.samples);
        let error = 2.0 * standard_error(&self.samples) + (stamps + MIN_CAPACITY_UNCERTAINTY) * capacity;
        Ok(RateEstimate {
            method: self.name(),
            bits_per_s: middle.clamp(0.0, capacity),
            low: (middle - error).clamp(0.0, capacity),
            high: (middle + error).clamp(0.0, capacity * (1.0 + MIN_CAPACITY_UNCERTAINTY)),
            packets_per_frame: packets_per_frame(self.shape.length),
            quality: EstimateQuality {
                trains,
                used: have,
                share: have as f64 / self.sent.max(1) as f64,
                spread: (quantile(&self.samples, 0.9) - quantile(&self.samples, 0.1)) / capacity,
                stamps,
                primers,
                discarded: self.discarded,
                ..EstimateQuality::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::sim::{CrossTraffic, QueuedLink, SimulatedPath};

    const SHAPE: TrainShape = TrainShape { length: 1_514, longest: 50, pause: Nanos::from_millis(50) };

    #[test]
    fn half_a_busy_link_is_free() {
        for (seed, busy) in [(1, 0.0), (2, 0.3), (3, 0.5), (4, 0.7)] {
            let cross = if busy > 0.0 {
                CrossTraffic::Poisson { bits_per_s: 1e7 * busy, length: 700 }
            } else {
                CrossTraffic::Idle
            };
            let mut method = SpruceEstimator::new(Some(1e7), 300, SHAPE, seed);
            SimulatedPath::new(vec![
                QueuedLink::new_wire(1e9),
                QueuedLink::new_wire(1e7).with_cross_traffic(cross, seed),
                QueuedLink::new_wire(1e8),
            ])
            .run_estimator(&mut method);
            let estimate = method.estimate_rate().unwrap();
            let free = 1.0 - busy;
            assert!((estimate.bits_per_s / 1e7 - free).abs() < 0.12, "{busy}: {estimate:?}");
        }
    }

    #[test]
    fn spruce_pairs_keep_gap_behind_slow_primers() {
        let mut method = SpruceEstimator::new(Some(1e8), 40, SHAPE, 5);
        SimulatedPath::new(vec![QueuedLink::new_bucket(1e8, 3_200)]).run_estimator(&mut method);
        let estimate = method.estimate_rate().unwrap();
        assert_eq!(estimate.quality.discarded, DiscardedTrains::default(), "{estimate:?}");
        assert!((estimate.bits_per_s / 1e8 - 1.0).abs() < 0.05, "{estimate:?}");
    }

    #[test]
    fn spruce_sees_through_bucket_with_or_without_capacity() {
        let cross = CrossTraffic::Poisson { bits_per_s: 5e6, length: 700 };
        for known in [None, Some(1e7)] {
            let mut method = SpruceEstimator::new(known, 300, SHAPE, 5);
            SimulatedPath::new(vec![QueuedLink::new_bucket(1e7, 5_000).with_cross_traffic(cross, 6)])
                .run_estimator(&mut method);
            let estimate = method.estimate_rate().unwrap();
            assert!((estimate.bits_per_s / 5e6 - 1.0).abs() < 0.2, "{estimate:?}");
        }
    }

    #[test]
    fn spruce_without_capacity_returns_pair_failure_reason() {
        let mut method = SpruceEstimator::new(None, 300, SHAPE, 5);
        SimulatedPath::new(vec![QueuedLink::new_bucket(1e7, 1_000_000)]).run_estimator(&mut method);
        assert!(
            matches!(method.estimate_rate(), Err(NoEstimateReason::NotSpread { .. })),
            "{:?}",
            method.estimate_rate()
        );
    }

    #[test]
    fn spruce_with_unkept_gap_gives_no_rate() {
        let mut method = SpruceEstimator::new(Some(1e10), 50, SHAPE, 1);
        SimulatedPath::new(vec![QueuedLink::new_wire(1e9)]).run_estimator(&mut method);
        let unlike = DiscardedTrains { unlike: 150, ..DiscardedTrains::default() };
        let too_few = NoEstimateReason::TooFew { have: 0, wanted: 20, trains: 155, discarded: unlike };
        assert_eq!(method.estimate_rate(), Err(too_few));
    }
}
