//! Finds rates on which many pairs agree.
//!
//! Other traffic spreads some pairs and compresses others, so neither the mean nor the median is the
//! capacity. But undisturbed pairs agree, and form a local mode of the distribution.
//!
//! Invariant: no sample is in two modes.

use super::gaps::{median, quantile};
use serde::Serialize;
use std::ops::Range;

/// A group of samples that lie close together: a local peak of their distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleCluster {
    /// The median of the group's densest part.
    pub center: f64,
    pub low: f64,
    pub high: f64,
    /// Share of all samples that are in the group.
    pub share: f64,
    /// Share of all samples that are in the group's densest part. That part has about the same width in all
    /// groups, so that groups can be compared.
    pub core: f64,
}

/// Maximum number of modes that are searched.
const MAX_MODES: usize = 8;

/// Factor by which the density may rise again beside a peak and still belong to the same peak.
const BELL_RISE_FACTOR: f64 = 1.1;

/// Finds the modes of `samples`, the largest first. Samples that differ by less than `narrowest` count as equal.
pub fn find_sample_modes(samples: &[f64], narrowest: f64) -> Vec<SampleCluster> {
    let mut rest = samples.to_vec();
    rest.sort_by(f64::total_cmp);
    // Pathrate's bin width: an eighth of the range from the 10th to the 90th percentile, but no narrower than the caller's resolution.
    let width = (0.125 * (quantile(&rest, 0.9) - quantile(&rest, 0.1))).max(narrowest);
    let mut found = Vec::new();
    // Each pass removes at least the densest window, so the search ends.
    while found.len() < MAX_MODES && !rest.is_empty() {
        let core = densest_window(&rest, width);
        // The peak reaches from the densest window down on both sides. Its samples are removed, and the rest
        // is searched again.
        let from = find_lower_end(&rest, core.start, core.len(), width);
        let to = find_upper_end(&rest, core.end, core.len(), width);
        found.push(SampleCluster {
            center: median(&rest[core.clone()]),
            low: rest[from],
            high: rest[to - 1],
            share: (to - from) as f64 / samples.len() as f64,
            core: core.len() as f64 / samples.len() as f64,
        });
        rest.drain(from..to);
    }
    // The search takes the densest window first, but a wider bell may hold more samples.
    found.sort_by(|one, other| other.share.total_cmp(&one.share));
    found
}

/// Indices of the samples in the densest window of this width; `0..1` for an empty list.
pub(super) fn densest_window(sorted: &[f64], width: f64) -> Range<usize> {
    // Two pointers over the sorted samples: both only move up, so it takes one pass.
    let mut best = 0..1;
    let mut to = 0;
    for from in 0..sorted.len() {
        while to < sorted.len() && sorted[to] - sorted[from] <= width {
            to += 1;
        }
        if to - from > best.len() {
            best = from..to;
        }
    }
    best
}

/// Follows the peak down on its lower side, one width at a time, as long as it falls. Returns the index
/// of the lower end.
fn find_lower_end(sorted: &[f64], mut from: usize, mut count: usize, width: f64) -> usize {
    while from > 0 {
        // The next window below the present end belongs to the peak unless it is clearly denser.
        let next = sorted.partition_point(|value| *value < sorted[from] - width);
        let here = from - next;
        if here == 0 || here as f64 > count as f64 * BELL_RISE_FACTOR {
            break;
        }
        from = next;
        count = here;
    }
    from
}

/// Follows the peak down on its upper side, like `find_lower_end`. Returns the index after the upper end.
fn find_upper_end(sorted: &[f64], mut to: usize, mut count: usize, width: f64) -> usize {
    while to < sorted.len() {
        let next = sorted.partition_point(|value| *value <= sorted[to - 1] + width);
        let here = next - to;
        if here == 0 || here as f64 > count as f64 * BELL_RISE_FACTOR {
            break;
        }
        to = next;
        count = here;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_bells_are_two_modes() {
        let bell = |center: f64, count: u32| {
            (0..count).map(move |n| center * (1.0 + 0.01 * (f64::from(n) / f64::from(count) - 0.5)))
        };
        let wide = (0..30).map(|n| 3e6 + f64::from(n) * 5e5);
        let samples: Vec<_> = bell(1e7, 60).chain(bell(2e7, 30)).chain(wide).collect();
        let found = find_sample_modes(&samples, 1e5);
        assert!((found[0].center / 1e7 - 1.0).abs() < 0.01, "{found:?}");
        assert!(found[1..].iter().any(|mode| (mode.center / 2e7 - 1.0).abs() < 0.01), "{found:?}");
        assert!(found[0].share >= 0.5);
    }

    #[test]
    fn equal_samples_form_one_mode() {
        let found = find_sample_modes(&[5.0; 10], 0.0);
        assert_eq!(found, [SampleCluster { center: 5.0, low: 5.0, high: 5.0, share: 1.0, core: 1.0 }]);
        assert!(find_sample_modes(&[], 1.0).is_empty());
    }

    #[test]
    fn no_sample_is_counted_twice() {
        let samples: Vec<_> = (0..200).map(|n| f64::from((n * 7919) % 1000)).collect();
        let shares: f64 = find_sample_modes(&samples, 1.0).iter().map(|mode| mode.share).sum();
        assert!(shares <= 1.0 + 1e-9, "{shares}");
    }
}
