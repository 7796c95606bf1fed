//! Times at which a run entered each of its states, on the controller's clock.
//!
//! The times come only from the events of the run. Invariant: times count from the first event and never decrease.

use crate::event::{RunEvent, RunEventKind};
use crate::outcome::RunState;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};

/// A state, with the time at which the run entered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStateTime {
    pub state: RunState,
    /// Time after the first event of the run.
    pub at: Nanos,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTimes {
    /// States in the order in which the run entered them. A repeated attempt enters states again.
    pub states: Vec<RunStateTime>,
    /// Start time of the last attempt, counted from the first event of the run; absent if no start time was set.
    pub start: Option<Nanos>,
}

impl RunTimes {
    /// Records an event of a run; the first event of the run was at `began`.
    pub fn on_event(&mut self, event: &RunEvent, began: MonoTime) {
        match event.kind {
            RunEventKind::StateChanged(state) => {
                self.states.push(RunStateTime { state, at: event.at.since(began) });
            }
            RunEventKind::StartSet { at } => self.start = Some(at.since(began)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunId;

    #[test]
    fn run_times_count_from_first_event() {
        let mut times = RunTimes::default();
        let set = |ms| RunEventKind::StartSet { at: MonoTime::default() + Nanos::from_millis(ms) };
        for (ms, kind) in [
            (5, RunEventKind::StateChanged(RunState::Preparing)),
            (8, RunEventKind::StateChanged(RunState::Armed)),
            (8, set(90)),
            (9, RunEventKind::Finding("late".into())),
            (10, set(190)),
        ] {
            let at = MonoTime::default() + Nanos::from_millis(ms);
            let event = RunEvent { run: RunId("r".into()), at, kind };
            times.on_event(&event, MonoTime::default() + Nanos::from_millis(5));
        }
        let at = |state, ms| RunStateTime { state, at: Nanos::from_millis(ms) };
        assert_eq!(times.states, [at(RunState::Preparing, 0), at(RunState::Armed, 3)]);
        assert_eq!(times.start, Some(Nanos::from_millis(185)));
    }
}
