//! What is free of a path, from pairs as far apart as its narrow link takes to send one probe (as Spruce does).
//!
//! Between two such probes the link has time for one of them. As much longer as they are apart afterwards, as much traffic of others came
//! between. The capacity has to be known, or is measured first by [`Pair`]; and the link that is narrow has to be the one that is busy. Primers
//! in front of each pair empty token buckets and keep the link at work between the two.
//!
//! Invariant: the distance a pair was sent at is the measured one.

use super::gaps::{Whole, mean, quantile, standard_error};
use super::settle::{Settle, Shape, spaced};
use super::{
    Ask, Discarded, Estimate, Estimator, NoAnswer, Pair, Passed, Pick, Quality, Settled, nanos,
    packets_per_frame,
};
use crate::Kind;
use packetrig_wire::pattern::mix;

/// See the module.
#[derive(Clone, Debug)]
pub struct Spruce {
    before: Before,
    ready: Option<Result<Ready, NoAnswer>>,
    pairs: usize,
    shape: Shape,
    seed: u64,
    samples: Vec<f64>,
    doubts: Vec<f64>,
    discarded: Discarded,
    before_sent: usize,
    sent: usize,
}

/// What is to be known before the first pair.
#[derive(Clone, Debug)]
enum Before {
    /// The capacity is; how many primers it takes is not.
    Primers(f64, Settle),
    /// Neither is.
    Capacity(Pair),
}

#[derive(Clone, Copy, Debug)]
struct Ready {
    capacity: f64,
    primers: u32,
    /// How long all primers take to leave.
    primed_ns: f64,
}

impl Before {
    /// The next train, or what is known without one.
    fn go_on(&mut self) -> Result<Ask, Result<Ready, NoAnswer>> {
        match self {
            Self::Primers(capacity, settle) => {
                let Some(settled) = settle.settled() else { return Ok(settle.ask()) };
                let ready = |settled: Settled| Ready::new(*capacity, settled);
                Err(settled.clone().map(ready))
            }
            Self::Capacity(pair) => {
                pair.ask().ok_or_else(|| pair.measured().map(|(rate, s)| Ready::new(rate, s)))
            }
        }
    }
}

impl Ready {
    const fn new(capacity: f64, settled: Settled) -> Self {
        Self { capacity, primers: settled.primers, primed_ns: settled.primed_ns }
    }
}

/// The first of a pair is due when its primers have left for certain, and before the link has sent them: by so much of the time in which they
/// leave.
const BEHIND: f64 = 1.5;

/// Pairs that measure the capacity, at most.
const FOR_CAPACITY: usize = 60;
/// With fewer nothing is said.
const LEAST: usize = 20;
/// The load is at most this, and at most this share of the capacity.
const MOST_LOAD: f64 = 240_000.0;
const MOST_SHARE: f64 = 0.05;

impl Spruce {
    /// `pairs` of them, for a path of this capacity, in bits of frames per second; `None`: it is measured first.
    pub fn new(capacity: Option<f64>, pairs: usize, shape: Shape, seed: u64) -> Self {
        let before = capacity.map_or_else(
            || Before::Capacity(Pair::new(Pick::Mode, FOR_CAPACITY, shape)),
            |capacity| Before::Primers(capacity, Settle::new(shape)),
        );
        let (samples, doubts, discarded) = (Vec::new(), Vec::new(), Discarded::default());
        // Fewer would never be an answer.
        let (pairs, before_sent, sent) = (pairs.max(LEAST), 0, 0);
        Self { before, ready: None, pairs, shape, seed, samples, doubts, discarded, before_sent, sent }
    }

    fn bits(&self) -> f64 {
        f64::from(self.shape.length) * 8.0
    }

    fn known(&self) -> Option<Ready> {
        self.ready.as_ref().and_then(|ready| ready.as_ref().ok()).copied()
    }
}

