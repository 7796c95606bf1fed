//! Runs that have files and no report: how they are told, and how much room a report may take.

use crate::error::Error;
use crate::identity;
use crate::numbers::{count, scaled};
use crate::output::{CommandOutput, remark};
use crate::table::{fitted_table, table};
use packetrig_plan::Plan;
use packetrig_stats::result::CaptureResult;
use packetrig_store::{
    KeptCapture, KeptRun, LateResults, MOST_LATE, MOST_LATE_OF_NODE, ReportSize, RunCatalogue,
};
use packetrig_units::Nanos;
use std::ffi::OsStr;
use std::path::Path;

/// What a plan can bring into a report; `sending` is how long it sends, if that has an end.
pub(crate) fn report_size(plan: &Plan, sending: Option<Nanos>, document: &str) -> ReportSize {
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let streams = plan.streams.iter().map(|stream| stream.name.len());
    let names = streams.chain(plan.ports.iter().map(|port| port.name.len()));
    ReportSize {
        document_bytes: number(document.len()),
        streams: number(plan.streams.len()),
        ports: number(plan.ports.len()),
        name_bytes: number(names.max().unwrap_or(0)),
        seconds: sending.map(|time| time.as_u64() / 1_000_000_000),
    }
}

/// Says what was kept of a run that ended without a report.
pub(crate) fn name_kept(kept: Option<&KeptRun>) {
    let Some(kept) = kept else { return };
    remark(format_args!(
        "run {} has no report; its captures are in {} ({}); `packetrig report discard {}` removes them",
        kept.run,
        kept.directory.display(),
        content(kept),
        kept.run
    ));
}

/// Names capture files in a directory of the run that `counted`, the captures of its report, has not: those of a node that
/// ended with an error, or of a run without a report.
pub(crate) fn name_uncounted(directory: &Path, counted: &[CaptureResult]) {
    let is_counted = |name: &OsStr| counted.iter().any(|one| Path::new(&one.file).file_name() == Some(name));
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let bytes = entry.metadata().map_or(0, |facts| facts.len());
        if bytes > 0 && name.to_string_lossy().contains(".pcap") && !is_counted(&name) {
            let size = scaled(precise(bytes), "B");
            remark(format_args!(
                "captured, but not counted in a report: {} ({size})",
                entry.path().display()
            ));
        }
    }
}

/// Shows runs without a report, if there are any.
pub(crate) fn list(kept: &[KeptRun], output: &mut CommandOutput) {
    if kept.is_empty() {
        return;
    }
    output.line("\nWithout a report (`packetrig report discard ID` removes one):");
    let header = ["run", "begun (UTC)", "process", "holds", "directory"];
    let rows: Vec<_> = kept.iter().map(row).collect();
    output.text(fitted_table(
        output.style().width(),
        &header,
        &rows,
        &["begun (UTC)", "directory"],
        "`packetrig report unfinished --json`",
    ));
}

fn row(kept: &KeptRun) -> Vec<String> {
    vec![
        kept.run.0.clone(),
        identity::date(kept.begun_wall_ns),
        kept.process.map_or_else(|| "ended".to_owned(), |process| format!("{process}, alive")),
        content(kept),
        kept.directory.display().to_string(),
    ]
}

fn content(kept: &KeptRun) -> String {
    let bytes = |bytes: u64| scaled(precise(bytes), "B");
    let capture = |capture: &KeptCapture| {
        let name = capture.file.file_name().unwrap_or_default().to_string_lossy();
        format!("{name} {}", bytes(capture.bytes))
    };
    let mut parts: Vec<String> = kept.captures.iter().take(NAMED).map(capture).collect();
    let more = kept.captures.len().saturating_sub(NAMED);
    if more > 0 {
        let rest = kept.captures.iter().skip(NAMED).map(|capture| capture.bytes).sum();
        parts.push(format!("{} more captures {}", count(more as u64), bytes(rest)));
    }
    if kept.segment_bytes > 0 {
        parts.push(format!("results of nodes {}", bytes(kept.segment_bytes)));
    }
    if kept.has_report {
        parts.push("report.json".to_owned());
    }
    if parts.is_empty() { "no captures".to_owned() } else { parts.join(", ") }
}

/// Captures that are named one by one.
const NAMED: usize = 4;

#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
fn precise(bytes: u64) -> f64 {
    bytes as f64
}

/// `packetrig report discard`.
pub(crate) fn discard(catalogue: &RunCatalogue, id: &str, output: &mut CommandOutput) -> Result<(), Error> {
    let gone = catalogue.discard(id)?;
    output.line(format_args!("Removed run {} ({}).", gone.run, content(&gone)));
    Ok(())
}

/// Names late results below a list of runs, if there are any.
pub(crate) fn name_late(catalogue: Option<&RunCatalogue>, output: &mut CommandOutput) -> Result<(), Error> {
    let late = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::late)?;
    if !late.is_empty() {
        let bytes = late.iter().map(|late| late.bytes).sum();
        let refused: u64 = late.iter().map(|late| late.refused).sum();
        output.line(format_args!(
            "\nLate results of {} nodes: {} kept, {} segments refused; see `packetrig report late`",
            late.len(),
            scaled(precise(bytes), "B"),
            count(refused)
        ));
    }
    Ok(())
}

/// `packetrig report late`.
pub(crate) fn late(
    catalogue: Option<&RunCatalogue>,
    discard: bool,
    json: bool,
    output: &mut CommandOutput,
) -> Result<(), Error> {
    let late = catalogue.map_or_else(|| Ok(Vec::new()), RunCatalogue::late)?;
    if let Some(catalogue) = catalogue.filter(|_| discard) {
        catalogue.discard_late()?;
    }
    if json {
        return output.json(&late);
    }
    if late.is_empty() {
        output.line("no late results");
        return Ok(());
    }
    let row = |late: &LateResults| {
        let bytes = scaled(precise(late.bytes), "B");
        vec![late.node.0.clone(), count(late.segments), bytes, count(late.refused)]
    };
    output.text(table(&["node", "segments", "kept", "refused"], late.iter().map(row)));
    let limit = |bytes: u64| scaled(precise(bytes), "B");
    output.line(format_args!(
        "At most {} per node and {} in all are kept.",
        limit(MOST_LATE_OF_NODE),
        limit(MOST_LATE)
    ));
    Ok(())
}
