//! Times that the nodes of a controller's latest runs needed to acknowledge a commit. Before its first run, a
//! controller knows only the round trip of an idle fleet, so this run uses the normal lead time (time from the choice
//! of the start time until the start). Later runs use measured times.
//!
//! If a lead time turns out to be too short, the run makes another attempt with twice the lead time; it does not fail.

use packetrig_fleet::controller::RunLimits;
use packetrig_report::RunTimes;
use packetrig_report::outcome::RunState;
use packetrig_units::Nanos;
use std::collections::VecDeque;

/// Maximum number of runs whose commit times are used.
const MAX_REMEMBERED_RUNS: usize = 8;
/// The lead time minus the guard is this many times the slowest commit, because the next commit may take longer.
const COMMIT_TIME_FACTOR: u64 = 4;
/// Minimum of the lead time minus the guard.
const MIN_START_MARGIN: Nanos = Nanos::from_millis(15);

/// Commit times of the latest runs, newest first.
#[derive(Debug, Default)]
pub(super) struct CommitTimes(VecDeque<Nanos>);

impl CommitTimes {
    /// Adds the commit time of a run. If the run had several starts, all times are cleared instead, because they have
    /// led to a lead time that was too short.
    pub(super) fn add_run(&mut self, times: &RunTimes) {
        let entered = |state| times.states.iter().filter(move |entry| entry.state == state);
        let (Some(committed), Some(confirmed)) =
            (entered(RunState::Committed).next_back(), entered(RunState::Confirmed).next_back())
        else {
            return;
        };
        if entered(RunState::Committed).count() > 1 {
            self.forget_all_commit_times();
        } else {
            self.0.truncate(MAX_REMEMBERED_RUNS - 1);
            self.0.push_front(confirmed.at.saturating_sub(committed.at));
        }
    }

    /// Clears all times. Used after a run that failed or did not start on all nodes, because the times may have led to
    /// a lead time that was too short.
    pub(super) fn forget_all_commit_times(&mut self) {
        self.0.clear();
    }

    /// Returns these limits, with a lead time from the latest commits if that is shorter.
    pub(super) fn limits_with_measured_lead(&self, limits: RunLimits) -> RunLimits {
        // The slowest commit counts, not the mean: one late node makes the whole start late.
        let Some(slowest) = self.0.iter().max() else { return limits };
        let beyond_guard =
            Nanos::new(slowest.as_u64().saturating_mul(COMMIT_TIME_FACTOR)).max(MIN_START_MARGIN);
        let lead = limits.lead.min(limits.guard + beyond_guard);
        // The time to arm also sets a minimum for the lead time. With known commit times, twice that time is enough;
        // without them it is three times.
        RunLimits { lead, arming_rounds: 2, ..limits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_report::RunStateTime;

    fn limits() -> RunLimits {
        RunLimits::for_fleet(Nanos::from_millis(2), Nanos::ZERO)
    }

    /// A run with commits that were acknowledged after so many milliseconds each; all but the last one too late.
    fn run(commits: &[u64]) -> RunTimes {
        let at = |state, ms| RunStateTime { state, at: Nanos::from_millis(ms) };
        let mut states = Vec::new();
        for (attempt, ms) in (0..).zip(commits) {
            states.push(at(RunState::Committed, attempt * 1000));
            if attempt + 1 == commits.len() as u64 {
                states.push(at(RunState::Confirmed, attempt * 1000 + ms));
            }
        }
        RunTimes { states, start: None }
    }

    fn lead_after(runs: &[&[u64]]) -> Nanos {
        let mut commits = CommitTimes::default();
        for commits_of_run in runs {
            commits.add_run(&run(commits_of_run));
        }
        commits.limits_with_measured_lead(limits()).lead
    }

    #[test]
    fn start_lead_follows_slowest_recent_commit() {
        assert_eq!(lead_after(&[]), limits().lead, "80 ms");
        assert_eq!(lead_after(&[&[2], &[3]]), Nanos::from_millis(30 + 15));
        assert_eq!(lead_after(&[&[2], &[6], &[3]]), Nanos::from_millis(30 + 24));
        assert_eq!(lead_after(&[&[30], &[2]]), limits().lead, "never longer than usual");
        let [slow, quick]: [&[u64]; 2] = [&[9], &[1]];
        let mut runs = vec![slow];
        runs.extend([quick; MAX_REMEMBERED_RUNS]);
        assert_eq!(lead_after(&runs), Nanos::from_millis(30 + 15), "the slow one is long past");
    }

    #[test]
    fn late_start_restores_default_lead() {
        assert_eq!(lead_after(&[&[2], &[50, 3]]), limits().lead);
        assert_eq!(lead_after(&[&[2], &[50, 3], &[3]]), Nanos::from_millis(45));
    }

    #[test]
    fn a_run_that_was_never_committed_says_nothing() {
        let mut commits = CommitTimes::default();
        commits.add_run(&RunTimes::default());
        assert_eq!(commits.limits_with_measured_lead(limits()), limits());
    }
}
