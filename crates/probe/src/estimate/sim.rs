//! A path in virtual time, for tests: links with rates, token buckets and other traffic, one after the other.
//!
//! The model includes queues and the disturbances of machines: late timers, senders and receivers that
//! pause, receivers that see arrivals late, and stamps with noise. It does not include clocks that drift.
//! The seeds determine every result.
//!
//! Invariant: links are first in, first out; no frame overtakes another.

use super::{RateEstimator, TrainProbeTimes, TrainRequest};
use packetrig_wire::pattern::keyed_mix;

/// Other traffic over one link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CrossTraffic {
    Idle,
    /// Frames of this length at the times of a Poisson process.
    Poisson {
        bits_per_s: f64,
        length: u32,
    },
    /// Frames of this length at equal distances.
    Steady {
        bits_per_s: f64,
        length: u32,
    },
}

impl CrossTraffic {
    const fn rate_and_length(self) -> Option<(f64, u32)> {
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
    /// Capacity of the token bucket in bytes; `None` for a link with a fixed rate.
    bucket: Option<u32>,
    cross: CrossTraffic,
    delay_ns: f64,
    /// Longest time that a frame may wait in the queue.
    longest_wait_ns: f64,
    /// Mean lateness of the timer of a token bucket.
    late_ns: f64,
    waited: u64,
    tokens_ns: f64,
    tokens_at: f64,
    free_at: f64,
    next_cross: f64,
    crossed: u64,
    seed: u64,
}

impl QueuedLink {
    pub const fn new_wire(bits_per_s: f64) -> Self {
        Self {
            bits_per_s,
            bucket: None,
            cross: CrossTraffic::Idle,
            delay_ns: 100_000.0,
            longest_wait_ns: 1e9,
            late_ns: 0.0,
            waited: 0,
            tokens_ns: 0.0,
            tokens_at: 0.0,
            free_at: 0.0,
            next_cross: 0.0,
            crossed: 0,
            seed: 0,
        }
    }

    /// A token bucket before a link that sends each frame in no time. The fixed delay remains.
    pub fn new_bucket(bits_per_s: f64, bytes: u32) -> Self {
        let tokens_ns = f64::from(bytes) * 8e9 / bits_per_s;
        Self { bucket: Some(bytes), tokens_ns, ..Self::new_wire(bits_per_s) }
    }

    /// Adds traffic of others.
    #[must_use]
    pub const fn with_cross_traffic(self, cross: CrossTraffic, seed: u64) -> Self {
        Self { cross, seed, ..self }
    }

    /// Sets the longest wait in the queue; frames that would wait longer are dropped.
    #[must_use]
    pub const fn with_longest_wait(self, longest_wait_ns: f64) -> Self {
        Self { longest_wait_ns, ..self }
    }

    /// Sets the mean lateness of the timer, if the link has a token bucket.
    #[must_use]
    pub const fn with_late_timer(self, late_ns: f64) -> Self {
        Self { late_ns, ..self }
    }

    /// Time at which a frame that arrives at `at` has passed the link; `None` if it is dropped.
    fn pass_frame(&mut self, at: f64, length: u32) -> Option<f64> {
        self.skip_idle(at);
        while let Some((rate, length)) = self.cross.rate_and_length()
            && self.next_cross <= at
        {
            let came = self.next_cross;
            self.serve_frame(came, length);
            self.crossed += 1;
            let mean = f64::from(length) * 8e9 / rate;
            self.next_cross += match self.cross {
                CrossTraffic::Poisson { .. } => mean * draw_exponential_sample(self.seed, self.crossed),
                _ => mean,
            };
        }
        self.serve_frame(at, length).map(|through| through + self.delay_ns)
    }

    /// Skips other traffic long before a probe if the queue is empty again, because it no longer affects the probe.
    fn skip_idle(&mut self, at: f64) {
        let Some((rate, length)) = self.cross.rate_and_length() else { return };
        let remembered = REMEMBERED_FRAMES * f64::from(length) * 8e9 / rate;
        if at - self.next_cross > 2.0 * remembered && self.free_at < at - remembered {
            self.next_cross = at - remembered;
        }
    }

