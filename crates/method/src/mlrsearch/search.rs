//! The search: tries the nominations of the goals until all goals are reached, or one cannot be reached (`fail_fast`).

use super::bounds::TrialsByLoad;
use super::scale::{LoadInterval, LoadNumberScale};
use super::selector::{LoadNomination, LoadSelector, SharedSearchData};
use super::start::{FirstTrialTarget, StartStage, StartStep};
use super::targets::{SearchTarget, build_targets};
use super::{GoalError, SearchGoal};
use crate::{Load, TestMethod, TrialLength, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};
use serde::{Deserialize, Serialize};

/// Options of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlrOptions {
    pub goals: Vec<SearchGoal>,
    /// Lowest load that the search tries; `max` is the highest.
    #[serde(rename = "min_frames_per_second", alias = "min")]
    pub min: Load,
    #[serde(rename = "max_frames_per_second", alias = "max")]
    pub max: Load,
    /// Size of all frames; `None` for the sizes of the plan.
    #[serde(rename = "frame_size_bytes", alias = "size")]
    pub size: Option<FrameSize>,
    /// Length of a first trial at the highest load, whose result does not count.
    #[serde(rename = "warmup_ns", alias = "warmup")]
    pub warmup: Option<Nanos>,
    /// True to end the search when the lowest load turns out to be too high for a goal.
    pub fail_fast: bool,
}

/// Reason why a search cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MlrOptionsError {
    #[error("the search has no goal; give one, for example ndr")]
    NoGoal,
    #[error("the goal {0} is named twice; name it once")]
    SameGoal(SearchGoal),
    #[error(transparent)]
    Goal(#[from] GoalError),
    #[error("the loads must be finite, and the lowest, {min}, above 0 and below the highest, {max}")]
    Range { min: Load, max: Load },
    #[error("the widths of the goals differ too much for a common scale; choose more similar widths")]
    Widths,
}

/// A search with MLRsearch.
#[derive(Clone, Debug)]
pub struct MlrSearch {
    options: MlrOptions,
    scale: LoadNumberScale,
    start: FirstTrialTarget,
    selectors: Vec<LoadSelector>,
    trials: TrialsByLoad,
    /// The step of the previous trial, in numbers of the load scale.
    step: i64,
    phase: SearchPhase,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SearchPhase {
    WarmUp(Nanos),
    Start {
        stage: StartStage,
        load: i64,
    },
    /// Tries the nomination of this selector.
    Search {
        nomination: LoadNomination,
        selector: usize,
    },
    Over,
}

impl MlrSearch {
    pub fn new(options: MlrOptions) -> Result<Self, MlrOptionsError> {
        check_options(&options)?;
        let [min, max] = [options.min, options.max].map(Load::frames_per_second);
        let widths: Vec<f64> = options.goals.iter().map(|goal| goal.width).collect();
        let scale = LoadNumberScale::new(min, max, &widths).ok_or(MlrOptionsError::Widths)?;
        let chains: Vec<Vec<SearchTarget>> =
            options.goals.iter().map(|goal| build_targets(goal, &scale)).collect();
        let start = FirstTrialTarget::from_targets(chains.iter().filter_map(|chain| chain.first()));
        // The search begins at the maximum: the forwarded load of that trial shows where to continue.
        let first = SearchPhase::Start { stage: StartStage::Max, load: scale.top_index() };
        let phase = options.warmup.map_or(first, SearchPhase::WarmUp);
        let selectors = chains.into_iter().map(LoadSelector::new).collect();
        Ok(Self { options, scale, start, selectors, trials: TrialsByLoad::default(), step: 0, phase })
    }

    pub const fn options(&self) -> &MlrOptions {
        &self.options
    }

    /// Returns the load of the next trial, and its length in seconds, not rounded to ns; `None` if the search is over.
    pub fn next_trial(&self) -> Option<(Load, f64)> {
        let (load, seconds) = match self.phase {
            SearchPhase::WarmUp(time) => (self.scale.top_index(), time.as_secs_f64()),
            SearchPhase::Start { load, .. } => (load, self.start.seconds),
            SearchPhase::Search { nomination, .. } => (nomination.load, nomination.seconds),
            SearchPhase::Over => return None,
        };
        Some((Load::new(self.scale.load_at(load)), seconds))
    }

