//! State of the screen: the latest facts of the server, and the user's choices. No I/O: callers pass events and keys.

use super::facts::{LiveFacts, RunFacts, StreamRow, make_printable};
use super::follow::WatchEvent;
use super::orders::{OrderedChange, StreamCommand};
use super::rates::RateHistory;
use packetrig_report::columns::ColumnKind;
use packetrig_server::STREAM_COLUMNS;
use packetrig_server::client::ServerEvent;
use packetrig_units::Rate;
use ratatui::crossterm::event::KeyCode;
use std::iter;

/// Number of rows that are requested around the selected one. The first requested row is a multiple of `WINDOW_STEP_ROWS`, so
/// most moves of the selection request nothing new.
const REQUESTED_ROWS: usize = 300;
const WINDOW_STEP_ROWS: usize = 100;
/// Longest text that the user can enter, in characters.
const MAX_TEXT: usize = 60;

/// Which rows of streams the server shall send: sort column, filter, first row and number of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamWindow {
    pub(super) sort: String,
    pub(super) filter: String,
    pub(super) from: usize,
    pub(super) rows: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SelectedPane {
    Streams,
    Ports,
}

/// State of the connection to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerConnection {
    Connecting,
    Connected,
    /// The connection was lost for this reason, and the follower tries to connect again.
    Lost(String),
}

/// Whether keys may change the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamControl {
    Allowed,
    /// The token permits only viewing.
    ViewerToken,
    /// The run is that of a command such as `packetrig run`, and nothing can change it.
    PlainRun,
}

impl StreamControl {
    /// Message for a user who presses a key that changes the run; `None` if the key is allowed.
    pub(super) const fn refusal(self) -> Option<&'static str> {
        match self {
            Self::Allowed => None,
            Self::ViewerToken => {
                Some("this token permits only viewing; changes need the token of `serve --token-file`")
            }
            Self::PlainRun => Some("keys cannot change this run; runs of `packetrig serve` can be changed"),
        }
    }
}

/// A text that the user types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypedTextEntry {
    pub(super) kind: EntryKind,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Filter,
    Rate,
}

/// A sort order of the stream table; the key `s` switches to the next one.
#[derive(Clone, Copy, Debug)]
struct StreamOrdering {
    /// Column of the API; empty for the order of the configuration.
    column: &'static str,
    largest_first: bool,
    name: &'static str,
}

impl StreamOrdering {
    const CONFIGURATION: Self = Self { column: "", largest_first: false, name: "configuration" };
}

/// All sort orders, in the sequence in which the key `s` goes through them.
fn stream_orderings() -> impl Iterator<Item = StreamOrdering> {
    let of_columns = STREAM_COLUMNS.iter().filter_map(|column| {
        let name = column.watch?.order?;
        Some(StreamOrdering { column: column.name, largest_first: column.kind != ColumnKind::Text, name })
    });
    iter::once(StreamOrdering::CONFIGURATION).chain(of_columns)
}

/// The latest facts that the server had reported at one moment, and the rates up to then.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchSnapshot {
    pub(super) facts: LiveFacts,
    pub(super) rates: RateHistory,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own that the user sets by a key")]
pub(super) struct WatchState {
    pub(super) server: String,
    pub(super) control: StreamControl,
    pub(super) link: ServerConnection,
    latest: WatchSnapshot,
    frozen: Option<WatchSnapshot>,
    pub(super) pane: SelectedPane,
    sort: usize,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// Position of the selected stream after sorting and filtering, and its name once the server has sent its row.
    selected: usize,
    selected_name: Option<String>,
    /// Index of the first port that is shown.
    pub(super) first_port: usize,
    pub(super) acts_on_all: bool,
    pub(super) entry: Option<TypedTextEntry>,
    pub(super) is_helping: bool,
    /// Text of the line of messages, usually the result of the last key.
    pub(super) message: String,
    pub(super) has_ended: bool,
}

impl WatchState {
    pub(super) fn new(server: String, control: StreamControl) -> Self {
        Self {
            server,
            control,
            link: ServerConnection::Connecting,
            latest: WatchSnapshot::default(),
            frozen: None,
            pane: SelectedPane::Streams,
            sort: 0,
            is_reversed: false,
            filter: String::new(),
            selected: 0,
            selected_name: None,
            first_port: 0,
            acts_on_all: false,
            entry: None,
            is_helping: false,
            message: String::new(),
            has_ended: false,
        }
    }

