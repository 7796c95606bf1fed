//! Live progress of a run, from its events: a few lines that change in place on a terminal, one
//! line each second elsewhere.
//!
//! [`totals::ProgressTotals`] has the counts of the run so far; this module only shows them. Progress goes to standard
//! error, and everything in it is also in the results.

mod live;
mod totals;

pub(crate) use live::LiveProgressLine;

use self::totals::ProgressTotals;
use crate::output::{print_progress, print_remark};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use packetrig_program::escape_unsafe_text;
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};
use std::io::IsTerminal;

/// Time between two printed lines if standard error is not a terminal.
const PROGRESS_LINE_INTERVAL: Nanos = Nanos::from_secs(1);

/// Shows the progress of a run.
#[derive(Debug)]
pub(crate) struct RunProgressLine {
    view: ProgressView,
    totals: ProgressTotals,
    started: Option<MonoTime>,
    planned: Option<Nanos>,
}

#[derive(Debug)]
enum ProgressView {
    Nothing,
    Bar(ProgressBar),
    Lines { next: MonoTime },
}

impl RunProgressLine {
    /// Creates a view: nothing if `quiet`, a bar if standard error is a terminal, otherwise printed lines. `planned` is
    /// the time that senders will send, if the plan has an end.
    pub(crate) fn new(quiet: bool, planned: Option<Nanos>) -> Self {
        let view = match quiet {
            true => ProgressView::Nothing,
            false if std::io::stderr().is_terminal() => ProgressView::Bar(progress_bar(planned)),
            false => ProgressView::Lines { next: MonoTime::default() },
        };
        Self { view, totals: ProgressTotals::default(), started: None, planned }
    }

    /// Shows that the run entered another state.
    pub(crate) fn show_run_state(&mut self, text: &str) {
        match &self.view {
            ProgressView::Nothing => {}
            ProgressView::Bar(bar) => bar.set_prefix(escape_unsafe_text(text).into_owned()),
            ProgressView::Lines { .. } => print_remark(format_args!("run: {text}")),
        }
    }

    pub(crate) fn set_start_time(&mut self, at: MonoTime) {
        self.started = Some(at);
        if let ProgressView::Lines { next } = &mut self.view {
            *next = at + PROGRESS_LINE_INTERVAL;
        }
    }

    /// Records new cumulative counts of a node. A bar shows them at once; otherwise a line is printed when it is due.
    pub(crate) fn show_counters(&mut self, node: &str, at: MonoTime, sample: &CountSample) {
        self.totals.set_node_sample(node, at, sample);
        let elapsed = self.started.map_or(Nanos::ZERO, |started| at.since(started));
        match &mut self.view {
            ProgressView::Bar(bar) => {
                // While the run waits for late frames, the planned time is over, and the bar stays full. The
                // bar counts in milliseconds.
                let whole = self.planned.map_or(u64::MAX, Nanos::as_u64);
                bar.set_position(elapsed.as_u64().min(whole) / 1_000_000);
                bar.set_message(
                    escape_unsafe_text(&self.totals.format_progress_parts().join("\n  ")).into_owned(),
                );
            }
            // Before the start no line is printed, because there is no elapsed time to show.
            ProgressView::Lines { next } if at >= *next && self.started.is_some() => {
                print_progress(format_args!("{:>7.1} s  {}", elapsed.as_secs_f64(), self.totals));
                // After a stall of the rig, one line replaces all lines that were due.
                while *next <= at {
                    *next = *next + PROGRESS_LINE_INTERVAL;
                }
            }
            ProgressView::Nothing | ProgressView::Lines { .. } => {}
        }
    }

    /// Prints a line that later progress does not replace; nothing if the view is quiet.
    pub(crate) fn print_line(&self, text: &str) {
        match &self.view {
            ProgressView::Nothing => {}
            ProgressView::Bar(bar) => bar.println(escape_unsafe_text(text)),
            ProgressView::Lines { .. } => print_remark(text),
        }
    }

    /// Removes the bar before results are printed. Printed lines stay.
    pub(crate) fn clear_line(self) {
        if let ProgressView::Bar(bar) = self.view {
            bar.finish_and_clear();
        }
    }
}

fn progress_bar(planned: Option<Nanos>) -> ProgressBar {
    let template = match planned {
        Some(_) => "{prefix} [{bar:30}] {elapsed}\n  {msg}",
        None => "{prefix} {spinner} {elapsed}\n  {msg}",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let length = planned.map(|planned| planned.as_u64() / 1_000_000);
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(10));
    bar.set_style(style.progress_chars("=> "));
    bar
}
