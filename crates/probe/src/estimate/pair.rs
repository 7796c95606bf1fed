//! Capacity from packet pairs: two probes that reach the narrowest link together leave it as far apart as it takes to send one.
//!
//! Other traffic may have come between the two (too far apart), or held up the first behind the narrow link (too close). Two ways to
//! find the pairs that were left alone: the rate that many of them agree on ([`PairPick::SampleMode`]), or the pair with the least delay of both
//! its probes ([`PairPick::LeastDelay`], known as CapProbe).
//!
//! A third probe goes behind each pair: whoever sends the last of a burst on has less to do for it (no timer to wind up for the next), so it
//! comes too soon. On a link of 100 Mbit/s shaped by a kernel without a card that was 9 of 121 us.
//!
//! Invariant: a pair whose probes did not leave closer together than the answer's distance is never used.

use super::gaps::{WholeTrain, median, quantile};
use super::settle::{MEASURED, SPREAD, TrainSettler, TrainShape, at_once};
use super::{
    DiscardedTrains, EstimateQuality, NoAnswer, PassedProbe, RateEstimate, RateEstimator, SampleMode,
    SettledTrains, TrainRequest, modes, nanos, packets_per_frame,
};
use crate::ProbeKind;

/// How the pairs that were left alone are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairPick {
    Mode,
    /// Neither probe had to wait for others.
    LeastDelay,
}

/// A pair that came through.
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

    fn sum(&self) -> f64 {
        self.delays[0] + self.delays[1]
    }
}

#[derive(Clone, Debug)]
pub struct PairEstimator {
    pick: PairPick,
    pairs: usize,
    settle: TrainSettler,
    samples: Vec<PairSample>,
    discarded: DiscardedTrains,
    sent: usize,
}

/// With fewer pairs nothing is said.
const LEAST: usize = 10;
/// After as many it may end early.
const EARLY: usize = 20;
/// A mode is what at least this share of the pairs agree on.
const LEAST_SHARE: f64 = 0.1;
/// How much of the sum of the least delays the least sum of delays may exceed, in parts of the pair's distance.
const CONVERGED: f64 = 0.04;
/// So many pairs have to have waited so little.
const AGAIN: usize = 3;
/// Pairs vary in length, so that other traffic's lengths do not make modes of their own: this many lengths.
const LENGTHS: u32 = 5;
/// And stand at this many places of their bursts.
const PLACES: u32 = 4;

impl PairEstimator {
    /// At most `pairs` of them.
    pub fn new(pick: PairPick, pairs: usize, shape: TrainShape) -> Self {
        let (samples, discarded) = (Vec::new(), DiscardedTrains::default());
        Self { pick, pairs, settle: TrainSettler::new(shape), samples, discarded, sent: 0 }
    }

    fn settled(&self) -> Option<SettledTrains> {
        self.settle.settled().and_then(|settled| settled.as_ref().ok()).copied()
    }

    /// The rate, and what the first trains found.
    pub(super) fn measured(&self) -> Result<(f64, SettledTrains), NoAnswer> {
        let rate = self.answer()?.bits_per_s;
        let settled = self.settle.settled().cloned();
        settled.unwrap_or(Err(NoAnswer::NoMode { pairs: 0, share: 0.0 })).map(|settled| (rate, settled))
    }

    /// Whether more pairs would not change anything.
    fn is_over(&self) -> bool {
        let rates: Vec<_> = self.samples.iter().map(PairSample::rate).collect();
        match self.pick {
            _ if self.sent >= self.pairs => true,
            _ if self.samples.len() < EARLY => false,
            PairPick::Mode => (quantile(&rates, 0.9) - quantile(&rates, 0.1)) / median(&rates) < 0.02,
            PairPick::LeastDelay => self.least().is_some_and(|(_, excess)| excess <= 0.0),
        }
    }

    /// The pair of the least sum of delays, and how much longer than allowed it waited: by the least delays of each of both probes,
    /// and by the next best pairs, because what happened only once is not the path's own.
    fn least(&self) -> Option<(PairSample, f64)> {
        let least = |nth: usize| self.samples.iter().map(|s| s.delays[nth]).fold(f64::INFINITY, f64::min);
        let mut sorted: Vec<&PairSample> = self.samples.iter().collect();
        sorted.sort_by(|one, other| one.sum().total_cmp(&other.sum()));
        let (best, again) = (sorted.first()?, sorted.get(AGAIN - 1)?);
        let excess = (best.sum() - least(0) - least(1)).max(again.sum() - best.sum());
        Some((**best, excess - (CONVERGED * best.gap).max(best.doubt)))
    }

    fn quality(&self, settled: SettledTrains, used: usize, share: f64, spread: f64) -> EstimateQuality {
        let relative: Vec<_> = self.samples.iter().map(|sample| sample.doubt / sample.gap).collect();
        EstimateQuality {
            trains: self.settle.sent() + self.sent,
            used,
            share,
            spread,
            stamps: median(&relative),
            primers: settled.primers,
            discarded: self.discarded,
            modes: Vec::new(),
        }
    }

    fn estimate(&self, rate: f64, low: f64, high: f64, quality: EstimateQuality) -> RateEstimate {
        let doubt = quality.stamps;
        RateEstimate {
            method: self.name(),
            bits_per_s: rate,
            low: low.min(rate) / (1.0 + doubt),
            high: high.max(rate) * (1.0 + doubt),
            packets_per_frame: packets_per_frame(self.settle.shape().length),
            quality,
        }
    }