    /// Returns the snapshot that is shown: the latest one, or the frozen one.
    pub(super) fn shown_snapshot(&self) -> &WatchSnapshot {
        self.frozen.as_ref().unwrap_or(&self.latest)
    }

    pub(super) fn shown_run(&self) -> Option<&RunFacts> {
        self.shown_snapshot().facts.run.as_ref()
    }

    pub(super) const fn is_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// Position of the selected stream after sorting and filtering.
    pub(super) const fn selected_place(&self) -> usize {
        self.selected
    }

    pub(super) fn sort_name(&self) -> &'static str {
        self.sort_order().name
    }

    fn sort_order(&self) -> StreamOrdering {
        stream_orderings().nth(self.sort).unwrap_or(StreamOrdering::CONFIGURATION)
    }

    /// Returns the name of the column that the table is sorted by, and true if its largest value comes first.
    pub(super) fn sort_column(&self) -> (&'static str, bool) {
        let StreamOrdering { column, largest_first, .. } = self.sort_order();
        (column, largest_first != self.is_reversed)
    }

    /// Returns which rows to request from the server: those around the selected stream.
    pub(super) fn stream_window(&self) -> StreamWindow {
        let (column, is_descending) = self.sort_column();
        let sign = if is_descending && !column.is_empty() { "-" } else { "" };
        // The window starts one step before the selection, so that a page around it lies within the requested rows.
        let from = (self.selected / WINDOW_STEP_ROWS).saturating_sub(1) * WINDOW_STEP_ROWS;
        StreamWindow {
            sort: format!("{sign}{column}"),
            filter: self.filter.clone(),
            from,
            rows: REQUESTED_ROWS,
        }
    }

    pub(super) fn on_event(&mut self, event: WatchEvent) {
        match event {
            WatchEvent::Connected => self.link = ServerConnection::Connected,
            WatchEvent::Lost(reason) => self.link = ServerConnection::Lost(make_printable(&reason)),
            WatchEvent::Ended => self.has_ended = true,
            WatchEvent::Server(event) => self.on_server_event(event),
            WatchEvent::Ordered { order, refusal: None } => {
                self.set_message(format!("done: {}", order.description()));
            }
            WatchEvent::Ordered { order, refusal: Some(refusal) } => {
                self.message = format!("{}: {}", order.description(), make_printable(&refusal));
            }
        }
    }

    /// Shows `text` in the line of messages.
    pub(super) fn set_message(&mut self, text: impl Into<String>) {
        self.message = text.into();
    }

    fn on_server_event(&mut self, event: ServerEvent) {
        match event.name.as_str() {
            "history" => self.latest.rates.replace_history(&event.data),
            "live" => match serde_json::from_value::<LiveFacts>(event.data) {
                Ok(facts) => self.set_latest_facts(facts),
                Err(error) => {
                    self.set_message(make_printable(&format!("the server's state cannot be read: {error}")));
                }
            },
            // The server announces its stop, so that the shown reason is not `connection reset`.
            "stopping" => self.link = ServerConnection::Lost("the server is stopping".to_owned()),
            _ => {}
        }
    }

    fn set_latest_facts(&mut self, facts: LiveFacts) {
        if facts.configuration != self.latest.facts.configuration {
            // Streams of another configuration may have the same names.
            self.selected_name = None;
        }
        // The server sends no history when its configuration changes, so the old rates are removed here.
        self.latest.rates.clear_if_other_configuration(facts.configuration);
        // The latest facts are replaced also while the view is frozen: a view that continues shows the present, and
        // commands need the latest configuration.
        self.latest.facts = facts;
        if let Some(run) = &self.latest.facts.run {
            self.latest.rates.add_rates(run);
        }
        self.keep_selection_at_stream();
    }

    /// Keeps the selection at its stream when rows move. If the stream is no longer among the rows, selects the stream
    /// that is now highlighted: keys act only on the highlighted stream.
    fn keep_selection_at_stream(&mut self) {
        let streams = self.shown_run().map(|run| &run.streams);
        let place = streams
            .zip(self.selected_name.as_ref())
            .and_then(|(streams, name)| streams.find_stream_position(name, self.selected));
        // The position is clamped, because a filter or a new configuration may leave fewer rows than before.
        let last = streams.map_or(0, |streams| streams.matching.saturating_sub(1));
        self.selected = place.unwrap_or(self.selected).min(last);
        if place.is_none() {
            self.selected_name = self.selected_row().map(|row| row.name().to_owned());
        }
    }

    pub(super) fn selected_row(&self) -> Option<StreamRow<'_>> {
        self.shown_run()?.streams.row_at(self.selected)
    }

    pub(super) fn move_selection(&mut self, rows: isize) {
        let run = self.shown_snapshot().facts.run.as_ref();
        let last = |count: usize| count.saturating_sub(1);
        if self.pane == SelectedPane::Ports {
            let last = last(run.map_or(0, |run| run.ports.len()));
            self.first_port = self.first_port.saturating_add_signed(rows).min(last);
            return;
        }
        let last = last(run.map_or(0, |run| run.streams.matching));
        // Home and End are the largest steps, which end at the first and the last row.
        self.selected = self.selected.saturating_add_signed(rows).min(last);
        self.selected_name = self.selected_row().map(|row| row.name().to_owned());
    }

    pub(super) fn sort_by_next_column(&mut self) {
        self.sort = (self.sort + 1) % stream_orderings().count();
        self.is_reversed = false;
    }

    pub(super) fn toggle_freeze(&mut self) {
        self.frozen = if self.frozen.is_some() { None } else { Some(self.latest.clone()) };
    }

    pub(super) fn begin_entry(&mut self, kind: EntryKind) {
        // Editing starts with the present filter, but a rate starts empty.
        let text = if kind == EntryKind::Filter { self.filter.clone() } else { String::new() };
        self.entry = Some(TypedTextEntry { kind, text });
    }

    /// Makes the command for the streams that keys act on. Without such a stream, sets a message and returns `None`.
    pub(super) fn make_stream_command(&mut self, change: OrderedChange) -> Option<StreamCommand> {
        if self.latest.facts.run.is_none() {
            self.set_message("there is no configuration, so there are no streams");
            return None;
        }
        let streams = match (self.acts_on_all, &self.selected_name) {
            // In the API, an empty list means all streams.
            (true, _) => Vec::new(),
            (false, Some(name)) => vec![name.clone()],
            (false, None) => {
                self.set_message("no stream is selected; `a` lets keys act on all streams");
                return None;
            }
        };
        let order = StreamCommand { change, streams };
        self.message = format!("{} …", order.description());
        Some(order)
    }

    /// Describes the streams that keys act on.
    pub(super) fn describe_key_target(&self) -> String {
        match (self.acts_on_all, &self.selected_name) {
            (true, _) => "all streams".to_owned(),
            (false, Some(name)) => make_printable(name),
            (false, None) => "none".to_owned(),
        }
    }

    /// Handles a key while the user enters a text. Enter may return a command; Escape drops the text.
    pub(super) fn on_entry_key(&mut self, code: KeyCode) -> Option<StreamCommand> {
        let entry = self.entry.as_mut()?;
        match code {
            KeyCode::Char(c) if !c.is_control() && entry.text.chars().count() < MAX_TEXT => {
                entry.text.push(c);
            }
            KeyCode::Backspace => {
                entry.text.pop();
            }
            KeyCode::Esc => self.entry = None,
            KeyCode::Enter => return self.finish_entry(),
            _ => {}
        }
        None
    }

    fn finish_entry(&mut self) -> Option<StreamCommand> {
        let TypedTextEntry { kind, text } = self.entry.take()?;
        match kind {
            EntryKind::Filter => {
                self.filter = text;
                // The old row number means nothing among the rows of another filter.
                self.selected = 0;
                self.selected_name = None;
                None
            }
            EntryKind::Rate if text.is_empty() => None,
            EntryKind::Rate => match text.parse::<Rate>() {
                // The rate is parsed only to refuse a mistake at once: the server reads the text itself.
                Ok(_) => self.make_stream_command(OrderedChange::Rate(text)),
                Err(error) => {
                    self.message = make_printable(&error.to_string());
                    None
                }
            },
        }
    }
}
