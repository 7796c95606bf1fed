//! The first trains: they find after how many probes a path spreads a train steadily, and how fast it comes out then.
//!
//! A token bucket lets its content pass without spreading it, so the first pairs of a train say nothing about the link. The trains here
//! show from where on distances are steady. That many probes are sent as *primers* before everything that is measured afterwards.
//!
//! Invariant: the result is of trains whose probes were at least 1.2 times further apart after the path than before.

use super::gaps::{between, median};
use super::{DiscardedTrains, NoAnswer, PassedProbe, TrainRequest, nanos};
use crate::{PlannedProbe, ProbeKind, small_count};
use packetrig_units::Nanos;

/// Size of a method's trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainShape {
    /// Bytes of each frame, without FCS.
    pub length: u32,
    /// The longest train that may be sent.
    pub longest: u32,
    /// Least time between trains.
    pub pause: Nanos,
}

/// The result of the first trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettledTrains {
    /// Probes to send before those that are measured.
    pub primers: u32,
    /// The number of a train's first distances that a token bucket hides.
    pub hidden: u32,
    /// The rate at which a train comes out (asymptotic dispersion rate): between the available rate and the capacity.
    pub bits_per_s: f64,
    /// How long all primers take to leave if they are due at once.
    pub primed_ns: f64,
}

#[derive(Clone, Debug)]
pub(super) struct TrainSettler {
    shape: TrainShape,
    of: u32,
    trains: Vec<Vec<PassedProbe>>,
    result: Option<Result<SettledTrains, NoAnswer>>,
    discarded: DiscardedTrains,
    sent: usize,
    /// Time after the last train until its queue is gone and buckets are full again.
    over_ns: f64,
}

/// A pair, and the probe behind it.
pub(super) const MEASURED: u32 = 3;
/// Trains of each length.
const TRAINS: usize = 5;
const SHORTEST: u32 = 8;
/// A distance is steady from this share of the final one on.
const STEADY: f64 = 0.85;
/// Longest pause between two trains.
const LONGEST_PAUSE: f64 = 3e9;
/// A path that widens distances by less than this factor does not spread the probes.
pub(super) const SPREAD: f64 = 1.2;