    fn by_mode(&self, settled: SettledTrains) -> Result<RateEstimate, NoAnswer> {
        let rates: Vec<_> = self.samples.iter().map(PairSample::rate).collect();
        let found = modes(&rates, 0.01 * median(&rates));
        // Below the rate of whole trains there is no capacity.
        let above: Vec<&SampleMode> =
            found.iter().filter(|mode| mode.center >= 0.95 * settled.bits_per_s).collect();
        let best = above
            .iter()
            .filter(|mode| mode.share >= LEAST_SHARE)
            .max_by(|one, other| one.core.total_cmp(&other.core));
        let Some(best) = best else {
            let share = above.iter().map(|mode| mode.share).fold(0.0, f64::max);
            return Err(NoAnswer::NoMode { pairs: rates.len(), share });
        };
        let spread = (quantile(&rates, 0.9) - quantile(&rates, 0.1)) / best.center;
        let mut quality = self.quality(settled, rates.len(), best.share, spread);
        quality.modes = found.iter().filter(|mode| **mode != **best && mode.share >= 0.05).copied().collect();
        Ok(self.estimate(best.center, best.low, best.high, quality))
    }

    fn by_delay(&self, settled: SettledTrains) -> Result<RateEstimate, NoAnswer> {
        let trains = self.samples.len();
        let Some((best, excess)) = self.least() else {
            return Err(NoAnswer::NoMode { pairs: 0, share: 0.0 });
        };
        if excess > 0.0 {
            let what = format!(
                "other traffic delayed every pair: the best pair still waited {:.1} us too long",
                excess / 1e3
            );
            return Err(NoAnswer::NotConverged { trains, what });
        }
        let rate = best.rate();
        let near =
            self.samples.iter().filter(|sample| (sample.rate() / rate - 1.0).abs() <= CONVERGED).count();
        let rates: Vec<_> = self.samples.iter().map(PairSample::rate).collect();
        let spread = (quantile(&rates, 0.9) - quantile(&rates, 0.1)) / rate;
        let quality = self.quality(settled, trains, near as f64 / trains as f64, spread);
        Ok(self.estimate(rate, rate / (1.0 + CONVERGED), rate * (1.0 + CONVERGED), quality))
    }

    /// In front of the next pair. A machine on the way may take longer for the second, fourth, … frame of a burst: pairs take turns at four places.
    fn primers(&self, settled: SettledTrains) -> u32 {
        let turn = u32::try_from(self.sent / LENGTHS as usize).unwrap_or(0) % PLACES;
        (settled.primers + turn).min(self.settle.shape().longest.saturating_sub(MEASURED))
    }

    /// The lengths of pairs go round between four fifths of the longest and the longest; delays of different lengths cannot be
    /// compared, so there all are the same.
    fn length(&self) -> u32 {
        let longest = self.settle.shape().length;
        match self.pick {
            PairPick::LeastDelay => longest,
            PairPick::Mode => {
                let turn = u32::try_from(self.sent).unwrap_or(0) % LENGTHS;
                longest - longest / (5 * LENGTHS) * turn
            }
        }
    }
}

impl RateEstimator for PairEstimator {
    fn name(&self) -> &'static str {
        match self.pick {
            PairPick::Mode => "pair",
            PairPick::LeastDelay => "capprobe",
        }
    }

    fn ask(&mut self) -> Option<TrainRequest> {
        let shape = self.settle.shape();
        let settled = match self.settle.settled() {
            None => return Some(self.settle.ask()),
            Some(Err(_)) => return None,
            Some(Ok(_)) if self.is_over() => return None,
            Some(Ok(settled)) => *settled,
        };
        let length = self.length();
        self.sent += 1;
        let mut probes = at_once(self.primers(settled), MEASURED, ProbeKind::Pair, shape.length);
        for probe in probes.iter_mut().filter(|probe| probe.kind == ProbeKind::Pair) {
            probe.length = length;
        }
        if let Some(last) = probes.last_mut() {
            last.kind = ProbeKind::Tail;
        }
        // So that what is left of one in the queue is not in the way of the next.
        let drained = nanos(2.0 * probes.len() as f64 * f64::from(shape.length) * 8e9 / settled.bits_per_s);
        Some(TrainRequest { probes, pause: shape.pause.max(drained) })
    }

    fn saw(&mut self, train: &[PassedProbe]) {
        let Some(settled) = self.settled() else {
            return self.settle.saw(train);
        };
        let Some(whole) = WholeTrain::of(train, &mut self.discarded) else { return };
        let (first, second) = (whole.last() - 2, whole.last() - 1);
        let sample = PairSample {
            bits: whole.bits(first, second),
            gap: whole.came(first, second),
            left: whole.left(first, second),
            delays: [whole.delay(first), whole.delay(second)],
            doubt: whole.doubt(first, second),
        };
        let expected = sample.bits * 1e9 / settled.bits_per_s;
        if sample.gap <= sample.doubt.max(SPREAD * sample.left) {
            self.discarded.together += 1;
        } else if sample.left > 0.8 * expected {
            self.discarded.unlike += 1;
        } else {
            self.samples.push(sample);
        }
    }

    fn answer(&self) -> Result<RateEstimate, NoAnswer> {
        let trains = self.settle.sent() + self.sent;
        let too_few = |have, wanted| NoAnswer::TooFew { have, wanted, trains, discarded: self.discarded };
        let settled = match self.settle.settled() {
            None => return Err(too_few(0, 1)),
            Some(settled) => settled.clone()?,
        };
        if self.samples.len() < LEAST {
            return Err(too_few(self.samples.len(), LEAST));
        }
        match self.pick {
            PairPick::Mode => self.by_mode(settled),
            PairPick::LeastDelay => self.by_delay(settled),
        }
    }
}

#[cfg(test)]
mod tests;
