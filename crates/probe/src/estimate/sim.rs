//! A path in virtual time, for tests: links with rates, token buckets and other traffic, one after the other.
//!
//! It knows queues and nothing else: no delay that varies by itself, no clocks that drift. What comes out is determined by the seed.
//!
//! Invariant: links are first in, first out; no frame overtakes another.

use super::{PassedProbe, RateEstimator, TrainRequest};
use packetrig_wire::pattern::mix;

/// Traffic of others over one link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CrossTraffic {
    Idle,
    /// Frames of this length at instants of a Poisson process.
    Poisson {
        bits_per_s: f64,
        length: u32,
    },
    /// The same at equal distances.
    Steady {
        bits_per_s: f64,
        length: u32,
    },
}

impl CrossTraffic {
    const fn frame(self) -> Option<(f64, u32)> {
        match self {
            Self::Idle => None,
            Self::Poisson { bits_per_s, length } | Self::Steady { bits_per_s, length } => {
                Some((bits_per_s, length))
            }
        }
    }
}

/// A link with its queue.
#[derive(Clone, Debug)]
pub struct QueuedLink {
    bits_per_s: f64,
    /// Bytes a token bucket holds; `None`: the rate is that of a wire.
    bucket: Option<u32>,
    cross: CrossTraffic,
    delay_ns: f64,
    /// Longest a frame may wait.
    patience_ns: f64,
    tokens_ns: f64,
    tokens_at: f64,
    free_at: f64,
    next_cross: f64,
    crossed: u64,
    seed: u64,
}

impl QueuedLink {
    pub const fn wire(bits_per_s: f64) -> Self {
        Self {
            bits_per_s,
            bucket: None,
            cross: CrossTraffic::Idle,
            delay_ns: 100_000.0,
            patience_ns: 1e9,
            tokens_ns: 0.0,
            tokens_at: 0.0,
            free_at: 0.0,
            next_cross: 0.0,
            crossed: 0,
            seed: 0,
        }
    }

    /// A token bucket in front of a link that takes no time.
    pub fn bucket(bits_per_s: f64, bytes: u32) -> Self {
        let tokens_ns = f64::from(bytes) * 8e9 / bits_per_s;
        Self { bucket: Some(bytes), tokens_ns, ..Self::wire(bits_per_s) }
    }

    /// With traffic of others.
    #[must_use]
    pub const fn with(self, cross: CrossTraffic, seed: u64) -> Self {
        Self { cross, seed, ..self }
    }

    /// With a queue that lets nobody wait longer.
    #[must_use]
    pub const fn patient(self, patience_ns: f64) -> Self {
        Self { patience_ns, ..self }
    }

    /// When a frame that comes at `at` is through.
    fn pass(&mut self, at: f64, length: u32) -> Option<f64> {
        while let Some((rate, length)) = self.cross.frame()
            && self.next_cross <= at
        {
            let came = self.next_cross;
            self.serve(came, length);
            self.crossed += 1;
            let mean = f64::from(length) * 8e9 / rate;
            self.next_cross += match self.cross {
                CrossTraffic::Poisson { .. } => mean * draw(self.seed, self.crossed),
                _ => mean,
            };
        }
        self.serve(at, length).map(|through| through + self.delay_ns)
    }

    fn serve(&mut self, at: f64, length: u32) -> Option<f64> {
        let takes = f64::from(length) * 8e9 / self.bits_per_s;
        let begins = at.max(self.free_at);
        if begins - at > self.patience_ns {
            return None;
        }
        let Some(bytes) = self.bucket else {
            self.free_at = begins + takes;
            return Some(self.free_at);
        };
        let full = f64::from(bytes) * 8e9 / self.bits_per_s;
        let tokens = (self.tokens_ns + (begins - self.tokens_at)).min(full);
        let waits = (takes - tokens).max(0.0);
        (self.tokens_ns, self.tokens_at) = (tokens + waits - takes, begins + waits);
        self.free_at = self.tokens_at;
        Some(self.free_at)
    }
}

