//! Capacity from trains, for links so fast that a pair's distance is lost in the uncertainty of the stamps.
//!
//! Of many trains, the one whose first and last probe waited least was disturbed least (known as PBProbe): the rate at which it came out is
//! the answer. The rate of most trains (the asymptotic dispersion rate, between available rate and capacity) is the lower bound.
//!
//! Invariant: a train is so long that its dispersion is a hundred times the uncertainty of its stamps, or the answer says so.

use super::gaps::{WholeTrain, median, quantile};
use super::settle::{TrainSettler, TrainShape, at_once};
use super::{
    DiscardedTrains, EstimateQuality, NoAnswer, PassedProbe, RateEstimate, RateEstimator, TrainRequest,
    nanos, packets_per_frame,
};
use crate::ProbeKind;

#[derive(Clone, Copy, Debug)]
struct TrainSample {
    rate: f64,
    sum: f64,
    doubt: f64,
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

/// Uncertainty of a train's dispersion above which trains are made longer.
const DOUBT: f64 = 0.01;
/// With fewer usable trains there is no answer.
const LEAST: usize = 5;
/// Measured probes of the first trains.
const SHORTEST: u32 = 10;

impl TrainEstimator {
    pub fn new(trains: usize, shape: TrainShape) -> Self {
        Self {
            settle: TrainSettler::new(shape),
            trains,
            of: SHORTEST,
            samples: Vec::new(),
            discarded: DiscardedTrains::default(),
            sent: 0,
        }
    }

    /// Makes trains longer if the stamps are too uncertain for these, and if there is room.
    fn lengthen(&mut self, primers: u32) {
        let room = self.settle.shape().longest.saturating_sub(primers);
        let doubts: Vec<_> = self.samples.iter().map(|sample| sample.doubt).collect();
        if self.samples.len() == LEAST && median(&doubts) > DOUBT && self.of < room {
            self.of = (self.of * 2).min(room);
            // Rates of trains of different length are not compared: a longer one meets more of other traffic.
            self.samples.clear();
        }
    }
}

impl RateEstimator for TrainEstimator {
    fn name(&self) -> &'static str {
        "train"
    }

    fn ask(&mut self) -> Option<TrainRequest> {
        let shape = self.settle.shape();
        let settled = match self.settle.settled() {
            None => return Some(self.settle.ask()),
            Some(Ok(settled)) if self.samples.len() < self.trains && self.sent < 3 * self.trains => *settled,
            Some(_) => return None,
        };
        self.sent += 1;
        let of = self.of.min(shape.longest.saturating_sub(settled.primers)).max(2);
        let probes = at_once(settled.primers, of, ProbeKind::Train, shape.length);
        let drained = nanos(2.0 * probes.len() as f64 * f64::from(shape.length) * 8e9 / settled.bits_per_s);
        Some(TrainRequest { probes, pause: shape.pause.max(drained) })
    }

    fn saw(&mut self, train: &[PassedProbe]) {
        let Some(settled) = self.settle.settled().cloned() else {
            return self.settle.saw(train);
        };
        let Ok(settled) = settled else { return };
        let Some(whole) = WholeTrain::of(train, &mut self.discarded) else { return };
        let first = settled.primers as usize;
        let last = whole.last();
        let took = whole.came(first, last);
        let bits = whole.bits(first, last);
        if took <= whole.doubt(first, last) {
            self.discarded.together += 1;
        // Probes that left almost as slowly as the path carries them would show the sender's rate.
        } else if whole.left(first, last) > 0.8 * bits * 1e9 / settled.bits_per_s {
            self.discarded.unlike += 1;
        } else {
            self.samples.push(TrainSample {
                rate: bits * 1e9 / took,
                sum: whole.delay(first) + whole.delay(last),
                doubt: whole.doubt(first, last) / took,
            });
            self.lengthen(settled.primers);
        }
    }

    fn answer(&self) -> Result<RateEstimate, NoAnswer> {
        let have = self.samples.len();
        let trains = self.settle.sent() + self.sent;
        let too_few = NoAnswer::TooFew { have, wanted: LEAST, trains, discarded: self.discarded };
        let settled = match self.settle.settled() {
            None => return Err(too_few),
            Some(settled) => settled.clone()?,
        };
        let best = self.samples.iter().min_by(|one, other| one.sum.total_cmp(&other.sum));
        let Some(best) = best.filter(|_| have >= LEAST) else { return Err(too_few) };
        let rates: Vec<_> = self.samples.iter().map(|sample| sample.rate).collect();
        let near = rates.iter().filter(|rate| (*rate / best.rate - 1.0).abs() < 0.02).count();
        let low = median(&rates).min(best.rate);
        let high = quantile(&rates, 1.0).max(best.rate);
        Ok(RateEstimate {
            method: self.name(),
            bits_per_s: best.rate,
            low: low / (1.0 + best.doubt),
            high: high * (1.0 + best.doubt),
            packets_per_frame: packets_per_frame(self.settle.shape().length),
            quality: EstimateQuality {
                trains,
                used: have,
                share: near as f64 / have as f64,
                spread: (quantile(&rates, 0.9) - quantile(&rates, 0.1)) / best.rate,
                stamps: best.doubt,
                primers: settled.primers,
                discarded: self.discarded,
                modes: Vec::new(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::sim::{CrossTraffic, QueuedLink, SimulatedPath};
    use packetrig_units::Nanos;

    const SHAPE: TrainShape = TrainShape { length: 1_514, longest: 50, pause: Nanos::from_millis(50) };

    fn measured(mut path: SimulatedPath) -> Result<RateEstimate, NoAnswer> {
        let mut method = TrainEstimator::new(40, SHAPE);
        path.run(&mut method);
        method.answer()
    }

    #[test]
    fn fast_links_are_measured_in_spite_of_doubtful_stamps() {
        let mut doubtful = SimulatedPath::new(vec![QueuedLink::wire(5e9)]);
        (doubtful.least_gap_ns, doubtful.jitter_ns, doubtful.doubt_ns) = (500.0, 100.0, 1_500);
        let estimate = measured(doubtful).unwrap();
        assert!((estimate.bits_per_s / 5e9 - 1.0).abs() < 0.02, "{estimate:?}");
        assert!(estimate.low <= 5e9 && 5e9 <= estimate.high, "{estimate:?}");
    }

    #[test]
    fn trains_through_buckets_and_traffic() {
        let cross = CrossTraffic::Poisson { bits_per_s: 3e7, length: 700 };
        for links in [
            vec![QueuedLink::bucket(1e8, 16_000)],
            vec![
                QueuedLink::wire(1e9),
                QueuedLink::wire(1e8).with(cross, 4),
                QueuedLink::wire(2e8).with(cross, 5),
            ],
        ] {
            let estimate = measured(SimulatedPath::new(links)).unwrap();
            assert!((estimate.bits_per_s / 1e8 - 1.0).abs() < 0.05, "{estimate:?}");
        }
    }

    #[test]
    fn a_path_that_loses_all_has_no_rate() {
        let answer = measured(SimulatedPath::new(vec![QueuedLink::wire(1e7).patient(0.0)]));
        assert!(matches!(answer, Err(NoAnswer::TooFew { .. })), "{answer:?}");
    }
}
