//! Plans and evaluates the first trains of an estimate, the *settling trains*. They show after how many probes a path
//! spreads a train steadily, and at which rate the train then leaves the path.
//!
//! A token bucket lets probes pass without spreading them until it is empty, so the first pairs of a train
//! say nothing about the link. Settling trains show from which probe on the distances are steady. Somewhat more
//! probes than those before it are then sent as *primers* before every measured train. Settling trains are as long
//! as allowed, because a link behind the bucket spreads short trains just as steadily, at its own rate.
//!
//! A receiver may get several probes in one batch, and a late timer of a shaper may release several at once.
//! In these cases, single distances say nothing. So the size of the bucket is computed from how much earlier the first
//! half of a train arrived than at the pace of its second half.
//!
//! Invariant: a rate is given only if the second half of the trains, or their last quarter, took more than 1.2 times
//! as long to arrive as to leave (median of all trains).

use super::gaps::{difference_ns, median, quantile};
use super::{DiscardedTrains, NoEstimateReason, TrainProbeTimes, TrainRequest, clamp_to_nanos};
use crate::{PlannedProbe, ProbeKind, small_count};
use packetrig_units::Nanos;

/// Size of a method's trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainShape {
    /// Bytes of each frame, without FCS.
    pub length: u32,
    /// Maximum number of probes of a train.
    pub longest: u32,
    /// Least time between trains.
    pub pause: Nanos,
}

/// Result of the settling trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettledTrains {
    /// Number of probes to send before the measured ones, to empty a token bucket.
    pub primers: u32,
    /// The number of a train's first distances that a token bucket hides.
    pub hidden: u32,
    /// The rate at which a train leaves the path (asymptotic dispersion rate). It lies between the available
    /// rate and the capacity.
    pub bits_per_s: f64,
    /// Time that all primers take to leave if they are due at once.
    pub primed_ns: f64,
    /// Estimated time after the last train until its queue is gone and buckets are full again.
    pub over: Nanos,
}

