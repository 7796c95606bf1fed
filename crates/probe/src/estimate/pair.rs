//! Estimates the capacity from packet pairs: if two probes reach the narrowest link together, their distance
//! behind it is the time that the link needs for one probe.
//!
//! Other traffic may have come between the two probes (too far apart), or delayed the first one behind the
//! narrow link (too close). There are two ways to find undisturbed pairs: the rate on which many pairs agree
//! ([`PairSelection::Mode`]), or the pair whose probes together had the smallest delay
//! ([`PairSelection::LeastDelay`], known as CapProbe).
//!
//! A third probe follows each pair. A shaper has less work for the last frame of a burst, because it sets no timer for
//! a next one, so that frame arrives too early: by 9 of 121 us on a link that Linux limited to 100 Mbit/s.
//!
//! Invariant: a pair is used only if its probes left closer together than the link spreads them.

use super::agreement::{PairRateAgreement, percentile_10_to_90_width};
use super::gaps::{CompleteTrain, median};
use super::settle::{PROBES_AFTER_PRIMERS, SPREAD_THRESHOLD, TrainSettler, TrainShape, plan_probes_at_once};
use super::{
    DiscardedTrains, EstimateQuality, NoEstimateReason, RateEstimate, RateEstimator, SettledTrains,
    TrainProbeTimes, TrainRequest, clamp_to_nanos, find_sample_modes, packets_per_frame,
};
use crate::{ProbeKind, small_count};

/// The way to find undisturbed pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairSelection {
    Mode,
    /// The pair whose two probes had the smallest sum of delays.
    LeastDelay,
}

/// A pair that arrived. `gap` is the time between the two arrivals, `left` the time between the two
/// departures, both in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct PairSample {
    bits: f64,
    gap: f64,
    left: f64,
    delays: [f64; 2],
    doubt: f64,
}

impl PairSample {
    fn rate(&self) -> f64 {
        self.bits * 1e9 / self.gap
    }

    fn delay_sum(&self) -> f64 {
        self.delays[0] + self.delays[1]
    }
}

/// The pair with the least sum of delays.
struct LeastDelayedPair {
    pair: PairSample,
    /// The larger of two times, minus the allowed value, in nanoseconds: how long the two probes waited, and how much
    /// longer those of the confirming pairs waited. Zero or negative if the pair is good enough.
    excess: f64,
}

/// The capacity of a path, and the result of the settling trains that were sent before the pairs.
pub(super) struct MeasuredCapacity {
    pub(super) bits_per_s: f64,
    pub(super) settled: SettledTrains,
}

#[derive(Clone, Debug)]
pub struct PairEstimator {
    pick: PairSelection,
    pairs: usize,
    settle: TrainSettler,
    samples: Vec<PairSample>,
    discarded: DiscardedTrains,
    sent: usize,
}

/// Least number of usable pairs for an answer.
const MIN_USABLE_PAIRS: usize = 10;
/// Minimum number of usable pairs before the estimator may end early.
const MIN_PAIRS_FOR_EARLY_END: usize = 20;
/// Maximum share of pairs whose probes arrive together. If more do, something on the path forwards probes in batches.
const MAX_BATCHED_SHARE: f64 = 0.1;
/// A mode whose rate is below this share of the rate of whole trains comes from other traffic.
const BELOW_TRAIN_RATE_SHARE: f64 = 0.95;
/// The smallest sum of a pair's two delays may exceed the sum of the smallest first delay and the smallest second delay
/// by this share of the distance between the two probes.
const MAX_DELAY_SUM_EXCESS: f64 = 0.04;
/// Minimum number of pairs, the best one included, that must have waited nearly as little as the best pair.
const MIN_PAIRS_NEAR_LEAST_DELAY: usize = 3;
/// Number of different frame lengths of pairs. They vary so that the frame lengths of other traffic do
/// not form separate modes.
const PAIR_LENGTH_COUNT: u32 = 5;
/// Number of different positions of pairs in their bursts; see `PairEstimator::primer_count`.
const PAIR_POSITIONS_IN_BURST: u32 = 4;

