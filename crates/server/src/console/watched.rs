//! The live state of a run that clients cannot change, such as that of `packetrig run`, for viewers.

use super::live_state::{ViewedRun, combine_revisions};
use super::names::ConfigurationNames;
use crate::viewing::{LiveSource, LiveState};
use packetrig_plan::Plan;
use packetrig_report::event::RunEvent;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The run that a command such as `packetrig run` performs now. A test method performs one run after the other.
#[derive(Debug)]
pub struct WatchedRun {
    view: Mutex<ViewedRun>,
    wall_minus_monotonic: u64,
}

impl WatchedRun {
    /// `wall_minus_monotonic`: the wall clock minus the monotonic clock, in ns. It is read once, so that the times that
    /// viewers see do not jump when the wall clock is set.
    pub fn new(wall_minus_monotonic: u64) -> Self {
        Self { view: Mutex::default(), wall_minus_monotonic }
    }

    /// Shows the run of this plan from now on. The counts of the previous run are dropped.
    pub fn switch_to_plan(&self, plan: &Plan) {
        let names = Arc::new(ConfigurationNames::from_plan(plan));
        let plan = Some(Arc::new(plan.clone()));
        let mut view = self.lock_view();
        let number = view.number + 1;
        *view = ViewedRun { number, names, plan, ..ViewedRun::default() };
    }

    /// Adds an event of the run.
    pub fn add_event(&self, event: &RunEvent) {
        self.lock_view().live.on_event(event);
    }

    /// Locks the view, also after a panic: a viewer that panicked must not end the run.
    fn lock_view(&self) -> MutexGuard<'_, ViewedRun> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveSource for WatchedRun {
    fn revision(&self) -> u64 {
        let view = self.lock_view();
        combine_revisions(view.number, &view.live)
    }

    fn live_state(&self) -> LiveState {
        // The state is made from a copy, so that events of the run do not wait for it.
        let view = self.lock_view().clone();
        view.live_state(&|at| at.as_nanos().wrapping_add(self.wall_minus_monotonic))
    }
}
