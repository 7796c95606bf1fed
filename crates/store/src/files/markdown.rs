//! The report of a run as Markdown, for pages of build servers and merge requests.

use super::comparison::{markdown_cell, table_row};
use packetrig_report::{RunReport, StreamReport};
use packetrig_units::Ratio;

/// The report as Markdown: a heading with the verdict, the reasons for it, and a table with one row per stream.
pub fn report_markdown(report: &RunReport) -> String {
    let name =
        if report.name.is_empty() { String::new() } else { format!(" \"{}\"", markdown_cell(&report.name)) };
    let mut text = format!("## {}: run {}{name}\n\n", report.verdict.as_str(), report.run);
    text.extend(report.verdict.reasons().iter().map(|reason| format!("* {}\n", markdown_cell(reason))));
    if !report.verdict.reasons().is_empty() {
        text.push('\n');
    }
    text.push_str(&table_row([
        "stream",
        "sent",
        "received",
        "lost",
        "loss",
        "frames/s",
        "latency p50",
        "p99",
        "max",
    ]));
    text.push_str("|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    text.extend(report.streams.iter().map(stream_row));
    text
}

fn stream_row(stream: &StreamReport) -> String {
    let received = stream.received.as_ref();
    let rate = received.and_then(|received| received.rate);
    let latency = stream.latency;
    table_row([
        markdown_cell(&stream.name).as_str(),
        &text_or_dash(stream.sent.as_ref().map(|sent| sent.frames)),
        &text_or_dash(received.map(|received| received.frames)),
        &text_or_dash(stream.loss.map(|loss| loss.lost)),
        &text_or_dash(stream.loss.map(|loss| Ratio::new(loss.lost, loss.expected).to_string())),
        &text_or_dash(rate.map(|rate| format!("{:.0}", rate.frames_per_second()))),
        &text_or_dash(latency.map(|latency| latency.p50)),
        &text_or_dash(latency.map(|latency| latency.p99)),
        &text_or_dash(latency.map(|latency| latency.max)),
    ])
}

fn text_or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::report;

    #[test]
    fn markdown_report_shows_reasons_and_streams() {
        let text = report_markdown(&report("r"));
        assert!(
            text.starts_with("## FAIL: run r \"a &amp; b\"\n\n* stream x: 2 of 10 frames lost\n\n"),
            "{text}"
        );
        assert!(text.contains("| voice, \"gold\" &lt;1> | 10 | 8 | 2 | 20.0000 % |"), "{text}");
        assert!(text.ends_with("| plain | 10 | – | – | – | – | – | – | – |\n"), "{text}");
    }
}
