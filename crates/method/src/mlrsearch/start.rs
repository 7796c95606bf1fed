//! The first trials: they find the region of the search from the load that the device forwards under overload.

use super::scale::{LoadInterval, LoadNumberScale};
use super::targets::SearchTarget;

/// Common target of the first trials, from the coarsest targets of all goals.
#[derive(Clone, Copy, Debug)]
pub(super) struct FirstTrialTarget {
    loss_ratio: f64,
    pub(super) seconds: f64,
    width: i64,
}

/// Stage of the first trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartStage {
    /// A trial at the maximum load.
    Max,
    /// A trial at the load that the device forwarded.
    Forwarded,
    /// A trial above or below the load `first`.
    Second { first: i64 },
}

/// Next step after a first trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartStep {
    Trial {
        stage: StartStage,
        load: i64,
    },
    /// The first trials are over. The search begins between these two loads, low and high, which may be the same.
    Ready(i64, i64),
}

impl FirstTrialTarget {
    /// Combines the coarsest target of each goal.
    pub(super) fn from_targets<'a>(coarsest: impl Iterator<Item = &'a SearchTarget> + Clone) -> Self {
        // The strictest loss, the longest trial and the coarsest width, so that one trial serves all goals.
        Self {
            loss_ratio: coarsest.clone().map(|target| target.loss_ratio).fold(1.0, f64::min),
            seconds: coarsest.clone().map(|target| target.trial).fold(0.0, f64::max),
            width: coarsest.map(|target| target.width).max().unwrap_or(1),
        }
    }

    /// Returns the step after a trial at this load with this loss.
    pub(super) fn next_step(
        &self,
        scale: &LoadNumberScale,
        stage: StartStage,
        load: i64,
        loss_ratio: f64,
    ) -> StartStep {
        let forwarded = scale.load_at(load) * (1.0 - loss_ratio);
        // At this load, the device would forward the same rate and lose exactly as much as the goal allows. The
        // reciprocal is computed first, as in the reference library.
        let carried = scale.index_of(forwarded * (1.0 / (1.0 - self.loss_ratio)));
        let top = scale.top_index();
        match stage {
            // The device carries the maximum load, so there was no overload: the search starts at the maximum.
            StartStage::Max if carried >= top => StartStep::Ready(load, load),
            StartStage::Max => {
                let below = LoadInterval { lower: None, upper: Some(top) };
                start_step_for_load(
                    below.move_away_from_bounds(carried, self.width, top),
                    StartStage::Forwarded,
                    load,
                )
            }
            StartStage::Forwarded => {
                // If the forwarded load still loses too much, the search goes down again to the load that was
                // forwarded now. If not, it goes up one width: the loss is expected just above.
                let second = if loss_ratio > self.loss_ratio {
                    LoadInterval { lower: None, upper: Some(load) }
                        .move_away_from_bounds(carried, self.width, top)
                } else {
                    let between = LoadInterval { lower: Some(load), upper: Some(top) };
                    between.move_away_from_bounds(load + self.width, self.width, top)
                };
                start_step_for_load(second, StartStage::Second { first: load }, load)
            }
            StartStage::Second { first } => StartStep::Ready(first.min(load), first.max(load)),
        }
    }
}

/// Returns a trial at `next`. If that is `None`, the search starts at the load of the last trial.
fn start_step_for_load(next: Option<i64>, stage: StartStage, load: i64) -> StartStep {
    match next {
        Some(load) => StartStep::Trial { stage, load },
        None => StartStep::Ready(load, load),
    }
}
