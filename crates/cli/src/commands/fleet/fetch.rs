//! `packetrig fleet fetch`: copies the captures of a run from its nodes to this machine.
//!
//! The command leads no node, so it works during other runs.

use crate::args::FetchCaptures;
use crate::commands::execution::open_catalogue;
use crate::commands::is_interrupted;
use crate::commands::report::find_run;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::FleetPlace;
use crate::numbers::format_scaled;
use crate::output::{CommandOutput, print_error_and_continue, print_remark};
use crate::progress::LiveProgressLine;
use packetrig_fleet::captures::CaptureName;
use packetrig_fleet_io::fleet::{FetchProgress, FetchUser, fetch_capture};
use packetrig_report::{NodeName, RunId, RunReport};
use packetrig_sys::{clock, private_files, signal};
use packetrig_units::Nanos;
use std::path::Path;

/// A capture that is on a node, according to the report.
struct RemoteCapture {
    /// The path in the report, `NODE:/path/file`.
    named: String,
    node: NodeName,
    file: String,
}

pub(crate) fn fetch_captures(
    arguments: &FetchCaptures,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    let catalogue = open_catalogue(arguments.store.directory.as_deref())?;
    // The full id is needed: nodes know a run by its full id, and the user may have typed only its beginning.
    let id = find_run(&catalogue, &arguments.run)?.run;
    let (summary, report) = catalogue.load_report(&id.0)?;
    signal::record_end_signals()?;
    let directory = summary.directory.join("captures");
    private_files::create_directories(&directory)
        .map_err(|source| Error::Write { what: format!("to {}", directory.display()), source })?;
    let remote = list_remote_captures(&report);
    if remote.is_empty() {
        output.write_line(format_args!("No node has a capture of run {id}."));
    }
    let mut failed = false;
    for capture in remote {
        // The name of the node keeps equal file names of two nodes apart.
        let target = directory.join(format!("{}-{}", capture.node, capture.file));
        match fetch_remote_capture(&place, &id, &capture, &target, arguments.quiet) {
            Ok(()) => {
                output.write_line(format_args!("Fetched: {}", target.display()));
                // The report now names the local file, so the next `fleet fetch` skips this capture.
                catalogue.rename_capture(&id, &capture.named, &target.to_string_lossy())?;
            }
            Err(error) => {
                // The remaining files are still tried: they may be on nodes that answer.
                failed = true;
                let RemoteCapture { file, node, .. } = &capture;
                print_error_and_continue(
                    "fetch",
                    format_args!("capture {file} of node {node} was not fetched: {}", error.full_message()),
                );
            }
        }
        if is_interrupted() {
            return Ok(CommandExit::Interrupted);
        }
    }
    Ok(if failed { CommandExit::World } else { CommandExit::Ok })
}

fn list_remote_captures(report: &RunReport) -> Vec<RemoteCapture> {
    report.captures.iter().filter_map(|capture| parse_remote_capture(report, &capture.file)).collect()
}

/// Parses `NODE:/path/file`, where NODE is a node of the report. `None` for any other path, which is on this machine.
fn parse_remote_capture(report: &RunReport, named: &str) -> Option<RemoteCapture> {
    let (node, path) = named.split_once(':')?;
    let is_node = report.nodes.iter().any(|row| row.node == node) && path.starts_with('/');
    // Only the file name is used: nodes wrote parts of the report, and must not choose a directory on this machine.
    let file = path.rsplit('/').next().filter(|_| is_node)?;
    Some(RemoteCapture { named: named.to_owned(), node: NodeName(node.to_owned()), file: file.to_owned() })
}

fn fetch_remote_capture(
    place: &FleetPlace,
    run: &RunId,
    capture: &RemoteCapture,
    target: &Path,
    is_quiet: bool,
) -> Result<(), Error> {
    let mut requests = place
        .make_controller_fabric()?
        .open_capture_fetcher(&capture.node)
        .map_err(packetrig_fleet_io::Error::from)?;
    let name = CaptureName { run: run.clone(), file: capture.file.clone() };
    let mut line = LiveProgressLine::new(!is_quiet);
    let began = clock::monotonic_ns();
    let mut last = None;
    let mut user = FetchUser {
        progress: &mut |progress: FetchProgress| {
            let elapsed = Nanos::new(clock::monotonic_ns() - began);
            let is_first = last.replace(progress).is_none();
            if is_first && progress.resumed_at > 0 && !is_quiet {
                print_remark(format_args!(
                    "{}: the fetch resumes at {} B",
                    capture.file, progress.resumed_at
                ));
            }
            if line.is_due(elapsed) {
                line.show_progress_line(elapsed, format_progress(capture, progress, elapsed));
            }
        },
        goes_on: &|| !is_interrupted(),
    };
    // The error is not returned at once: the live line must end before an error is printed.
    let fetched = fetch_capture(&mut requests, &name, target, &mut user);
    line.clear_line();
    if let Some(progress) = last.filter(|_| !is_quiet) {
        let elapsed = Nanos::new(clock::monotonic_ns() - began);
        print_remark(format_progress(capture, progress, elapsed));
    }
    Ok(fetched?)
}

fn format_progress(capture: &RemoteCapture, progress: FetchProgress, elapsed: Nanos) -> String {
    let FetchProgress { resumed_at, done, size } = progress;
    // Bytes of an earlier, interrupted fetch are excluded: they would make the rate look better.
    let carried = done.saturating_sub(resumed_at);
    // A small file may take no measurable time.
    let rate = carried as f64 / elapsed.as_secs_f64().max(1e-9);
    let percent = if size == 0 { 100.0 } else { done as f64 * 100.0 / size as f64 };
    format!(
        "{}: {} of {} ({percent:.0} %), {} transferred, {}",
        capture.file,
        format_scaled(done as f64, "B"),
        format_scaled(size as f64, "B"),
        format_scaled(carried as f64, "B"),
        format_scaled(rate, "B/s")
    )
}
