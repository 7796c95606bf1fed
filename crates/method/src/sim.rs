//! A simulated device with a known truth: methods are tested and evaluated with it in virtual time.

use crate::{LostFrames, TrialOrder, TrialResult};
use packetrig_units::Nanos;

/// A device that forwards up to `limit` frames per second from a buffer, and loses frames now and then.
#[derive(Clone, Debug)]
pub struct SimulatedDevice {
    /// Frames per second that it forwards.
    pub limit: f64,
    /// Frames that it keeps while more arrive than it forwards.
    pub buffer: u64,
    /// Probability that a second of a trial loses `stall_loss` frames, at any load.
    pub stalls: f64,
    pub stall_loss: u64,
    random: u64,
    /// What all trials took, in virtual time.
    pub elapsed: Nanos,
}

impl SimulatedDevice {
    /// One that forwards this many frames per second and never stalls.
    pub const fn new(limit: f64, buffer: u64) -> Self {
        Self { limit, buffer, stalls: 0.0, stall_loss: 0, random: 0, elapsed: Nanos::ZERO }
    }

    /// The same with stalls drawn from `seed`: each second loses `loss` frames with probability `p`.
    #[must_use]
    pub const fn stalling(self, p: f64, loss: u64, seed: u64) -> Self {
        Self { stalls: p, stall_loss: loss, random: seed, ..self }
    }

    /// Makes a trial.
    pub fn perform(&mut self, order: &TrialOrder) -> TrialResult {
        let sending = order.sending();
        self.elapsed += sending;
        let seconds = sending.as_secs_f64();
        let load = order.load.frames_per_second();
        let intended = match order.length {
            crate::TrialLength::Frames(frames) => frames,
            crate::TrialLength::Time(_) => whole(load * seconds),
        };
        let excess = whole((load - self.limit).max(0.0) * seconds);
        let lost = (excess.saturating_sub(self.buffer) + self.stall(seconds)).min(intended);
        TrialResult {
            intended,
            sent: intended,
            received: intended - lost,
            lost: LostFrames { least: lost, most: lost },
            sending,
            ..TrialResult::default()
        }
    }

    /// Frames that stalls lose in a trial of this length.
    fn stall(&mut self, seconds: f64) -> u64 {
        if self.stalls <= 0.0 {
            return 0;
        }
        let stalls = (0..whole(seconds.ceil().max(1.0))).filter(|_| self.draw() < self.stalls).count() as u64;
        stalls * self.stall_loss
    }

    /// A number from 0 to 1 (SplitMix64).
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "frames and seconds of a trial: rounded down"
)]
fn whole(value: f64) -> u64 {
    value as u64
}
