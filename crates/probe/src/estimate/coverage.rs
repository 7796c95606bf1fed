//! Tests whether ranges contain the truth: every method on links that a seed draws.
//!
//! A link has a rate, a wire or a token bucket, a queue, traffic of others, late timers, machines at its ends that stand still or batch, and
//! stamps with noise. A range that is stated must hold the truth on 95 of 100 links. Most clean links must have a range.

use super::sim::{CrossTraffic, MachineStalls, QueuedLink, SimulatedPath};
use super::{
    ChirpEstimator, FleetShape, NoEstimateReason, PairEstimator, PairSelection, PathloadEstimator,
    RateEstimate, RateEstimator, SpruceEstimator, TrainEstimator, TrainShape,
};
use packetrig_units::Nanos;
use packetrig_wire::pattern::keyed_mix;

const MIN_BOUNDS_HELD_SHARE: f64 = 0.95;
/// Links of each method in the ordinary tests, and in the long one.
const LINKS_PER_ORDINARY_TEST: u64 = 300;
const LINKS_PER_LONG_TEST: u64 = 5_000;

/// Numbers that a seed draws.
struct SeededNumbers {
    seed: u64,
    n: u64,
}

impl SeededNumbers {
    fn share(&mut self) -> f64 {
        self.n += 1;
        (keyed_mix(self.seed, self.n) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.share()
    }

    /// Draws a factor from an even distribution of its logarithm.
    fn scaled(&mut self, low: f64, high: f64) -> f64 {
        low * (high / low).powf(self.share())
    }

    fn is(&mut self, share: f64) -> bool {
        self.share() < share
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small lengths")]
    fn length(&mut self, low: f64, high: f64) -> u32 {
        self.between(low, high) as u32
    }
}

/// A link that a seed has drawn, and the path that it is the narrowest of.
#[derive(Clone, Debug)]
struct SeededLink {
    seed: u64,
    capacity: f64,
    /// Share of the link that other traffic uses.
    busy: f64,
    bucket: Option<u32>,
    /// True if nothing disturbs the probes: methods must give a range.
    is_clean: bool,
    path: SimulatedPath,
}

/// Properties of the links of a method.
#[derive(Clone, Copy)]
struct LinkPopulation {
    most_bits_per_s: f64,
    busiest: f64,
}

impl SeededLink {
    fn draw(seed: u64, of: LinkPopulation) -> Self {
        let mut draws = SeededNumbers { seed: keyed_mix(0x11c5, seed), n: 0 };
        let capacity = draws.scaled(1e6, of.most_bits_per_s);
        let is_clean = draws.is(0.3);
        let busy = if is_clean || draws.is(0.5) { 0.0 } else { draws.between(0.05, of.busiest) };
        let bucket = draws.is(0.6).then(|| f64::from(draws.length(1_514.0, 6_000.0)));
        let bucket = bucket.map(|bytes| if draws.is(0.3) { bytes * draws.scaled(1.0, 8.0) } else { bytes });
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand")]
        let bucket = bucket.map(|bytes| bytes as u32);
        let mut narrow = bucket
            .map_or_else(|| QueuedLink::new_wire(capacity), |bytes| QueuedLink::new_bucket(capacity, bytes));
        // A timer is late by a microsecond on a quiet machine and by tens on a busy one.
        narrow = narrow.with_late_timer(if is_clean { 300.0 } else { draws.scaled(500.0, 50_000.0) });
        let others = |draws: &mut SeededNumbers, rate: f64| CrossTraffic::Poisson {
            bits_per_s: rate,
            length: draws.length(100.0, 1_500.0),
        };
        if busy > 0.0 {
            narrow = narrow.with_cross_traffic(others(&mut draws, busy * capacity), seed);
        }
        let mut behind = QueuedLink::new_wire(capacity * draws.between(1.5, 10.0));
        if busy > 0.0 && draws.is(0.3) {
            behind = behind.with_cross_traffic(others(&mut draws, 0.3 * capacity), seed + 1);
        }
        let mut path = SimulatedPath::new(vec![QueuedLink::new_wire(1e10), narrow, behind]);
        path.seed = seed;
        path.doubt_ns = 60;
        path.noise_ns = 50.0;
        if !is_clean {
            disturb_path(&mut path, &mut draws);
        }
        Self { seed, capacity, busy, bucket, is_clean, path }
    }

    fn free(&self) -> f64 {
        (1.0 - self.busy) * self.capacity
    }
}

/// Machines at the ends that have other things to do.
fn disturb_path(path: &mut SimulatedPath, draws: &mut SeededNumbers) {
    let mut stalls = |share: f64| MachineStalls {
        share: if draws.is(0.5) { draws.scaled(0.001, share) } else { 0.0 },
        mean_ns: draws.scaled(1e4, 2e6),
    };
    (path.sender_stalls, path.receiver.stalls) = (stalls(0.02), stalls(0.02));
    path.receiver.coalesced_ns = if draws.is(0.3) { draws.scaled(5e3, 2e5) } else { 0.0 };
    path.least_gap_ns = draws.scaled(800.0, 25_000.0);
    path.jitter_ns = draws.scaled(100.0, 20_000.0);
}

/// Results of a method on many links.
#[derive(Debug, Default)]
struct EstimateCoverage {
    links: usize,
    clean: usize,
    clean_ranges: usize,
    ranges: usize,
    held: usize,
    claims: usize,
    false_claims: usize,
    /// Descriptions of the first links whose range does not contain the truth.
    misses: Vec<String>,
}

impl EstimateCoverage {
    fn add_link_result(
        &mut self,
        link: &SeededLink,
        truth: f64,
        answer: &Result<RateEstimate, NoEstimateReason>,
    ) {
        self.links += 1;
        self.clean += usize::from(link.is_clean);
        match answer {
            Ok(estimate) => {
                self.ranges += 1;
                self.clean_ranges += usize::from(link.is_clean);
                let is_held = estimate.low <= truth && truth <= estimate.high;
                self.held += usize::from(is_held);
                if !is_held && self.misses.len() < 12 {
                    self.misses.push(describe_missed_link(link, truth, estimate));
                }
            }
            Err(NoEstimateReason::NotSpread { at_least: Some(rate), bucket_bytes, .. }) => {
                self.claims += 1;
                let is_true = link.capacity >= *rate
                    || link.bucket.is_some_and(|bytes| u64::from(bytes) > *bucket_bytes);
                self.false_claims += usize::from(!is_true);
                if !is_true {
                    self.misses.push(format!("{answer:?} of {link:?}"));
                }
            }
            Err(_) => {}
        }
    }

    fn held(&self) -> f64 {
        self.held as f64 / self.ranges.max(1) as f64
    }

    fn clean(&self) -> f64 {
        self.clean_ranges as f64 / self.clean.max(1) as f64
    }

    fn check_coverage(&self, method: &str, least_clean: f64, least_ranges: f64) {
        let ranges = self.ranges as f64 / self.links as f64;
        println!(
            "{method}: {} links, {:.1} % have a range ({:.1} % of {} clean), {:.1} % hold the truth; {} of {} claims are false",
            self.links,
            ranges * 100.0,
            self.clean() * 100.0,
            self.clean,
            self.held() * 100.0,
            self.false_claims,
            self.claims
        );
        let misses = self.misses.join("\n");
        assert!(
            self.held() >= MIN_BOUNDS_HELD_SHARE,
            "{method}: {:.3} of {} hold the truth\n{misses}",
            self.held(),
            self.ranges
        );
        assert!(self.clean() >= least_clean, "{method}: {:.3} of {} clean links", self.clean(), self.clean);
        assert!(ranges >= least_ranges, "{method}: {ranges:.3} have a range");
        assert_eq!(self.false_claims, 0, "{method}: of {} claims\n{misses}", self.claims);
    }
}

fn describe_missed_link(link: &SeededLink, truth: f64, estimate: &RateEstimate) -> String {
    let path = &link.path;
    format!(
        "seed {}: truth {:.3} not in {:.3} to {:.3} ({:.3}); capacity {:.3} busy {:.2} bucket {:?} clean {} coalesced {:.0} us stalls {:?} {:?}; \
         used {} of {}, agree {:.2}, spread {:.3}, primers {}, {:?}",
        link.seed,
        truth / 1e6,
        estimate.low / 1e6,
        estimate.high / 1e6,
        estimate.bits_per_s / 1e6,
        link.capacity / 1e6,
        link.busy,
        link.bucket,
        link.is_clean,
        path.receiver.coalesced_ns / 1e3,
        path.sender_stalls,
        path.receiver.stalls,
        estimate.quality.used,
        estimate.quality.trains,
        estimate.quality.share,
        estimate.quality.spread,
        estimate.quality.primers,
        estimate.quality.discarded
    )
}

/// A method under test.
struct JudgedMethod {
    name: &'static str,
    population: LinkPopulation,
    make: fn(u64) -> Box<dyn RateEstimator>,
    truth: fn(&SeededLink) -> f64,
    /// Shares of clean links and of all links that have a range.
    least_clean: f64,
    least_ranges: f64,
}

impl JudgedMethod {
    fn check_links(&self, links: u64) {
        let mut coverage = EstimateCoverage::default();
        for seed in 0..links {
            let link = SeededLink::draw(seed, self.population);
            let mut method = (self.make)(seed);
            link.path.clone().run_estimator(&mut *method);
            coverage.add_link_result(&link, (self.truth)(&link), &method.estimate_rate());
        }
        coverage.check_coverage(self.name, self.least_clean, self.least_ranges);
    }
}

const TRAIN_SHAPE: TrainShape = TrainShape { length: 1_514, longest: 50, pause: Nanos::from_millis(100) };
const LONGER_TRAIN_SHAPE: TrainShape = TrainShape { longest: 100, ..TRAIN_SHAPE };
const ANY_LINK_POPULATION: LinkPopulation = LinkPopulation { most_bits_per_s: 1e9, busiest: 0.6 };
/// Probes of available rates are sent at the rates that they look for, which a busy sender does not keep above this.
const SLOWER_LINK_POPULATION: LinkPopulation = LinkPopulation { most_bits_per_s: 1e8, busiest: 0.6 };

const PAIR_METHOD: JudgedMethod = JudgedMethod {
    name: "pair",
    population: ANY_LINK_POPULATION,
    make: |_| Box::new(PairEstimator::new(PairSelection::Mode, 100, TRAIN_SHAPE)),
    truth: |link| link.capacity,
    least_clean: 0.97,
    least_ranges: 0.8,
};
const CAPPROBE_METHOD: JudgedMethod = JudgedMethod {
    name: "capprobe",
    least_ranges: 0.7,
    make: |_| Box::new(PairEstimator::new(PairSelection::LeastDelay, 100, TRAIN_SHAPE)),
    ..PAIR_METHOD
};
const TRAIN_METHOD: JudgedMethod =
    JudgedMethod { name: "train", make: |_| Box::new(TrainEstimator::new(100, TRAIN_SHAPE)), ..PAIR_METHOD };
const PATHLOAD_METHOD: JudgedMethod = JudgedMethod {
    name: "pathload",
    population: SLOWER_LINK_POPULATION,
    make: |_| {
        Box::new(PathloadEstimator::new(
            FleetShape { probes: 100, streams: 12, most: 30 },
            LONGER_TRAIN_SHAPE,
        ))
    },
    truth: SeededLink::free,
    least_clean: 0.97,
    least_ranges: 0.85,
};
const CHIRP_METHOD: JudgedMethod = JudgedMethod {
    name: "pathchirp",
    make: |_| Box::new(ChirpEstimator::new(30, LONGER_TRAIN_SHAPE)),
    // Every second link has a bucket that hides the rise of delays.
    least_clean: 0.4,
    least_ranges: 0.4,
    ..PATHLOAD_METHOD
};
const SPRUCE_METHOD: JudgedMethod = JudgedMethod {
    name: "spruce",
    make: |seed| Box::new(SpruceEstimator::new(None, 100, LONGER_TRAIN_SHAPE, seed)),
    ..PATHLOAD_METHOD
};

#[test]
fn ranges_of_pairs_hold_the_truth() {
    PAIR_METHOD.check_links(LINKS_PER_ORDINARY_TEST);
}

#[test]
fn ranges_of_least_delayed_pairs_hold_the_truth() {
    CAPPROBE_METHOD.check_links(LINKS_PER_ORDINARY_TEST);
}

#[test]
fn ranges_of_trains_hold_the_truth() {
    TRAIN_METHOD.check_links(LINKS_PER_ORDINARY_TEST);
}

#[test]
fn ranges_of_fleets_hold_the_truth() {
    PATHLOAD_METHOD.check_links(LINKS_PER_ORDINARY_TEST);
}

#[test]
fn ranges_of_chirps_hold_the_truth() {
    CHIRP_METHOD.check_links(LINKS_PER_ORDINARY_TEST);
}

#[test]
fn ranges_of_spaced_pairs_hold_the_truth() {
    SPRUCE_METHOD.check_links(LINKS_PER_ORDINARY_TEST);
}

#[test]
#[ignore = "minutes; run it after a change of an estimator"]
fn ranges_hold_the_truth_on_thousands_of_links() {
    for judged in [PAIR_METHOD, CAPPROBE_METHOD, TRAIN_METHOD, PATHLOAD_METHOD, CHIRP_METHOD, SPRUCE_METHOD] {
        judged.check_links(LINKS_PER_LONG_TEST);
    }
}
