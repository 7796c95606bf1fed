//! Estimates the available rate of a path from trains that get faster and faster, called chirps
//! (the method of pathChirp).
//!
//! When a chirp becomes faster than the available rate, its probes begin to wait longer and longer. If the
//! waiting ends within the chirp (an *excursion*), the chirp met a burst of other traffic, and the excursion
//! shows the available rate during that time.
//!
//! Invariant: every distance of a chirp gets exactly one rate, which is weighted by the duration of the distance.

use super::agreement::percentile_10_to_90_width;
use super::gaps::{CompleteTrain, mean, standard_error};
use super::settle::{TrainSettler, TrainShape};
use super::{
    DiscardedTrains, EstimateQuality, NoEstimateReason, RateEstimate, RateEstimator, TrainProbeTimes,
    TrainRequest, clamp_to_nanos, packets_per_frame,
};
use crate::{PlannedProbe, ProbeKind};

const TOO_FAST_TEXT: &str = "saw the delay grow from their first probe on: even their lowest rate is above the available rate; try --method pathload";
const TOO_SLOW_TEXT: &str =
    "saw no delay that was still growing at their last probe: the available rate is above their highest rate";

#[derive(Clone, Debug)]
pub struct ChirpEstimator {
    chirps: usize,
    settle: TrainSettler,
    samples: Vec<f64>,
    discarded: DiscardedTrains,
    sent: usize,
    /// `too_fast` counts chirps whose delay grew from the first probe to the last, `never` those whose delay was not
    /// growing at the last probe.
    too_fast: usize,
    never: usize,
}

/// Each distance is shorter than the one before it by this factor.
const CHIRP_SPREAD_FACTOR: f64 = 1.2;
/// The slowest and the fastest rate of a chirp, relative to the rate at which trains leave the path.
const SLOWEST_RATE_FACTOR: f64 = 0.08;
const FASTEST_RATE_FACTOR: f64 = 2.5;
/// Waits are counted from the beginning of an excursion. It ends when the wait has fallen below the longest wait
/// divided by this factor (F of pathChirp).
const EXCURSION_END_FACTOR: f64 = 1.5;
/// Minimum length of an excursion, in probes; shorter ones do not count.
const MIN_EXCURSION_PROBES: usize = 5;
/// A wait that grows by less than this share of the narrow link's time for one probe is noise, not a queue.
const WAIT_NOISE_SHARE: f64 = 0.05;
/// A distance may be longer than the distance before it by up to this factor, because the sender has delays of its own.
const UNEVEN_DISTANCE_FACTOR: f64 = 1.2;
/// If a token bucket lets more distances than this pass unchanged, it hides all of a chirp's few fast probes, and the
/// method gives no answer.
const MAX_HIDDEN_DISTANCES: u32 = 1;
/// Least number of usable chirps for an answer.
const MIN_USABLE_CHIRPS: usize = 8;

impl ChirpEstimator {
    pub fn new(chirps: usize, shape: TrainShape) -> Self {
        Self {
            // Fewer chirps could never give an answer.
            chirps: chirps.max(MIN_USABLE_CHIRPS),
            settle: TrainSettler::new(shape),
            samples: Vec::new(),
            discarded: DiscardedTrains::default(),
            sent: 0,
            too_fast: 0,
            never: 0,
        }
    }

    fn plan_chirp(&self, dispersion_rate: f64) -> Vec<PlannedProbe> {
        let TrainShape { length, longest, .. } = self.settle.shape();
        let mut rate = dispersion_rate * SLOWEST_RATE_FACTOR;
        let mut at = 0.0;
        let mut probes = Vec::new();
        for number in 0..longest {
            probes.push(PlannedProbe {
                number,
                train: 0,
                kind: ProbeKind::Chirp,
                at: clamp_to_nanos(at),
                length,
            });
            // The rate is in bits per second and the time in nanoseconds.
            at += f64::from(length) * 8e9 / rate;
            // Exponential gaps probe a wide range of rates with few probes: 19 distances reach from 0.08 to 2.1
            // times the rate.
            rate *= CHIRP_SPREAD_FACTOR;
            if rate > dispersion_rate * FASTEST_RATE_FACTOR * CHIRP_SPREAD_FACTOR {
                break;
            }
        }
        probes
    }

    fn train_count(&self) -> usize {
        self.settle.sent_trains() + self.sent
    }

    /// Returns a failure if `count` is more than half of the usable chirps; `what` says what these chirps saw.
    fn failure_of_most_chirps(&self, count: usize, what: &str) -> Option<NoEstimateReason> {
        let have = self.samples.len();
        let what = format!("{count} of {have} chirps {what}");
        (2 * count > have).then(|| NoEstimateReason::NotConverged { trains: self.train_count(), what })
    }
}

