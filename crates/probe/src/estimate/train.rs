//! Estimates the capacity from trains, for links that are so fast that the distance of a pair is smaller than
//! the uncertainty of the stamps.
//!
//! The train with the smallest sum of the waits of its first and last probe was disturbed least (PBProbe). Its
//! rate is the answer, if each of the two waits is also nearly the smallest of all trains and enough other
//! trains have nearly this rate. Otherwise there is no answer.
//!
//! Invariant: a train is so long that its dispersion is a hundred times the uncertainty of its ends;
//! otherwise the range is wider. The ends are uncertain because of the stamps, and because the path may hold
//! frames back and release them at once.

use super::agreement::percentile_10_to_90_width;
use super::gaps::{CompleteTrain, difference_ns, median};
use super::settle::{TrainSettler, TrainShape, plan_probes_at_once};
use super::{
    DiscardedTrains, EstimateQuality, NoEstimateReason, RateEstimate, RateEstimator, TrainProbeTimes,
    TrainRequest, clamp_to_nanos, packets_per_frame,
};
use crate::ProbeKind;

#[derive(Clone, Copy, Debug)]
struct TrainSample {
    rate: f64,
    took: f64,
    /// Times from the departure of the train's first probe to the arrivals of its first and its last measured probe.
    waits: [f64; 2],
    /// Error bound of `took`, in nanoseconds.
    doubt: f64,
}

impl TrainSample {
    fn wait_sum(&self) -> f64 {
        self.waits[0] + self.waits[1]
    }

    fn relative_uncertainty(&self) -> f64 {
        self.doubt / self.took
    }
}

/// The train with the least sum of waits.
struct LeastDelayedTrain {
    train: TrainSample,
    /// The larger of two times, in nanoseconds: how much longer its probes waited than the least waits of all trains,
    /// and how much longer the probes of the confirming trains waited than its own.
    excess: f64,
}

#[derive(Clone, Debug)]
pub struct TrainEstimator {
    settle: TrainSettler,
    trains: usize,
    of: u32,
    samples: Vec<TrainSample>,
    discarded: DiscardedTrains,
    sent: usize,
}

/// Relative uncertainty of a train's dispersion above which trains are made longer.
const MAX_DISPERSION_UNCERTAINTY: f64 = 0.01;
/// Least number of usable trains for an answer.
const MIN_USABLE_TRAINS: usize = 5;
/// Number of measured probes of the first trains; later trains may be longer.
const FIRST_TRAIN_PROBES: u32 = 10;
/// Minimum number of trains, the best one included, that must have waited nearly as little as the best one: the
/// difference may be this share of the time that the train took.
const MIN_TRAINS_NEAR_BEST: usize = 3;
const CONVERGED_WAIT_SHARE: f64 = 0.04;
/// Relative difference of rates up to which trains agree, and the minimum share of trains that must agree
/// with the best one.
const RATE_AGREEMENT_DISTANCE: f64 = 0.02;
const MIN_AGREEING_SHARE: f64 = 0.25;
/// Minimum error of the answer, relative to the rate. It covers the rounding and the timers of a shaper.
const MIN_RATE_UNCERTAINTY: f64 = 0.005;

impl TrainEstimator {
    pub fn new(trains: usize, shape: TrainShape) -> Self {
        Self {
            settle: TrainSettler::new(shape),
            trains,
            of: FIRST_TRAIN_PROBES,
            samples: Vec::new(),
            discarded: DiscardedTrains::default(),
            sent: 0,
        }
    }

    /// Makes trains longer if the stamps are too uncertain for trains of the present length, and if
    /// longer trains are allowed. The samples of shorter trains are dropped then.
    fn lengthen_trains(&mut self, primers: u32) {
        let room = self.settle.shape().longest.saturating_sub(primers);
        let doubts: Vec<_> = self.samples.iter().map(TrainSample::relative_uncertainty).collect();
        if self.samples.len() == MIN_USABLE_TRAINS
            && median(&doubts) > MAX_DISPERSION_UNCERTAINTY
            && self.of < room
        {
            self.of = (self.of * 2).min(room);
            // Rates of trains of different length are not compared: a longer one meets more of other traffic.
            self.samples.clear();
        }
    }

