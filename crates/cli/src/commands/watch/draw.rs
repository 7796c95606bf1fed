//! Draws the screen. A low screen omits the table that is not selected; a lower one also omits the ledger and the
//! latency. A narrow screen omits columns of tables. No meaning is carried by colour alone.

mod ledger;
mod tables;

use super::facts::{
    RunFacts, format_bit_rate_or_dash, format_latency_or_dash, format_rate_or_dash, make_printable,
};
use super::keys::KEY_HANDLERS;
use super::rates::RatePoint;
use super::state::{EntryKind, SelectedPane, ServerConnection, WatchState};
use crate::numbers;
use packetrig_units::clamp_to_u16;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline};

/// Lowest height of a screen that shows the ledger and the latency, in rows.
const MIN_ROWS_FOR_LEDGER: u16 = 24;
/// Lowest height of a screen that shows both tables, streams and ports, in rows.
const MIN_ROWS_FOR_BOTH_TABLES: u16 = 32;
/// Width of a line of totals, in columns; the sparkline follows it.
const TOTALS_WIDTH: u16 = 54;
/// Smallest width of a sparkline, in columns.
const MIN_SPARKLINE_COLUMNS: u16 = 10;

/// Text styles of the screen, with colours or without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    is_coloured: bool,
}

impl Theme {
    pub(super) const fn new(is_coloured: bool) -> Self {
        Self { is_coloured }
    }

    /// Style of titles. It has no colour, so that it looks the same on every terminal.
    fn title_style() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn selected_style() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    fn faint_style(self) -> Style {
        if self.is_coloured { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    fn bad_style(self) -> Style {
        self.coloured_style(Color::Red)
    }

    fn good_style(self) -> Style {
        self.coloured_style(Color::Green)
    }

    fn doubtful_style(self) -> Style {
        self.coloured_style(Color::Yellow)
    }

    fn coloured_style(self, colour: Color) -> Style {
        if self.is_coloured { Self::title_style().fg(colour) } else { Self::title_style() }
    }
}

/// Rows of the screen that are not drawn yet.
struct ScreenRows {
    left: Rect,
}

impl ScreenRows {
    /// Takes `height` rows from the top, or all rows that are left if there are fewer.
    fn take_top_rows(&mut self, height: u16) -> Rect {
        let height = height.min(self.left.height);
        let taken = Rect { height, ..self.left };
        self.left.y += height;
        self.left.height -= height;
        taken
    }

    fn take_rows_from_bottom(&mut self, height: u16) -> Rect {
        let height = height.min(self.left.height);
        self.left.height -= height;
        Rect { y: self.left.y + self.left.height, height, ..self.left }
    }
}

pub(super) fn draw_screen(frame: &mut Frame<'_>, state: &WatchState, theme: Theme) {
    let screen = frame.area();
    let mut rows = ScreenRows { left: screen };
    draw_line(frame, rows.take_top_rows(1), build_title_line(state, theme));
    // These rows are reserved at the bottom first: on a low screen, keys and messages matter more than a table.
    draw_line(frame, rows.take_rows_from_bottom(1), build_legend_line(state, screen.width, theme));
    draw_line(frame, rows.take_rows_from_bottom(1), build_message_line(state));
    if state.is_helping {
        return draw_help(frame, rows.left);
    }
    let Some(run) = state.shown_run() else {
        let text = if state.link == ServerConnection::Connecting {
            "Connecting …"
        } else {
            "The server has no configuration yet. Send one over its API, or load one on its page (/ui/)."
        };
        return draw_line(frame, rows.take_top_rows(1), Line::from(text));
    };
    draw_line(frame, rows.take_top_rows(1), format_run_line(run));
    draw_line(frame, rows.take_top_rows(1), build_losses_and_remark_line(run, theme));
    draw_totals(frame, &mut rows, state, run);
    // A series of probes has no accounts: its ledger would show nothing but their names.
    if screen.height >= MIN_ROWS_FOR_LEDGER && !run.ledger.is_empty() {
        ledger::draw_ledger(frame, rows.take_top_rows(ledger::LEDGER_ROWS), run, theme);
    } else {
        draw_line(frame, rows.take_top_rows(1), build_losses_line(run, theme));
    }
    draw_tables(frame, rows, state, run, theme);
}

fn draw_tables(
    frame: &mut Frame<'_>,
    mut rows: ScreenRows,
    state: &WatchState,
    run: &RunFacts,
    theme: Theme,
) {
    let has_both = frame.area().height >= MIN_ROWS_FOR_BOTH_TABLES;
    // The second table gets the rows that it needs, at most a third of the rows that are left.
    let needed = |count: usize| clamp_to_u16(count + 2).min(rows.left.height / 3);
    match state.pane {
        SelectedPane::Streams => {
            if has_both {
                tables::draw_ports(
                    frame,
                    rows.take_rows_from_bottom(needed(run.ports.len())),
                    state,
                    run,
                    theme,
                );
            }
            tables::draw_streams(frame, rows.left, state, run, theme);
        }
        SelectedPane::Ports => {
            if has_both {
                tables::draw_streams(
                    frame,
                    rows.take_rows_from_bottom(needed(run.streams.matching)),
                    state,
                    run,
                    theme,
                );
            }
            tables::draw_ports(frame, rows.left, state, run, theme);
        }
    }
}

/// Draws a line. A line that is too long ends with an ellipsis.
fn draw_line(frame: &mut Frame<'_>, area: Rect, line: Line<'_>) {
    // Blanks at the end may be cut off: nothing is missing then.
    let is_cut = Line::from(line.to_string().trim_end()).width() > usize::from(area.width);
    frame.render_widget(Paragraph::new(line), area);
    if is_cut && !area.is_empty() {
        frame.buffer_mut()[(area.right() - 1, area.y)].set_symbol("…");
    }
}

fn build_title_line(state: &WatchState, theme: Theme) -> Line<'static> {
    let link = match &state.link {
        ServerConnection::Connecting => Span::styled("connecting".to_owned(), theme.doubtful_style()),
        ServerConnection::Connected => Span::styled("connected".to_owned(), theme.good_style()),
        ServerConnection::Lost(reason) => {
            Span::styled(format!("LOST, trying again: {reason}"), theme.bad_style())
        }
    };
    let mut spans =
        vec![Span::styled(format!("packetrig watch {}  ", state.server), Theme::title_style()), link];
    // `FROZEN` is beside the title, because a frozen view must not be mistaken for the present state.
    if state.is_frozen() {
        spans.insert(1, Span::styled("FROZEN  ", theme.doubtful_style()));
    }
    Line::from(spans)
}

fn format_run_line(run: &RunFacts) -> Line<'static> {
    // A configuration without a run has no id: the server has the configuration, but has opened no port yet.
    let id = run.id.as_deref().map_or_else(|| "of this server".to_owned(), make_printable);
    let state = run.ended.as_ref().map_or_else(
        || run.state.as_deref().map_or_else(|| "opening".to_owned(), make_printable),
        |why| format!("ended: {}", make_printable(why)),
    );
    let paused =
        if run.totals.paused > 0 { format!(", {} paused", run.totals.paused) } else { String::new() };
    let (started, total) = (run.totals.started, run.streams.total);
    let seconds = run.elapsed_ms as f64 / 1000.0;
    Line::from(format!("{started} of {total} streams send{paused}; {seconds:.1} s; {state}; run {id}"))
}

