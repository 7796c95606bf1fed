//! Renders a report as tables for people. All values come from [`RunReport`]; only sums are computed here.

mod columns;
mod judged;
mod merged;
mod nodes;
mod probes;
mod streams;
mod whole;

use crate::identity;
use crate::output::TextStyle;
use merged::{ReportRemark, merge_remarks};
use packetrig_report::{RunReport, RunVerdict};
use std::collections::HashSet;

/// Largest number of rows of a table; the files of the result have all rows.
const MAX_ROWS: usize = 64;
/// Largest number of characters of a name in a table.
pub(crate) const LONGEST_NAME: usize = 32;

/// Renders the whole report, with the verdict last.
pub(crate) fn render_report(report: &RunReport, style: TextStyle) -> String {
    let mut text = format_headline(report, style);
    let sections = [
        ("Streams", streams::format_counts_table(report, style)),
        ("Sending", streams::format_sending_table(report, style)),
        ("Latency and jitter (one-way)", streams::format_latency_table(report, style)),
        ("Probes", probes::format_probes(report)),
        ("Nodes", nodes::format_nodes(report, style)),
        ("Load", nodes::format_load_factor(report)),
        ("Ports", whole::format_ports(report, style)),
        ("Ledger (frames)", whole::format_ledger(report)),
        ("Peaks", judged::format_sending_peaks(report)),
        ("Outages (time since the start)", judged::format_outages(report)),
        ("Port events (time since the start)", judged::format_port_events(report)),
        ("Misdelivered frames and frames of other runs", judged::format_misdelivered_frames(report)),
        ("Captures", whole::format_captures(report)),
        ("Caveats", whole::format_caveats(report, style)),
        ("Criteria", judged::format_criteria(report, style)),
    ];
    for (title, body) in sections.iter().filter(|(_, body)| !body.is_empty()) {
        text.extend(["\n", &style.bold(title), "\n", body]);
    }
    // The verdict comes last, because a reader of a terminal looks there when the command has ended.
    text.push_str(&format_verdict(report, style));
    text
}

fn format_headline(report: &RunReport, style: TextStyle) -> String {
    let sending = match report.sending {
        Some(_) if has_certainly_sent_nothing(report) => "nothing was sent".to_owned(),
        Some(time) => format!("sent for {time}"),
        None => "no node has reported its sent frames".to_owned(),
    };
    let name = if report.name.is_empty() { String::new() } else { format!(" \"{}\"", report.name) };
    format!(
        "{}{name}, {} UTC, {sending}, run {}, seed {}\n",
        style.bold(&format!("Run {}", report.run)),
        identity::format_utc_date_time(report.started_wall_ns),
        report.outcome.state(),
        report.seed
    )
}

/// Returns true if the run has streams, all nodes have reported, and every stream has sent 0 frames. A node that has
/// not reported may have sent frames.
fn has_certainly_sent_nothing(report: &RunReport) -> bool {
    let sent = report.streams.iter().map(|stream| stream.sent.as_ref().map(|sent| sent.frames));
    report.coverage.is_full()
        && !report.streams.is_empty()
        && sent.into_iter().all(|frames| frames == Some(0))
}

fn format_verdict(report: &RunReport, style: TextStyle) -> String {
    let word = match report.verdict {
        RunVerdict::Pass => style.good("PASS"),
        RunVerdict::Fail(_) => style.bad("FAIL"),
        RunVerdict::Inconclusive(_) => style.doubtful("INCONCLUSIVE"),
    };
    let mut text = format!("\nVerdict: {word}\n");
    let reasons = merge_reasons(report);
    text.extend(reasons.iter().take(MAX_ROWS).map(|reason| format!("  {reason}\n")));
    text.push_str(&format_omitted_rows_line(reasons.len(), "reasons", "report.json"));
    text
}

/// Returns the reasons against PASS: first those about single streams, of which similar ones are merged, then
/// the other reasons unchanged.
fn merge_reasons(report: &RunReport) -> Vec<String> {
    let names: HashSet<&str> = report.streams.iter().map(|stream| stream.name.as_str()).collect();
    let mut remarks = Vec::new();
    let mut others = Vec::new();
    for reason in report.verdict.reasons() {
        match parse_stream_remark(reason, &names) {
            Some(remark) => remarks.push(remark),
            None => others.push(reason.clone()),
        }
    }
    [merge_remarks(report, &remarks), others].concat()
}

/// Parses `stream NAME: TEXT`. A name may contain a colon itself, so only names of streams of this report count.
fn parse_stream_remark<'a>(reason: &'a str, names: &HashSet<&str>) -> Option<ReportRemark<'a>> {
    let (subject, text) = reason.split_once(": ")?;
    // Caveats begin with the name of the stream; reasons of a verdict have the word `stream` before the name.
    let name = subject.strip_prefix("stream ").unwrap_or(subject);
    names.contains(name).then_some(ReportRemark { subject, text })
}

/// Formats the number of rows that a table does not show, and the file that has them; empty if all rows are shown.
fn format_omitted_rows_line(rows: usize, what: &str, file: &str) -> String {
    match rows.checked_sub(MAX_ROWS) {
        None | Some(0) => String::new(),
        Some(more) => format!("  … and {more} more {what}, see {file}\n"),
    }
}

pub(crate) fn shorten_name(name: &str) -> String {
    shorten_text(name, LONGEST_NAME)
}

/// Shortens a text to `longest` characters, which must be at least one.
pub(crate) fn shorten_text(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest {
        return text.to_owned();
    }
    text.chars().take(longest - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
