//! A simulated device with known properties. It serves to test and evaluate methods in virtual time, and
//! to estimate their cost.
//!
//! A burst of `B` frames at a load `L` through a device that forwards `m` frames per second and buffers `b` loses
//! nothing if the frames that arrive too fast fit into the buffer: `floor((L - m) * B / L) <= b`. So the longest burst
//! without loss is the greatest `B` below `(b + 1) / (1 - m / L)`.

use crate::rounding::{nanos_from_float, whole_part};
use crate::{LostFrames, StreamTrial, TrialLatency, TrialLength, TrialRequest, TrialResult};
use packetrig_units::Nanos;

/// A device that forwards up to `limit` frames per second from a buffer, and loses frames now and then; and
/// the rig around it.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    /// Maximum number of frames that the device forwards per second.
    pub limit: f64,
    /// Number of frames that the device buffers while they arrive faster than it forwards.
    pub buffer: u64,
    /// Probability that a second of a trial loses `stall_loss` frames, at any load.
    pub stalls: f64,
    pub stall_loss: u64,
    /// The highest load that the rig can send. A trial with a higher load counts as a fault of the rig.
    pub rig_limit: f64,
    /// Latency of every frame; if absent, no latency is measured.
    pub latency: Option<Nanos>,
    /// Outage that an event causes; if absent, no event happens.
    pub outage: Option<Nanos>,
    /// Time for which the device forwards nothing after an overload.
    pub recovery: Nanos,
    /// State of the random number generator; initially the seed.
    pub random: u64,
    /// Sending time of all trials, in virtual time.
    pub elapsed: Nanos,
}

impl SimulatedDevice {
    /// Makes a device that forwards this many frames per second and never stalls.
    pub const fn new(limit: f64, buffer: u64) -> Self {
        Self {
            limit,
            buffer,
            stalls: 0.0,
            stall_loss: 0,
            rig_limit: f64::INFINITY,
            latency: None,
            outage: None,
            recovery: Nanos::ZERO,
            random: 0,
            elapsed: Nanos::ZERO,
        }
    }

    /// Returns the device with stalls drawn from `seed`: each second loses `loss` frames with probability `p`.
    #[must_use]
    pub const fn with_stalls(self, p: f64, loss: u64, seed: u64) -> Self {
        Self { stalls: p, stall_loss: loss, random: seed, ..self }
    }

    /// Sends the ordered load through the device, in virtual time.
    pub fn perform_trial(&mut self, order: &TrialRequest) -> TrialResult {
        let sending = order.sending_time();
        self.elapsed += sending;
        let first = self.send_first_load(order);
        let mut streams = vec![first.stream];
        if let Some(step) = order.then {
            // Only a lossy first load was an overload, and only after an overload the device needs to recover.
            streams.push(self.send_lower_load(
                step.load.frames_per_second(),
                step.time,
                streams[0].lost.most > 0,
            ));
        }
        let sent: u64 = streams.iter().map(|stream| stream.sent).sum();
        let lost: u64 = streams.iter().map(|stream| stream.lost.most).sum();
        TrialResult {
            intended: sent + first.unsent,
            sent,
            // No stream loses more than it sent, so this does not underflow.
            received: sent - lost,
            lost: LostFrames { least: lost, most: lost },
            sending,
            latency: self.latency.map(|latency| constant_latency(latency, sent - lost)),
            rig_fault: (first.unsent > 0)
                .then(|| format!("the rig sends {} frames/s at most", self.rig_limit)),
            event_at: order.event.and_then(|event| self.outage.map(|_| event.at)),
            streams,
            ..TrialResult::default()
        }
    }

    fn send_first_load(&mut self, order: &TrialRequest) -> FirstLoadResult {
        let time = order.sending_time().saturating_sub(order.then.map_or(Nanos::ZERO, |step| step.time));
        let seconds = time.as_secs_f64();
        let intended_rate = order.load.frames_per_second();
        let rate = intended_rate.min(self.rig_limit);
        let intended = match order.length {
            TrialLength::Frames(frames) => frames,
            TrialLength::Time(_) => whole_part(intended_rate * seconds),
        };
        // A rig that is too slow has not sent all frames when the trial's time is over.
        let sent = if rate < intended_rate { whole_part(rate * seconds).min(intended) } else { intended };
        // Frames beyond the limit fill the buffer first.
        let excess = whole_part((rate - self.limit).max(0.0) * seconds).saturating_sub(self.buffer);
        // An event with an outage of 0 happens and costs no frame.
        let outage = order.event.and(self.outage).filter(|outage| *outage > Nanos::ZERO);
        let by_outage = outage.map_or(0, |outage| whole_part(rate * outage.as_secs_f64()));
        // Two causes may account for the same frames, so the sum is limited to all frames.
        let lost = (excess + self.draw_stall_loss(seconds) + by_outage).min(sent);
        let outage_end = order.event.zip(outage).map(|(event, outage)| event.at + outage);
        // An overload costs frames until its end, an outage only until its own.
        let last_loss = if excess > 0 { Some(time) } else { outage_end };
        let lost = LostFrames { least: lost, most: lost };
        let stream = StreamTrial {
            sent,
            lost,
            longest_outage: outage,
            least_longest_outage: outage,
            last_loss,
            ..simulated_stream(intended_rate)
        };
        FirstLoadResult { stream, unsent: intended - sent }
    }

    /// Sends the lower load. After an overload the device forwards nothing for some time.
    fn send_lower_load(&self, rate: f64, time: Nanos, is_after_loss: bool) -> StreamTrial {
        let outage = if is_after_loss { self.recovery.min(time) } else { Nanos::ZERO };
        let lost = whole_part(rate * outage.as_secs_f64());
        StreamTrial {
            sent: whole_part(rate * time.as_secs_f64()),
            lost: LostFrames { least: lost, most: lost },
            last_loss: (lost > 0).then_some(outage),
            ..simulated_stream(rate)
        }
    }

    /// Draws the frames that stalls lose in a trial of this length.
    fn draw_stall_loss(&mut self, seconds: f64) -> u64 {
        if self.stalls <= 0.0 {
            return 0;
        }
        // One draw for each second that has begun, so a trial below one second draws once.
        let stalls = (0..whole_part(seconds.ceil().max(1.0)))
            .filter(|_| self.draw_fraction() < self.stalls)
            .count() as u64;
        stalls * self.stall_loss
    }

    /// Returns a random number from 0 to 1 (SplitMix64).
    fn draw_fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // The upper 53 bits: an f64 holds no more without rounding.
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Result of the first load of a trial.
struct FirstLoadResult {
    stream: StreamTrial,
    unsent: u64,
}

fn simulated_stream(rate: f64) -> StreamTrial {
    StreamTrial { name: "simulated".to_owned(), rate, ..StreamTrial::default() }
}

fn constant_latency(latency: Nanos, frames: u64) -> TrialLatency {
    let bound = nanos_from_float(latency.as_u64() as f64 / 100.0);
    TrialLatency { frames, min: latency, mean: latency, p50: latency, p99: latency, max: latency, bound }
}