/// Builds the line with the losses so far and the latest remark. The verdict comes only at the end of the run.
fn build_losses_and_remark_line(run: &RunFacts, theme: Theme) -> Line<'static> {
    let losses = &run.losses;
    let style = if losses.lost.0 > 0 { theme.bad_style() } else { theme.good_style() };
    let mut spans = vec![Span::raw("So far: "), Span::styled(losses.loss_sentence(), style)];
    if let Some(finding) = run.findings.last() {
        let number = run.findings.len();
        spans.push(Span::raw(format!("; remark {number}: {}", make_printable(finding))));
    }
    Line::from(spans)
}

fn draw_totals(frame: &mut Frame<'_>, rows: &mut ScreenRows, state: &WatchState, run: &RunFacts) {
    let totals = &run.totals;
    let line = |name: &str, count: u64, frames: Option<f64>, bytes: Option<f64>| {
        let (count, frames) = (numbers::format_count(count), format_rate_or_dash(frames, "pps"));
        format!("{name:<9}{count:>15} {frames:>11} {:>13} L2", format_bit_rate_or_dash(bytes))
    };
    let sent = line("Sent", totals.frames_tx.0, totals.frames_tx_rate, totals.bytes_tx_rate);
    draw_rate(frame, rows.take_top_rows(1), state, sent, |point| point.sent);
    let received = line("Received", totals.frames_rx.0, totals.frames_rx_rate, totals.bytes_rx_rate);
    draw_rate(frame, rows.take_top_rows(1), state, received, |point| point.received);
    if frame.area().height >= MIN_ROWS_FOR_LEDGER {
        // Absent figures become dashes: a run without latency has the line, too, so the lines
        // below keep their places.
        let figures = totals.latency_ns.unwrap_or_default();
        let [min, mean, max] = [figures.min, figures.mean, figures.max].map(format_latency_or_dash);
        draw_line(
            frame,
            rows.take_top_rows(1),
            Line::from(format!("Latency  min {min}, mean {mean}, max {max}")),
        );
    }
}