impl Estimator for Spruce {
    fn name(&self) -> &'static str {
        "spruce"
    }

    fn ask(&mut self) -> Option<Ask> {
        if self.ready.is_none() {
            match self.before.go_on() {
                Ok(ask) => {
                    self.before_sent += 1;
                    return Some(ask);
                }
                Err(ready) => self.ready = Some(ready),
            }
        }
        let Ready { capacity, primers, primed_ns } = self.known()?;
        if self.samples.len() >= self.pairs || self.sent >= 3 * self.pairs {
            return None;
        }
        self.sent += 1;
        let share = ((mix(self.seed, self.sent as u64) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        let mean = f64::from(primers + 2) * self.bits() * 1e9 / MOST_LOAD.min(MOST_SHARE * capacity);
        let gap = nanos(self.bits() * 1e9 / capacity);
        let pause = self.shape.pause.max(nanos(-share.ln() * mean));
        let mut probes = spaced(primers, 2, Kind::Pair, self.shape.length, gap);
        let behind = nanos(BEHIND * primed_ns);
        probes.iter_mut().filter(|probe| probe.kind == Kind::Pair).for_each(|probe| probe.at += behind);
        Some(Ask { probes, pause })
    }

    fn saw(&mut self, train: &[Passed]) {
        let Some(Ready { capacity, .. }) = self.known() else {
            return match &mut self.before {
                Before::Primers(_, settle) => settle.saw(train),
                Before::Capacity(pair) => pair.saw(train),
            };
        };
        let Some(whole) = Whole::of(train, &mut self.discarded) else { return };
        let (first, second) = (whole.last() - 1, whole.last());
        let (sent, came) = (whole.left(first, second), whole.came(first, second));
        let nominal = self.bits() * 1e9 / capacity;
        if !(0.8 * nominal..=1.2 * nominal).contains(&sent) {
            self.discarded.unlike += 1;
            return;
        }
        // What the link sent between the two besides the second of them.
        let others = (capacity * came / 1e9 - self.bits()) / (sent / 1e9);
        self.samples.push(capacity - others);
        self.doubts.push(whole.doubt(first, second) / sent);
    }

    fn answer(&self) -> Result<Estimate, NoAnswer> {
        let (have, trains) = (self.samples.len(), self.before_sent + self.sent);
        if let Some(Err(none)) = &self.ready {
            return Err(none.clone());
        }
        let known = self.known().filter(|_| have >= LEAST);
        let Some(Ready { capacity, primers, .. }) = known else {
            return Err(NoAnswer::TooFew { have, wanted: LEAST, trains, discarded: self.discarded });
        };
        let within = |rate: f64| rate.clamp(0.0, capacity);
        // Stamps are as often too early as too late: their doubt counts like the spread of the samples.
        let stamps = mean(&self.doubts);
        let (middle, error) = (mean(&self.samples), 2.0 * standard_error(&self.samples));
        Ok(Estimate {
            method: self.name(),
            bits_per_s: within(middle),
            low: within(middle - error),
            high: within(middle + error),
            packets_per_frame: packets_per_frame(self.shape.length),
            quality: Quality {
                trains,
                used: have,
                share: have as f64 / self.sent.max(1) as f64,
                spread: (quantile(&self.samples, 0.9) - quantile(&self.samples, 0.1)) / capacity,
                stamps,
                primers,
                discarded: self.discarded,
                ..Quality::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::sim::{Cross, Link, Path};
    use packetrig_units::Nanos;

    const SHAPE: Shape = Shape { length: 1_514, longest: 50, pause: Nanos::from_millis(50) };

    #[test]
    fn half_a_busy_link_is_free() {
        for (seed, busy) in [(1, 0.0), (2, 0.3), (3, 0.5), (4, 0.7)] {
            let cross =
                if busy > 0.0 { Cross::Poisson { bits_per_s: 1e7 * busy, length: 700 } } else { Cross::Idle };
            let mut method = Spruce::new(Some(1e7), 300, SHAPE, seed);
            Path::new(vec![Link::wire(1e9), Link::wire(1e7).with(cross, seed), Link::wire(1e8)])
                .run(&mut method);
            let estimate = method.answer().unwrap();
            let free = 1.0 - busy;
            assert!((estimate.bits_per_s / 1e7 - free).abs() < 0.12, "{busy}: {estimate:?}");
        }
    }

    #[test]
    fn pairs_keep_their_distance_behind_primers_that_leave_slowly() {
        let mut method = Spruce::new(Some(1e8), 40, SHAPE, 5);
        Path::new(vec![Link::bucket(1e8, 3_200)]).run(&mut method);
        let estimate = method.answer().unwrap();
        assert_eq!(estimate.quality.discarded, Discarded::default(), "{estimate:?}");
        assert!((estimate.bits_per_s / 1e8 - 1.0).abs() < 0.05, "{estimate:?}");
    }

    #[test]
    fn a_bucket_hides_nothing_and_an_unknown_capacity_is_measured() {
        let cross = Cross::Poisson { bits_per_s: 5e6, length: 700 };
        for known in [None, Some(1e7)] {
            let mut method = Spruce::new(known, 300, SHAPE, 5);
            Path::new(vec![Link::bucket(1e7, 5_000).with(cross, 6)]).run(&mut method);
            let estimate = method.answer().unwrap();
            assert!((estimate.bits_per_s / 5e6 - 1.0).abs() < 0.2, "{estimate:?}");
        }
    }

    #[test]
    fn without_a_capacity_the_reason_is_that_of_the_pairs() {
        let mut method = Spruce::new(None, 300, SHAPE, 5);
        Path::new(vec![Link::bucket(1e7, 1_000_000)]).run(&mut method);
        assert!(matches!(method.answer(), Err(NoAnswer::NotSpread { .. })), "{:?}", method.answer());
    }

    #[test]
    fn a_sender_that_cannot_keep_the_distance_gives_no_rate() {
        let mut method = Spruce::new(Some(1e10), 50, SHAPE, 1);
        Path::new(vec![Link::wire(1e9)]).run(&mut method);
        let unlike = Discarded { unlike: 150, ..Discarded::default() };
        let too_few = NoAnswer::TooFew { have: 0, wanted: 20, trains: 155, discarded: unlike };
        assert_eq!(method.answer(), Err(too_few));
    }
}
