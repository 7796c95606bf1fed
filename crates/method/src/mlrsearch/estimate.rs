//! Estimates the trials that a search still needs: simulates the rest of the search with assumed devices.

use super::MlrSearch;
use super::bounds::{BoundClass, LoadTrials};
use super::targets::SearchTarget;
use crate::{CostRange, RehearsedCost};

/// Number of assumed devices. Their limits are spread over the range that is still possible.
const ASSUMED_LIMITS: i64 = 5;
/// Maximum number of trials of a simulated search.
const MAX_TRIALS: u32 = 20_000;

/// How much the trials of an assumed device at one load differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AssumedDevice {
    /// Equal trials: each load is decided as soon as possible.
    Steady,
    /// Good and bad trials in turn: each load is decided as late as possible.
    Wavering,
}

impl MlrSearch {
    /// Returns the cost of the remaining search with a device that has a fixed limit. The lower end assumes that trials
    /// at a load are equal, the upper end that they vary as much as possible. Both are without the waits around the
    /// trials. A device that changes its limit meanwhile may need more.
    pub fn remaining_cost(&self) -> CostRange {
        let mut to_go: Option<CostRange> = None;
        // Limits outside the known bounds are left out, so the estimate gets narrower with every trial.
        for limit in self.spread_possible_limits() {
            let least = self.rehearse_search(limit, AssumedDevice::Steady);
            let most = self.rehearse_search(limit, AssumedDevice::Wavering);
            let known = to_go.unwrap_or(CostRange { least, most: least });
            to_go = Some(CostRange {
                least: lower_cost_of(known.least, least),
                // The steady device may need more trials than the wavering one, so both count.
                most: higher_cost_of(higher_cost_of(known.most, least), most),
            });
        }
        to_go.unwrap_or_default()
    }

    /// Numbers of the loads that may be the highest that the device carries; a number below the scale means none.
    fn spread_possible_limits(&self) -> impl Iterator<Item = i64> {
        let mut low = i64::MAX;
        let mut high = -1;
        for selector in self.selectors() {
            let bounds = self.trials().find_relevant_bounds(selector.final_target());
            // Without a bound, the limit may be anywhere on that side of the scale. -1 means a device that
            // does not carry even the lowest load.
            low = low.min(bounds.lower.unwrap_or(-1));
            high = high.max(bounds.upper.unwrap_or_else(|| self.scale().top_index()));
        }
        // The division by `ASSUMED_LIMITS - 1` includes both ends.
        (0..ASSUMED_LIMITS).map(move |part| low + (high - low) * part / (ASSUMED_LIMITS - 1))
    }

    fn rehearse_search(&self, limit: i64, device: AssumedDevice) -> RehearsedCost {
        // The simulation uses a copy, so that the running search does not change.
        let mut search = self.clone();
        let mut trials = 0;
        let mut seconds = 0.0;
        while let Some((_, length)) = search.next_trial() {
            if trials == MAX_TRIALS {
                break;
            }
            trials += 1;
            seconds += length;
            let loss = search.assumed_loss(limit, length, device);
            search.on_loss(loss, false);
        }
        RehearsedCost { trials, sending: super::search::to_nanos(seconds), ..RehearsedCost::default() }
    }

    fn assumed_loss(&self, limit: i64, seconds: f64, device: AssumedDevice) -> f64 {
        let Some((load, target)) = self.next_load() else { return 0.0 };
        let wavering = target.filter(|_| device == AssumedDevice::Wavering);
        let undecided = wavering.and_then(|target| self.undecided_loss(load, target, seconds));
        undecided.unwrap_or_else(|| match limit {
            ..0 => 1.0,
            _ if load <= limit => 0.0,
            // An overloaded device still forwards as much as its limit.
            _ => 1.0 - self.scale().load_at(limit) / self.scale().load_at(load),
        })
    }

    /// Returns a loss ratio after which the load is still undecided, if there is one.
    fn undecided_loss(&self, load: i64, target: &SearchTarget, seconds: f64) -> Option<f64> {
        let known = self.trials().trials_at(load).cloned().unwrap_or_default();
        // Two ratios are enough: a target only compares the loss with its limit, which is 0 or more and below 1.
        [0.0, 1.0].into_iter().find(|loss| is_undecided(known.clone(), target, seconds, *loss))
    }
}

fn is_undecided(mut trials: LoadTrials, target: &SearchTarget, seconds: f64, loss: f64) -> bool {
    trials.add_trial(seconds, loss, false);
    trials.classify_for_target(target) == BoundClass::Undecided
}

/// The smaller number of trials of the two, and the shorter time of the two.
fn lower_cost_of(one: RehearsedCost, other: RehearsedCost) -> RehearsedCost {
    RehearsedCost {
        // The fewest trials and the shortest time may come from different devices.
        trials: one.trials.min(other.trials),
        sending: one.sending.min(other.sending),
        ..RehearsedCost::default()
    }
}

/// The larger number of trials of the two, and the longer time of the two.
fn higher_cost_of(one: RehearsedCost, other: RehearsedCost) -> RehearsedCost {
    RehearsedCost {
        trials: one.trials.max(other.trials),
        sending: one.sending.max(other.sending),
        ..RehearsedCost::default()
    }
}
