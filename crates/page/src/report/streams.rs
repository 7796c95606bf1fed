//! The table of all streams, and the details of single streams.
//!
//! The table is HTML for up to [`MAX_ROWS`] streams. With more streams, the HTML contains the worst ones, and the
//! page's script shows all of them from data, a few rows at a time.

use super::elements::{ColumnHeading, TableCell, tabulate_rows, write_table_head};
use super::stream_charts;
use super::stream_columns::{ScriptValue, StreamColumn, stream_columns};
use crate::markup::Markup;
use crate::quantity;
use packetrig_report::{RunReport, StreamReport};
use serde::Serialize;
use std::cmp::Reverse;

/// Maximum number of rows of a table that is plain HTML.
const MAX_ROWS: usize = 200;
/// Number of rows if there are more than [`MAX_ROWS`] streams: the table then has only the worst streams.
const MAX_WORST_ROWS: usize = 100;
/// Up to this many streams, each stream gets charts. With more streams, only the `MAX_WORST_CHARTS`
/// worst ones get them.
const MAX_CHARTS: usize = 64;
const MAX_WORST_CHARTS: usize = 16;
/// Maximum number of streams that are all unfolded.
const MAX_UNFOLDED_STREAMS: usize = 4;

/// Returns the streams, those with the worst results first.
pub(super) fn streams_worst_first(report: &RunReport) -> Vec<&StreamReport> {
    let mut streams: Vec<&StreamReport> = report.streams.iter().collect();
    streams.sort_by_key(|stream| {
        // A stream without a report comes first: its loss is unknown, and it may have lost every frame.
        let is_silent = stream.measured && stream.received.is_none();
        // The share of lost frames counts, in billionths: 5 of 5 frames are worse than 1000 of 1 000 000.
        let lost = stream
            .loss
            .map_or(0, |loss| u128::from(loss.lost) * 1_000_000_000 / u128::from(loss.expected.max(1)));
        let unsent = stream.sent.as_ref().map_or(0, |sent| sent.unsent);
        Reverse((is_silent, lost, unsent, stream.latency.map(|latency| latency.p99)))
    });
    streams
}

/// Writes the table of streams.
pub(super) fn write_table(page: &mut Markup, report: &RunReport) {
    let columns = stream_columns();
    let headings: Vec<ColumnHeading> = columns.iter().map(|column| column.heading).collect();
    let row = |stream: &&StreamReport| -> Vec<TableCell> {
        columns.iter().map(|column| column.stream_cell(stream)).collect()
    };
    let count = report.streams.len();
    page.open_element("p", &[("class", "muted")])
        .add_text("Times are one-way latency. A dash means that a value was not measured. ");
    page.add_text("All columns of all streams are in ")
        .add_element("a", &[("href", "streams.csv")], "streams.csv")
        .add_text(".")
        .close_element("p");
    if count <= MAX_ROWS {
        let rows: Vec<Vec<TableCell>> = report.streams.iter().map(|stream| row(&stream)).collect();
        return tabulate_rows(page, "Streams", Some("streams-table"), &headings, &rows);
    }
    let worst = streams_worst_first(report);
    // The script replaces this table with all streams. Without the script, the table stays and names the file
    // with the remaining streams.
    page.open_element("div", &[("id", "streams-worst")]);
    let label = format!("The {MAX_WORST_ROWS} worst of {} streams", quantity::format_count(count as u64));
    page.add_element(
        "p",
        &[("class", "notice")],
        &format!("{label}: those with the largest loss, then the slowest."),
    );
    let rows: Vec<Vec<TableCell>> = worst.iter().take(MAX_WORST_ROWS).map(row).collect();
    tabulate_rows(page, &label, None, &headings, &rows);
    page.close_element("div");
    write_all_rows(page, report, &columns, &headings);
}

/// Writes all streams as data for the page's script, with the empty table that it fills.
fn write_all_rows(
    page: &mut Markup,
    report: &RunReport,
    columns: &[StreamColumn],
    headings: &[ColumnHeading],
) {
    #[derive(Serialize)]
    struct StreamRows<'a> {
        forms: Vec<&'a str>,
        /// One list for each column.
        columns: Vec<Vec<Option<ScriptValue>>>,
    }
    let count = report.streams.len();
    page.open_element("div", &[("id", "streams-all"), ("hidden", "")]);
    page.open_element(
        "div",
        &[
            ("class", "table-box virtual-box"),
            ("tabindex", "0"),
            ("role", "group"),
            ("aria-label", "All streams; scrolls"),
        ],
    );
    page.open_element("table", &[("id", "streams-virtual"), ("aria-rowcount", &(count + 1).to_string())]);
    page.add_element("caption", &[("class", "visually-hidden")], "All streams");
    write_table_head(page, headings);
    page.add_element("tbody", &[], "").close_element("table").close_element("div").close_element("div");
    // One JSON array for each column is shorter than one object for each stream.
    let values = columns
        .iter()
        .map(|column| report.streams.iter().map(|stream| column.script_value_of_stream(stream)).collect());
    let forms = columns.iter().map(StreamColumn::form).collect();
    page.add_json_data("streams-data", &StreamRows { forms, columns: values.collect() });
}

/// Writes charts and figures of single streams.
pub(super) fn write_single_streams(page: &mut Markup, report: &RunReport) {
    let count = report.streams.len();
    let shown: Vec<&StreamReport> = if count <= MAX_CHARTS {
        report.streams.iter().collect()
    } else {
        streams_worst_first(report).into_iter().take(MAX_WORST_CHARTS).collect()
    };
    if shown.len() < count {
        let text = format!(
            "The {MAX_WORST_CHARTS} streams with the worst results, of {}. Each second of every stream is in ",
            quantity::format_count(count as u64)
        );
        page.open_element("p", &[("class", "notice")]).add_text(&text);
        page.add_element("a", &[("href", "series.csv")], "series.csv").add_text(" and ");
        page.add_element("a", &[("href", "quality.csv")], "quality.csv").add_text(".").close_element("p");
    }
    let most_columns = stream_charts::choose_columns_per_series(shown.len());
    for (index, stream) in shown.iter().enumerate() {
        // The first one is always open, so that a reader sees what kind of content the folded ones have.
        let is_open = shown.len() <= MAX_UNFOLDED_STREAMS || index == 0;
        let mut attributes = vec![("class", "stream"), ("data-name", stream.name.as_str())];
        if is_open {
            attributes.push(("open", ""));
        }
        page.open_element("details", &attributes).open_element("summary", &[]);
        page.add_element("h3", &[], &stream.name).add_text(" ");
        page.add_element("span", &[("class", "muted")], &summarise_stream(stream)).close_element("summary");
        stream_charts::write_stream_section(page, stream, report, most_columns);
        page.close_element("details");
    }
}

/// The summary line of a folded stream.
fn summarise_stream(stream: &StreamReport) -> String {
    let route = format!("{} → {}", stream.tx_port, stream.rx_ports.join(", "));
    let loss = match stream.loss {
        Some(loss) => {
            format!(
                "lost {} ({})",
                quantity::format_count(loss.lost),
                quantity::format_percent(loss.lost, loss.expected)
            )
        }
        None => "loss not measured".to_owned(),
    };
    match stream.latency {
        Some(latency) => format!("{route}; {loss}; latency p99 {}", quantity::format_time(latency.p99)),
        None => format!("{route}; {loss}"),
    }
}
