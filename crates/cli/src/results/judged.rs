//! Formats the evidence for the verdict: the line of each criterion, the largest outages, events of ports,
//! misdelivered frames and frames of other runs.

use super::{format_omitted_rows_line, shorten_name};
use crate::numbers::format_count;
use crate::output::TextStyle;
use packetrig_report::{CriterionLine, CriterionResult, OutageRow, PortReport, RunReport};

/// Largest number of outages shown; `outages.csv` has more.
const MAX_OUTAGES: usize = 10;
/// Largest number of events shown for each port, and of subjects for each criterion.
const MAX_SHOWN: usize = 8;

/// Formats a line for each criterion. A criterion without PASS also has a line for each stream, port or node that
/// decides it, at most [`MAX_SHOWN`].
pub(super) fn format_criteria(report: &RunReport, style: TextStyle) -> String {
    report.judged.iter().map(|line| format_criterion(line, style)).collect()
}

fn format_criterion(line: &CriterionLine, style: TextStyle) -> String {
    let result = match line.result {
        CriterionResult::Pass => style.good("PASS        "),
        CriterionResult::Fail => style.bad("FAIL        "),
        CriterionResult::Unknown => style.doubtful("INCONCLUSIVE"),
    };
    let mut text = format!("  {result}  {:<14} {}\n", line.criterion, line.limit);
    // Of a criterion that is met, only the report file lists the subjects.
    if line.result == CriterionResult::Pass {
        return text;
    }
    for subject in line.subjects.iter().take(MAX_SHOWN) {
        text.extend([format!(
            "             {:<7}  {}: {}\n",
            subject.result, subject.subject, subject.measured
        )]);
    }
    // The report lists at most 32 subjects, but its counts include all of them.
    let all = line.failed + line.unknown;
    if all > MAX_SHOWN {
        text.extend([format!(
            "             … and {} more; report.json lists up to 32 in all\n",
            all - MAX_SHOWN
        )]);
    }
    text
}

/// Formats the outages with the most lost frames, of all streams, in the order of time.
pub(super) fn format_outages(report: &RunReport) -> String {
    let all = report.streams.iter().filter_map(|stream| Some((stream, stream.outages.as_ref()?)));
    let mut rows: Vec<(&str, &OutageRow)> = all
        .clone()
        .flat_map(|(stream, of)| of.listed.iter().map(move |row| (stream.name.as_str(), row)))
        .collect();
    // The outages with the most lost frames are chosen, and then sorted by time, so that outages of several streams at
    // the same time stand together.
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.frames));
    rows.truncate(MAX_OUTAGES);
    rows.sort_by_key(|(_, row)| row.begin);
    let mut text: String = rows.iter().map(|(stream, row)| format_outage_line(stream, row)).collect();
    let outages: u64 = all.map(|(_, of)| of.count).sum();
    // A row can stand for several gaps, which a receiver joins because its list is bounded.
    let shown: u64 = rows.iter().map(|(_, row)| row.gaps).sum();
    if outages > shown {
        text.extend([format!(
            "  … and {} more; outages.csv lists up to 64 rows for each stream\n",
            format_count(outages - shown)
        )]);
    }
    text
}

fn format_outage_line(stream: &str, row: &OutageRow) -> String {
    // A stream that loses its first or last frames has no frame that would date that end of the outage.
    let begin = row.begin.map_or_else(|| "the start".to_owned(), |begin| begin.to_string());
    let end = row.end.map_or_else(|| "the end".to_owned(), |end| end.to_string());
    let length = row
        .begin
        .zip(row.end)
        .map_or_else(String::new, |(begin, end)| format!(" ({})", end.saturating_sub(begin)));
    let joined = if row.gaps > 1 { format!(" in {} gaps", row.gaps) } else { String::new() };
    let doubt =
        if row.in_doubt > 0 { format!(", {} in doubt", format_count(row.in_doubt)) } else { String::new() };
    format!(
        "  {}: from {begin} to {end}{length}: {} frames{joined}, sequence numbers {} to {}{doubt}\n",
        shorten_name(stream),
        format_count(row.frames),
        row.first,
        row.last
    )
}

/// Formats the events of ports during the run. Their times count from the start.
pub(super) fn format_port_events(report: &RunReport) -> String {
    let mut text = String::new();
    for port in &report.ports {
        for event in port.events.iter().take(MAX_SHOWN) {
            let until = event.until.map_or_else(|| "the end".to_owned(), |until| until.to_string());
            let name = port.full_name();
            text.extend([format!("  {name}: from {} to {until}: {}\n", event.from, event.description())]);
        }
        if let Some(more) = port.events.len().checked_sub(MAX_SHOWN).filter(|more| *more > 0) {
            text.extend([format!("  {}: … and {more} more, see report.json\n", port.full_name())]);
        }
    }
    text
}

/// Formats the largest number of frames that each port sent within 1, 10 and 100 ms.
pub(super) fn format_sending_peaks(report: &RunReport) -> String {
    report.ports.iter().filter_map(format_peak_line).take(super::MAX_ROWS).collect()
}

fn format_peak_line(port: &PortReport) -> Option<String> {
    let peaks = port.peaks?;
    let [one, ten, hundred] = [peaks.in_1ms, peaks.in_10ms, peaks.in_100ms].map(format_count);
    Some(format!(
        "  {}: at most {one} frames in 1 ms, {ten} in 10 ms, {hundred} in 100 ms\n",
        port.full_name()
    ))
}

/// Formats the frames that arrived at a port where their stream is not expected, and the frames of other runs.
pub(super) fn format_misdelivered_frames(report: &RunReport) -> String {
    let misdelivered =
        report.streams.iter().filter_map(|stream| Some((stream, stream.misdelivery.as_ref()?)));
    let mut lines: Vec<String> = misdelivered
        .map(|(stream, astray)| format!("  {}: {astray}\n", shorten_name(&stream.name)))
        .collect();
    for port in &report.ports {
        lines.extend(port.other_runs.iter().map(|other| {
            let run =
                other.run.as_ref().map_or_else(|| "an earlier run".to_owned(), |run| format!("run {run}"));
            format!("  {}: {} frames of {run}\n", port.full_name(), format_count(other.frames))
        }));
    }
    let more = format_omitted_rows_line(lines.len(), "lines", "report.json");
    lines.truncate(super::MAX_ROWS);
    lines.concat() + &more
}
