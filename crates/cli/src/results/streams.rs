//! Tables with one row per stream.

use super::{ALL_COLUMNS, MOST_ROWS, left_out, short};
use crate::numbers::{count, percent, scaled, signed, time};
use crate::output::Style;
use crate::table::fitted_table;
use packetrig_fleet::report::{LatencyReport, MeanRate, RunReport, Sent, Spread, StreamReport};
use packetrig_stats::jitter::JitterSummary;

const UNKNOWN: &str = "–";

/// What was sent, what arrived, what is missing.
pub(super) fn counts(report: &RunReport, style: Style) -> String {
    let header = [
        "stream",
        "sent",
        "received",
        "lost",
        "loss",
        "bursts",
        "longest",
        "loss s",
        "dupl.",
        "reord.",
        "extent",
        "altered",
        "corrupt",
        "received at",
    ];
    let least_important = [
        "extent",
        "longest",
        "loss s",
        "bursts",
        "corrupt",
        "altered",
        "received at",
        "reord.",
        "dupl.",
        "loss",
    ];
    rows(report, (style, &header, &least_important), |stream| Some(count_row(stream)))
}

fn count_row(stream: &StreamReport) -> Vec<String> {
    let received = stream.received.as_ref();
    let loss = stream.loss.as_ref();
    let sequence = received.map(|received| &received.sequence);
    vec![
        known(stream.sent.as_ref().map(|sent| sent.frames)),
        known(received.map(|received| received.frames)),
        known(loss.map(|loss| loss.lost)),
        loss.map_or_else(unknown, |loss| percent(loss.lost, loss.expected)),
        known(loss.and_then(|loss| loss.bursts)),
        known(loss.and_then(|loss| loss.longest_burst)),
        known(loss.and_then(|loss| loss.seconds)),
        known(sequence.map(|sequence| sequence.duplicates)),
        known(sequence.map(|sequence| sequence.reordered)),
        known(sequence.map(|sequence| sequence.max_extent)),
        known(received.map(|received| received.altered)),
        known(received.map(|received| received.corrupt + received.unnumbered)),
        received
            .and_then(|received| received.rate)
            .map_or_else(unknown, |rate| bits(rate.l2.bits_per_second())),
    ]
}

/// How well the schedule was kept.
pub(super) fn sending(report: &RunReport, style: Style) -> String {
    let header = [
        "stream",
        "planned",
        "unsent",
        "late",
        "frames/s",
        "layer 2",
        "layer 1",
        "rate error",
        "send error p50",
        "p99",
        "max",
    ];
    let least_important =
        ["layer 1", "p99", "rate error", "send error p50", "max", "layer 2", "unsent", "frames/s"];
    rows(report, (style, &header, &least_important), |stream| stream.sent.as_ref().map(send_row))
}

fn send_row(sent: &Sent) -> Vec<String> {
    let rate = |of: fn(MeanRate) -> String| sent.rate.map_or_else(unknown, of);
    let error = |of: fn(Spread) -> packetrig_units::Nanos| time(sent.send_error.map(of));
    vec![
        count(sent.planned),
        count(sent.unsent),
        count(sent.late),
        rate(|rate| scaled(rate.frames_per_second(), "")),
        rate(|rate| bits(rate.l2.bits_per_second())),
        rate(|rate| bits(rate.l1.bits_per_second())),
        sent.rate_error_ppm.map_or_else(unknown, |ppm| format!("{} ppm", signed(ppm))),
        error(|spread| spread.p50),
        error(|spread| spread.p99),
        error(|spread| spread.max),
    ]
}

/// How long frames were under way, and how much that varied.
pub(super) fn latency(report: &RunReport, style: Style) -> String {
    // Only nodes with clocks of their own leave a doubt about them.
    let has_clocks =
        report.streams.iter().any(|stream| stream.latency.is_some_and(|times| times.error.clock.is_some()));
    let mut header = vec![
        "stream",
        "min",
        "mean",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "error (p99)",
        "RFC 3550",
        "PDV p99.9",
        "IPDV mean",
    ];
    header.extend(has_clocks.then_some("of it clocks"));
    let least_important = [
        "p99.99",
        "IPDV mean",
        "p90",
        "RFC 3550",
        "p99.9",
        "of it clocks",
        "mean",
        "PDV p99.9",
        "min",
        "error (p99)",
    ];
    rows(report, (style, &header, &least_important), |stream| {
        let latency = stream.latency.as_ref()?;
        let mut row = latency_row(latency, stream.jitter.as_ref());
        row.extend(
            has_clocks.then(|| latency.error.clock.map_or_else(unknown, |clock| format!("± {clock}"))),
        );
        Some(row)
    })
}

fn latency_row(latency: &LatencyReport, jitter: Option<&JitterSummary>) -> Vec<String> {
    let times = [
        latency.min,
        latency.mean,
        latency.p50,
        latency.p90,
        latency.p99,
        latency.p999,
        latency.p9999,
        latency.max,
    ];
    let mut row: Vec<String> = times.iter().map(ToString::to_string).collect();
    row.push(latency.error.p99().map_or_else(unknown, |error| format!("≤ {error}")));
    row.push(time(jitter.map(|jitter| jitter.rfc3550)));
    row.push(time(jitter.map(|jitter| jitter.pdv_p999)));
    row.push(time(jitter.map(|jitter| jitter.ipdv_mean)));
    row
}

/// A table over the streams for which `cells` has something to say; nothing if there is none. Where it is too wide, columns are
/// left out from the least important one on.
fn rows(
    report: &RunReport,
    (style, header, least_important): (Style, &[&str], &[&str]),
    cells: impl Fn(&StreamReport) -> Option<Vec<String>>,
) -> String {
    let row = |stream: &StreamReport| {
        let cells = cells(stream)?;
        Some([short(&stream.name)].into_iter().chain(cells).collect::<Vec<_>>())
    };
    let mut rows: Vec<_> = report.streams.iter().filter_map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let more = left_out(rows.len(), "streams", "streams.csv");
    rows.truncate(MOST_ROWS);
    fitted_table(style.width(), header, &rows, least_important, ALL_COLUMNS) + &more
}

fn known(value: Option<u64>) -> String {
    value.map_or_else(unknown, count)
}

fn bits(bits_per_second: u64) -> String {
    scaled(bits_per_second as f64, "bit/s")
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}
