//! The only way to send packetrig's own probes: a mechanism that gets frames only if the budget of the target
//! and, on a node of a fleet, the node's lease allow them.
//!
//! Invariant: a frame that the budget refuses is not given to the mechanism, nor are the later frames of the
//! same train. When the lease has ended, the mechanism gets no more trains.

use super::{DepartedFrame, DueFrame, FrameReleaser};
use crate::{Error, frame_length};
use packetrig_guard::gate::SendGate;
use packetrig_probe::{BudgetExceeded, ProbeBudget, ReleaseMechanism};
use packetrig_units::{MonoTime, Nanos};
use std::fmt;

/// Time to write the frames of a train.
const FRAME_WRITE_TIME: Nanos = Nanos::from_millis(1);

pub struct ReleaseDispatcher {
    release: Box<dyn FrameReleaser>,
    budget: ProbeBudget,
    gate: SendGate,
}

impl fmt::Debug for ReleaseDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseDispatcher")
            .field("mechanism", &self.mechanism())
            .field("budget", &self.budget)
            .finish_non_exhaustive()
    }
}

impl ReleaseDispatcher {
    /// Checks `budget` before each frame that goes to `release`.
    pub fn new(release: Box<dyn FrameReleaser>, budget: ProbeBudget) -> Self {
        Self { release, budget, gate: SendGate::without_lease() }
    }

    /// Makes the dispatcher refuse all trains while the gate is shut: before the first lease, and after
    /// a lease has ended.
    #[must_use]
    pub fn with_lease_gate(self, gate: SendGate) -> Self {
        Self { gate, ..self }
    }

    pub fn mechanism(&self) -> ReleaseMechanism {
        self.release.mechanism()
    }

    /// A caller must begin with a train this long before its first departure: writing the frames takes time,
    /// and the mechanism needs them early.
    pub fn lead_time(&self) -> Nanos {
        FRAME_WRITE_TIME + self.release.lead_time()
    }

    /// Returns the requested options that could not be applied, as sentences.
    pub fn remarks(&self) -> &[String] {
        self.release.remarks()
    }

    /// Returns the earliest time from `at` on at which the budget allows the whole train (see
    /// [`ProbeBudget::earliest_start`]). Fails if the budget never allows it.
    pub fn earliest_start(
        &self,
        at: MonoTime,
        train: impl Iterator<Item = (Nanos, u32)> + Clone,
    ) -> Result<MonoTime, BudgetExceeded> {
        self.budget.earliest_start(at, train)
    }

    /// Sends the part of a train that budget and lease allow, and adds the remaining frames to `gone` as
    /// unsent. Returns the limit that stopped the train, if one did.
    pub fn send_train(
        &mut self,
        train: &[DueFrame<'_>],
        gone: &mut Vec<DepartedFrame>,
    ) -> Result<Option<BudgetExceeded>, Error> {
        let mut refused = None;
        // The lease is checked first, so that a train without a lease uses no budget.
        if self.gate.remaining_time() == Some(Nanos::ZERO) {
            gone.resize(gone.len() + train.len(), DepartedFrame::new_unsent());
            return Ok(Some(BudgetExceeded::Lease));
        }
        let allowed = train
            .iter()
            // The first refusal ends the train: otherwise later frames would leave without the earlier ones.
            .take_while(|due| {
                refused = self.budget.deduct_frame(due.at, frame_length(due.frame)).err();
                refused.is_none()
            })
            .count();
        let before = gone.len();
        self.release.release_train(&train[..allowed], gone)?;
        // Callers match frames and entries by position, so each frame needs an entry.
        gone.resize(before + train.len(), DepartedFrame::new_unsent());
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_probe::TargetLimits;

    struct CountingRelease;

    impl FrameReleaser for CountingRelease {
        fn mechanism(&self) -> ReleaseMechanism {
            ReleaseMechanism::Sleep
        }

        fn release_train(
            &mut self,
            train: &[DueFrame<'_>],
            gone: &mut Vec<DepartedFrame>,
        ) -> Result<(), Error> {
            gone.extend(train.iter().map(|_| DepartedFrame::default()));
            Ok(())
        }
    }

    #[test]
    fn over_budget_frames_are_not_released_and_flagged() {
        let limits = TargetLimits { burst: 3, ..TargetLimits::DEFAULT_LIMITS };
        let mut dispatcher = ReleaseDispatcher::new(Box::new(CountingRelease), ProbeBudget::new(limits));
        let train = [DueFrame { at: MonoTime::from_nanos(5), frame: &[0; 60] }; 5];
        let mut gone = Vec::new();
        let refused = dispatcher.send_train(&train, &mut gone).unwrap();
        assert_eq!(refused, Some(BudgetExceeded::Probes(limits)));
        let unsent: Vec<_> = gone.iter().map(DepartedFrame::is_unsent).collect();
        assert_eq!(unsent, [false, false, false, true, true]);
    }

    #[test]
    fn ended_lease_releases_no_train() {
        let gate = SendGate::under_lease();
        let budget = ProbeBudget::new(TargetLimits::NONE);
        let mut dispatcher =
            ReleaseDispatcher::new(Box::new(CountingRelease), budget).with_lease_gate(gate.clone());
        let train = [DueFrame { at: MonoTime::from_nanos(5), frame: &[0; 60] }; 2];
        let unsent_of = |dispatcher: &mut ReleaseDispatcher| {
            let mut gone = Vec::new();
            let refused = dispatcher.send_train(&train, &mut gone).unwrap();
            (refused, gone.iter().filter(|gone| gone.is_unsent()).count())
        };
        assert_eq!(
            unsent_of(&mut dispatcher),
            (Some(BudgetExceeded::Lease), 2),
            "the first lease is still to come"
        );
        gate.set_deadline(u64::MAX);
        assert_eq!(unsent_of(&mut dispatcher), (None, 0));
        gate.shut_now();
        assert_eq!(unsent_of(&mut dispatcher), (Some(BudgetExceeded::Lease), 2));
    }
}
