//! The table of keys. The legend and the help page are made from the table, so they always list the real keys.

use super::orders::{OrderedChange, StreamCommand};
use super::state::{EntryKind, SelectedPane, WatchState};
use ratatui::crossterm::event::KeyCode;

/// Rows that a page key moves.
const PAGE_KEY_ROWS: isize = 10;
/// New rate in percent of the old one, after one step up and one step down. One step down almost undoes one step up.
const RATE_UP_PERCENT: u64 = 110;
const RATE_DOWN_PERCENT: u64 = 91;

/// The code that stands for Ctrl-C, which always quits, also while text is entered.
pub(super) const INTERRUPT_KEY: KeyCode = KeyCode::Null;

/// A key of the keyboard, or several with the same action; the action; and the texts about it.
pub(super) struct KeyHandler {
    codes: &'static [KeyCode],
    /// Name of the key in the legend.
    pub(super) key: &'static str,
    /// Short text for the legend; empty if the key is only on the help page.
    pub(super) word: &'static str,
    pub(super) explanation: &'static str,
    action: KeyAction,
}

enum KeyAction {
    Look(fn(&mut WatchState)),
    Order(fn(&mut WatchState) -> Option<StreamCommand>),
}

impl KeyHandler {
    /// Returns true if the key changes the run, or chooses which streams such keys act on.
    pub(super) const fn changes_run(&self) -> bool {
        matches!(self.action, KeyAction::Order(_))
    }
}

/// All keys in the order of the legend, which leaves out the last ones on narrow screens.
pub(super) const KEY_HANDLERS: &[KeyHandler] = &[
    view_key(&[KeyCode::Char('q')], "q", "quit", "quit; the run continues", |state| state.has_ended = true),
    view_key(&[KeyCode::Char('?')], "?", "help", "this page; any key closes it", |state| {
        state.is_helping = true;
    }),
    control_key(&[KeyCode::Char('t')], "t", "start", "start to transmit, from the first frame", |state| {
        state.make_stream_command(OrderedChange::Start)
    }),
    control_key(&[KeyCode::Char('x')], "x", "stop", "stop transmitting", |state| {
        state.make_stream_command(OrderedChange::Stop)
    }),
    control_key(&[KeyCode::Char('p')], "p", "pause", "pause transmitting", |state| {
        state.make_stream_command(OrderedChange::Pause)
    }),
    control_key(&[KeyCode::Char('r')], "r", "resume", "resume; a stopped stream starts", |state| {
        state.make_stream_command(OrderedChange::Resume)
    }),
    // `=` is the key of `+` without Shift on many keyboards.
    control_key(&[KeyCode::Char('+'), KeyCode::Char('=')], "+", "faster", "rate up by 10 %", |state| {
        state.make_stream_command(OrderedChange::Percent(RATE_UP_PERCENT))
    }),
    control_key(&[KeyCode::Char('-')], "-", "slower", "rate down by 9 %", |state| {
        state.make_stream_command(OrderedChange::Percent(RATE_DOWN_PERCENT))
    }),
    control_key(
        &[KeyCode::Char('e')],
        "e",
        "rate",
        "enter a rate, such as 2kpps, 10Mbit/s or 50%",
        |state| {
            state.begin_entry(EntryKind::Rate);
            None
        },
    ),
    control_key(
        &[KeyCode::Char('a')],
        "a",
        "one/all",
        "keys act on the selected stream, or on all",
        |state| {
            state.acts_on_all = !state.acts_on_all;
            None
        },
    ),
    view_key(
        &[KeyCode::Char(' ')],
        "space",
        "freeze",
        "freeze the view; the run continues",
        WatchState::toggle_freeze,
    ),
    view_key(&[KeyCode::Char('/')], "/", "filter", "filter streams by name or port", |state| {
        state.begin_entry(EntryKind::Filter);
    }),
    view_key(
        &[KeyCode::Char('s')],
        "s",
        "sort",
        "sort streams by the next column",
        WatchState::sort_by_next_column,
    ),
    view_key(&[KeyCode::Char('S')], "S", "", "reverse the order", |state| {
        state.is_reversed = !state.is_reversed;
    }),
    view_key(&[KeyCode::Tab], "Tab", "ports", "switch between streams and ports", |state| {
        state.pane =
            if state.pane == SelectedPane::Streams { SelectedPane::Ports } else { SelectedPane::Streams };
    }),
    view_key(&[KeyCode::Up, KeyCode::Char('k')], "up, k", "", "row up", |state| state.move_selection(-1)),
    view_key(&[KeyCode::Down, KeyCode::Char('j')], "down, j", "", "row down", |state| {
        state.move_selection(1);
    }),
    view_key(&[KeyCode::PageUp], "PgUp", "", "ten rows up", |state| state.move_selection(-PAGE_KEY_ROWS)),
    view_key(&[KeyCode::PageDown], "PgDn", "", "ten rows down", |state| state.move_selection(PAGE_KEY_ROWS)),
    view_key(&[KeyCode::Home, KeyCode::Char('g')], "Home, g", "", "first row", |state| {
        state.move_selection(isize::MIN);
    }),
    view_key(&[KeyCode::End, KeyCode::Char('G')], "End, G", "", "last row", |state| {
        state.move_selection(isize::MAX);
    }),
];

/// Makes a key that changes only the view.
const fn view_key(
    codes: &'static [KeyCode],
    key: &'static str,
    word: &'static str,
    explanation: &'static str,
    act: fn(&mut WatchState),
) -> KeyHandler {
    KeyHandler { codes, key, word, explanation, action: KeyAction::Look(act) }
}

/// Makes a key that changes the run, or prepares a change. Viewers without the right to control cannot use it.
const fn control_key(
    codes: &'static [KeyCode],
    key: &'static str,
    word: &'static str,
    explanation: &'static str,
    act: fn(&mut WatchState) -> Option<StreamCommand>,
) -> KeyHandler {
    KeyHandler { codes, key, word, explanation, action: KeyAction::Order(act) }
}

/// Handles a key. Returns the command for the server if the key makes one. While the user enters text, keys add to it.
pub(super) fn on_key(state: &mut WatchState, code: KeyCode) -> Option<StreamCommand> {
    if code == INTERRUPT_KEY {
        state.has_ended = true;
        return None;
    }
    // Any key closes the help page and does nothing else: its reader must not stop a stream by accident.
    if state.is_helping {
        state.is_helping = false;
        return None;
    }
    if state.entry.is_some() {
        return state.on_entry_key(code);
    }
    // Keys that are not in the table do nothing: a slip must not change a run.
    let handler = KEY_HANDLERS.iter().find(|handler| handler.codes.contains(&code))?;
    // The message is about the previous key: the user must not mistake it for the answer to this key.
    state.message.clear();
    match handler.action {
        KeyAction::Look(act) => {
            act(state);
            None
        }
        KeyAction::Order(act) => match state.control.refusal() {
            None => act(state),
            Some(refusal) => {
                state.set_message(refusal);
                None
            }
        },
    }
}
