//! Detects during a test that the rig, that is, the machines that send and receive, limits the result.

use packetrig_method::TrialResult;

/// Number of successive trials that the rig could not sustain, after which the user is warned. A single such trial
/// may be an accident.
const MAX_FAILED_TRIALS_IN_A_ROW: u32 = 2;

/// Counts the successive trials that the rig could not sustain.
#[derive(Debug, Default)]
pub(super) struct RigDoubtCounter {
    in_a_row: u32,
    is_told: bool,
}

impl RigDoubtCounter {
    /// Records a trial. Returns a warning at most once in a test.
    pub(super) fn record_trial(&mut self, result: &TrialResult) -> Option<&'static str> {
        // A trial without loss is not doubtful, even if the rig reports a fault: the device lost nothing.
        let is_doubtful = result.rig_fault.is_some() && !result.is_without_loss();
        self.in_a_row = if is_doubtful { self.in_a_row + 1 } else { 0 };
        if self.in_a_row < MAX_FAILED_TRIALS_IN_A_ROW || std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        Some(
            "warning: the rig, not the device, failed the last trials: its machines are too busy or too slow \
            for these loads, so the test may find the limit of the rig and not of the device; end other \
            programs there, set --max-rate, or measure the machines (`packetrig test calibrate`)",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(fault: bool) -> TrialResult {
        let rig_fault = fault.then(|| "the rig did not send 90 of the frames".to_owned());
        TrialResult { intended: 100, sent: 10, received: 10, rig_fault, ..TrialResult::default() }
    }

    /// Whether the user is told after each trial.
    fn list_warned_trials(faults: &[bool]) -> Vec<bool> {
        let mut doubt = RigDoubtCounter::default();
        faults.iter().map(|fault| doubt.record_trial(&trial(*fault)).is_some()).collect()
    }

    #[test]
    fn busy_rig_is_named_after_two_trials_and_once() {
        assert_eq!(list_warned_trials(&[true, true, true, true]), [false, true, false, false]);
        assert_eq!(list_warned_trials(&[true, false, true, false]), [false; 4]);
    }
}
