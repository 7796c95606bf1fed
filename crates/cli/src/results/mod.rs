//! A report as tables for people. Everything here is a view of [`RunReport`]; nothing is computed but sums and looks.

mod columns;
mod judged;
mod merged;
mod nodes;
mod streams;
mod whole;

use crate::identity;
use crate::output::TextStyle;
use merged::{ReportRemark, merge};
use packetrig_fleet::report::{RunReport, RunVerdict};
use std::collections::HashSet;

/// Rows shown per table; the CSV has them all.
const MOST_ROWS: usize = 64;
/// What shows the columns that do not fit.
const ALL_COLUMNS: &str = "`packetrig report show last --wide`";
/// Characters of a name shown in a table.
const LONGEST_NAME: usize = 32;

/// The whole report, verdict last.
pub(crate) fn render(report: &RunReport, style: TextStyle) -> String {
    let mut text = headline(report, style);
    let mut section = |title: &str, body: String| {
        if !body.is_empty() {
            text.extend(["\n", &style.bold(title), "\n", &body]);
        }
    };
    section("Streams", streams::counts(report, style));
    section("Sending", streams::sending(report, style));
    section("Latency and jitter (one-way)", streams::latency(report, style));
    section("Nodes", nodes::nodes(report, style));
    section("Load", nodes::load(report));
    section("Ports", whole::ports(report, style));
    section("Ledger (frames)", whole::ledger(report));
    section("Peaks", judged::peaks(report));
    section("Outages (time since the start)", judged::outages(report));
    section("Port events (time since the start)", judged::events(report));
    section("Frames that went astray", judged::astray(report));
    section("Captures", whole::captures(report));
    section("Caveats", whole::caveats(report, style));
    section("Criteria", judged::criteria(report, style));
    text.push_str(&verdict(report, style));
    text
}

fn headline(report: &RunReport, style: TextStyle) -> String {
    let sending = match report.sending {
        Some(time) => format!("sent for {time}"),
        None if report.coverage.is_full() => "nothing was sent".to_owned(),
        None => "no node has reported what it sent".to_owned(),
    };
    let name = if report.name.is_empty() { String::new() } else { format!(" \"{}\"", report.name) };
    format!(
        "{}{name}, {} UTC, {sending}, run {}, seed {}\n",
        style.bold(&format!("Run {}", report.run)),
        identity::date(report.started_wall_ns),
        report.outcome.state(),
        report.seed
    )
}

fn verdict(report: &RunReport, style: TextStyle) -> String {
    let word = match report.verdict {
        RunVerdict::Pass => style.good("PASS"),
        RunVerdict::Fail(_) => style.bad("FAIL"),
        RunVerdict::Inconclusive(_) => style.doubtful("INCONCLUSIVE"),
    };
    let mut text = format!("\nVerdict: {word}\n");
    let reasons = reasons(report);
    text.extend(reasons.iter().take(MOST_ROWS).map(|reason| format!("  {reason}\n")));
    text.push_str(&left_out(reasons.len(), "reasons", "report.json"));
    text
}

/// Why not PASS: reasons about single streams merged, the others as they are.
fn reasons(report: &RunReport) -> Vec<String> {
    let names: HashSet<&str> = report.streams.iter().map(|stream| stream.name.as_str()).collect();
    let about_stream = |reason: &'_ String| {
        let (subject, _) = reason.split_once(": ")?;
        let name = subject.strip_prefix("stream ").unwrap_or(subject);
        names.contains(name).then_some(subject.len())
    };
    let all = report.verdict.reasons();
    let (mut remarks, mut others) = (Vec::new(), Vec::new());
    for reason in all {
        match about_stream(reason) {
            Some(end) => remarks.push(ReportRemark { subject: &reason[..end], text: &reason[end + 2..] }),
            None => others.push(reason.clone()),
        }
    }
    [merge(report, &remarks), others].concat()
}

/// What a table does not show, and where it is.
fn left_out(rows: usize, what: &str, file: &str) -> String {
    match rows.checked_sub(MOST_ROWS) {
        None | Some(0) => String::new(),
        Some(more) => format!("  … and {more} more {what}, see {file}\n"),
    }
}

pub(crate) fn short(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    name.chars().take(LONGEST_NAME - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
