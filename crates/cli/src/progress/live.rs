//! A line of progress: it changes in place on a terminal; elsewhere a new line is printed every second.
//!
//! The caller makes the text, and asks this module whether a line is due. Nothing is printed unless `is_wanted`.

use crate::output::print_progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use packetrig_program::escape_unsafe_text;
use packetrig_units::Nanos;
use std::fmt::Display;
use std::io::IsTerminal;

/// Time between two lines, on a terminal and elsewhere.
const PROGRESS_LINE_INTERVAL: Nanos = Nanos::from_secs(1);

#[derive(Debug)]
pub(crate) struct LiveProgressLine {
    view: LiveView,
    /// Time from the start to when the last line was due, a multiple of the interval.
    last_due: Nanos,
}

#[derive(Debug)]
enum LiveView {
    Nothing,
    Bar(ProgressBar),
    Lines,
}

impl LiveProgressLine {
    /// Creates a line that shows nothing unless `is_wanted`. On a terminal it changes in place; elsewhere
    /// new lines are printed.
    pub(crate) fn new(is_wanted: bool) -> Self {
        let view = match is_wanted {
            false => LiveView::Nothing,
            true if std::io::stderr().is_terminal() => LiveView::Bar(progress_spinner()),
            true => LiveView::Lines,
        };
        Self { view, last_due: Nanos::ZERO }
    }

    /// Returns true if a new line is due at the time `elapsed` after the start; never if no progress is wanted.
    pub(crate) const fn is_due(&self, elapsed: Nanos) -> bool {
        !matches!(self.view, LiveView::Nothing)
            && elapsed.as_u64() >= self.last_due.as_u64() + PROGRESS_LINE_INTERVAL.as_u64()
    }

    /// Shows a line for the time `elapsed` after the start.
    pub(crate) fn show_progress_line(&mut self, elapsed: Nanos, text: impl Display) {
        match &self.view {
            LiveView::Nothing => {}
            LiveView::Bar(bar) => {
                bar.set_message(escape_unsafe_text(&text.to_string()).into_owned());
                bar.tick();
            }
            LiveView::Lines => print_progress(format_args!("{:>7.1} s  {text}", elapsed.as_secs_f64())),
        }
        // The time is rounded down to a whole interval, so that a late line does not delay the next one.
        self.last_due =
            Nanos::new(elapsed.as_u64() / PROGRESS_LINE_INTERVAL.as_u64() * PROGRESS_LINE_INTERVAL.as_u64());
    }

    /// Removes the line before results are printed.
    pub(crate) fn clear_line(self) {
        if let LiveView::Bar(bar) = self.view {
            bar.finish_and_clear();
        }
    }
}

fn progress_spinner() -> ProgressBar {
    // A wrong template must not end the command: it only changes the look of the line.
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4)).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_line_is_due_each_second_unless_disabled() {
        let mut live = LiveProgressLine { view: LiveView::Lines, last_due: Nanos::ZERO };
        assert!(!live.is_due(Nanos::from_millis(999)));
        assert!(live.is_due(Nanos::from_millis(1_300)));
        live.show_progress_line(Nanos::from_millis(1_300), "late");
        assert!(!live.is_due(Nanos::from_millis(1_999)));
        assert!(live.is_due(Nanos::from_millis(2_000)));
        assert!(!LiveProgressLine::new(false).is_due(Nanos::from_secs(9)));
    }
}