impl TrainSettler {
    pub(super) fn new(shape: TrainShape) -> Self {
        Self {
            shape,
            of: SHORTEST.min(shape.longest),
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

    /// The result; `None` while it needs more trains.
    pub(super) const fn settled(&self) -> Option<&Result<SettledTrains, NoAnswer>> {
        self.result.as_ref()
    }

    pub(super) const fn sent(&self) -> usize {
        self.sent
    }

    pub(super) fn ask(&mut self) -> TrainRequest {
        self.sent += 1;
        let pause = self.shape.pause.max(nanos(self.over_ns));
        TrainRequest { probes: at_once(0, self.of, ProbeKind::Train, self.shape.length), pause }
    }

    pub(super) fn saw(&mut self, train: &[PassedProbe]) {
        let gaps = train.windows(2).filter_map(|two| Some(between(two[0].came?, two[1].came?)));
        // If other traffic leaves a quarter of the link free, queue and bucket are as before after four times the train's own length.
        self.over_ns = (4.0 * f64::from(self.of) * gaps.fold(0.0, f64::max)).min(LONGEST_PAUSE);
        let unusable = train.iter().any(|probe| probe.disturbed || probe.left.is_none());
        if unusable {
            self.discarded.disturbed += 1;
        } else {
            self.trains.push(train.to_vec());
        }
        if self.trains.len() >= TRAINS {
            self.judge();
        // A sender that disturbs most of its own trains would otherwise go on for ever.
        } else if self.sent >= 8 * TRAINS {
            self.result = Some(Err(self.too_few(self.trains.len(), self.discarded)));
        }
    }

    const fn too_few(&self, have: usize, discarded: DiscardedTrains) -> NoAnswer {
        NoAnswer::TooFew { have, wanted: TRAINS, trains: self.sent, discarded }
    }

    fn judge(&mut self) {
        let out = self.distances(|probe| probe.came);
        let into = median(&self.distances(|probe| probe.left));
        if out.len() < 2 {
            let lost = DiscardedTrains { lost: self.trains.len(), ..self.discarded };
            self.result = Some(Err(self.too_few(0, lost)));
            return;
        }
        let last = median(&out[out.len() / 2..]);
        // The far half of the train is taken as steady. The bucket's end is the first distance that reaches 85 % of it.
        let steady = out.iter().position(|gap| *gap >= STEADY * last).unwrap_or(0);
        let is_spread = self.growth(out.len() / 2) > SPREAD && last > 0.0;
        // If the bucket is empty only in the far half, too few distances remain to know the steady one: try with longer trains.
        if (!is_spread || steady > out.len() / 2) && self.of < self.shape.longest {
            self.of = (self.of * 2).min(self.shape.longest);
            self.trains.clear();
        } else {
            self.result = Some(self.conclude(is_spread, steady, last, into));
        }
    }

    fn conclude(
        &self,
        is_spread: bool,
        steady: usize,
        last: f64,
        into: f64,
    ) -> Result<SettledTrains, NoAnswer> {
        let bits = f64::from(self.shape.length) * 8e9;
        if !is_spread {
            return Err(NoAnswer::NotSpread {
                train: self.of,
                gap_ns: nanos(into).as_u64(),
                at_least: bits / into.max(1.0),
            });
        }
        // A quarter more than needed: the distance after probe `steady` may be half hidden, and a bucket fills while a slower train leaves.
        let primers =
            small_count(steady + 1 + steady.div_ceil(4)).min(self.shape.longest.saturating_sub(MEASURED));
        Ok(SettledTrains {
            primers,
            hidden: small_count(steady),
            bits_per_s: bits / self.rate_gap(steady + 1).unwrap_or(last),
            primed_ns: self.leave(primers),
        })
    }

    /// How long after a train's first probe the one at `place` leaves. The first ones take longest, because the sender's caches are cold.
    fn leave(&self, place: u32) -> f64 {
        let all: Vec<_> = self
            .trains
            .iter()
            .filter_map(|train| {
                let probe = train.get(place as usize).or_else(|| train.last())?;
                Some(between(train.first()?.left?, probe.left?))
            })
            .collect();
        median(&all)
    }

    /// The distance between neighbours at each place: the median of all trains, as far as most of them arrived.
    fn distances(&self, stamp: impl Fn(&PassedProbe) -> Option<u64>) -> Vec<f64> {
        let mut distances = Vec::new();
        for place in 0..self.of as usize - 1 {
            let all: Vec<_> = self
                .trains
                .iter()
                .filter_map(|train| Some(between(stamp(train.get(place)?)?, stamp(train.get(place + 1)?)?)))
                .collect();
            if all.len() <= TRAINS / 2 {
                break;
            }
            distances.push(median(&all));
        }
        distances
    }

    /// How many times further apart neighbours are after the path than before, from a place on: the median of all. Each distance is compared
    /// with its own departure, because a sender that is held up now and then makes uneven distances at both ends.
    fn growth(&self, from: usize) -> f64 {
        let neighbours = self.trains.iter().flat_map(|train| train.windows(2).skip(from));
        let all: Vec<_> = neighbours.filter_map(|two| widening(&two[0], &two[1])).collect();
        median(&all)
    }

    /// The mean distance of each train from a place on; the median of all trains.
    fn rate_gap(&self, from: usize) -> Option<f64> {
        let all: Vec<_> = self.trains.iter().filter_map(|train| mean_gap(train.get(from..)?)).collect();
        (!all.is_empty()).then(|| median(&all)).filter(|gap| *gap > 0.0)
    }
}

/// How many times further apart two neighbours arrived than they left.
fn widening(one: &PassedProbe, next: &PassedProbe) -> Option<f64> {
    let left = between(one.left?, next.left?).max(1.0);
    Some(between(one.came?, next.came?) / left)
}

/// The mean distance of probes at arrival, up to the first lost one.
fn mean_gap(probes: &[PassedProbe]) -> Option<f64> {
    let came: Vec<_> = probes.iter().map_while(|probe| probe.came).collect();
    let gaps = came.len().checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some(between(came[0], came[gaps]) / gaps as f64)
}

/// Probes that are due at once: `primers`, and `of` to be measured.
pub(super) fn at_once(primers: u32, of: u32, kind: ProbeKind, length: u32) -> Vec<PlannedProbe> {
    spaced(primers, of, kind, length, Nanos::ZERO)
}

/// Primers that are due at once, and `of` probes to be measured, `gap` apart.
pub(super) fn spaced(primers: u32, of: u32, kind: ProbeKind, length: u32, gap: Nanos) -> Vec<PlannedProbe> {
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