/// An exponential distribution of mean one.
fn draw(seed: u64, n: u64) -> f64 {
    -(((mix(seed, n) >> 11) + 1) as f64 / (1_u64 << 53) as f64).ln()
}

/// Links one after the other, and a sender in front of them.
#[derive(Clone, Debug)]
pub struct SimulatedPath {
    links: Vec<QueuedLink>,
    /// The least distance the sender manages.
    pub least_gap_ns: f64,
    /// How much longer it takes to send the first of a train, until its caches are warm.
    pub cold_ns: f64,
    /// How much later than planned it may send, at random.
    pub jitter_ns: f64,
    /// What the far clock is ahead.
    pub offset_ns: u64,
    /// How far each stamp may be off.
    pub doubt_ns: u64,
    now: f64,
    sent: u64,
}

impl SimulatedPath {
    pub const fn new(links: Vec<QueuedLink>) -> Self {
        let (least_gap_ns, jitter_ns, cold_ns) = (1_500.0, 500.0, 40_000.0);
        Self { links, least_gap_ns, cold_ns, jitter_ns, offset_ns: 1 << 60, doubt_ns: 20, now: 1e9, sent: 0 }
    }

    pub fn send(&mut self, ask: &TrainRequest) -> Vec<PassedProbe> {
        let start = self.now + ask.pause.as_u64() as f64;
        let mut left = 0.0_f64;
        let mut train = Vec::new();
        for probe in &ask.probes {
            self.sent += 1;
            let late = self.jitter_ns * (mix(7, self.sent) >> 11) as f64 / (1_u64 << 53) as f64;
            let cold = if train.len() == 1 { self.cold_ns } else { 0.0 };
            left = (start + probe.at.as_u64() as f64 + late).max(left + self.least_gap_ns + cold);
            let came = self.links.iter_mut().try_fold(left, |at, link| link.pass(at, probe.length));
            train.push(PassedProbe {
                kind: probe.kind,
                length: probe.length,
                left: Some(whole(left)),
                came: came.map(|came| whole(came) + self.offset_ns),
                doubt: 2 * self.doubt_ns,
                disturbed: false,
            });
        }
        self.now = left;
        train
    }

    /// Gives a method what it asks for until it asks no more. Tells how many trains that were.
    pub fn run(&mut self, method: &mut dyn RateEstimator) -> usize {
        let mut trains = 0;
        while let Some(ask) = method.ask() {
            let train = self.send(&ask);
            method.saw(&train);
            trains += 1;
        }
        trains
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "virtual times are small and positive"
)]
fn whole(ns: f64) -> u64 {
    ns as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_its_content_pass_at_once_and_then_keeps_the_rate() {
        let mut link = QueuedLink::bucket(1e9, 3_000);
        let through: Vec<_> = (0..4).map(|_| link.pass(0.0, 1_000).unwrap() - link.delay_ns).collect();
        assert_eq!(through, [0.0, 0.0, 0.0, 8_000.0]);
        // Later it is full again, but no fuller.
        let through: Vec<_> = (0..4).map(|_| link.pass(1e9, 1_000).unwrap() - link.delay_ns - 1e9).collect();
        assert_eq!(through, [0.0, 0.0, 0.0, 8_000.0]);
    }

    #[test]
    fn traffic_of_others_takes_its_share() {
        let cross = CrossTraffic::Poisson { bits_per_s: 5e6, length: 1_000 };
        let mut link = QueuedLink::wire(1e7).with(cross, 3);
        // More than fits: frames of 1250 bytes, one each millisecond, are 10 Mbit/s.
        let last = (0..1_000).map(|n| link.pass(f64::from(n) * 1e6, 1_250)).last().flatten().unwrap();
        assert!(last / 1e9 > 1.3, "{last}");
        assert!((link.crossed as f64 / 625.0 - 1.0).abs() < 0.15, "{}", link.crossed);
    }
}
