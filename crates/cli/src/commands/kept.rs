//! Runs that have files but no report, and results that arrived when no run waited for them any more.

use super::is_interrupted;
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::numbers::{format_count, format_scaled};
use crate::output::{CommandOutput, print_remark};
use crate::table::{format_fitted_table, format_table};
use packetrig_fleet_io::RunOperator;
use packetrig_report::RunReport;
use packetrig_stats::result::CaptureResult;
use packetrig_store::{
    LateResults, MAX_LATE, MAX_LATE_BYTES_OF_NODE, RunCatalogue, UnlistedCapture, UnlistedRun,
};
use std::fmt;
use std::path::Path;

/// Reports events of runs on standard error, and records the ends of runs in the history of the fleet's nodes.
#[derive(Debug, Default)]
pub(crate) struct RunEventReporter {
    /// The fleet in whose node histories the ends of runs are recorded.
    place: Option<FleetPlace>,
}

impl RunEventReporter {
    pub(crate) fn on_fleet(place: &FleetPlace) -> Self {
        Self { place: Some(place.clone()) }
    }
}

impl RunOperator for RunEventReporter {
    fn remark(&self, text: fmt::Arguments<'_>) {
        print_remark(text);
    }

    fn on_kept_files(&self, kept: &UnlistedRun) {
        print_run_without_report(Some(kept));
    }

    fn on_report(&self, report: &RunReport) {
        if let Some(place) = &self.place {
            place.record_run_end(report);
        }
    }

    fn is_interrupted(&self) -> bool {
        is_interrupted()
    }
}

/// Prints where the files of a run without a report are.
pub(crate) fn print_run_without_report(kept: Option<&UnlistedRun>) {
    let Some(kept) = kept else { return };
    print_remark(format_args!(
        "run {} has no report; its files are in {} ({}); `packetrig report discard {}` removes them",
        kept.run,
        kept.directory.display(),
        describe_contents(kept),
        kept.run
    ));
}

/// Prints the capture files in the directory of a run that are not among `counted`, the captures of its report. Such
/// files come from a node that failed, or from a run without a report.
pub(crate) fn print_uncounted_captures(directory: &Path, counted: &[CaptureResult]) {
    // Only the file names are compared, because a report has the paths on the machines that captured.
    let counted: Vec<_> = counted.iter().filter_map(|one| Path::new(&one.file).file_name()).collect();
    // A run without captures has no such directory, and then there is nothing to print.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let bytes = entry.metadata().map_or(0, |facts| facts.len());
        // `.pcapng` and `.pcap.zst` contain `.pcap`, too.
        if bytes > 0 && name.to_string_lossy().contains(".pcap") && !counted.contains(&name.as_os_str()) {
            let size = format_bytes(bytes);
            print_remark(format_args!(
                "capture file that is in no report: {} ({size})",
                entry.path().display()
            ));
        }
    }
}

/// Shows runs without a report, if there are any.
pub(crate) fn print_runs_without_report(kept: &[UnlistedRun], output: &mut CommandOutput) {
    if kept.is_empty() {
        return;
    }
    output.write_line("\nRuns without a report (`packetrig report discard ID` removes one):");
    // Even the narrowest table shows the contents, because they decide whether the user discards a run.
    let header = ["run", "begun (UTC)", "process", "holds", "directory"];
    let rows: Vec<_> = kept.iter().map(build_kept_run_row).collect();
    output.write_text(format_fitted_table(
        output.style().width(),
        &header,
        &rows,
        &["begun (UTC)", "directory"],
        "`packetrig report unfinished --json`",
    ));
}

fn build_kept_run_row(kept: &UnlistedRun) -> Vec<String> {
    vec![
        kept.run.0.clone(),
        identity::format_utc_date_time(kept.begun_wall_ns),
        kept.process.map_or_else(|| "ended".to_owned(), |process| format!("{process}, alive")),
        describe_contents(kept),
        kept.directory.display().to_string(),
    ]
}

