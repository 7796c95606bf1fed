//! Repeats the start of a plan if the start message reached some nodes too late, as happens on busy machines.
//! Each further start is another run; a plan is started at most three times. The report of the run that started
//! names the failed starts.

use crate::error::Error;
use crate::open_run::OpenRun;
use crate::operator::RunOperator;
use packetrig_report::{RunId, RunReport};
use packetrig_stats::caveat::{Caveat, CaveatKind};

/// Maximum number of starts of a plan.
const MAX_PLAN_STARTS: usize = 3;

/// Earlier runs of the same plan that did not start, because the start came too late for some nodes.
#[derive(Clone, Debug, Default)]
pub struct LateStartedRuns {
    runs: Vec<RunId>,
}

impl LateStartedRuns {
    /// Returns whether the plan is started again if this start fails.
    pub fn may_retry_start(&self, operator: &dyn RunOperator) -> bool {
        // `runs` does not yet contain the current start.
        self.runs.len() + 1 < MAX_PLAN_STARTS && !operator.is_interrupted()
    }

    /// Records a start that came too late for some nodes, and tells the user that the next start begins.
    pub fn record_failed_start(&mut self, run: RunId, why: &str, operator: &dyn RunOperator) {
        let next = self.runs.len() + 2;
        operator.remark(format_args!(
            "run: {why}; beginning again (start {next} of {MAX_PLAN_STARTS}, the previous run was {run})"
        ));
        self.runs.push(run);
    }

    /// Adds a caveat about the earlier starts to the report of the run that started, and to `open`, from which the
    /// report may be written again.
    pub fn add_caveat_to(&self, report: &mut RunReport, open: Option<&mut OpenRun>) {
        if self.runs.is_empty() {
            return;
        }
        let earlier: Vec<&str> = self.runs.iter().map(|run| run.0.as_str()).collect();
        let caveat = Caveat {
            doubt: CaveatKind::BegunAgain,
            subject: "the start".to_owned(),
            text: format!(
                "the plan was started {} times: the start of run {} came too late for some nodes",
                earlier.len() + 1,
                earlier.join(" and of ")
            ),
            // The earlier starts sent nothing, so the counts of this run are not in doubt.
            matters: false,
        };
        report.caveats.push(caveat.clone());
        if let Some(open) = open {
            open.add_note(caveat);
        }
    }
}

/// Returns whether a run failed before any node sent a frame, because its start came too late.
pub fn is_late_start(error: &Error) -> bool {
    matches!(error, Error::Failed { fault } if fault.is_late_start())
}
