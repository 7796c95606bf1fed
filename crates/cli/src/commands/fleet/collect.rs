//! `packetrig fleet collect`: ends what a controller left unfinished.

use super::{LateResults, take};
use crate::args::CollectRuns;
use crate::commands::execution::open_catalogue;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::output::{CommandOutput, remark};
use crate::results;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::event::{RunEvent, RunEventKind};
use packetrig_sys::signal;
use packetrig_units::Nanos;

/// Without anything coming in, until what nodes still have is left to them: longer than they wait before they say it again.
const PATIENCE: Nanos = Nanos::from_secs(12);

pub(crate) fn perform(arguments: &CollectRuns, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    signal::latch()?;
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    let mut charged = take(&place, catalogue, RunPolicies::default(), LateResults::OfAllRuns)?;
    let mut tell = |event: &RunEvent| {
        if let RunEventKind::Finding(text) = &event.kind
            && !arguments.quiet
        {
            remark(text);
        }
    };
    let reports = charged.end_what_was_left(&mut tell)?;
    let mut completed = charged.shelf.complete_open_runs();
    let mut note = |text: String| completed.push(text);
    let left = charged.fleet.gather(PATIENCE, &|| signal::received().is_none(), &mut note)?;
    if let Err(error) = charged.fleet.remove_dead_controllers() {
        // They are in nobody's way.
        remark(format_args!("cannot remove the records of controllers that have ended: {error}"));
    }
    for text in &completed {
        output.line(text);
    }
    if reports.is_empty() && completed.is_empty() {
        output.line("Nothing was left unfinished.");
    }
    for report in reports {
        output.text(results::render(&report, output.style()));
    }
    for (node, run, segments) in left {
        output.line(format_args!("Node {node} still has {segments} segments of run {run}."));
    }
    Ok(CommandExit::Ok)
}
