//! `packetrig fleet collect`: ends the runs that a controller left unfinished.

use super::{LateResults, take};
use crate::args::CollectRuns;
use crate::commands::execution::open_catalogue;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::{CommandOutput, remark, warn};
use crate::results;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_fleet::members::UncollectedPart;
use packetrig_fleet_io::fleet::{CompletedReports, GatheredResults};
use packetrig_sys::signal;
use packetrig_units::Nanos;

/// Time without a new segment after which the rest is left on the nodes. Nodes offer a segment again after less than this.
const PATIENCE: Nanos = Nanos::from_secs(12);

pub(crate) fn perform(arguments: &CollectRuns, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    signal::latch()?;
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    let mut charged = take(&place, catalogue, RunPolicies::default(), LateResults::OfAllRuns)?;
    let reports = charged.end_what_was_left(&mut |event: &RunEvent| {
        if let RunEventKind::Finding(text) = &event.kind
            && !arguments.quiet
        {
            remark(text);
        }
    })?;
    // Reports that were written without a node, whose results are in the catalogue by now.
    let CompletedReports { told: mut completed, failed } = charged.shelf.complete_open_runs();
    let GatheredResults { left, troubles } =
        charged.fleet.gather(PATIENCE, &|| !is_interrupted(), &mut |text: String| completed.push(text))?;
    if let Err(error) = charged.fleet.remove_dead_controllers() {
        // Such records cost space, but keep no run from starting.
        warn("fleet", format_args!("cannot remove the records of controllers that have ended: {error}"));
    }
    for text in &completed {
        output.line(text);
    }
    if reports.is_empty()
        && completed.is_empty()
        && left.is_empty()
        && troubles.is_empty()
        && failed.is_empty()
    {
        output.line("Nothing was left unfinished.");
    }
    for report in reports {
        output.text(results::render(&report, output.style()));
    }
    for UncollectedPart { node, run, segments, .. } in left {
        output.line(format_args!("Node {node} still has {segments} parts of the results of run {run}."));
    }
    for text in troubles.iter().chain(&failed) {
        warn("fleet", text);
    }
    Ok(if troubles.is_empty() && failed.is_empty() { CommandExit::Ok } else { CommandExit::World })
}
