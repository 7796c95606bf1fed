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

impl Run<'_> {
    fn remarks(&self) -> String {
        fs::read_to_string(self.fleet.place().join(format!("{}.err", self.log))).unwrap_or_default()
    }

    pub(crate) fn await_remark(&mut self, text: &str) {
        self.await_remarks(text, 1);
    }

    /// Waits until it has said that so often.
    fn await_remarks(&mut self, text: &str, times: usize) {
        let place = self.fleet.place().join(format!("{}.err", self.log));
        let said = || fs::read_to_string(&place).unwrap_or_default();
        let child = &mut self.child;
        let mut ended = false;
        await_that(
            text,
            || {
                let is_said = || said().matches(text).count() >= times;
                assert!(!ended || is_said(), "it ended without `{text}`: {}", said());
                ended = child.try_wait().expect("a child can be waited for").is_some();
                is_said()
            },
            said,
        );
    }

    /// Whether it is under way or done; if not, it has ended because its start was not confirmed in time.
    pub(crate) fn has_begun(&mut self) -> bool {
        let child = &mut self.child;
        let place = self.fleet.place().join(format!("{}.err", self.log));
        let said = || fs::read_to_string(&place).unwrap_or_default();
        let mut has_ended = || child.try_wait().expect("a child can be waited for").is_some();
        await_that("it begins or ends", || has_ended() || said().contains(" s  sent "), said);
        !(has_ended() && said().contains("split_start"))
    }

    /// Waits until frames were counted: every node has sent for a while, and has kept what it counted.
    pub(crate) fn await_frames(&mut self) {
        self.await_remark("run: sending");
        // One line a second; on a busy machine some are missing.
        self.await_remarks(" s  sent ", 3);
    }

    /// Whether its program has not ended.
    pub(crate) fn is_under_way(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).expect("a child may be sent a signal");
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
