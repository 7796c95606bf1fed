//! Draws the tables of streams and ports. The server crate defines their columns. A table that is too wide for the
//! screen omits columns by their rank, the highest rank first.

use super::super::facts::{
    LiveRow, RunFacts, format_bit_rate_or_dash, format_latency_or_dash, format_rate_or_dash, make_printable,
    parse_api_count,
};
use super::super::state::{SelectedPane, StreamControl, WatchState};
use super::{ScreenRows, Theme, draw_line};
use crate::numbers;
use packetrig_report::columns::ColumnKind;
use packetrig_server::{LiveColumn, PORT_COLUMNS, STREAM_COLUMNS, WatchColumn};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use serde_json::Value;
use std::iter;

const TABLE_COLUMN_SPACING: u16 = 1;
/// Name of the API column with the sending port. The screen also shows the receiving port there, to save a column.
const ROUTE_COLUMN: &str = "port_tx";

/// A column of the API that the screen shows.
#[derive(Clone, Copy)]
struct ShownColumn {
    /// Name of the column in the API.
    name: &'static str,
    kind: ColumnKind,
    form: WatchColumn,
}

fn shown_columns<R>(columns: &[LiveColumn<R>]) -> Vec<ShownColumn> {
    let shown = columns.iter().filter_map(|column| Some((column, column.watch?)));
    shown.map(|(column, form)| ShownColumn { name: column.name, kind: column.kind, form }).collect()
}

impl ShownColumn {
    fn format_cell(&self, row: &impl LiveRow) -> String {
        let value = row.value(self.name);
        let width = usize::from(self.form.width);
        match (self.name, self.kind) {
            ("state", _) => stream_state_text(text_or_empty(value)),
            (ROUTE_COLUMN, _) => format_route(row),
            (_, ColumnKind::Text) => value.as_str().map_or_else(dash_text, make_printable),
            (_, ColumnKind::YesNo) => link_state_name(value.as_bool()),
            (_, ColumnKind::Percent) => format_percent_or_dash(value.as_f64()),
            (_, ColumnKind::Nanoseconds) => format_latency_or_dash(value.as_f64()),
            (_, ColumnKind::BytesPerSecond) => format_bit_rate_or_dash(value.as_f64()),
            (_, ColumnKind::BitsPerSecond) => format_rate_or_dash(value.as_f64(), "bit/s"),
            (_, ColumnKind::FramesPerSecond) => format_rate_or_dash(value.as_f64(), ""),
            _ => format_count_to_width(parse_api_count(value), width),
        }
    }
}

fn format_route(row: &impl LiveRow) -> String {
    make_printable(&format!(
        "{} > {}",
        text_or_empty(row.value(ROUTE_COLUMN)),
        text_or_empty(row.value("port_rx"))
    ))
}

fn text_or_empty(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn dash_text() -> String {
    "–".to_owned()
}

fn stream_state_text(state: &str) -> String {
    match state {
        // The API's word is that of the command `start`, but the user wants to know what the stream does.
        "started" => "sends".to_owned(),
        other => make_printable(other),
    }
}

fn link_state_name(is_up: Option<bool>) -> String {
    is_up.map_or("?", |is_up| if is_up { "up" } else { "DOWN" }).to_owned()
}

fn format_percent_or_dash(value: Option<f64>) -> String {
    value.map_or_else(dash_text, |value| {
        if value > 0.0 && value < 0.01 { "< 0.01 %".to_owned() } else { format!("{value:.2} %") }
    })
}

/// Formats a count with all digits if they fit into `width`, otherwise rounded.
fn format_count_to_width(count: Option<u64>, width: usize) -> String {
    let Some(count) = count else { return dash_text() };
    let exact = numbers::format_count(count);
    // Numbers are never cut: the beginning of a long number would read as a smaller one.
    if exact.len() <= width { exact } else { format_rate_or_dash(Some(count as f64), "") }
}

pub(super) fn draw_streams(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &WatchState,
    run: &RunFacts,
    theme: Theme,
) {
    let streams = &run.streams;
    // The filter is in the heading, because a forgotten filter would look like missing streams.
    let filter = if state.filter.is_empty() {
        String::new()
    } else {
        format!(" with `{}`", make_printable(&state.filter))
    };
    let order = format!("by {}{}", state.sort_name(), if state.is_reversed { ", reversed" } else { "" });
    let target = if state.control == StreamControl::Allowed {
        format!("; keys act on {}", state.describe_key_target())
    } else {
        String::new()
    };
    let heading = format!("{} of {} streams{filter}, {order}{target}", streams.matching, streams.total);
    let mut rows = ScreenRows { left: area };
    draw_line(frame, rows.take_top_rows(1), Line::styled(heading, Theme::title_style()));
    let page = usize::from(rows.left.height.saturating_sub(1));
    let first = choose_first_row(state.selected_place(), page, streams.matching);
    let places = first..(first + page).min(streams.matching);
    let shown: Vec<_> = places
        .map(|place| {
            let style = if place == state.selected_place() { Theme::selected_style() } else { Style::new() };
            (streams.row_at(place), style)
        })
        .collect();
    draw_table(frame, rows.left, shown_columns(STREAM_COLUMNS), &shown, state.sort_column(), theme);
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
        rows.take_top_rows(1),
        Line::styled(format!("{} ports", run.ports.len()), Theme::title_style()),
    );
    let first = if state.pane == SelectedPane::Ports { state.first_port } else { 0 };
    let page = usize::from(rows.left.height.saturating_sub(1));
    let shown: Vec<_> =
        run.ports.iter().skip(first).take(page).map(|port| (Some(port), Style::new())).collect();
    draw_table(frame, rows.left, shown_columns(PORT_COLUMNS), &shown, ("", false), theme);
}

