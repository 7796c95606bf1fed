//! The tables of the searches for one load.

use super::{ResultTable, format_optional_cell, format_rate_cell};
use crate::bisection::BisectionResult;
use crate::{BoundCause, Load, MlrsearchResult};

const SEARCH_HEADINGS: [&str; 5] = [
    "Goal",
    "Carried [frames/s]",
    "Conditional throughput [frames/s]",
    "Not carried [frames/s]",
    "Limited by",
];

pub(super) fn tabulate_mlrsearch(result: &MlrsearchResult) -> Vec<ResultTable> {
    let mut table = ResultTable::new("mlrsearch", "Throughput (MLRsearch, RFC 9971)", &SEARCH_HEADINGS);
    for goal in &result.goals {
        let bounds = [goal.lower_bound, goal.conditional_throughput, goal.upper_bound];
        table.push_row(build_bounds_row(goal.goal.to_string(), bounds, goal.cause, goal.is_reached));
    }
    vec![table]
}

pub(super) fn tabulate_bisection(result: &BisectionResult) -> Vec<ResultTable> {
    let mut table = ResultTable::new("bisect", "Throughput (binary search)", &SEARCH_HEADINGS);
    let bounds = [result.lower_bound, result.lower_bound, result.upper_bound];
    table.push_row(build_bounds_row("throughput".to_owned(), bounds, result.cause, result.is_over));
    vec![table]
}

fn build_bounds_row(
    goal: String,
    bounds: [Option<Load>; 3],
    cause: BoundCause,
    is_over: bool,
) -> Vec<String> {
    let limit = match cause {
        // The cause is final only after the search has ended.
        _ if !is_over => "not complete",
        BoundCause::Device => "device",
        BoundCause::Rig => "rig: the device may carry more",
        BoundCause::Range => "highest load",
    };
    let [lower, conditional, upper] = bounds.map(|bound| format_optional_cell(bound, format_rate_cell));
    vec![goal, lower, conditional, upper, limit.to_owned()]
}
