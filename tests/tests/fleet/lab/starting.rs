//! Starts runs. On a machine that is too busy a start is confirmed too late to some of the nodes, and the run says so: then it is started
//! again.

use super::{Fleet, SENDERS};
use crate::run::{Run, is_split};
use rustix::process::Signal;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often a run is started.
const STARTS: usize = 5;
/// All senders and all receivers.
const ALL: [&str; 2] = ["any-tx*3", "any-rx*3"];

/// Starts a run, and starts it again as long as `start` answers that it has not begun, with what was said.
pub(crate) fn begin_again<T>(mut start: impl FnMut() -> Result<T, String>) -> T {
    let mut said = String::new();
    for _ in 0..STARTS {
        match start() {
            Ok(begun) => return begun,
            Err(why) => said = why,
        }
    }
    panic!("no run begins here: {said}")
}

/// The command of a run from and to such ports, 1000 frames a second each.
fn run_between<'a>([tx, rx]: [&'a str; 2], more: &[&'a str]) -> Vec<&'a str> {
    let usual = ["run", "--tx", tx, "--rx", rx, "--pattern", "n-to-n", "--json"];
    // The bridge between them has learnt none of the receivers' addresses. A busy machine may hold a sender up.
    let accepted = ["--max-misdelivered", "100%", "--max-late", "5s"];
    [&usual[..], &accepted, more].concat()
}

impl Fleet {
    /// Runs a command of the controller that makes a run, to its end; see [`Fleet::ask`].
    pub(crate) fn ask_begun(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        begin_again(|| {
            let (code, printed, said) = self.ask(arguments);
            if is_split(&printed) || is_split(&said) {
                Err(printed + &said)
            } else {
                Ok((code, printed, said))
            }
        })
    }

    /// Starts a run of three senders to three receivers. Whether it begins is not waited for.
    pub(crate) fn run(&self, more: &[&str]) -> Run<'_> {
        self.start_run(&run_between(ALL, more))
    }

    /// Starts the same run, and waits until it is under way or done.
    pub(crate) fn begin(&self, more: &[&str]) -> Run<'_> {
        self.begin_between(ALL, more)
    }

    /// The same from and to such ports.
    pub(crate) fn begin_between(&self, ports: [&str; 2], more: &[&str]) -> Run<'_> {
        self.begin_by(&run_between(ports, more))
    }

    /// The same by another command of the controller.
    pub(crate) fn begin_by(&self, arguments: &[&str]) -> Run<'_> {
        self.start_until(arguments, Run::has_run_begun)
    }

    /// Starts a run of three senders to three receivers, and waits until it has said that.
    pub(crate) fn run_until(&self, remark: &str, more: &[&str]) -> Run<'_> {
        self.start_until(&run_between(ALL, more), |run| run.has_said(remark))
    }

    /// A run of a minute whose controller is killed when its first frames have come.
    pub(crate) fn leave_run(&self, more: &[&str]) {
        let mut run = self.begin(&[&["--packets", "60000"], more].concat());
        run.await_frames();
        run.signal(Signal::KILL);
        assert_eq!(run.finish().code, None, "it was killed");
    }

    fn start_until<'a>(&'a self, arguments: &[&str], is_so: impl Fn(&mut Run<'a>) -> bool) -> Run<'a> {
        begin_again(|| {
            let mut run = self.start_run(arguments);
            if is_so(&mut run) { Ok(run) } else { Err(self.everything()) }
        })
    }

    fn start_run(&self, arguments: &[&str]) -> Run<'_> {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let log = format!("run-{}", RUNS.fetch_add(1, Ordering::Relaxed));
        let before = SENDERS.map(|node| self.sent_by(node));
        let child = self.begin_command(arguments, &log);
        Run { fleet: self, child, log, before }
    }
}
