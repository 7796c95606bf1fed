//! `packetrig plan`: checks or explains a plan without running it. Needs no rights.

use crate::args::{PlanCommand as Arguments, PlanFile};
use crate::diagnostics;
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, print_remark};
use crate::{explanation, speeds};
use packetrig_plan::explain::{self, PlanExplanation};
use packetrig_plan::{BoundPlan, Plan, PlanParseOptions, PlanProblem, PlanProblems, ProblemSeverity};
use packetrig_units::{BitRate, Blame};
use serde::Serialize;

/// Warning for a plan without measured flows; see [`has_only_unmeasured_flows`].
pub(super) const NOTHING_MEASURED_WARNING: &str = "no flow has both a receiving port (`rx_names`, `--rx`) and metrics, so nothing is measured: the \
    verdict will be INCONCLUSIVE (exit code 7)";

/// Speed that `plan explain` assumes for a link that does not report its speed.
const ASSUMED_LINK_SPEED: BitRate = BitRate::new(10_000_000_000);

pub(crate) fn run_plan_command(
    arguments: &Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    match arguments {
        Arguments::Check(file) => check_plan(file, output),
        Arguments::Explain(file) => explain_plan(file, output),
    }
}

/// Output of `plan check --json`.
#[derive(Serialize)]
struct CheckedPlan<'a> {
    schema_version: u32,
    file: &'a str,
    can_run: bool,
    problems: &'a [PlanProblem],
}

fn check_plan(file: &PlanFile, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let document = PlanText::read_file(&file.file)?;
    let read = Plan::from_text(&document.text);
    // For an invalid plan only the errors are shown, because facts derived from it would be guesses.
    let problems = match &read {
        Ok(plan) => plan_warnings(plan),
        Err(problems) => problems.0.clone(),
    };
    if file.json {
        let checked = CheckedPlan {
            schema_version: 1,
            file: &document.name,
            can_run: read.is_ok(),
            problems: &problems,
        };
        output.write_json(&checked)?;
    } else {
        output.write_text(diagnostics::render_problems(
            document.quoted_document(),
            &problems,
            output.style(),
        ));
        output.write_line(format_summary_line(&document, &read, &problems));
    }
    // Warnings do not keep a plan from running.
    Ok(if read.is_ok() { CommandExit::Ok } else { CommandExit::Plan })
}

/// Warnings about the plan; a run of the plan prints the same warnings.
fn plan_warnings(plan: &Plan) -> Vec<PlanProblem> {
    let mut warnings = plan.warnings.clone();
    if has_only_unmeasured_flows(plan) {
        warnings.push(PlanProblem::warning("flows", NOTHING_MEASURED_WARNING));
    }
    warnings
}

/// Returns true if the plan has flows and no receiver measures any of them, so that no criterion can be judged.
pub(super) fn has_only_unmeasured_flows(plan: &Plan) -> bool {
    !plan.streams.is_empty()
        && plan.streams.iter().all(|stream| !stream.metrics.enable || stream.rx.is_empty())
}

fn format_summary_line<E>(document: &PlanText, read: &Result<Plan, E>, problems: &[PlanProblem]) -> String {
    match read {
        Ok(plan) => format!(
            "{}: the plan can run: {} ports, {} streams, {} captures ({})",
            document.name,
            plan.ports.len(),
            plan.streams.len(),
            plan.captures.len(),
            diagnostics::describe_problem_counts(problems)
        ),
        Err(_) => {
            format!(
                "{}: the plan cannot run ({})",
                document.name,
                diagnostics::describe_problem_counts(problems)
            )
        }
    }
}

/// Output of `plan explain --json`.
#[derive(Serialize)]
struct ExplainedPlan<'a> {
    schema_version: u32,
    file: &'a str,
    /// Ports for which packetrig assumes a speed.
    assumed: &'a [String],
    #[serde(flatten)]
    explanation: PlanExplanation,
}

