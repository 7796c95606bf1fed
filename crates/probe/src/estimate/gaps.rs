//! Arithmetic on the stamps of a train.
//!
//! Invariant: stamps are subtracted as integers, and become floats only as differences: a float is too coarse for a time in nanoseconds.

use super::{DiscardedTrains, TrainProbeTimes};

/// Signed time from one stamp to another, in nanoseconds; zero if it does not fit into 64 bits.
pub(super) fn difference_ns(from: u64, to: u64) -> f64 {
    // A difference beyond 63 bits is no real time between two probes.
    to.checked_signed_diff(from).unwrap_or(0) as f64
}

/// A train whose probes all left undisturbed at known times, and all arrived in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompleteTrain<'a>(pub(super) &'a [TrainProbeTimes]);

impl<'a> CompleteTrain<'a> {
    /// Returns the train if it is complete; otherwise counts it in `discarded`.
    pub(super) fn from_train(train: &'a [TrainProbeTimes], discarded: &mut DiscardedTrains) -> Option<Self> {
        // The first reason counts, since it may be the cause of the later ones.
        let account = if train.iter().any(|probe| probe.disturbed) {
            &mut discarded.disturbed
        } else if train.iter().any(|probe| probe.left.is_none()) {
            &mut discarded.unstamped
        } else if train.iter().any(|probe| probe.came.is_none()) {
            &mut discarded.lost
        } else if train.windows(2).any(|two| two[1].came < two[0].came) {
            &mut discarded.reordered
        } else {
            return Some(Self(train));
        };
        *account += 1;
        None
    }

    /// Time between the departures of two probes, in nanoseconds.
    pub(super) fn departure_gap(self, from: usize, to: usize) -> f64 {
        difference_ns(self.0[from].left.unwrap_or(0), self.0[to].left.unwrap_or(0))
    }

    /// Time between the arrivals of two probes, in nanoseconds.
    pub(super) fn arrival_gap(self, from: usize, to: usize) -> f64 {
        difference_ns(self.0[from].came.unwrap_or(0), self.0[to].came.unwrap_or(0))
    }

    /// Delay of a probe (one way or round trip), plus the unknown offset if the two clocks differ.
    pub(super) fn probe_delay(self, nth: usize) -> f64 {
        difference_ns(self.0[nth].left.unwrap_or(0), self.0[nth].came.unwrap_or(0))
    }

    /// Bits of the probes with the indices `from + 1` to `to`.
    pub(super) fn bits_between_probes(self, from: usize, to: usize) -> f64 {
        // The probe at `from` does not count: a link uses the time after its arrival for the later probes.
        self.0[from + 1..=to].iter().map(|probe| f64::from(probe.length) * 8.0).sum()
    }

    /// Error bound of a distance, from the stamps of both probes.
    pub(super) fn gap_uncertainty(self, from: usize, to: usize) -> f64 {
        (self.0[from].doubt + self.0[to].doubt) as f64
    }

    /// Index of the last probe of the train.
    pub(super) const fn last_index(self) -> usize {
        self.0.len() - 1
    }
}

/// The value below which `share` of the values are; zero if there are none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The nearest rank, so the result is one of the samples and not a mixture of two modes.
    let at = ((sorted.len().saturating_sub(1)) as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The median; zero if there are none.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The mean; zero if there are none.
pub(super) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The standard error of the mean; zero for less than two values.
pub(super) fn standard_error(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let middle = mean(values);
    let n = values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    // Bessel's correction: the mean comes from the same sample, so there is one degree of freedom less.
    (squares / (n - 1.0) / n).sqrt()
}