impl SettledTrains {
    /// The minimum pause before a train: `over` if it is the first after the settling trains, otherwise zero.
    pub(super) fn least_pause(&self, is_first: bool) -> Nanos {
        if is_first { self.over } else { Nanos::ZERO }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TrainSettler {
    shape: TrainShape,
    trains: Vec<Vec<TrainProbeTimes>>,
    result: Option<Result<SettledTrains, NoEstimateReason>>,
    discarded: DiscardedTrains,
    sent: usize,
    /// Estimated time after the last train until its queue is gone and buckets are full again.
    over_ns: f64,
}

/// The part of a train in which probes are spread steadily.
struct SteadyTrainPart {
    hidden: usize,
    /// Steady distance between probes, in nanoseconds.
    pace: f64,
    /// Largest deviation of a probe from the steady pace, in distances.
    uneven: f64,
}

/// The bucket must be empty within this share of the distances before the part that is tried as steady; otherwise it
/// may reach into that part.
const BUCKET_EMPTY_SHARE: f64 = 0.9;
/// Probes that follow the primers in a pair's burst: the two probes of the pair, and one behind them.
pub(super) const PROBES_AFTER_PRIMERS: u32 = 3;
const SETTLING_TRAIN_COUNT: usize = 5;
/// A distance counts as steady if it is at least this share of the final distance.
const STEADY_DISTANCE_SHARE: f64 = 0.85;
/// Maximum of the computed time in which queue and bucket recover after a train.
const MAX_TRAIN_PAUSE_NS: f64 = 3e9;
/// A path that widens distances by less than this factor does not spread the probes.
pub(super) const SPREAD_THRESHOLD: f64 = 1.2;

impl TrainSettler {
    pub(super) fn new(shape: TrainShape) -> Self {
        Self {
            shape,
            trains: Vec::new(),
            result: None,
            discarded: DiscardedTrains::default(),
            sent: 0,
            over_ns: 0.0,
        }
    }

    pub(super) const fn shape(&self) -> TrainShape {
        self.shape
    }

    /// The result of the settling trains; `None` while more of them are needed.
    pub(super) const fn settling_result(&self) -> Option<&Result<SettledTrains, NoEstimateReason>> {
        self.result.as_ref()
    }

    pub(super) const fn sent_trains(&self) -> usize {
        self.sent
    }

    pub(super) fn next_train(&mut self) -> TrainRequest {
        self.sent += 1;
        let pause = self.shape.pause.max(clamp_to_nanos(self.over_ns));
        TrainRequest {
            probes: plan_probes_at_once(0, self.shape.longest, ProbeKind::Train, self.shape.length),
            pause,
        }
    }

    pub(super) fn add_train(&mut self, train: &[TrainProbeTimes]) {
        let gaps = train.windows(2).filter_map(|two| Some(difference_ns(two[0].came?, two[1].came?)));
        // If other traffic leaves a quarter of the link free, queue and bucket recover within four times the
        // train's own length.
        self.over_ns =
            (4.0 * f64::from(self.shape.longest) * gaps.fold(0.0, f64::max)).min(MAX_TRAIN_PAUSE_NS);
        // A train of a disturbed sender shows the sender and not the path.
        let unusable = train.iter().any(|probe| probe.disturbed || probe.left.is_none());
        if unusable {
            self.discarded.disturbed += 1;
        } else {
            self.trains.push(train.to_vec());
        }
        if self.trains.len() >= SETTLING_TRAIN_COUNT {
            self.evaluate_settling_trains();
        // A sender that disturbs most of its own trains would otherwise go on for ever.
        } else if self.sent >= 8 * SETTLING_TRAIN_COUNT {
            self.result = Some(Err(self.too_few_trains_reason(self.trains.len(), self.discarded)));
        }
    }

    const fn too_few_trains_reason(&self, have: usize, discarded: DiscardedTrains) -> NoEstimateReason {
        NoEstimateReason::TooFew { have, wanted: SETTLING_TRAIN_COUNT, trains: self.sent, discarded }
    }

    fn evaluate_settling_trains(&mut self) {
        let out = self.neighbour_distances(|probe| probe.came);
        // Most trains lost one of their first three probes, so too few distances are known.
        if out.len() < 2 {
            let lost = DiscardedTrains { lost: self.trains.len(), ..self.discarded };
            self.result = Some(Err(self.too_few_trains_reason(0, lost)));
            return;
        }
        // The part of the train that is tried as steady: its last half, or its last quarter if a large bucket
        // reaches into the last half.
        let parts = [out.len() / 2, out.len() * 3 / 4];
        let steady = parts.iter().find_map(|from| self.find_steady_part(*from));
        self.result = Some(steady.map_or_else(
            || Err(self.build_not_spread_reason(parts[0])),
            |part| Ok(self.build_settled_trains(&part)),
        ));
    }

    /// Returns the part of a train from `from` on, if its probes are spread steadily there.
    fn find_steady_part(&self, from: usize) -> Option<SteadyTrainPart> {
        let pace = self.median_gap_from(from).filter(|_| self.median_widening(from) > SPREAD_THRESHOLD)?;
        let end = self.shape.longest as usize;
        let leads = (from..end).map(|place| self.median_lead_in_paces(from, place, pace).abs());
        let uneven = leads.fold(0.0, f64::max);
        // The first distance of a train may be long because the sender's caches are cold, so the count is
        // also made from the second probe on.
        let hidden = [0, 1].map(|first| {
            let hidden = self.count_hidden_distances(first, from, pace, uneven);
            if hidden > 0 { first + hidden } else { 0 }
        });
        let hidden = hidden[0].max(hidden[1]);
        // A bucket that seems to end just before the steady part may reach into it.
        ((hidden as f64) < BUCKET_EMPTY_SHARE * from as f64).then_some(SteadyTrainPart {
            hidden,
            pace,
            uneven,
        })
    }

    /// Number of distances after the probe at `first` that a bucket makes shorter than the pace. The probes after
    /// these distances are as far ahead of the pace as the probe at `to`.
    fn count_hidden_distances(&self, first: usize, to: usize, pace: f64, uneven: f64) -> usize {
        let end = self.median_lead_in_paces(first, to, pace) - (1.0 - STEADY_DISTANCE_SHARE) - uneven;
        (first..to).position(|place| self.median_lead_in_paces(first, place, pace) >= end).unwrap_or(0)
    }

    /// Median over all trains of the number of paces by which the probe at `to` came too early after the one at `from`.
    fn median_lead_in_paces(&self, from: usize, to: usize, pace: f64) -> f64 {
        let all: Vec<_> =
            self.trains.iter().filter_map(|train| train_lead_in_paces(train, from, to, pace)).collect();
        median(&all)
    }

    fn build_settled_trains(&self, part: &SteadyTrainPart) -> SettledTrains {
        let bits = f64::from(self.shape.length) * 8e9;
        let SteadyTrainPart { hidden, pace, uneven } = *part;
        // A quarter more primers than needed are used: the distance after the last hidden one may be half
        // hidden, a bucket refills while a slower train leaves, and uneven distances hide its end.
        let primers = hidden + 1 + hidden.div_ceil(4) + whole_frames(uneven);
        let primers = small_count(primers).min(self.shape.longest.saturating_sub(PROBES_AFTER_PRIMERS));
        SettledTrains {
            primers,
            hidden: small_count(hidden),
            // Everything after the hidden distances counts, because a longer part makes the rate more exact.
            bits_per_s: bits / self.median_gap_from(hidden + 1).unwrap_or(pace),
            primed_ns: self.departure_offset(primers),
            over: clamp_to_nanos(self.over_ns),
        }
    }

    /// Makes the answer for a path that did not spread the second half of the settling trains.
    fn build_not_spread_reason(&self, half: usize) -> NoEstimateReason {
        let last = self.shape.longest.saturating_sub(1);
        let into = self.departure_offset(last) / f64::from(last.max(1));
        // Probes that arrived closer together than they left were held up together, which says nothing about
        // the rate of the path.
        let is_as_sent = (1.0 / SPREAD_THRESHOLD..=SPREAD_THRESHOLD).contains(&self.median_widening(half));
        let bucket_bytes = u64::from(self.shape.longest) * u64::from(self.shape.length) / 4;
        let rates: Vec<_> = self
            .trains
            .iter()
            .filter_map(|train| rate_without_bucket(train.get(1..)?, bucket_bytes))
            .collect();
        NoEstimateReason::NotSpread {
            train: self.shape.longest,
            gap_ns: clamp_to_nanos(into).as_u64(),
            // The minimum over all trains, so that the claim holds for each of them.
            at_least: (is_as_sent && !rates.is_empty()).then(|| quantile(&rates, 0.0)),
            bucket_bytes,
        }
    }

    /// Median time from the first departure of a train to the departure of its probe with the index `place`. The first
    /// probes take longest: the sender's caches are cold.
    fn departure_offset(&self, place: u32) -> f64 {
        let all: Vec<_> = self
            .trains
            .iter()
            .filter_map(|train| {
                let probe = train.get(place as usize).or_else(|| train.last())?;
                Some(difference_ns(train.first()?.left?, probe.left?))
            })
            .collect();
        median(&all)
    }

    /// The median distance between neighbouring probes at each index, up to the first index at which most trains have
    /// no stamp.
    fn neighbour_distances(&self, stamp: impl Fn(&TrainProbeTimes) -> Option<u64>) -> Vec<f64> {
        let mut distances = Vec::new();
        for place in 0..self.shape.longest as usize - 1 {
            let all: Vec<_> = self
                .trains
                .iter()
                .filter_map(|train| {
                    Some(difference_ns(stamp(train.get(place)?)?, stamp(train.get(place + 1)?)?))
                })
                .collect();
            // The median of fewer than half of the trains would be chance.
            if all.len() <= SETTLING_TRAIN_COUNT / 2 {
                break;
            }
            distances.push(median(&all));
        }
        distances
    }

    /// Factor by which the path lengthens the part of a train from index `from` on: the median of all trains.
    fn median_widening(&self, from: usize) -> f64 {
        let all: Vec<_> = self.trains.iter().filter_map(|train| train_widening(train.get(from..)?)).collect();
        median(&all)
    }

    /// The median over all trains of the mean distance at arrival from index `from` on; `None` unless it is positive.
    fn median_gap_from(&self, from: usize) -> Option<f64> {
        let all: Vec<_> = self.trains.iter().filter_map(|train| mean_gap(train.get(from..)?)).collect();
        (!all.is_empty()).then(|| median(&all)).filter(|gap| *gap > 0.0)
    }
}

/// Factor by which a part of a train took longer to arrive than to leave, up to its first lost probe.
fn train_widening(probes: &[TrainProbeTimes]) -> Option<f64> {
    // Only up to the first lost probe: whether that probe used time of the link is unknown.
    let here: Vec<_> = probes.iter().map_while(|probe| Some((probe.left?, probe.came?))).collect();
    let ((first_left, first_came), (last_left, last_came)) =
        here.first().copied().zip(here.last().copied())?;
    let is_span = here.len() > 1;
    is_span.then(|| difference_ns(first_came, last_came) / difference_ns(first_left, last_left).max(1.0))
}

/// The rate at which a path carried probes, without the bytes that a bucket may have passed at once. The
/// first probe may have arrived earlier than its stamp, by up to the largest distance.
fn rate_without_bucket(probes: &[TrainProbeTimes], bucket_bytes: u64) -> Option<f64> {
    let came: Vec<_> = probes.iter().map_while(|probe| probe.came).collect();
    let bits: f64 = probes.iter().take(came.len()).skip(1).map(|probe| f64::from(probe.length) * 8.0).sum();
    let largest = came.windows(2).map(|two| difference_ns(two[0], two[1])).fold(0.0, f64::max);
    let took = difference_ns(*came.first()?, *came.last()?) + largest;
    // If a bucket may have passed all of the bits at once, the result is zero.
    (took > 0.0).then(|| (bits - 8.0 * bucket_bytes as f64).max(0.0) * 1e9 / took)
}

/// Number of paces by which the probe at `to` came too early after the one at `from`.
fn train_lead_in_paces(train: &[TrainProbeTimes], from: usize, to: usize, pace: f64) -> Option<f64> {
    let paces = to.checked_sub(from)? as f64;
    Some(paces - difference_ns(train.get(from)?.came?, train.get(to)?.came?) / pace)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "no more than a train has")]
fn whole_frames(frames: f64) -> usize {
    frames.ceil().max(0.0) as usize
}

/// The mean distance of probes at arrival, up to the first lost one.
fn mean_gap(probes: &[TrainProbeTimes]) -> Option<f64> {
    let came: Vec<_> = probes.iter().map_while(|probe| probe.came).collect();
    let gaps = came.len().checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(difference_ns(came[0], came[gaps]) / gaps as f64)
}

/// Plans probes that are all due at once: `primers`, and `of` probes to be measured.
pub(super) fn plan_probes_at_once(primers: u32, of: u32, kind: ProbeKind, length: u32) -> Vec<PlannedProbe> {
    plan_spaced_probes(primers, of, kind, length, Nanos::ZERO)
}

/// Plans primers that are due at once, and `of` probes to be measured, `gap` apart.
pub(super) fn plan_spaced_probes(
    primers: u32,
    of: u32,
    kind: ProbeKind,
    length: u32,
    gap: Nanos,
) -> Vec<PlannedProbe> {
    (0..primers + of)
        .map(|number| {
            let kind = if number < primers { ProbeKind::Primer } else { kind };
            let after = u64::from(number.saturating_sub(primers));
            PlannedProbe {
                number,
                train: 0,
                kind,
                at: Nanos::new(gap.as_u64().saturating_mul(after)),
                length,
            }
        })
        .collect()
}