fn explain_plan(file: &PlanFile, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let document = PlanText::read_file(&file.file)?;
    let plan = read_plan(&document)?;
    let ExplainablePlan { bound, assumed } = bind_plan_with_assumed_speeds(&plan)
        .map_err(|problems| plan_error(&document, &problems.0, Blame::Plan))?;
    let explanation = explain::explain_plan(&bound);
    if file.json {
        output.write_json(&ExplainedPlan {
            schema_version: 1,
            file: &document.name,
            assumed: &assumed,
            explanation,
        })?;
    } else {
        output.write_text(explanation::render_explanation(&explanation, &assumed, output.style()));
    }
    Ok(CommandExit::Ok)
}

struct ExplainablePlan {
    bound: BoundPlan,
    /// Names of the ports for which packetrig assumes a speed.
    assumed: Vec<String>,
}

/// Binds the plan to the links of this machine. If the plan depends on a link speed that is unknown, the speed
/// [`ASSUMED_LINK_SPEED`] is used for all links of unknown speed.
fn bind_plan_with_assumed_speeds(plan: &Plan) -> Result<ExplainablePlan, PlanProblems> {
    let speeds = speeds::port_speeds(plan);
    // The plan is bound without assumptions first, so that a speed is assumed only where the plan depends on it.
    let refusal = match plan.clone().bind_to_links(&speeds) {
        Ok(bound) => return Ok(ExplainablePlan { bound, assumed: Vec::new() }),
        Err(refusal) => refusal,
    };
    let with_assumed: Vec<_> = speeds.iter().map(|speed| speed.or(Some(ASSUMED_LINK_SPEED))).collect();
    // If the plan is not valid with assumed speeds either, the problems that were found without them are reported.
    let bound = plan.clone().bind_to_links(&with_assumed).map_err(|_| refusal)?;
    // All ports of unknown speed are named, even if nothing depends on their speed: the user sees every assumption.
    let unknown = plan.ports.iter().zip(&speeds).filter(|(_, speed)| speed.is_none());
    Ok(ExplainablePlan { bound, assumed: unknown.map(|(port, _)| port.name.clone()).collect() })
}

/// Reads a plan to use it: errors end the command, warnings are shown.
pub(crate) fn read_plan(document: &PlanText) -> Result<Plan, Error> {
    read_plan_with(document, PlanParseOptions::default())
}

/// Like [`read_plan`], for ports of this machine or of a fleet.
pub(crate) fn read_plan_with(document: &PlanText, options: PlanParseOptions) -> Result<Plan, Error> {
    match Plan::from_text_with(&document.text, options) {
        Ok(plan) => {
            print_warnings(document, &plan.warnings);
            Ok(plan)
        }
        Err(problems) => Err(plan_error(document, &problems.0, Blame::Plan)),
    }
}

fn print_warnings(document: &PlanText, warnings: &[PlanProblem]) {
    let style = TextStyle::for_remarks();
    for warning in warnings.iter().filter(|problem| problem.severity == ProblemSeverity::Warning) {
        // FILE:LINE, which editors and CI systems turn into links.
        let place = warning.position.map_or_else(String::new, |(line, _)| format!(":{line}"));
        print_remark(format_args!(
            "{} {}{place}: {}: {}",
            style.doubtful("warning:"),
            document.name,
            warning.path,
            warning.message
        ));
    }
}

/// Makes the error for a document with these problems.
pub(crate) fn plan_error(document: &PlanText, problems: &[PlanProblem], blame: Blame) -> Error {
    let blame = match blame {
        // The user has not written this document, so the error is in the flags that made it.
        Blame::Plan if document.is_from_options => Blame::Usage,
        other => other,
    };
    Error::BadPlan {
        name: document.name.clone(),
        shown: diagnostics::render_problems(document.quoted_document(), problems, TextStyle::for_remarks()),
        tally: diagnostics::describe_problem_counts(problems),
        blame,
    }
}
