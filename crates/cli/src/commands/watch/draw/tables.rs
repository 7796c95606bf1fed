//! The tables of streams and ports. If they are too wide, columns are left out by their rank, the highest first.

use super::super::facts::{
    PortFacts, RunFacts, StreamRow, bit_rate_text, latency_text, make_printable, rate_text,
};
use super::super::state::{Pane, StreamControl, WatchState};
use super::{ScreenRows, Theme, draw_line};
use crate::numbers;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};

const SPACING: u16 = 1;

/// A column of a table of `T`.
struct TableColumn<T> {
    title: &'static str,
    /// Name of the column in the API, for sorting.
    sort: &'static str,
    /// Smallest width; the first column gets the remaining space.
    width: u16,
    rank: u8,
    text: fn(&T, usize) -> String,
}

const STREAM_COLUMNS: [TableColumn<StreamRow>; 13] = [
    make_column("Stream", "name", 12, 0, |row, _| make_printable(&row.name)),
    make_column("State", "state", 8, 1, |row, _| state_word(&row.state)),
    make_column("Sent", "frames_tx", 11, 3, |row, width| fitting_count(Some(row.frames_tx), width)),
    make_column("Received", "frames_rx", 11, 2, |row, width| fitting_count(row.frames_rx, width)),
    make_column("Lost", "lost", 10, 1, |row, width| fitting_count(row.lost, width)),
    make_column("Loss", "loss_percent", 9, 5, |row, _| percent_text(row.loss_percent)),
    make_column("Frames/s", "frames_tx_rate", 9, 2, |row, _| rate_text(row.frames_tx_rate, "")),
    make_column("Rec. f/s", "frames_rx_rate", 9, 4, |row, _| rate_text(row.frames_rx_rate, "")),
    make_column("L2 rate", "bytes_tx_rate", 12, 6, |row, _| bit_rate_text(row.bytes_tx_rate)),
    make_column("Latency", "latency_mean_ns", 9, 3, |row, _| latency_text(row.latency_mean_ns)),
    make_column("Max.", "latency_max_ns", 9, 6, |row, _| latency_text(row.latency_max_ns)),
    make_column("In flight?", "in_flight_or_lost", 10, 6, |row, width| {
        fitting_count(row.in_flight_or_lost, width)
    }),
    make_column("Ports", "port_tx", 20, 7, |row, _| make_printable(&row.ports)),
];

const PORT_COLUMNS: [TableColumn<PortFacts>; 10] = [
    make_column("Port", "", 10, 0, |row, _| make_printable(&row.name)),
    make_column("Link", "", 4, 1, |row, _| link_word(row.link_up)),
    make_column("Sent", "", 11, 2, |row, width| fitting_count(Some(row.frames_tx.0), width)),
    make_column("Received", "", 11, 2, |row, width| fitting_count(Some(row.frames_rx.0), width)),
    make_column("Dropped", "", 8, 1, |row, width| fitting_count(row.dropped_frames(), width)),
    make_column("Sent f/s", "", 9, 3, |row, _| rate_text(row.frames_tx_rate, "")),
    make_column("Rec. f/s", "", 9, 3, |row, _| rate_text(row.frames_rx_rate, "")),
    make_column("Back end", "", 9, 5, |row, _| {
        row.back_end.as_deref().map_or_else(dash_text, make_printable)
    }),
    make_column("Speed", "", 11, 6, |row, _| {
        row.speed_bits_per_second.map_or_else(dash_text, |bits| rate_text(Some(bits as f64), "bit/s"))
    }),
    make_column("Location", "", 20, 7, |row, _| make_printable(&row.location)),
];

const fn make_column<T>(
    title: &'static str,
    sort: &'static str,
    width: u16,
    rank: u8,
    text: fn(&T, usize) -> String,
) -> TableColumn<T> {
    TableColumn { title, sort, width, rank, text }
}

fn dash_text() -> String {
    "–".to_owned()
}

fn state_word(state: &str) -> String {
    match state {
        // The API's word is about the order, and the user looks for what the stream does.
        "started" => "sends".to_owned(),
        other => make_printable(other),
    }
}

fn link_word(is_up: Option<bool>) -> String {
    is_up.map_or("?", |is_up| if is_up { "up" } else { "DOWN" }).to_owned()
}

fn percent_text(value: Option<f64>) -> String {
    value.map_or_else(dash_text, |value| {
        if value > 0.0 && value < 0.01 { "< 0.01 %".to_owned() } else { format!("{value:.2} %") }
    })
}