    fn least_delayed_train(&self) -> Option<LeastDelayedTrain> {
        let mut sorted: Vec<_> = self.samples.clone();
        sorted.sort_by(|one, other| one.wait_sum().total_cmp(&other.wait_sum()));
        let (best, again) = (*sorted.first()?, sorted.get(MIN_TRAINS_NEAR_BEST - 1)?);
        // CapProbe's test for pairs, applied to trains: a train that never waited has the smallest waits at
        // both of its ends.
        let least = |nth: usize| sorted.iter().map(|train| train.waits[nth]).fold(f64::INFINITY, f64::min);
        let excess = (best.wait_sum() - least(0) - least(1)).max(again.wait_sum() - best.wait_sum());
        Some(LeastDelayedTrain { train: best, excess })
    }
}

impl RateEstimator for TrainEstimator {
    fn name(&self) -> &'static str {
        "train"
    }

    fn next_train(&mut self) -> Option<TrainRequest> {
        let shape = self.settle.shape();
        let settled = match self.settle.settling_result() {
            None => return Some(self.settle.next_train()),
            Some(Ok(settled)) if self.samples.len() < self.trains && self.sent < 3 * self.trains => *settled,
            Some(_) => return None,
        };
        self.sent += 1;
        // A rate needs one distance, so two probes at least.
        let of = self.of.min(shape.longest.saturating_sub(settled.primers)).max(2);
        let probes = plan_probes_at_once(settled.primers, of, ProbeKind::Train, shape.length);
        let drained =
            clamp_to_nanos(2.0 * probes.len() as f64 * f64::from(shape.length) * 8e9 / settled.bits_per_s);
        Some(TrainRequest {
            probes,
            pause: shape.pause.max(drained).max(settled.least_pause(self.sent == 1)),
        })
    }

    fn add_train(&mut self, train: &[TrainProbeTimes]) {
        let Some(settled) = self.settle.settling_result().cloned() else {
            return self.settle.add_train(train);
        };
        let Ok(settled) = settled else { return };
        let Some(whole) = CompleteTrain::from_train(train, &mut self.discarded) else { return };
        let first = settled.primers as usize;
        let last = whole.last_index();
        let took = whole.arrival_gap(first, last);
        let bits = whole.bits_between_probes(first, last);
        if took <= whole.gap_uncertainty(first, last) {
            self.discarded.together += 1;
        // Probes that left almost as slowly as the path carries them would show the sender's rate.
        } else if whole.departure_gap(first, last) > 0.8 * bits * 1e9 / settled.bits_per_s {
            self.discarded.unlike += 1;
        } else {
            self.samples.push(TrainSample {
                rate: bits * 1e9 / took,
                took,
                waits: [first, last]
                    .map(|nth| difference_ns(train[0].left.unwrap_or(0), train[nth].came.unwrap_or(0))),
                doubt: whole.gap_uncertainty(first, last) + excess_of_largest_gap(whole, first),
            });
            self.lengthen_trains(settled.primers);
        }
    }

    fn estimate_rate(&self) -> Result<RateEstimate, NoEstimateReason> {
        let have = self.samples.len();
        let trains = self.settle.sent_trains() + self.sent;
        let too_few =
            NoEstimateReason::TooFew { have, wanted: MIN_USABLE_TRAINS, trains, discarded: self.discarded };
        let settled = match self.settle.settling_result() {
            None => return Err(too_few),
            Some(settled) => settled.clone()?,
        };
        let Some(LeastDelayedTrain { train: best, excess }) =
            self.least_delayed_train().filter(|_| have >= MIN_USABLE_TRAINS)
        else {
            return Err(too_few);
        };
        if excess > (CONVERGED_WAIT_SHARE * best.took).max(best.doubt) {
            let what = format!(
                "other traffic delayed too many trains: the least delayed ones still waited {:.1} us too long",
                excess / 1e3
            );
            return Err(NoEstimateReason::NotConverged { trains, what });
        }
        let rates: Vec<_> = self.samples.iter().map(|sample| sample.rate).collect();
        let near = rates
            .iter()
            .filter(|rate| {
                (*rate / best.rate - 1.0).abs() < RATE_AGREEMENT_DISTANCE + best.relative_uncertainty()
            })
            .count();
        // If other traffic delays every train, the best one is only the least delayed.
        if (near as f64) < MIN_AGREEING_SHARE * have as f64 {
            let what =
                format!("other traffic delayed most trains: only {near} of {have} agree with the best one");
            return Err(NoEstimateReason::NotConverged { trains, what });
        }
        // The range covers the error of the stamps, the excess wait of the best train, and the rounding of a shaper.
        let off = (best.doubt + excess) / best.took + MIN_RATE_UNCERTAINTY;
        Ok(RateEstimate {
            method: self.name(),
            bits_per_s: best.rate,
            low: best.rate / (1.0 + off),
            high: best.rate / (1.0 - off).max(0.1),
            packets_per_frame: packets_per_frame(self.settle.shape().length),
            quality: EstimateQuality {
                trains,
                used: have,
                share: near as f64 / have as f64,
                spread: percentile_10_to_90_width(&rates) / best.rate,
                stamps: best.relative_uncertainty(),
                primers: settled.primers,
                discarded: self.discarded,
                modes: Vec::new(),
            },
        })
    }
}