impl RateEstimator for ChirpEstimator {
    fn name(&self) -> &'static str {
        "pathchirp"
    }

    fn next_train(&mut self) -> Option<TrainRequest> {
        let settled = match self.settle.settling_result() {
            None => return Some(self.settle.next_train()),
            Some(Ok(settled)) if settled.hidden > MAX_HIDDEN_DISTANCES => return None,
            // The method must end even if the sender is often disturbed, so it sends at most three times the
            // wanted number of chirps.
            Some(Ok(settled)) if self.samples.len() < self.chirps && self.sent < 3 * self.chirps => *settled,
            Some(_) => return None,
        };
        self.sent += 1;
        let probes = self.plan_chirp(settled.bits_per_s);
        let takes = probes.last().map(|last| last.at).unwrap_or_default();
        Some(TrainRequest {
            probes,
            // A pause of the chirp's own length halves the mean load on the path.
            pause: self.settle.shape().pause.max(takes).max(settled.least_pause(self.sent == 1)),
        })
    }

    fn add_train(&mut self, train: &[TrainProbeTimes]) {
        let Some(settled) = self.settle.settling_result().and_then(|settled| settled.as_ref().ok()).copied()
        else {
            return self.settle.add_train(train);
        };
        let Some(whole) = CompleteTrain::from_train(train, &mut self.discarded) else { return };
        let gaps: Vec<_> = (0..whole.last_index()).map(|nth| whole.departure_gap(nth, nth + 1)).collect();
        // The measured departures are checked, because a delayed sender makes a queue of its own that would
        // look like a queue of the path.
        if gaps.iter().any(|gap| *gap <= 0.0)
            || gaps.windows(2).any(|two| two[1] > two[0] * UNEVEN_DISTANCE_FACTOR)
        {
            self.discarded.unlike += 1;
            return;
        }
        // Every delay contains the offset of the clocks, so it cancels in the difference to the first.
        let waits: Vec<_> =
            (0..=whole.last_index()).map(|nth| whole.probe_delay(nth) - whole.probe_delay(0)).collect();
        let rates: Vec<_> =
            (0..gaps.len()).map(|nth| whole.bits_between_probes(nth, nth + 1) * 1e9 / gaps[nth]).collect();
        let noise = whole
            .gap_uncertainty(0, 1)
            .max(WAIT_NOISE_SHARE * whole.bits_between_probes(0, 1) * 1e9 / settled.bits_per_s);
        let last = find_open_excursion(&waits, noise);
        // Only an excursion that does not end within the chirp shows the available rate. If it begins at the
        // first probe, all rates of the chirp were too high.
        self.too_fast += usize::from(last == Some(0));
        self.never += usize::from(last.is_none());
        // The available rate cannot exceed the capacity of the path, whatever a bucket lets through for a
        // moment.
        self.samples.push(mean_available_rate(&waits, &rates, &gaps, last, noise).min(settled.bits_per_s));
    }

    fn estimate_rate(&self) -> Result<RateEstimate, NoEstimateReason> {
        let have = self.samples.len();
        let trains = self.train_count();
        match self.settle.settling_result() {
            Some(Err(none)) => return Err(none.clone()),
            Some(Ok(settled)) if settled.hidden > MAX_HIDDEN_DISTANCES => {
                return Err(NoEstimateReason::Bucket { frames: settled.hidden + 1 });
            }
            _ => {}
        }
        if have < MIN_USABLE_CHIRPS {
            return Err(NoEstimateReason::TooFew {
                have,
                wanted: MIN_USABLE_CHIRPS,
                trains,
                discarded: self.discarded,
            });
        }
        let too_fast = self.failure_of_most_chirps(self.too_fast, TOO_FAST_TEXT);
        if let Some(none) = too_fast.or_else(|| self.failure_of_most_chirps(self.never, TOO_SLOW_TEXT)) {
            return Err(none);
        }
        let middle = mean(&self.samples);
        let error = 2.0 * standard_error(&self.samples);
        let spread = percentile_10_to_90_width(&self.samples);
        // The rates of a chirp are a factor of `CHIRP_SPREAD_FACTOR` apart, so the resolution is the square root of
        // that factor to each side.
        let fine = CHIRP_SPREAD_FACTOR.sqrt();
        Ok(RateEstimate {
            method: self.name(),
            bits_per_s: middle,
            // Because of bursts, some chirps see more free capacity than the mean, and none sees less. So the
            // lower bound is lower if the chirps differ more.
            low: (middle - error.max(spread)).max(0.0) / fine,
            high: (middle + error) * fine,
            packets_per_frame: packets_per_frame(self.settle.shape().length),
            quality: EstimateQuality {
                trains,
                used: have,
                share: have as f64 / self.sent.max(1) as f64,
                spread: spread / middle.max(1.0),
                discarded: self.discarded,
                ..EstimateQuality::default()
            },
        })
    }
}

/// Index of the probe at which an excursion ends that began at `from`; `None` if it lasts to the end of the chirp.
fn find_excursion_end(waits: &[f64], from: usize) -> Option<usize> {
    let mut most = 0.0_f64;
    // `most` is the longest wait so far: a queue drains only after its peak.
    for (to, wait) in waits.iter().enumerate().skip(from + 1) {
        let above = wait - waits[from];
        most = most.max(above);
        if above < most / EXCURSION_END_FACTOR {
            return Some(to);
        }
    }
    None
}

/// A part of a chirp in which probes waited longer than before.
#[derive(Debug, PartialEq)]
struct QueueingExcursion {
    from: usize,
    /// `None` if it lasts to the end of the chirp.
    end: Option<usize>,
}