/// Draws a line of totals and, if there is room on its right, a sparkline of the latest rates. Its scale begins at 0.
fn draw_rate(frame: &mut Frame<'_>, area: Rect, state: &WatchState, line: String, of: fn(&RatePoint) -> f64) {
    draw_line(frame, area, Line::from(line));
    let x = area.x + TOTALS_WIDTH;
    let Some(width) = area.width.checked_sub(TOTALS_WIDTH).filter(|width| *width >= MIN_SPARKLINE_COLUMNS)
    else {
        return;
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast saturates; only heights are drawn"
    )]
    let values: Vec<u64> = state
        .shown_snapshot()
        .rates
        .latest_rate_points(usize::from(width))
        .map(|point| of(point).round() as u64)
        .collect();
    frame.render_widget(Sparkline::default().data(values), Rect { x, width, ..area });
}

/// Builds the line with the losses in our sender, on the path and in our receiver.
fn build_losses_line(run: &RunFacts, theme: Theme) -> Line<'static> {
    let mut spans = vec![Span::raw("Lost")];
    let short_names = [": sender ", " | path or in doubt ", " | receiver "];
    for ((_, count), name) in run.losses.losses_by_place().into_iter().zip(short_names) {
        spans.push(Span::raw(name));
        // An unknown count is shown as a question mark and not as 0: frames may be lost there that nothing counts.
        let text = count.map_or_else(|| "?".to_owned(), numbers::format_count);
        spans.push(Span::styled(text, ledger::loss_style(count, theme)));
    }
    Line::from(spans)
}

fn build_message_line(state: &WatchState) -> Line<'static> {
    let Some(entry) = &state.entry else { return Line::from(state.message.clone()) };
    let name = match entry.kind {
        EntryKind::Filter => "Filter by name or port",
        EntryKind::Rate => "New rate, such as 2kpps, 10Mbit/s or 50%",
    };
    let text = make_printable(&entry.text);
    Line::from(vec![
        Span::styled(format!("{name}: {text}"), Theme::title_style()),
        Span::styled(" ", Theme::selected_style()),
    ])
}

/// Builds the line of keys at the bottom, with as many keys as the width permits.
fn build_legend_line(state: &WatchState, width: u16, theme: Theme) -> Line<'static> {
    if state.entry.is_some() {
        return Line::from("Enter apply  Esc cancel");
    }
    let mut spans = Vec::new();
    let mut used = 0;
    for handler in KEY_HANDLERS.iter().filter(|handler| !handler.word.is_empty()) {
        // A key that would be refused is not offered.
        if handler.changes_run() && state.control.refusal().is_some() {
            continue;
        }
        used += handler.key.len() + handler.word.len() + 3;
        // The two blanks after the last key may be cut off.
        if used > usize::from(width) + 2 {
            break;
        }
        spans.push(Span::styled(handler.key, Theme::title_style()));
        spans.push(Span::styled(format!(" {}  ", handler.word), theme.faint_style()));
    }
    Line::from(spans)
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    // The keys use two columns if one column is not high enough.
    let height = usize::from(area.height).max(1);
    // The help page must list all keys: users look there for keys that the legend omits.
    let columns = KEY_HANDLERS.len().div_ceil(height).max(1);
    let width = area.width / u16::try_from(columns).unwrap_or(1);
    for (index, handlers) in KEY_HANDLERS.chunks(height).enumerate() {
        let x = area.x + width * u16::try_from(index).unwrap_or(0);
        let lines: Vec<Line<'_>> = handlers
            .iter()
            .map(|handler| {
                let key = Span::styled(format!("{:<9}", handler.key), Theme::title_style());
                Line::from(vec![key, Span::raw(handler.explanation)])
            })
            .collect();
        frame.render_widget(Paragraph::new(lines), Rect { x, width, ..area });
    }
}
