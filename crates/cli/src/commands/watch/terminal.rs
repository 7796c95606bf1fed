//! The terminal: enters the alternate screen, draws states, reads keys, and restores the terminal at the end,
//! also after a panic.

use super::draw::{Theme, draw_screen};
use super::follow::ServerLink;
use super::keys::{INTERRUPT_KEY, on_key};
use super::state::WatchState;
use crate::error::Error;
use packetrig_sys::terminal::is_terminal_hung_up;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use std::io::{self, Stdout, stdin, stdout};
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Longest time between two drawings.
const MAX_REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Largest number of events and keys that are handled between two drawings.
const MAX_AT_ONCE: usize = 64;

/// True while the terminal shows our screen. A process has one terminal, hence a static.
static IS_ENTERED: AtomicBool = AtomicBool::new(false);

/// Shows the run until the user quits, the run's server ends, `is_over` returns true or the terminal hangs up.
pub(super) fn show_in_terminal(
    link: &ServerLink,
    state: &mut WatchState,
    is_coloured: bool,
    is_over: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let screen = ScreenGuard::enter_screen().map_err(terminal_failure)?;
    let mut terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(terminal_failure)?;
    let theme = Theme::new(is_coloured);
    let shown = show_until_end(link, state, theme, &mut terminal, is_over);
    // The terminal is restored before an error is printed: on the alternate screen the error would be lost.
    drop(screen);
    shown
}

fn terminal_failure(source: io::Error) -> Error {
    Error::Write { what: "to the terminal".to_owned(), source }
}

fn show_until_end(
    link: &ServerLink,
    state: &mut WatchState,
    theme: Theme,
    terminal: &mut Terminal<CrosstermBackend<Stdout>>,
    is_over: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let keys = KeyReader::start_thread();
    while !state.has_ended && !is_over() && !is_terminal_hung_up(stdin()) {
        for _ in 0..MAX_AT_ONCE {
            let Some(event) = link.next_event(Duration::ZERO)? else { break };
            state.on_event(event);
            // No event follows the end of the run: the thread that receives the events has ended, too.
            if state.has_ended {
                break;
            }
        }
        match terminal.draw(|frame| draw_screen(frame, state, theme)) {
            // The terminal hung up while it was drawn.
            Err(_) if is_terminal_hung_up(stdin()) => return Ok(()),
            drawn => drawn.map_err(terminal_failure)?,
        };
        keys.handle_keys(link, state).map_err(terminal_failure)?;
        // The request follows the keys, so that rows for a moved selection are requested in the same pass.
        link.request_rows(state.stream_window());
    }
    Ok(())
}

/// Reads keys on its own thread. A read of crossterm returns neither when the terminal hangs up nor at a signal, so the
/// thread that draws must not wait in it.
struct KeyReader(Receiver<io::Result<Event>>);

impl KeyReader {
    /// Starts the thread. It ends with the process, or at the first event after the reader is dropped.
    fn start_thread() -> Self {
        let (sender, events) = sync_channel(MAX_AT_ONCE);
        // The thread is not joined: it waits in a read that nothing interrupts.
        thread::spawn(move || forward_terminal_events(&sender));
        Self(events)
    }

    /// Waits at most [`MAX_REDRAW_INTERVAL`] for a key, then handles it and the keys that already wait behind it.
    fn handle_keys(&self, link: &ServerLink, state: &mut WatchState) -> io::Result<()> {
        let mut timeout = MAX_REDRAW_INTERVAL;
        for _ in 0..MAX_AT_ONCE {
            let event = match self.0.recv_timeout(timeout) {
                Ok(event) => event?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                // The thread has ended: it sent its error before, or it panicked and the panic was printed.
                Err(RecvTimeoutError::Disconnected) => {
                    state.has_ended = true;
                    return Ok(());
                }
            };
            if let Event::Key(key) = event
                && key.kind != KeyEventKind::Release
                && let Some(code) = translate_key(key)
                && let Some(order) = on_key(state, code)
            {
                link.queue_stream_command(order);
            }
            timeout = Duration::ZERO;
        }
        Ok(())
    }
}

fn forward_terminal_events(sender: &SyncSender<io::Result<Event>>) {
    loop {
        let event = event::read();
        if matches!(&event, Err(error) if error.kind() == io::ErrorKind::Interrupted) {
            continue;
        }
        let is_last = event.is_err();
        if sender.send(event).is_err() || is_last {
            return;
        }
    }
}

/// Translates a key. In raw mode the terminal sends no signals: Ctrl-C comes as a key, and quits like `q`.
fn translate_key(key: KeyEvent) -> Option<KeyCode> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c') if is_control => Some(INTERRUPT_KEY),
        // Ctrl with another letter must not act like the letter.
        KeyCode::Char(_) if is_control => None,
        code => Some(code),
    }
}

/// Restores the terminal when it is dropped.
struct ScreenGuard;

impl ScreenGuard {
    fn enter_screen() -> io::Result<Self> {
        restore_before_panic_messages();
        let guard = Self;
        // The flag is set first: if a call below fails, dropping `guard` undoes the calls that succeeded.
        IS_ENTERED.store(true, Ordering::Release);
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(guard)
    }
}

impl Drop for ScreenGuard {
    fn drop(&mut self) {
        restore_terminal();
    }
}

fn restore_terminal() {
    if IS_ENTERED.swap(false, Ordering::AcqRel) {
        // If the terminal has gone, there is nothing to restore.
        drop(execute!(stdout(), LeaveAlternateScreen, Show));
        drop(disable_raw_mode());
    }
}

/// Restores the terminal before a panic is printed: on the alternate screen, the message would be lost.
fn restore_before_panic_messages() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        restore_terminal();
        report(info);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ctrl_c_interrupts() {
        let pressed = |code, modifiers| translate_key(KeyEvent::new(code, modifiers));
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(INTERRUPT_KEY));
        assert_eq!(pressed(KeyCode::Char('x'), KeyModifiers::CONTROL), None);
        assert_eq!(pressed(KeyCode::Char('x'), KeyModifiers::NONE), Some(KeyCode::Char('x')));
    }
}
