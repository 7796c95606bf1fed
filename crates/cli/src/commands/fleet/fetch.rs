//! `packetrig fleet fetch`: captures of a run that stay on its nodes.
//!
//! It leads no fleet and speaks to no run, so it can be used while one is under way.

use crate::args::FetchCaptures;
use crate::commands::execution::open_catalogue;
use crate::commands::report::find;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::numbers::scaled;
use crate::output::{CommandOutput, remark};
use crate::progress::LiveLine;
use packetrig_fleet::captures::CaptureName;
use packetrig_fleet::report::RunReport;
use packetrig_fleet::{NodeName, RunId};
use packetrig_node::fleet::{FetchProgress, FetchUser, fetch_capture};
use packetrig_stats::result::CaptureResult;
use packetrig_sys::{clock, private_files, signal};
use packetrig_units::Nanos;
use std::path::Path;

/// A capture that the report says is on a node.
struct CaptureThere {
    /// As the report names it.
    named: String,
    node: NodeName,
    file: String,
}

pub(crate) fn perform(arguments: &FetchCaptures, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    let id = find(&catalogue, &arguments.run)?.run;
    let (summary, report) = catalogue.show(&id.0)?;
    signal::latch()?;
    let directory = summary.directory.join("captures");
    private_files::create_directories(&directory)
        .map_err(|source| Error::Write { what: format!("to {}", directory.display()), source })?;
    let there = captures_there(&report);
    if there.is_empty() {
        output.line(format_args!("No capture of run {id} is on a node."));
    }
    let mut failed = false;
    for capture in there {
        let target = directory.join(format!("{}-{}", capture.node, capture.file));
        match fetch_one(&place, &id, &capture, &target, arguments.quiet) {
            Ok(()) => {
                output.line(format_args!("Fetched: {}", target.display()));
                catalogue.name_capture(&id, &capture.named, &target.to_string_lossy())?;
            }
            Err(error) => {
                failed = true;
                remark(format_args!("capture {} of node {}: {}", capture.file, capture.node, error.chain()));
            }
        }
        if signal::received().is_some() {
            return Ok(CommandExit::Interrupted);
        }
    }
    Ok(if failed { CommandExit::World } else { CommandExit::Ok })
}

/// `NODE:/path/file` is on that node; everything else is here.
fn captures_there(report: &RunReport) -> Vec<CaptureThere> {
    let there = |capture: &CaptureResult| {
        let (node, path) = capture.file.split_once(':')?;
        let is_node = report.nodes.iter().any(|row| row.node == node) && path.starts_with('/');
        let file = path.rsplit('/').next().filter(|_| is_node)?;
        Some(CaptureThere {
            named: capture.file.clone(),
            node: NodeName(node.to_owned()),
            file: file.to_owned(),
        })
    };
    report.captures.iter().filter_map(there).collect()
}

fn fetch_one(
    place: &FleetPlace,
    run: &RunId,
    capture: &CaptureThere,
    target: &Path,
    is_quiet: bool,
) -> Result<(), Error> {
    let way = place.fabric()?.fetch_captures_of(&capture.node).map_err(packetrig_node::Error::from);
    let name = CaptureName { run: run.clone(), file: capture.file.clone() };
    let (mut line, began) = (LiveLine::new(!is_quiet), clock::monotonic_ns());
    let mut last = None;
    let mut tell = |progress: FetchProgress| {
        let elapsed = Nanos::new(clock::monotonic_ns() - began);
        let is_first = last.replace(progress).is_none();
        if is_first && progress.resumed_at > 0 && !is_quiet {
            remark(format_args!("{}: resumes at {} B", capture.file, progress.resumed_at));
        }
        if line.is_due(elapsed) {
            line.show(elapsed, in_words(capture, progress, elapsed));
        }
    };
    let mut user = FetchUser { progress: &mut tell, goes_on: &|| signal::received().is_none() };
    let fetched = fetch_capture(&mut way?, &name, target, &mut user);
    line.finish();
    if let Some(progress) = last.filter(|_| !is_quiet) {
        let elapsed = Nanos::new(clock::monotonic_ns() - began);
        remark(in_words(capture, progress, elapsed));
    }
    Ok(fetched?)
}

fn in_words(capture: &CaptureThere, progress: FetchProgress, elapsed: Nanos) -> String {
    let FetchProgress { resumed_at, done, size } = progress;
    let carried = done.saturating_sub(resumed_at);
    let rate = carried as f64 / elapsed.as_secs_f64().max(1e-9);
    let percent = if size == 0 { 100.0 } else { done as f64 * 100.0 / size as f64 };
    format!(
        "{}: {} of {} ({percent:.0} %), {} transferred, {}",
        capture.file,
        scaled(done as f64, "B"),
        scaled(size as f64, "B"),
        scaled(carried as f64, "B"),
        scaled(rate, "B/s")
    )
}