/// Returns all excursions of a chirp, in order. A wait that grows by at most `noise` begins none.
fn find_excursions(waits: &[f64], noise: f64) -> Vec<QueueingExcursion> {
    let mut all = Vec::new();
    let mut at = 0;
    while at + 1 < waits.len() {
        // A rise within the noise does not begin an excursion; otherwise every chirp would have some.
        if waits[at + 1] - waits[at] <= noise {
            at += 1;
            continue;
        }
        let end = find_excursion_end(waits, at);
        all.push(QueueingExcursion { from: at, end });
        // The search goes on at the end of the excursion, so excursions never overlap.
        at = end.unwrap_or(waits.len());
    }
    all
}

/// Index of the probe at which the excursion begins that does not end within the chirp; `None` if all excursions end.
fn find_open_excursion(waits: &[f64], noise: f64) -> Option<usize> {
    find_excursions(waits, noise).last().filter(|last| last.end.is_none()).map(|last| last.from)
}

/// The mean available rate during a chirp. `last` is the beginning of its open excursion, if it has one.
fn mean_available_rate(waits: &[f64], rates: &[f64], gaps: &[f64], last: Option<usize>, noise: f64) -> f64 {
    // Without an open excursion no rate of the chirp was too fast, so its fastest rate is used.
    let turning = rates[last.unwrap_or(rates.len() - 1)];
    // pathChirp (Ribeiro et al., PAM 2003): a distance on the rising part of an ended excursion counts with its own rate, because the
    // path was busy just then. All others count with the rate at which the last, open excursion began.
    let mut each = vec![turning; rates.len()];
    for QueueingExcursion { from, end } in find_excursions(waits, noise) {
        let Some(end) = end.filter(|end| end - from >= MIN_EXCURSION_PROBES) else { continue };
        for nth in from..end.min(rates.len()) {
            if waits[nth + 1] > waits[nth] {
                each[nth] = rates[nth].min(turning);
            }
        }
    }
    let weighted: f64 = each.iter().zip(gaps).map(|(rate, gap)| rate * gap).sum();
    // Weighted by time: a chirp spends more time at slow rates than at fast ones.
    weighted / gaps.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::sim::{CrossTraffic, QueuedLink, SimulatedPath};
    use packetrig_units::Nanos;

    const SHAPE: TrainShape = TrainShape { length: 1_514, longest: 50, pause: Nanos::from_millis(50) };

    #[test]
    fn more_traffic_of_others_leaves_less() {
        let mut last = f64::INFINITY;
        for (seed, busy) in [(1, 0.1), (2, 0.4), (3, 0.7)] {
            let cross = CrossTraffic::Poisson { bits_per_s: busy * 1e7, length: 500 };
            let mut method = ChirpEstimator::new(60, SHAPE);
            SimulatedPath::new(vec![QueuedLink::new_wire(1e7).with_cross_traffic(cross, seed)])
                .run_estimator(&mut method);
            let estimate = method.estimate_rate().unwrap();
            let free = (1.0 - busy) * 1e7;
            assert!((estimate.bits_per_s - free).abs() < 0.25e7, "{busy}: {estimate:?}");
            assert!(estimate.bits_per_s < last);
            last = estimate.bits_per_s;
        }
    }

    #[test]
    fn chirp_estimate_of_idle_link_covers_its_rate() {
        let mut method = ChirpEstimator::new(20, SHAPE);
        SimulatedPath::new(vec![QueuedLink::new_wire(1e8)]).run_estimator(&mut method);
        let estimate = method.estimate_rate().unwrap();
        assert!(estimate.low <= 1e8 && estimate.high >= 1e8, "{estimate:?}");
    }

    #[test]
    fn chirp_gives_no_rate_for_large_token_bucket() {
        let mut method = ChirpEstimator::new(20, SHAPE);
        SimulatedPath::new(vec![QueuedLink::new_bucket(1e7, 5_000)]).run_estimator(&mut method);
        assert_eq!(method.estimate_rate(), Err(NoEstimateReason::Bucket { frames: 4 }));
        // One that a second frame empties does not.
        let mut method = ChirpEstimator::new(20, SHAPE);
        SimulatedPath::new(vec![QueuedLink::new_bucket(1e7, 1_600)]).run_estimator(&mut method);
        let estimate = method.estimate_rate().unwrap();
        assert!(estimate.low <= 1e7 && estimate.high >= 1e7, "{estimate:?}");
    }

    #[test]
    fn excursion_ends_when_most_waiting_is_over() {
        let waits = [0.0, 0.0, 5.0, 9.0, 8.0, 7.0, 1.0, 0.0, 3.0, 6.0, 9.0];
        let ended = QueueingExcursion { from: 1, end: Some(6) };
        let lasting = QueueingExcursion { from: 7, end: None };
        assert_eq!(find_excursions(&waits, 0.1), [ended, lasting]);
        assert_eq!(find_open_excursion(&waits, 0.1), Some(7));
        assert_eq!(find_open_excursion(&[0.0; 6], 0.1), None);
    }
}