/// Formats a count with all digits if they fit, otherwise its magnitude.
fn fitting_count(count: Option<u64>, width: usize) -> String {
    let Some(count) = count else { return dash_text() };
    let exact = numbers::format_count(count);
    // Never cut: the beginning of a long number would be read as a smaller one.
    if exact.len() <= width { exact } else { rate_text(Some(count as f64), "") }
}

pub(super) fn draw_streams(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &WatchState,
    run: &RunFacts,
    theme: Theme,
) {
    let streams = &run.streams;
    // In the heading, because a filter that is forgotten would look like missing streams.
    let filter = if state.filter.is_empty() {
        String::new()
    } else {
        format!(" with `{}`", make_printable(&state.filter))
    };
    let order = format!("by {}{}", state.sort_name(), if state.is_reversed { ", reversed" } else { "" });
    let target = if state.control == StreamControl::Allowed {
        format!("; keys act on {}", state.target_text())
    } else {
        String::new()
    };
    let heading = format!("{} of {} streams{filter}, {order}{target}", streams.matching, streams.total);
    let mut rows = ScreenRows { left: area };
    draw_line(frame, rows.take_rows(1), Line::styled(heading, Theme::title_style()));
    let page = usize::from(rows.left.height.saturating_sub(1));
    let first = first_row(state.selected_place(), page, streams.matching);
    let places = first..(first + page).min(streams.matching);
    let shown: Vec<(StreamRow, Style)> = places
        .map(|place| {
            let missing = StreamRow { name: "…".to_owned(), ..StreamRow::default() };
            let style = if place == state.selected_place() { Theme::selected_style() } else { Style::new() };
            // The server has been asked for missing rows and will send them.
            (streams.row_at(place).unwrap_or(missing), style)
        })
        .collect();
    draw_table(frame, rows.left, &STREAM_COLUMNS, &shown, state.sort_column(), theme);
}

pub(super) fn draw_ports(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &WatchState,
    run: &RunFacts,
    theme: Theme,
) {
    let mut rows = ScreenRows { left: area };
    draw_line(
        frame,
        rows.take_rows(1),
        Line::styled(format!("{} ports", run.ports.len()), Theme::title_style()),
    );
    let first = if state.pane == Pane::Ports { state.first_port } else { 0 };
    let page = usize::from(rows.left.height.saturating_sub(1));
    let shown: Vec<(PortFacts, Style)> =
        run.ports.iter().skip(first).take(page).map(|port| (port.clone(), Style::new())).collect();
    draw_table(frame, rows.left, &PORT_COLUMNS, &shown, ("", false), theme);
}

/// Returns the first row of a page that has the selected one in its middle, if possible.
pub(super) fn first_row(selected: usize, page: usize, count: usize) -> usize {
    selected.saturating_sub(page / 2).min(count.saturating_sub(page))
}

fn draw_table<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[TableColumn<T>],
    rows: &[(T, Style)],
    (sort, is_descending): (&str, bool),
    theme: Theme,
) {
    let shown = fitting_columns(columns, area.width);
    let cell = |index: usize, text: String| {
        let line = Line::from(text);
        // Names to the left, numbers to the right.
        Cell::from(if index == 0 { line } else { line.right_aligned() })
    };
    let titles = shown.iter().enumerate().map(|(index, column)| {
        // Ports have no order of their own, and their columns have no name in the API.
        let is_sorted = !sort.is_empty() && column.sort == sort;
        let mark = if !is_sorted {
            ""
        } else if is_descending {
            "↓"
        } else {
            "↑"
        };
        cell(index, format!("{}{mark}", column.title))
    });
    let lines = rows.iter().map(|(row, style)| {
        let cells = shown
            .iter()
            .enumerate()
            .map(|(index, column)| cell(index, (column.text)(row, usize::from(column.width))));
        Row::new(cells).style(*style)
    });
    let widths = shown.iter().enumerate().map(|(index, column)| {
        if index == 0 { Constraint::Min(column.width) } else { Constraint::Length(column.width) }
    });
    let table =
        Table::new(lines, widths).header(Row::new(titles).style(theme.faint_style())).column_spacing(SPACING);
    frame.render_widget(table, area);
}

/// The columns that fit into this width.
fn fitting_columns<T>(columns: &[TableColumn<T>], width: u16) -> Vec<&TableColumn<T>> {
    let mut shown: Vec<&TableColumn<T>> = columns.iter().collect();
    while shown.len() > 1 && shown.iter().map(|column| column.width + SPACING).sum::<u16>() > width + SPACING
    {
        // Of equal ranks, the column farthest to the right is left out first.
        let last = shown.iter().enumerate().max_by_key(|(index, column)| (column.rank, *index));
        let Some(index) = last.map(|(index, _)| index) else { break };
        shown.remove(index);
    }
    shown
}