fn describe_contents(kept: &UnlistedRun) -> String {
    let mut parts: Vec<String> =
        kept.captures.iter().take(MAX_NAMED_CAPTURES).map(describe_capture).collect();
    let more = kept.captures.len().saturating_sub(MAX_NAMED_CAPTURES);
    if more > 0 {
        let rest = kept.captures.iter().skip(MAX_NAMED_CAPTURES).map(|capture| capture.bytes).sum();
        parts.push(format!("{} more captures {}", format_count(more as u64), format_bytes(rest)));
    }
    if kept.segment_bytes > 0 {
        parts.push(format!("results of nodes {}", format_bytes(kept.segment_bytes)));
    }
    if kept.has_report {
        parts.push("report.json".to_owned());
    }
    if parts.is_empty() { "no captures".to_owned() } else { parts.join(", ") }
}

/// Largest number of captures that are named one by one.
const MAX_NAMED_CAPTURES: usize = 4;

fn describe_capture(capture: &UnlistedCapture) -> String {
    let name = capture.file.file_name().unwrap_or_default().to_string_lossy();
    format!("{name} {}", format_bytes(capture.bytes))
}

fn format_bytes(bytes: u64) -> String {
    format_scaled(bytes as f64, "B")
}

/// Runs `packetrig report discard`: removes the files of a run without a report.
pub(crate) fn discard_run(
    catalogue: &RunCatalogue,
    id: &str,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let gone = catalogue.discard_run(id)?;
    output.write_line(format_args!("Removed run {} ({}).", gone.run, describe_contents(&gone)));
    Ok(())
}

/// Prints a remark about late results below a list of runs, if there are any.
pub(crate) fn print_late_results(
    catalogue: Option<&RunCatalogue>,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let late = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::list_late_results)?;
    if !late.is_empty() {
        let bytes = late.iter().map(|late| late.bytes).sum();
        let refused: u64 = late.iter().map(|late| late.refused).sum();
        output.write_line(format_args!(
            "\nLate results of {} nodes: {} stored, {} segments refused; see `packetrig report late`",
            late.len(),
            format_bytes(bytes),
            format_count(refused)
        ));
    }
    Ok(())
}

fn sum_bytes(results: &[LateResults]) -> u64 {
    results.iter().map(|late| late.bytes).sum()
}

/// Runs `packetrig report late`: lists the late results. `--discard` deletes those of unknown runs.
pub(crate) fn show_late_results(
    catalogue: Option<&RunCatalogue>,
    discard: bool,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    // The list is read before the deletion, so that `--discard` shows what was stored until now. It deletes only the
    // results of runs that the catalogue does not know.
    let late = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::list_late_results)?;
    let mut left = Vec::new();
    if let Some(catalogue) = catalogue.filter(|_| discard) {
        catalogue.discard_late_results()?;
        left = catalogue.list_late_results()?;
    }
    if json {
        return Ok(output.write_json(&late)?);
    }
    if late.is_empty() {
        output.write_line("there are no late results");
        return Ok(());
    }
    let rows = late.iter().map(|late| {
        vec![
            late.node.0.clone(),
            format_count(late.segments),
            format_bytes(late.bytes),
            format_count(late.refused),
        ]
    });
    output.write_text(format_table(&["node", "segments", "stored", "refused"], rows));
    if discard {
        let deleted = sum_bytes(&late).saturating_sub(sum_bytes(&left));
        output.write_line(format_args!(
            "Deleted: {} of late results of unknown runs. Results of known runs belong to their reports and stay.",
            format_bytes(deleted)
        ));
    }
    output.write_line(format_args!(
        "At most {} of late results per node, and {} in total, are stored.",
        format_bytes(MAX_LATE_BYTES_OF_NODE),
        format_bytes(MAX_LATE)
    ));
    Ok(())
}
