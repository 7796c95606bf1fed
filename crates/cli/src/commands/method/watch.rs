//! Watchers of a test, which show its progress and can stop it: a user at a terminal, or clients of an API.

use super::rig_doubt::RigDoubtCounter;
use super::show;
use crate::commands::is_interrupted;
use crate::commands::run_viewer::RunViewer;
use crate::output::print_remark;
use packetrig_method::{MethodOptions, StartedMethod, TrialRequest, TrialResult};

/// Follows a test from trial to trial.
pub(super) trait TestWatcher {
    /// Returns true if the test has to stop.
    fn is_stopped(&self) -> bool;
    /// Returns the server that shows each trial's run to viewers; `None` if there is none.
    fn run_viewer(&self) -> Option<&RunViewer> {
        None
    }
    /// Called before each trial.
    fn begin_trial(&mut self, trial: &TrialToBegin<'_>);
    /// Called with the result of each trial that was not stopped.
    fn end_trial(&mut self, result: &TrialResult);
    /// Called if the test ended before its method was complete. The test can be resumed.
    fn report_unfinished_test(&mut self, id: &str);
}

/// A trial that is about to begin.
pub(super) struct TrialToBegin<'a> {
    /// Number of the trial in its test, from 1; repeated trials count, too.
    pub(super) number: u32,
    pub(super) order: &'a TrialRequest,
    pub(super) options: &'a MethodOptions,
    /// State of the method before the trial.
    pub(super) method: &'a StartedMethod,
}

/// Shows a test on a terminal: prints remarks on standard error. Ctrl-C stops the test.
pub(super) struct TerminalWatcher {
    pub(super) quiet: bool,
    pub(super) viewer: RunViewer,
    pub(super) doubt: RigDoubtCounter,
    /// Remarks that are printed after the screen has been closed.
    pub(super) late_remarks: Vec<String>,
    pub(super) has_screen: bool,
}

impl TerminalWatcher {
    /// Prints a remark now or, while a screen is shown, after the screen has been closed.
    fn print_or_keep_remark(&mut self, text: String) {
        if self.has_screen {
            self.late_remarks.push(text);
        } else {
            print_remark(text);
        }
    }

    pub(super) fn print_late_remarks(&mut self) {
        for text in self.late_remarks.drain(..) {
            print_remark(text);
        }
    }
}

impl TestWatcher for TerminalWatcher {
    fn is_stopped(&self) -> bool {
        is_interrupted()
    }

    fn run_viewer(&self) -> Option<&RunViewer> {
        Some(&self.viewer)
    }

    fn begin_trial(&mut self, trial: &TrialToBegin<'_>) {
        if !self.quiet {
            show::announce_trial(trial);
        }
    }

    fn end_trial(&mut self, result: &TrialResult) {
        if !self.quiet {
            show::report_trial(result);
        }
        // `--quiet` does not hide this line: it says how far the result can be trusted.
        if let Some(warning) = self.doubt.record_trial(result) {
            self.print_or_keep_remark(format!("test: {warning}"));
        }
    }

    fn report_unfinished_test(&mut self, id: &str) {
        // `--quiet` does not hide this line: the user needs the id to resume the test.
        self.print_or_keep_remark(format!(
            "test {id} is unfinished; `packetrig test resume {id}` continues it"
        ));
    }
}
