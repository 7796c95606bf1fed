//! Random goals, ranges and noisy devices.

use packetrig_eval::draw::Draw;
use packetrig_method::mlrsearch::{MlrOptions, SearchGoal};
use packetrig_method::{Load, LostFrames, TrialResult};
use packetrig_units::Nanos;

/// Draws of what searches are made of.
pub(crate) trait DrawSearch {
    /// From 0 to 1.
    fn share(&mut self) -> f64;
    /// Even in logarithm.
    fn log_within(&mut self, least: f64, most: f64) -> f64;
    fn is_chance(&mut self, probability: f64) -> bool;
    fn goal(&mut self) -> SearchGoal;
    /// One to four goals, no two alike.
    fn goals(&mut self) -> Vec<SearchGoal>;
    fn search(&mut self) -> MlrOptions;
}

impl DrawSearch for Draw {
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn log_within(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.share())
    }

    fn is_chance(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    fn goal(&mut self) -> SearchGoal {
        if self.is_chance(0.2) {
            return self.one_of(&[SearchGoal::NDR, SearchGoal::PDR, SearchGoal::RFC2544, SearchGoal::TST009]);
        }
        let final_trial = Nanos::from_millis(self.one_of(&[100, 1000, 1000, 10_000, 60_000, 1234]));
        let sums = self.one_of(&[1, 1, 2, 3, 5, 21]);
        let duration_sum = Nanos::new(final_trial.as_u64() * sums + self.one_of(&[0, 0, 333_333_333]));
        let initial_trial = Nanos::new(final_trial.as_u64() / self.one_of(&[1, 1, 2, 10, 60]));
        let most_drawn = self.log_within(1e-6, 0.5);
        SearchGoal {
            loss_ratio: self.one_of(&[0.0, 0.0, 0.005, 0.001, most_drawn]),
            exceed_ratio: if self.is_chance(0.5) {
                self.one_of(&[0.0, 0.5, 0.2])
            } else {
                self.share() * 0.95
            },
            duration_sum,
            final_trial,
            initial_trial,
            width: if self.is_chance(0.3) { 0.005 } else { self.log_within(0.0005, 0.6) },
            expansion: self.one_of(&[2, 2, 2, 3, 4]),
            preceding_targets: if initial_trial == duration_sum {
                self.one_of(&[0, 1, 2])
            } else {
                self.one_of(&[1, 2, 2, 3, 5])
            },
        }
    }

    fn goals(&mut self) -> Vec<SearchGoal> {
        let mut goals: Vec<SearchGoal> = Vec::new();
        for _ in 0..self.within(1, 5) {
            let goal = self.goal();
            if !goals.contains(&goal) {
                goals.push(goal);
            }
        }
        goals
    }

    fn search(&mut self) -> MlrOptions {
        let goals = self.goals();
        let min = self.log_within(0.5, 1e6);
        let max =
            min * if self.is_chance(0.1) { self.log_within(1.0001, 1.2) } else { self.log_within(1.2, 1e6) };
        MlrOptions {
            goals,
            min: Load::new(min),
            max: Load::new(max),
            size: None,
            warmup: self.is_chance(0.1).then(|| Nanos::from_millis(1500)),
            fail_fast: self.is_chance(0.15),
        }
    }
}

/// A device and a rig that misbehave by chance.
#[derive(Debug)]
pub(crate) struct NoisyDevice {
    draw: Draw,
    limit: f64,
    /// By which share the limit of a trial varies.
    wobble: f64,
    /// How likely a second loses `stall_loss` of its frames.
    stalls: f64,
    stall_loss: f64,
    /// How likely a trial's loss is any number.
    chaos: f64,
    /// How likely the rig does not send everything.
    unsent: f64,
}

impl NoisyDevice {
    /// One whose limit lies about the range of a search.
    pub(crate) fn draw(mut draw: Draw, options: &MlrOptions) -> Self {
        let [min, max] = [options.min, options.max].map(Load::frames_per_second);
        let limit = draw.log_within(min * 0.7, max * 1.2);
        Self {
            limit,
            wobble: draw.one_of(&[0.0, 0.0, 0.001, 0.01, 0.1]),
            stalls: draw.one_of(&[0.0, 0.0, 0.01, 0.05, 0.2, 0.5]),
            stall_loss: draw.one_of(&[1e-5, 0.002, 0.02]),
            chaos: draw.one_of(&[0.0, 0.0, 0.0, 0.05, 0.5]),
            unsent: draw.one_of(&[0.0, 0.0, 0.1]),
            draw,
        }
    }

    /// A trial of this load.
    pub(crate) fn perform(&mut self, load: f64, seconds: f64) -> TrialResult {
        let intended = whole(load * seconds);
        let loss = self.loss(load, seconds).clamp(0.0, 1.0);
        let unsent = if self.draw.is_chance(self.unsent) { intended / 1000 + 1 } else { 0 };
        let sent = intended.saturating_sub(unsent);
        let lost = whole(sent as f64 * loss).min(sent);
        let lost = LostFrames { least: lost, most: lost };
        TrialResult { intended, sent, received: sent - lost.most, lost, ..TrialResult::default() }
    }

    fn loss(&mut self, load: f64, seconds: f64) -> f64 {
        if self.draw.is_chance(self.chaos) {
            return self.draw.share();
        }
        let limit = self.limit * (1.0 + self.wobble * (self.draw.share() - 0.5));
        let excess = (1.0 - limit / load).max(0.0);
        let is_stalled = self.draw.is_chance(1.0 - (1.0 - self.stalls).powf(seconds));
        excess + if is_stalled { self.stall_loss } else { 0.0 }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "frames of a trial, rounded down"
)]
fn whole(frames: f64) -> u64 {
    frames as u64
}
