//! A run of a fleet: under way, ended, and its report.

use crate::lab::{Fleet, await_that, pid};
use packetrig_tests::program::Report;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::Child;

/// A run under way.
pub(crate) struct Run<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) child: Child,
    pub(crate) log: String,
    /// What each sender had sent before, by the lab's count.
    pub(crate) before: [u64; 3],
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) complaints: String,
    printed: String,
}

/// Whether this says that the last start was confirmed too late to some of the nodes.
pub(crate) fn is_split(said: &str) -> bool {
    last_start(said).contains("split_start")
}

/// What was said since a run began again, if it did.
fn last_start(said: &str) -> &str {
    said.rsplit("; beginning again (").next().unwrap_or(said)
}

/// Whether the last start has three lines of progress. There is one a second; on a busy machine some are missing.
fn has_three_seconds(said: &str) -> bool {
    last_start(said).matches(" s  sent ").count() >= 3
}

impl Run<'_> {
    fn remarks(&self) -> String {
        fs::read_to_string(self.fleet.place().join(format!("{}.err", self.log))).unwrap_or_default()
    }

    /// Waits until its remarks are enough, or until it ends; all its remarks.
    fn listen(&mut self, what: &str, is_enough: impl Fn(&str) -> bool) -> String {
        let place = self.fleet.place().join(format!("{}.err", self.log));
        let said = || fs::read_to_string(&place).unwrap_or_default();
        let child = &mut self.child;
        // Asked first: what it has said at last is there when it has ended.
        let mut has_ended = || child.try_wait().expect("a child can be waited for").is_some();
        await_that(what, || has_ended() || is_enough(&said()), said);
        said()
    }

    /// Waits until it has made such a remark.
    pub(crate) fn await_remark(&mut self, text: &str) {
        self.await_remarks(text, |said| said.contains(text));
    }

    fn await_remarks(&mut self, what: &str, is_enough: impl Fn(&str) -> bool) {
        let said = self.listen(what, &is_enough);
        assert!(is_enough(&said), "it ended without `{what}`: {said}");
    }

    /// Waits until it is certain that it is under way on all nodes, or until it is done. If its last start was split it has ended, and
    /// was none.
    pub(crate) fn has_run_begun(&mut self) -> bool {
        // By the third second no confirmation is waited for any more: a start that was split is said before.
        let said = self.listen("it begins or ends", |said| !is_split(said) && has_three_seconds(said));
        !is_split(&said)
    }

    /// Waits until it has made such a remark. If its last start was split, it has ended without it.
    pub(crate) fn has_said(&mut self, text: &str) -> bool {
        let said = self.listen(text, |said| said.contains(text));
        assert!(said.contains(text) || is_split(&said), "it ended without `{text}`: {said}");
        said.contains(text)
    }

    /// Waits until frames were counted: every node has sent for a while, and has kept what it counted.
    pub(crate) fn await_frames(&mut self) {
        self.await_remark("run: sending");
        self.await_remarks("frames of three seconds", has_three_seconds);
    }

    /// Whether its program has not ended.
    pub(crate) fn is_under_way(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).expect("a child may be sent a signal");
    }

    /// Kills its program, unless it has ended; how it ended.
    pub(crate) fn kill(mut self) -> Ended {
        self.child.kill().expect("a child may be killed");
        self.finish()
    }

    pub(crate) fn finish(mut self) -> Ended {
        let child = &mut self.child;
        let mut ended = None;
        let remarks = fs::canonicalize(self.fleet.place().join(format!("{}.err", self.log)));
        await_that(
            "the run ends",
            || {
                ended = child.try_wait().expect("a child can be waited for");
                ended.is_some()
            },
            || remarks.as_ref().ok().and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default(),
        );
        let printed = fs::read_to_string(self.fleet.place().join(format!("{}.out", self.log)));
        Ended {
            code: ended.and_then(|status| status.code()),
            complaints: self.remarks(),
            printed: printed.unwrap_or_default(),
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

impl Ended {
    /// Runs that were earlier starts of it, and came too late for some nodes. The kernel's counters have their frames, too.
    pub(crate) fn split_starts(&self) -> Vec<&str> {
        let told = self.complaints.split("the previous run was ").skip(1);
        told.filter_map(|rest| rest.split_once(')')).map(|(run, _)| run).collect()
    }

    pub(crate) fn report(&self) -> Report {
        let read = serde_json::from_str(&self.printed);
        Report(
            read.unwrap_or_else(|error| panic!("no report ({error}), {:?}: {}", self.code, self.complaints)),
        )
    }
}

/// What is asked of every report of a fleet.
pub(crate) trait Judged {
    fn reasons(&self) -> String;
    fn node(&self, node: &str) -> &Value;
    fn totals(&self) -> (u64, u64);
    fn assert_nothing_lost(&self);
    fn assert_partial(&self, words: &[&str]);
}

impl Judged for Report {
    fn reasons(&self) -> String {
        self.0["outcome"].to_string()
    }

    fn node(&self, node: &str) -> &Value {
        let rows = self.0["nodes"].as_array().expect("a report has nodes");
        rows.iter().find(|row| row["node"] == node).unwrap_or_else(|| panic!("no node {node} in {}", self.0))
    }

    /// Frames sent and received, by the rows of nodes.
    fn totals(&self) -> (u64, u64) {
        let rows = self.0["nodes"].as_array().expect("a report has nodes");
        let sum = |key: &str| rows.iter().filter_map(|row| row[key].as_u64()).sum();
        (sum("sent"), sum("received"))
    }

    /// All nodes reported, and what was sent arrived. A busy machine may not send all that was planned.
    fn assert_nothing_lost(&self) {
        let (sent, received) = self.totals();
        assert!(sent > 0 && sent == received, "{sent} sent, {received} received: {}", self.0["nodes"]);
        assert_eq!(self.0["coverage"]["reported"], self.0["coverage"]["expected"], "{}", self.reasons());
    }

    fn assert_partial(&self, words: &[&str]) {
        let outcome = self.reasons();
        assert!(outcome.to_lowercase().contains("partial"), "{outcome}");
        for word in words {
            assert!(outcome.contains(word), "no `{word}` in {outcome}");
        }
        assert_ne!(self.verdict(), "PASS");
    }
}