    fn serve_frame(&mut self, at: f64, length: u32) -> Option<f64> {
        let takes = f64::from(length) * 8e9 / self.bits_per_s;
        let begins = at.max(self.free_at);
        if begins - at > self.longest_wait_ns {
            return None;
        }
        let Some(bytes) = self.bucket else {
            self.free_at = begins + takes;
            return Some(self.free_at);
        };
        let full = f64::from(bytes) * 8e9 / self.bits_per_s;
        let tokens = (self.tokens_ns + (begins - self.tokens_at)).min(full);
        let lacks = (takes - tokens).max(0.0);
        // While a frame waits because of a late timer, tokens continue to arrive, but not more than the
        // bucket holds.
        let waits = if lacks > 0.0 { lacks + self.timer_lateness() } else { 0.0 };
        (self.tokens_ns, self.tokens_at) = ((tokens + waits).min(full.max(takes)) - takes, begins + waits);
        self.free_at = self.tokens_at;
        Some(self.free_at)
    }

    fn timer_lateness(&mut self) -> f64 {
        self.waited += 1;
        if self.late_ns > 0.0 {
            self.late_ns * draw_exponential_sample(self.seed ^ 0x7157, self.waited)
        } else {
            0.0
        }
    }
}

/// After this many frames, earlier traffic no longer affects the queue.
const REMEMBERED_FRAMES: f64 = 150.0;

/// A machine that pauses now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MachineStalls {
    /// Share of packets before which the machine pauses.
    pub share: f64,
    /// Mean length of a pause, in nanoseconds.
    pub mean_ns: f64,
}

/// A receiver that stamps arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StampingReceiver {
    /// Delay from the first frame without a stamp until the receiver gets the whole batch (interrupt coalescing).
    pub coalesced_ns: f64,
    pub stalls: MachineStalls,
}

/// Frames of a batch get their stamps this far apart.
const BATCH_GAP_NS: f64 = 300.0;

impl StampingReceiver {
    /// Replaces arrival times, which are in order, by the times at which the receiver stamps these frames.
    fn stamp_arrivals(self, arrivals: &mut [Option<f64>], seed: u64) {
        let mut told = 0.0_f64;
        let mut last = 0.0_f64;
        for (nth, arrival) in arrivals.iter_mut().enumerate() {
            let Some(at) = arrival else { continue };
            if *at > told {
                told = *at + self.coalesced_ns + self.stalls.stall_time_before(seed, nth as u64);
            }
            // The receiver stamps a batch only after it got the whole batch.
            last = told.max(last + BATCH_GAP_NS);
            *at = last;
        }
    }

    const fn stamps_promptly(self) -> bool {
        self.coalesced_ns <= 0.0 && self.stalls.share <= 0.0
    }
}

impl MachineStalls {
    /// Length of the pause before a packet, in nanoseconds; zero for most packets.
    fn stall_time_before(self, seed: u64, n: u64) -> f64 {
        if uniform_share(seed ^ 0x57a1, n) < self.share {
            self.mean_ns * draw_exponential_sample(seed ^ 0x57a2, n)
        } else {
            0.0
        }
    }
}

