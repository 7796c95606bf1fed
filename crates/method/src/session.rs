//! A running method: numbers its trials, compares them with its journal, and repeats trials that the
//! rig could not sustain.

use crate::{TestMethod, TrialRequest, TrialResult};

/// Number of repeats of a trial that the rig could not sustain, before the method receives its result.
pub(crate) const MAX_TRIAL_REPEATS: u32 = 2;

/// A method and its progress.
#[derive(Debug)]
pub struct MethodSession<M> {
    method: M,
    /// Trials so far, repeated ones included.
    trials: u32,
    /// Number of repeats of the present trial.
    repeated: u32,
}

/// Reason why a journal does not belong to a method.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SessionError {
    #[error(
        "trial {number} of the journal does not fit this test: it is {}, but this test needs {}; the journal \
         belongs to another test or is damaged",
        journal_text(found),
        journal_text(expected)
    )]
    OtherOrder { number: u32, expected: Box<TrialRequest>, found: Box<TrialRequest> },
    #[error(
        "the journal has a trial {number} after the end of the method; the journal belongs to another test \
         or is damaged"
    )]
    BeyondEnd { number: u32 },
}

/// Formats a trial as the journal has it, so that a user can find it there.
fn journal_text(trial: &TrialRequest) -> String {
    serde_json::to_string(trial).unwrap_or_default()
}

impl<M: TestMethod> MethodSession<M> {
    pub const fn new(method: M) -> Self {
        Self { method, trials: 0, repeated: 0 }
    }

    /// Returns the trial to make next; `None` if the method is over.
    pub fn next_trial_request(&self) -> Option<TrialRequest> {
        self.method.next_trial_request()
    }

    /// Processes the result of the trial of [`next_trial_request`](Self::next_trial_request).
    pub fn on_result(&mut self, result: &TrialResult) {
        // Repeats count, because the journal has a line for each repeat, too.
        self.trials += 1;
        // A trial without loss is valid, even if the rig reports a fault. A trial at a load far beyond the rig fails
        // again, however often it is repeated.
        let may_be_held = !result.is_without_loss() && result.sent_load_if_beyond_rig().is_none();
        if result.rig_fault.is_some() && may_be_held && self.repeated < MAX_TRIAL_REPEATS {
            self.repeated += 1;
            return;
        }
        self.repeated = 0;
        self.method.on_result(result);
    }

    /// Replays a trial of a journal. Fails unless it is the trial that the method orders now.
    pub fn replay_trial(&mut self, order: &TrialRequest, result: &TrialResult) -> Result<(), SessionError> {
        let number = self.trials + 1;
        match self.next_trial_request() {
            None => Err(SessionError::BeyondEnd { number }),
            // The loads are equal to the last bit only if the same method made them from the same results.
            Some(expected) if expected == *order => {
                // Journal trials take the same path as new ones, so that repeats count as they did
                // when they were made.
                self.on_result(result);
                Ok(())
            }
            Some(expected) => Err(SessionError::OtherOrder {
                number,
                expected: Box::new(expected),
                found: Box::new(order.clone()),
            }),
        }
    }

    /// Number of trials that were made so far, repeated ones included.
    pub const fn trial_count(&self) -> u32 {
        self.trials
    }

    pub const fn method(&self) -> &M {
        &self.method
    }
}
