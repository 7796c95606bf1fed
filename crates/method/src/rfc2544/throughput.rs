//! Throughput (RFC 2544, 26.1): the highest load that is carried without loss.
//!
//! Short trials guide the search, because a load with loss in a short trial also has it in a long one. A load
//! that passed must then pass in trials of full length. If it does not, the search goes down in growing steps, and then
//! bisects again with trials of full length.

use super::{Rfc2544Options, SizeBenchmark, ThroughputBounds, build_timed_order, find_invalidity_reason};
use crate::bisection::{Bisection, BisectionOptions};
use crate::{BoundCause, Load, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};

#[derive(Clone, Debug)]
pub(super) struct ThroughputSearch {
    size: FrameSize,
    guide: Bisection<f64>,
    guide_time: Nanos,
    final_time: Nanos,
    /// Loads of the user's criteria. Each is tried if it lies between the bounds.
    floors: Vec<f64>,
    /// The highest load that passed a trial of full length.
    carried: Option<f64>,
    /// The lowest load that failed a trial of full length, and the cause.
    failed: Option<FailedLoad>,
    /// Distance of the next load below `failed` as long as nothing passed.
    step: f64,
    trials: u32,
}

#[derive(Clone, Copy, Debug)]
struct FailedLoad {
    load: f64,
    cause: BoundCause,
}

impl ThroughputSearch {
    pub(super) fn new(options: &Rfc2544Options, row: &SizeBenchmark) -> Self {
        let maximum = row.maximum_frames_per_second;
        let resolution = maximum.frames_per_second() * options.resolution_percent / 100.0;
        let floors = options.criteria.minimum_throughput.iter();
        let floors = floors
            .filter_map(|floor| floor.required_load(row.frame_size_bytes, row.theoretical_frames_per_second))
            .map(Load::frames_per_second);
        Self {
            size: row.frame_size_bytes,
            guide: Bisection::new(BisectionOptions::without_retries(
                0.0,
                maximum.frames_per_second(),
                resolution,
            )),
            // Guiding trials longer than the final ones would take more time and prove nothing more.
            guide_time: options.durations.search_trial_ns.min(options.durations.final_trial_ns),
            final_time: options.durations.final_trial_ns,
            floors: floors.collect(),
            carried: None,
            failed: None,
            step: resolution,
            trials: 0,
        }
    }

    pub(super) fn next_trial_request(&self) -> Option<TrialRequest> {
        match self.guide.next_value() {
            Some(load) => Some(self.make_trial_request(load, self.guide_time)),
            None => self.next_final_load().map(|load| self.make_trial_request(load, self.final_time)),
        }
    }

    fn make_trial_request(&self, load: f64, time: Nanos) -> TrialRequest {
        build_timed_order(TrialPurpose::Search, self.size, Load::new(load), time)
    }

    fn next_final_load(&self) -> Option<f64> {
        // Steps go down until a load passes. After that, halving is quicker.
        let Some(carried) = self.carried else { return self.next_unconfirmed_load() };
        let reach = self.guide.load_search_range();
        // If nothing failed, the maximum was carried, and there is no higher load to try.
        let upper = self.lowest_failed_load()?.load.min(reach.top);
        let middle = f64::midpoint(carried, upper);
        if upper - carried > reach.resolution && carried < middle && middle < upper {
            return Some(middle);
        }
        // A required load between the bounds is neither proven nor refuted. One trial at this load decides.
        self.floors.iter().copied().find(|floor| carried < *floor && *floor < upper)
    }

    /// Returns the load that the short trials found, then ever lower loads.
    fn next_unconfirmed_load(&self) -> Option<f64> {
        // If no short trial passed, a long one would not pass either, so there is no load to confirm.
        let found = self.guide.bounds().lower?;
        match self.failed {
            None => Some(found),
            Some(failed) if failed.load > self.guide.load_search_range().resolution => {
                let resolution = self.guide.load_search_range().resolution;
                // The lowest load equals the resolution: the search cannot distinguish a smaller load from none.
                Some((failed.load - self.step.max(resolution)).max(resolution))
            }
            Some(_) => None,
        }
    }

    fn lowest_failed_load(&self) -> Option<FailedLoad> {
        let bounds = self.guide.bounds();
        // Loads that failed in full length are below the bound of the guide, so they go first.
        self.failed.or_else(|| bounds.upper.map(|load| FailedLoad { load, cause: bounds.cause }))
    }

    pub(super) fn on_result(&mut self, result: &TrialResult) {
        let Some(order) = self.next_trial_request() else { return };
        // Trials of both lengths count, because both cost the user time.
        self.trials += 1;
        if self.guide.next_value().is_some() {
            self.guide.on_load_result(result);
            // The trials of the guide have full length, so their lower bound needs no confirmation.
            if self.guide_time == self.final_time {
                self.carried = self.guide.bounds().lower;
            }
            return;
        }
        let load = order.load.frames_per_second();
        if result.is_without_loss() {
            self.carried = Some(load);
            return;
        }
        // Steps grow only until a load passes. From then on the search halves the interval.
        if self.carried.is_none() {
            // The first step is the resolution of the search.
            self.step = if self.failed.is_some() {
                self.step * 2.0
            } else {
                self.guide.load_search_range().resolution
            };
        }
        if let Some(ceiling) = result.sent_load_if_beyond_rig() {
            self.guide.limit_to_sent_load(ceiling);
        }
        let is_rig = find_invalidity_reason(result).is_some();
        self.failed =
            Some(FailedLoad { load, cause: if is_rig { BoundCause::Rig } else { BoundCause::Device } });
    }

    pub(super) fn to_bounds(&self) -> ThroughputBounds {
        let upper = self.lowest_failed_load();
        ThroughputBounds {
            frames_per_second: self.carried.map(Load::new),
            lost_at_frames_per_second: upper.map(|failed| Load::new(failed.load)),
            limited_by: upper.map_or(BoundCause::Range, |failed| failed.cause),
            is_complete: self.next_trial_request().is_none(),
            trials: self.trials,
        }
    }

    pub(super) fn describe_progress(&self) -> String {
        let bounds = self.guide.bounds();
        let lower = self.carried.or(bounds.lower).map_or(Load::ZERO, Load::new);
        match self.lowest_failed_load() {
            Some(failed) => format!("throughput: {lower} to {}", Load::new(failed.load)),
            None => format!("throughput: at least {lower}"),
        }
    }
}
