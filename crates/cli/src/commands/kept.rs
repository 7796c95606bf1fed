//! Runs that have files but no report, and late results.

use super::is_interrupted;
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::numbers::{format_count, format_scaled};
use crate::output::{CommandOutput, print_remark};
use crate::table::{fitted_table, format_table};
use packetrig_fleet_io::RunOperator;
use packetrig_report::RunReport;
use packetrig_stats::result::CaptureResult;
use packetrig_store::{KeptCapture, KeptRun, MAX_LATE, MAX_LATE_OF_NODE, RunCatalogue};
use std::fmt;
use std::path::Path;

/// Reports events of runs on standard error, and their ends to the history of the fleet's nodes.
#[derive(Debug, Default)]
pub(crate) struct RunRemarks {
    /// The fleet whose nodes' history gets the ends of runs.
    place: Option<FleetPlace>,
}

impl RunRemarks {
    pub(crate) fn on_fleet(place: &FleetPlace) -> Self {
        Self { place: Some(place.clone()) }
    }
}

impl RunOperator for RunRemarks {
    fn remark(&self, text: fmt::Arguments<'_>) {
        print_remark(text);
    }

    fn on_left_files(&self, kept: &KeptRun) {
        name_kept(Some(kept));
    }

    fn on_report(&self, report: &RunReport) {
        if let Some(place) = &self.place {
            place.note_run(report);
        }
    }

    fn is_interrupted(&self) -> bool {
        is_interrupted()
    }
}

/// Names the files of a run that ended without a report.
pub(crate) fn name_kept(kept: Option<&KeptRun>) {
    let Some(kept) = kept else { return };
    print_remark(format_args!(
        "run {} has no report; its captures are in {} ({}); `packetrig report discard {}` removes them",
        kept.run,
        kept.directory.display(),
        content_text(kept),
        kept.run
    ));
}

/// Names capture files in a directory of the run that are not among `counted`, the captures of its report: those of a node that
/// failed, or of a run without a report.
pub(crate) fn name_uncounted(directory: &Path, counted: &[CaptureResult]) {
    // By name alone, because a report has the paths of the machines that captured.
    let counted: Vec<_> = counted.iter().filter_map(|one| Path::new(&one.file).file_name()).collect();
    // A run without captures has no such directory, and then there is nothing to name.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let bytes = entry.metadata().map_or(0, |facts| facts.len());
        // `.pcapng` and `.pcap.zst` contain it, too.
        if bytes > 0 && name.to_string_lossy().contains(".pcap") && !counted.contains(&name.as_os_str()) {
            let size = bytes_text(bytes);
            print_remark(format_args!(
                "captured, but not counted in a report: {} ({size})",
                entry.path().display()
            ));
        }
    }
}

/// Shows runs without a report, if there are any.
pub(crate) fn list_kept_runs(kept: &[KeptRun], output: &mut CommandOutput) {
    if kept.is_empty() {
        return;
    }
    output.write_line("\nWithout a report (`packetrig report discard ID` removes one):");
    // The contents stay in the narrowest table: they decide whether the user discards a run.
    let header = ["run", "begun (UTC)", "process", "holds", "directory"];
    let rows: Vec<_> = kept.iter().map(kept_run_row).collect();
    output.write_text(fitted_table(
        output.style().width(),
        &header,
        &rows,
        &["begun (UTC)", "directory"],
        "`packetrig report unfinished --json`",
    ));
}

fn kept_run_row(kept: &KeptRun) -> Vec<String> {
    vec![
        kept.run.0.clone(),
        identity::utc_date_time(kept.begun_wall_ns),
        kept.process.map_or_else(|| "ended".to_owned(), |process| format!("{process}, alive")),
        content_text(kept),
        kept.directory.display().to_string(),
    ]
}

fn content_text(kept: &KeptRun) -> String {
    let mut parts: Vec<String> = kept.captures.iter().take(NAMED).map(capture_text).collect();
    let more = kept.captures.len().saturating_sub(NAMED);
    if more > 0 {
        let rest = kept.captures.iter().skip(NAMED).map(|capture| capture.bytes).sum();
        parts.push(format!("{} more captures {}", format_count(more as u64), bytes_text(rest)));
    }
    if kept.segment_bytes > 0 {
        parts.push(format!("results of nodes {}", bytes_text(kept.segment_bytes)));
    }
    if kept.has_report {
        parts.push("report.json".to_owned());
    }
    if parts.is_empty() { "no captures".to_owned() } else { parts.join(", ") }
}

/// Largest number of captures that are named one by one.
const NAMED: usize = 4;

fn capture_text(capture: &KeptCapture) -> String {
    let name = capture.file.file_name().unwrap_or_default().to_string_lossy();
    format!("{name} {}", bytes_text(capture.bytes))
}

fn bytes_text(bytes: u64) -> String {
    format_scaled(bytes as f64, "B")
}

/// `packetrig report discard`.
pub(crate) fn discard_run(
    catalogue: &RunCatalogue,
    id: &str,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let gone = catalogue.discard_run(id)?;
    output.write_line(format_args!("Removed run {} ({}).", gone.run, content_text(&gone)));
    Ok(())
}

/// Names late results below a list of runs, if there are any.
pub(crate) fn name_late_results(
    catalogue: Option<&RunCatalogue>,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let late = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::late_results)?;
    if !late.is_empty() {
        let bytes = late.iter().map(|late| late.bytes).sum();
        let refused: u64 = late.iter().map(|late| late.refused).sum();
        output.write_line(format_args!(
            "\nLate results of {} nodes: {} kept, {} segments refused; see `packetrig report late`",
            late.len(),
            bytes_text(bytes),
            format_count(refused)
        ));
    }
    Ok(())
}

/// `packetrig report late`.
pub(crate) fn show_late_results(
    catalogue: Option<&RunCatalogue>,
    discard: bool,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    // Read before they are deleted: `--discard` shows the deleted ones.
    let late = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::late_results)?;
    if let Some(catalogue) = catalogue.filter(|_| discard) {
        catalogue.discard_late_results()?;
    }
    if json {
        return Ok(output.write_json(&late)?);
    }
    if late.is_empty() {
        output.write_line("no late results");
        return Ok(());
    }
    let rows = late.iter().map(|late| {
        vec![
            late.node.0.clone(),
            format_count(late.segments),
            bytes_text(late.bytes),
            format_count(late.refused),
        ]
    });
    output.write_text(format_table(&["node", "segments", "kept", "refused"], rows));
    output.write_line(format_args!(
        "At most {} per node and {} in all are kept.",
        bytes_text(MAX_LATE_OF_NODE),
        bytes_text(MAX_LATE)
    ));
    Ok(())
}
