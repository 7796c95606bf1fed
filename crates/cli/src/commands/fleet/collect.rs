//! `packetrig fleet collect`: ends the runs that a controller left unfinished.

use super::{LateResults, become_controller};
use crate::args::CollectRuns;
use crate::commands::execution::open_catalogue;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::{CommandOutput, print_remark, print_warning};
use crate::results;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::members::UncollectedResult;
use packetrig_fleet_io::fleet::{CompletedReports, RemainingResultsOutcome};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_sys::signal;
use packetrig_units::Nanos;

/// If no result segment arrives for this long, the remaining segments stay on the nodes. Nodes offer each segment again
/// after a shorter time.
const SEGMENT_TIMEOUT: Nanos = Nanos::from_secs(12);

pub(crate) fn collect_unfinished_runs(
    arguments: &CollectRuns,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    signal::record_end_signals()?;
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    // Runs of other catalogues are ended, too: users need this command for runs whose controller no longer exists.
    let mut controlled =
        become_controller(&place, catalogue, RunPolicies::default(), LateResults::OfAllRuns)?;
    let reports = controlled.end_unfinished_runs(&mut |event: &RunEvent| {
        if let RunEventKind::Finding(text) = &event.kind
            && !arguments.quiet
        {
            print_remark(text);
        }
    })?;
    // Completes reports that lack the results of a node, if these results are in the catalogue by now.
    let CompletedReports { told: mut completed, failed } = controlled.store.complete_open_reports();
    let RemainingResultsOutcome { left, troubles } = controlled.fleet.collect_remaining_results(
        SEGMENT_TIMEOUT,
        &|| !is_interrupted(),
        &mut |text: String| {
            completed.push(text);
        },
    )?;
    if let Err(error) = controlled.fleet.remove_dead_controllers() {
        // These records only occupy space; they do not block other runs.
        print_warning(
            "fleet",
            format_args!("cannot remove the records of controllers that have ended: {error}"),
        );
    }
    for text in &completed {
        output.write_line(text);
    }
    if reports.is_empty()
        && completed.is_empty()
        && left.is_empty()
        && troubles.is_empty()
        && failed.is_empty()
    {
        output.write_line("Nothing was left unfinished.");
    }
    for report in reports {
        output.write_text(results::render_report(&report, output.style()));
    }
    for UncollectedResult { node, run, segments, .. } in left {
        output.write_line(format_args!(
            "Result segments of run {run} that node {node} has not sent yet: {segments}. Repeat this command to collect them."
        ));
    }
    for text in troubles.iter().chain(&failed) {
        print_warning("fleet", text);
    }
    // Segments that are still on a node are no failure: the node offers them again to the next controller.
    Ok(if troubles.is_empty() && failed.is_empty() { CommandExit::Ok } else { CommandExit::World })
}