/// Returns the index of the first row to show, so that the selected row is in the middle of the page if possible.
pub(super) fn choose_first_row(selected: usize, page: usize, count: usize) -> usize {
    selected.saturating_sub(page / 2).min(count.saturating_sub(page))
}

/// Draws rows of a table. `None` stands for a row that the server has not sent yet.
fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: Vec<ShownColumn>,
    rows: &[(Option<impl LiveRow>, Style)],
    (sort, is_descending): (&str, bool),
    theme: Theme,
) {
    let shown = columns_that_fit(columns, area.width);
    // The user cannot sort ports: `sort` is empty for them.
    let titles = shown.iter().enumerate().map(|(index, column)| {
        let mark = match (!sort.is_empty() && column.name == sort, is_descending) {
            (false, _) => "",
            (true, true) => "↓",
            (true, false) => "↑",
        };
        align_cell(index, format!("{}{mark}", column.form.heading))
    });
    let other_widths: u16 = shown.iter().skip(1).map(|column| column.form.width + TABLE_COLUMN_SPACING).sum();
    let name_width = area.width.saturating_sub(other_widths);
    let names = list_row_names(&shown, rows);
    let lines = rows.iter().zip(names).map(|((row, style), name)| {
        let others = shown.iter().enumerate().skip(1).map(|(index, column)| {
            let text = row.as_ref().map_or_else(pending_row_text, |row| column.format_cell(row));
            align_cell(index, elide_middle(&text, column.form.width))
        });
        Row::new(iter::once(align_cell(0, elide_middle(&name, name_width))).chain(others)).style(*style)
    });
    let widths = shown.iter().enumerate().map(|(index, column)| {
        if index == 0 { Constraint::Min(column.form.width) } else { Constraint::Length(column.form.width) }
    });
    let table = Table::new(lines, widths)
        .header(Row::new(titles).style(theme.faint_style()))
        .column_spacing(TABLE_COLUMN_SPACING);
    frame.render_widget(table, area);
}

/// Returns the names of the rows. The routes of a flow have the same name: if the table has no column for the route,
/// the route is appended to such a name.
fn list_row_names(shown: &[ShownColumn], rows: &[(Option<impl LiveRow>, Style)]) -> Vec<String> {
    let Some(column) = shown.first() else { return Vec::new() };
    let has_route = shown.iter().any(|column| column.name == ROUTE_COLUMN);
    let names: Vec<Option<String>> =
        rows.iter().map(|(row, _)| row.as_ref().map(|row| column.format_cell(row))).collect();
    rows.iter()
        .zip(&names)
        .map(|((row, _), name)| match (row, name) {
            (Some(row), Some(name)) if !has_route && !is_unique_name(&names, name) => {
                format!("{name} {}", format_route(row))
            }
            (_, Some(name)) => name.clone(),
            (_, None) => pending_row_text(),
        })
        .collect()
}

fn is_unique_name(names: &[Option<String>], name: &str) -> bool {
    names.iter().flatten().filter(|other| *other == name).count() == 1
}

/// Returns the text of a cell whose row the server has not sent yet.
fn pending_row_text() -> String {
    "…".to_owned()
}

/// Shortens a text to `width` characters by an ellipsis in its middle: many names differ only at their ends.
fn elide_middle(text: &str, width: u16) -> String {
    let (length, width) = (text.chars().count(), usize::from(width));
    if length <= width {
        return text.to_owned();
    }
    let Some(kept) = width.checked_sub(1) else { return String::new() };
    let end = kept.div_ceil(2);
    text.chars().take(kept - end).chain(['…']).chain(text.chars().skip(length - end)).collect()
}

/// Makes a cell of the column `index`. The first column has names and is aligned left; other columns are aligned right.
fn align_cell(index: usize, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if index == 0 { line } else { line.right_aligned() })
}

/// Removes columns, highest rank first, until the others fit into `width`. One column always remains.
fn columns_that_fit(mut shown: Vec<ShownColumn>, width: u16) -> Vec<ShownColumn> {
    while shown.len() > 1
        && shown.iter().map(|column| column.form.width + TABLE_COLUMN_SPACING).sum::<u16>()
            > width + TABLE_COLUMN_SPACING
    {
        // Of equal ranks, the column farthest to the right is left out first.
        let last = shown.iter().enumerate().max_by_key(|(index, column)| (column.form.rank, *index));
        let Some(index) = last.map(|(index, _)| index) else { break };
        shown.remove(index);
    }
    shown
}