/// Draws from the uniform distribution from zero to one.
fn uniform_share(seed: u64, n: u64) -> f64 {
    (keyed_mix(seed, n) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Draws from the exponential distribution with mean one.
fn draw_exponential_sample(seed: u64, n: u64) -> f64 {
    -(((keyed_mix(seed, n) >> 11) + 1) as f64 / (1_u64 << 53) as f64).ln()
}

/// Links one after the other, and a sender in front of them.
#[derive(Clone, Debug)]
pub struct SimulatedPath {
    links: Vec<QueuedLink>,
    /// Smallest distance between two frames that the sender can achieve, in nanoseconds.
    pub least_gap_ns: f64,
    /// Extra time of the first probe of a train, until the caches are warm.
    pub cold_ns: f64,
    /// Largest random lateness of a departure.
    pub jitter_ns: f64,
    /// Offset of the far clock.
    pub offset_ns: u64,
    /// Error bound that the path states for each stamp.
    pub doubt_ns: u64,
    /// Largest real error of a stamp.
    pub noise_ns: f64,
    pub sender_stalls: MachineStalls,
    pub receiver: StampingReceiver,
    /// Seed of all random behaviour of machines.
    pub seed: u64,
    now: f64,
    sent: u64,
}

impl SimulatedPath {
    pub fn new(links: Vec<QueuedLink>) -> Self {
        Self {
            links,
            least_gap_ns: 1_500.0,
            cold_ns: 40_000.0,
            jitter_ns: 500.0,
            offset_ns: 1 << 60,
            doubt_ns: 20,
            noise_ns: 0.0,
            sender_stalls: MachineStalls::default(),
            receiver: StampingReceiver::default(),
            seed: 7,
            now: 1e9,
            sent: 0,
        }
    }

    pub fn send_train(&mut self, ask: &TrainRequest) -> Vec<TrainProbeTimes> {
        let departures = self.plan_departures(ask);
        let lengths = ask.probes.iter().map(|probe| probe.length);
        let mut arrivals: Vec<Option<f64>> = departures
            .iter()
            .zip(lengths)
            .map(|(left, length)| {
                self.links.iter_mut().try_fold(*left, |at, link| link.pass_frame(at, length))
            })
            .collect();
        if !self.receiver.stamps_promptly() {
            self.receiver.stamp_arrivals(&mut arrivals, keyed_mix(self.seed, self.sent));
        }
        self.now = departures.last().copied().unwrap_or(self.now);
        let passed = ask.probes.iter().zip(departures).zip(arrivals);
        let stamped = passed.enumerate().map(|(nth, ((probe, left), came))| {
            let n = 2 * (self.sent + nth as u64);
            TrainProbeTimes {
                kind: probe.kind,
                length: probe.length,
                left: Some(whole_ns(left + self.stamp_noise(n))),
                came: came.map(|came| whole_ns(came + self.stamp_noise(n + 1)) + self.offset_ns),
                doubt: 2 * self.doubt_ns,
                disturbed: false,
            }
        });
        let stamped = stamped.collect();
        self.sent += ask.probes.len() as u64;
        stamped
    }

    /// Departure times of the probes of a train.
    fn plan_departures(&self, ask: &TrainRequest) -> Vec<f64> {
        let start = self.now + ask.pause.as_u64() as f64;
        let mut left = 0.0_f64;
        let mut departures = Vec::new();
        for (nth, probe) in ask.probes.iter().enumerate() {
            let n = self.sent + nth as u64;
            let late = self.jitter_ns * uniform_share(self.seed, n)
                + self.sender_stalls.stall_time_before(self.seed, n);
            let cold = if nth == 1 { self.cold_ns } else { 0.0 };
            left = (start + probe.at.as_u64() as f64 + late).max(left + self.least_gap_ns + cold);
            departures.push(left);
        }
        departures
    }

    /// Error of a stamp.
    fn stamp_noise(&self, n: u64) -> f64 {
        self.noise_ns * (2.0 * uniform_share(self.seed ^ 0x4015, n) - 1.0)
    }

    /// Sends the trains that a method requests until it requests no more. Returns their number.
    pub fn run_estimator(&mut self, method: &mut dyn RateEstimator) -> usize {
        let mut trains = 0;
        while let Some(ask) = method.next_train() {
            let train = self.send_train(&ask);
            method.add_train(&train);
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
fn whole_ns(ns: f64) -> u64 {
    ns as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_bucket_passes_burst_then_keeps_rate() {
        let mut link = QueuedLink::new_bucket(1e9, 3_000);
        let through: Vec<_> = (0..4).map(|_| link.pass_frame(0.0, 1_000).unwrap() - link.delay_ns).collect();
        assert_eq!(through, [0.0, 0.0, 0.0, 8_000.0]);
        // Later it is full again, but no fuller.
        let through: Vec<_> =
            (0..4).map(|_| link.pass_frame(1e9, 1_000).unwrap() - link.delay_ns - 1e9).collect();
        assert_eq!(through, [0.0, 0.0, 0.0, 8_000.0]);
    }

    #[test]
    fn traffic_of_others_takes_its_share() {
        let cross = CrossTraffic::Poisson { bits_per_s: 5e6, length: 1_000 };
        let mut link = QueuedLink::new_wire(1e7).with_cross_traffic(cross, 3);
        // More than fits: frames of 1250 bytes, one each millisecond, are 10 Mbit/s.
        let last = (0..1_000).map(|n| link.pass_frame(f64::from(n) * 1e6, 1_250)).last().flatten().unwrap();
        assert!(last / 1e9 > 1.3, "{last}");
        assert!((link.crossed as f64 / 625.0 - 1.0).abs() < 0.15, "{}", link.crossed);
    }
}