/// Error of a train's duration, in nanoseconds, on a path that releases probes in batches: how much the largest gap exceeds the mean
/// gap. Such a path may shift the first or the last arrival by this much.
fn excess_of_largest_gap(whole: CompleteTrain<'_>, first: usize) -> f64 {
    let gaps = (first..whole.last_index()).map(|nth| whole.arrival_gap(nth, nth + 1));
    let mean = whole.arrival_gap(first, whole.last_index()) / (whole.last_index() - first) as f64;
    (gaps.fold(0.0, f64::max) - mean).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::sim::{CrossTraffic, QueuedLink, SimulatedPath};
    use packetrig_units::Nanos;

    const SHAPE: TrainShape = TrainShape { length: 1_514, longest: 50, pause: Nanos::from_millis(50) };

    fn measured(mut path: SimulatedPath) -> Result<RateEstimate, NoEstimateReason> {
        let mut method = TrainEstimator::new(40, SHAPE);
        path.run_estimator(&mut method);
        method.estimate_rate()
    }

    #[test]
    fn train_measures_fast_link_despite_doubtful_stamps() {
        let mut doubtful = SimulatedPath::new(vec![QueuedLink::new_wire(5e9)]);
        (doubtful.least_gap_ns, doubtful.jitter_ns, doubtful.doubt_ns) = (500.0, 100.0, 1_500);
        let estimate = measured(doubtful).unwrap();
        assert!((estimate.bits_per_s / 5e9 - 1.0).abs() < 0.02, "{estimate:?}");
        assert!(estimate.low <= 5e9 && 5e9 <= estimate.high, "{estimate:?}");
    }

    #[test]
    fn trains_through_buckets_and_traffic() {
        let cross = CrossTraffic::Poisson { bits_per_s: 3e7, length: 700 };
        for links in [
            vec![QueuedLink::new_bucket(1e8, 16_000)],
            vec![
                QueuedLink::new_wire(1e9),
                QueuedLink::new_wire(1e8).with_cross_traffic(cross, 4),
                QueuedLink::new_wire(2e8).with_cross_traffic(cross, 5),
            ],
        ] {
            let estimate = measured(SimulatedPath::new(links)).unwrap();
            assert!((estimate.bits_per_s / 1e8 - 1.0).abs() < 0.05, "{estimate:?}");
        }
    }

    #[test]
    fn a_path_that_loses_all_has_no_rate() {
        let answer = measured(SimulatedPath::new(vec![QueuedLink::new_wire(1e7).with_longest_wait(0.0)]));
        assert!(matches!(answer, Err(NoEstimateReason::TooFew { .. })), "{answer:?}");
    }
}