impl PairEstimator {
    /// Sends at most `pairs` pairs.
    pub fn new(pick: PairSelection, pairs: usize, shape: TrainShape) -> Self {
        Self {
            pick,
            pairs,
            settle: TrainSettler::new(shape),
            samples: Vec::new(),
            discarded: DiscardedTrains::default(),
            sent: 0,
        }
    }

    fn settled_trains(&self) -> Option<SettledTrains> {
        self.settle.settling_result().and_then(|settled| settled.as_ref().ok()).copied()
    }

    pub(super) fn measured_capacity(&self) -> Result<MeasuredCapacity, NoEstimateReason> {
        let bits_per_s = self.estimate_rate()?.bits_per_s;
        let settled = self.settle.settling_result().cloned();
        let settled = settled.unwrap_or(Err(NoEstimateReason::NoMode { pairs: 0, share: 0.0 }))?;
        Ok(MeasuredCapacity { bits_per_s, settled })
    }

    /// Returns whether more pairs would not change the answer, or the maximum number was sent.
    fn has_enough_pairs(&self) -> bool {
        let rates: Vec<_> = self.samples.iter().map(PairSample::rate).collect();
        match self.pick {
            _ if self.sent >= self.pairs => true,
            _ if self.samples.len() < MIN_PAIRS_FOR_EARLY_END => false,
            // If four fifths of all pairs differ by less than 2 %, more of them would not move the answer.
            PairSelection::Mode => percentile_10_to_90_width(&rates) / median(&rates) < 0.02,
            PairSelection::LeastDelay => self.least_delayed_pair().is_some_and(|least| least.excess <= 0.0),
        }
    }

    fn least_delay(&self, nth: usize) -> f64 {
        self.samples.iter().map(|sample| sample.delays[nth]).fold(f64::INFINITY, f64::min)
    }

    fn least_delayed_pair(&self) -> Option<LeastDelayedPair> {
        // CapProbe (Kapoor et al., SIGCOMM 2004): if neither probe of a pair waited, its sum of delays is the sum of the least delays of
        // first and second probes. The unknown clock offset is in both sums and cancels. The next best pairs must agree, because a sum
        // that was seen only once may be an error of the stamps.
        let mut sorted: Vec<&PairSample> = self.samples.iter().collect();
        sorted.sort_by(|one, other| one.delay_sum().total_cmp(&other.delay_sum()));
        let best = **sorted.first()?;
        let again = sorted.get(MIN_PAIRS_NEAR_LEAST_DELAY - 1)?;
        // The larger of two values counts: how long the best pair waited, and how far the next pairs are from
        // it.
        let waited = (best.delay_sum() - self.least_delay(0) - self.least_delay(1))
            .max(again.delay_sum() - best.delay_sum());
        Some(LeastDelayedPair {
            pair: best,
            excess: waited - (MAX_DELAY_SUM_EXCESS * best.gap).max(best.doubt),
        })
    }

    fn too_few_pairs_reason(&self, have: usize, wanted: usize) -> NoEstimateReason {
        NoEstimateReason::TooFew {
            have,
            wanted,
            trains: self.settle.sent_trains() + self.sent,
            discarded: self.discarded,
        }
    }

    fn estimate_quality(
        &self,
        settled: SettledTrains,
        used: usize,
        share: f64,
        spread: f64,
    ) -> EstimateQuality {
        let relative: Vec<_> = self.samples.iter().map(|sample| sample.doubt / sample.gap).collect();
        EstimateQuality {
            trains: self.settle.sent_trains() + self.sent,
            used,
            share,
            spread,
            stamps: median(&relative),
            primers: settled.primers,
            discarded: self.discarded,
            modes: Vec::new(),
        }
    }