    /// Processes the loss ratio of the trial of [`next_trial`](Self::next_trial). `is_rig_fault` is true if the rig may
    /// have caused the loss.
    pub fn on_loss(&mut self, loss_ratio: f64, is_rig_fault: bool) {
        match self.phase {
            SearchPhase::WarmUp(_) => {
                // The device may still be learning addresses and routes. So this loss proves nothing about
                // the load, and the trial is not added.
                self.phase = SearchPhase::Start { stage: StartStage::Max, load: self.scale.top_index() };
            }
            SearchPhase::Start { stage, load } => {
                self.trials.add_trial(load, self.start.seconds, loss_ratio, is_rig_fault);
                match self.start.next_step(&self.scale, stage, load, loss_ratio) {
                    StartStep::Trial { stage, load } => self.phase = SearchPhase::Start { stage, load },
                    StartStep::Ready(low, high) => self.start_selectors(low, high),
                }
            }
            SearchPhase::Search { nomination, selector } => {
                self.trials.add_trial(nomination.load, nomination.seconds, loss_ratio, is_rig_fault);
                // The step of the trial counts for all goals. It grows only if the trial did not find the bound
                // that it was made for.
                self.step = nomination.step;
                if let Some(step) = self.selectors[selector].record_trial(nomination.load, &self.trials) {
                    self.step = step;
                }
                self.choose_next_trial();
            }
            SearchPhase::Over => {}
        }
    }

    fn start_selectors(&mut self, low: i64, high: i64) {
        self.step = high - low;
        let start = LoadInterval { lower: Some(low), upper: Some(high) };
        for selector in &mut self.selectors {
            selector.set_start_bounds(start);
        }
        self.choose_next_trial();
    }

    /// Lets all goals nominate a load and chooses the next trial.
    fn choose_next_trial(&mut self) {
        let view = SharedSearchData { trials: &self.trials, top: self.scale.top_index(), step: self.step };
        let mut chosen: Option<(LoadNomination, usize)> = None;
        // Every selector nominates a load, even if it is not chosen: a nomination moves it through its targets.
        for (index, selector) in self.selectors.iter_mut().enumerate() {
            let Some(nomination) = selector.nominate_load(view) else {
                // This goal has no load left to try and no lower bound: even the lowest load is too high for it.
                if self.options.fail_fast
                    && view.trials.find_relevant_bounds(selector.final_target()).lower.is_none()
                {
                    self.phase = SearchPhase::Over;
                    return;
                }
                continue;
            };
            // Of equal nominations the first stays, so ties go to the goal that the options name first.
            if chosen.is_none_or(|(best, _)| nomination.has_precedence_over(&best, view.top)) {
                chosen = Some((nomination, index));
            }
        }
        self.phase = chosen
            .map_or(SearchPhase::Over, |(nomination, selector)| SearchPhase::Search { nomination, selector });
    }

    pub(super) const fn scale(&self) -> &LoadNumberScale {
        &self.scale
    }

    pub(super) const fn trials(&self) -> &TrialsByLoad {
        &self.trials
    }

    pub(super) fn selectors(&self) -> &[LoadSelector] {
        &self.selectors
    }

    /// Returns the number of the next load, and the target that it is tried for; no target in the first trials.
    pub(super) fn next_load(&self) -> Option<(i64, Option<&SearchTarget>)> {
        match self.phase {
            SearchPhase::WarmUp(_) => Some((self.scale.top_index(), None)),
            SearchPhase::Start { load, .. } => Some((load, None)),
            SearchPhase::Search { nomination, selector } => {
                Some((nomination.load, Some(self.selectors[selector].current_target())))
            }
            SearchPhase::Over => None,
        }
    }
}

impl TestMethod for MlrSearch {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        let (load, seconds) = self.next_trial()?;
        let length = TrialLength::Time(to_nanos(seconds));
        Some(TrialRequest::with_constant_load(TrialPurpose::Search, self.options.size, load, length))
    }

    fn on_result(&mut self, result: &TrialResult) {
        // Frames that the rig did not send count as lost, so that a slow rig cannot make a high result.
        self.on_loss(result.loss_share(), result.rig_fault.is_some());
    }

    fn describe_progress(&self) -> String {
        let goals: Vec<String> = self.current_results().iter().map(ToString::to_string).collect();
        goals.join("; ")
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast saturates; seconds are not negative"
)]
pub(super) fn to_nanos(seconds: f64) -> Nanos {
    // The value is rounded, not truncated: a float may be slightly below the whole nanosecond that it represents.
    Nanos::new((seconds * 1e9).round() as u64)
}

fn check_options(options: &MlrOptions) -> Result<(), MlrOptionsError> {
    if options.goals.is_empty() {
        return Err(MlrOptionsError::NoGoal);
    }
    for (index, goal) in options.goals.iter().enumerate() {
        goal.check_goal_ranges()?;
        if options.goals[..index].contains(goal) {
            return Err(MlrOptionsError::SameGoal(*goal));
        }
    }
    let [min, max] = [options.min, options.max];
    // The scale is logarithmic, so it cannot begin at 0.
    if min.frames_per_second() > 0.0 && min < max && max.frames_per_second().is_finite() {
        return Ok(());
    }
    Err(MlrOptionsError::Range { min, max })
}
