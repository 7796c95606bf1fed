//! Texts for clients when a configuration or a change is refused, or accepted with warnings.

use crate::tester::{RefusalKind, TesterRefusal};
use packetrig_fleet::served::OpenFailure;
use packetrig_plan::{Plan, PlanProblem, PlanProblems, ProblemSeverity};
use packetrig_report::outcome::NodeFault;
use packetrig_units::Blame;

impl From<PlanProblems> for TesterRefusal {
    fn from(problems: PlanProblems) -> Self {
        // Warnings are not reasons for a refusal, so they are left out.
        let errors = problems.0.iter().filter(|problem| problem.severity == ProblemSeverity::Error);
        Self { kind: RefusalKind::Validation, errors: errors.map(format_problem_line).collect() }
    }
}

fn format_problem_line(problem: &PlanProblem) -> String {
    match &problem.hint {
        Some(hint) => format!("{}: {} ({hint})", problem.path, problem.message),
        None => format!("{}: {}", problem.path, problem.message),
    }
}

impl From<OpenFailure> for TesterRefusal {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Plan(problems) => problems.into(),
            OpenFailure::Fault(fault) => fault.into(),
        }
    }
}

impl From<NodeFault> for TesterRefusal {
    fn from(fault: NodeFault) -> Self {
        match fault.blame {
            // Only in this case must the client change the request. With any other cause, the request may be valid.
            Blame::Usage | Blame::Plan | Blame::Unconfirmed => Self::validation(fault.text),
            Blame::World | Blame::Rights | Blame::Busy | Blame::Peer | Blame::Bug => {
                Self::internal(fault.text)
            }
        }
    }
}

/// Warnings about a configuration that was accepted.
pub(super) fn plan_warnings(plan: &Plan) -> Vec<String> {
    plan.warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message)).collect()
}