    fn estimate_with_range(&self, rate: f64, low: f64, high: f64, quality: EstimateQuality) -> RateEstimate {
        let doubt = quality.stamps;
        RateEstimate {
            method: self.name(),
            bits_per_s: rate,
            // The range always contains the rate, and grows on both sides by the uncertainty of the stamps.
            low: low.min(rate) / (1.0 + doubt),
            high: high.max(rate) * (1.0 + doubt),
            packets_per_frame: packets_per_frame(self.settle.shape().length),
            quality,
        }
    }

    fn estimate_by_mode(&self, settled: SettledTrains) -> Result<RateEstimate, NoEstimateReason> {
        let rates: Vec<_> = self.samples.iter().map(PairSample::rate).collect();
        // Pairs that arrived together show that something on the path holds frames back and releases them at
        // once. They count as pairs that disagree.
        let pairs = rates.len() + self.discarded.together;
        // Whole trains leave the path at most at the capacity (asymptotic dispersion rate), so a mode below
        // their rate comes from other traffic.
        let above: Vec<_> = rates
            .iter()
            .copied()
            .filter(|rate| *rate >= BELOW_TRAIN_RATE_SHARE * settled.bits_per_s)
            .collect();
        let range = percentile_10_to_90_width(&rates);
        let agreed = PairRateAgreement::find_in_rates(&above, range, pairs)
            .map_err(|share| NoEstimateReason::NoMode { pairs, share })?;
        let spread = range / agreed.rate;
        let mut quality = self.estimate_quality(settled, rates.len(), agreed.share, spread);
        // Other modes are reported beside the answer, so that a reader can judge it.
        quality.modes = find_sample_modes(&rates, 0.01 * median(&rates));
        quality.modes.retain(|mode| mode.share >= 0.05 && !agreed.contains_rate(mode.center));
        Ok(self.estimate_with_range(agreed.rate, agreed.low, agreed.high, quality))
    }

    fn estimate_by_delay(&self, settled: SettledTrains) -> Result<RateEstimate, NoEstimateReason> {
        let trains = self.samples.len();
        let together = self.discarded.together;
        // If many pairs arrive together, the distance of the other pairs is that of two batches, also for the
        // pair with the smallest delays.
        if together as f64 > MAX_BATCHED_SHARE * (trains + together) as f64 {
            let what = format!(
                "{together} of {} pairs arrived together, so something on the path forwards frames in batches",
                trains + together
            );
            return Err(NoEstimateReason::NotConverged { trains, what });
        }
        let Some(LeastDelayedPair { pair: best, excess }) = self.least_delayed_pair() else {
            return Err(NoEstimateReason::NoMode { pairs: 0, share: 0.0 });
        };
        if excess > 0.0 {
            let what = format!(
                "other traffic delayed too many pairs: the least delayed ones still waited {:.1} us too long",
                excess / 1e3
            );
            return Err(NoEstimateReason::NotConverged { trains, what });
        }
        let rate = best.rate();
        let near = self
            .samples
            .iter()
            .filter(|sample| (sample.rate() / rate - 1.0).abs() <= MAX_DELAY_SUM_EXCESS)
            .count();
        let rates: Vec<_> = self.samples.iter().map(PairSample::rate).collect();
        let spread = percentile_10_to_90_width(&rates) / rate;
        let quality = self.estimate_quality(settled, trains, near as f64 / trains as f64, spread);
        Ok(self.estimate_with_range(
            rate,
            rate / (1.0 + MAX_DELAY_SUM_EXCESS),
            rate * (1.0 + MAX_DELAY_SUM_EXCESS),
            quality,
        ))
    }

    /// The number of primers before the next pair. A machine on the path may need more time for every second
    /// or fourth frame of a burst, so the pairs take turns at four positions.
    fn primer_count(&self, settled: SettledTrains) -> u32 {
        let turn = small_count(self.sent / PAIR_LENGTH_COUNT as usize) % PAIR_POSITIONS_IN_BURST;
        // The whole burst stays within the length that the limits allow.
        (settled.primers + turn).min(self.settle.shape().longest.saturating_sub(PROBES_AFTER_PRIMERS))
    }

