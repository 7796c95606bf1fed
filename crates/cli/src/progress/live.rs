//! One line of how it goes: it changes on a terminal, and is said once a second elsewhere.
//!
//! What it says is the caller's; this only knows when it is time. Invariant: nothing is said where nothing is wanted.

use crate::output::remark;
use crate::safe_text::safe;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use packetrig_units::Nanos;
use std::fmt::Display;
use std::io::IsTerminal;

/// Distance between two lines, on a terminal or not: rates are those of a second.
const EVERY: Nanos = Nanos::from_secs(1);

#[derive(Debug)]
pub(crate) struct LiveLine {
    view: LiveView,
    /// When the last line was due.
    said: Nanos,
}

#[derive(Debug)]
enum LiveView {
    Nothing,
    Bar(ProgressBar),
    Lines,
}

impl LiveLine {
    /// A line that fits standard error.
    pub(crate) fn new(is_wanted: bool) -> Self {
        let view = match is_wanted {
            false => LiveView::Nothing,
            true if std::io::stderr().is_terminal() => LiveView::Bar(bar()),
            true => LiveView::Lines,
        };
        Self { view, said: Nanos::ZERO }
    }

    /// Whether it is time for a line, so long after the start.
    pub(crate) const fn is_due(&self, elapsed: Nanos) -> bool {
        !matches!(self.view, LiveView::Nothing) && elapsed.as_u64() >= self.said.as_u64() + EVERY.as_u64()
    }

    /// Shows a line as of so long after the start.
    pub(crate) fn show(&mut self, elapsed: Nanos, text: impl Display) {
        match &self.view {
            LiveView::Nothing => {}
            LiveView::Bar(bar) => {
                bar.set_message(safe(&text.to_string()).into_owned());
                bar.tick();
            }
            LiveView::Lines => remark(format_args!("{:>7.1} s  {text}", elapsed.as_secs_f64())),
        }
        // A line that came late does not delay the next one.
        self.said = Nanos::new(elapsed.as_u64() / EVERY.as_u64() * EVERY.as_u64());
    }

    /// Takes the line away: results follow.
    pub(crate) fn finish(self) {
        if let LiveView::Bar(bar) = self.view {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(4)).with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_a_second_apart_and_none_is_due_where_none_is_wanted() {
        let mut live = LiveLine { view: LiveView::Lines, said: Nanos::ZERO };
        assert!(!live.is_due(Nanos::from_millis(999)));
        assert!(live.is_due(Nanos::from_millis(1_300)));
        live.show(Nanos::from_millis(1_300), "late");
        assert!(!live.is_due(Nanos::from_millis(1_999)));
        assert!(live.is_due(Nanos::from_millis(2_000)));
        assert!(!LiveLine::new(false).is_due(Nanos::from_secs(9)));
    }
}