    /// The frame length of the next pair. The lengths take turns between 84 % of the maximum and the maximum.
    /// `LeastDelay` compares delays, which depend on the length, so there all pairs have the same length.
    fn pair_length(&self) -> u32 {
        let longest = self.settle.shape().length;
        match self.pick {
            PairSelection::LeastDelay => longest,
            PairSelection::Mode => {
                let turn = small_count(self.sent) % PAIR_LENGTH_COUNT;
                // Five lengths, each a twenty-fifth of the maximum shorter than the one before.
                longest - longest / (5 * PAIR_LENGTH_COUNT) * turn
            }
        }
    }
}

impl RateEstimator for PairEstimator {
    fn name(&self) -> &'static str {
        match self.pick {
            PairSelection::Mode => "pair",
            PairSelection::LeastDelay => "capprobe",
        }
    }

    fn next_train(&mut self) -> Option<TrainRequest> {
        let shape = self.settle.shape();
        let settled = match self.settle.settling_result() {
            None => return Some(self.settle.next_train()),
            Some(Err(_)) => return None,
            Some(Ok(_)) if self.has_enough_pairs() => return None,
            Some(Ok(settled)) => *settled,
        };
        let length = self.pair_length();
        self.sent += 1;
        let mut probes = plan_probes_at_once(
            self.primer_count(settled),
            PROBES_AFTER_PRIMERS,
            ProbeKind::Pair,
            shape.length,
        );
        for probe in probes.iter_mut().filter(|probe| probe.kind == ProbeKind::Pair) {
            // Primers keep the full length, because they have to empty the bucket.
            probe.length = length;
        }
        // The last probe of a burst arrives too early (see the module), so it is not measured.
        if let Some(last) = probes.last_mut() {
            last.kind = ProbeKind::Tail;
        }
        // Twice the time that the path needs for the burst, so that the next burst does not meet this one in
        // the queue.
        let drained =
            clamp_to_nanos(2.0 * probes.len() as f64 * f64::from(shape.length) * 8e9 / settled.bits_per_s);
        Some(TrainRequest {
            probes,
            pause: shape.pause.max(drained).max(settled.least_pause(self.sent == 1)),
        })
    }

    fn add_train(&mut self, train: &[TrainProbeTimes]) {
        let Some(settled) = self.settled_trains() else {
            return self.settle.add_train(train);
        };
        let Some(whole) = CompleteTrain::from_train(train, &mut self.discarded) else { return };
        // The last probe is the tail.
        let first = whole.last_index() - 2;
        let second = whole.last_index() - 1;
        let sample = PairSample {
            bits: whole.bits_between_probes(first, second),
            gap: whole.arrival_gap(first, second),
            left: whole.departure_gap(first, second),
            delays: [whole.probe_delay(first), whole.probe_delay(second)],
            doubt: whole.gap_uncertainty(first, second),
        };
        let expected = sample.bits * 1e9 / settled.bits_per_s;
        // A gap that the path did not widen says nothing about the path. If the second probe left so late
        // that the link was nearly idle in between, the gap is that of the sender.
        if sample.gap <= sample.doubt.max(SPREAD_THRESHOLD * sample.left) {
            self.discarded.together += 1;
        } else if sample.left > 0.8 * expected {
            self.discarded.unlike += 1;
        } else {
            self.samples.push(sample);
        }
    }

    fn estimate_rate(&self) -> Result<RateEstimate, NoEstimateReason> {
        let settled = match self.settle.settling_result() {
            None => return Err(self.too_few_pairs_reason(0, 1)),
            Some(settled) => settled.clone()?,
        };
        if self.samples.len() < MIN_USABLE_PAIRS {
            return Err(self.too_few_pairs_reason(self.samples.len(), MIN_USABLE_PAIRS));
        }
        match self.pick {
            PairSelection::Mode => self.estimate_by_mode(settled),
            PairSelection::LeastDelay => self.estimate_by_delay(settled),
        }
    }
}

#[cfg(test)]
mod tests;
