//! `packetrig run` under observation: what it says, when it says it, and what comes of it.

use crate::fleet::Fleet;
use packetrig_eval::process::{line_of_state, pause};
use packetrig_sys::clock;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a run is called on the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: u64,
    /// Frames of each sender, at 1000 a second.
    pub(crate) frames: u64,
}

/// A line on standard error.
#[derive(Clone, Debug)]
struct Remark {
    at_ns: u64,
    text: String,
}

/// A run that was started.
#[derive(Debug)]
pub(crate) struct RunProcess {
    child: Child,
    remarks: Arc<Mutex<Vec<Remark>>>,
    printed: PathBuf,
    pub(crate) started_ns: u64,
}

/// How a run ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunEnd {
    /// `None`: a signal.
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
    pub(crate) timeline: Vec<String>,
    /// The report it printed, if it did.
    pub(crate) report: Option<Value>,
    pub(crate) ended_ns: u64,
    /// It did not end by itself.
    pub(crate) hung: bool,
}

impl RunProcess {
    pub(crate) fn start(fleet: &Fleet, request: RunRequest<'_>) -> anyhow::Result<Self> {
        let size = request.size.to_string();
        let frames = request.frames.to_string();
        let ports = ["run", "--tx", "any-tx*all", "--rx", "any-rx*all", "--pattern", "n-to-n"];
        let load = ["--rate", "1kpps", "--size", &size, "--packets", &frames];
        // Several programs share few processors here: a late frame is no finding.
        let more =
            ["--json", "--drain", "500ms", "--max-late", "5s", "--wait-for-nodes", "--name", request.name];
        let printed = fleet.path(&format!("{}.json", request.name));
        let mut command = fleet.controller_command(&[&ports[..], &load, &more].concat());
        let started_ns = clock::monotonic_ns();
        let mut child =
            command.stdin(Stdio::null()).stdout(File::create(&printed)?).stderr(Stdio::piped()).spawn()?;
        let remarks = Arc::<Mutex<Vec<Remark>>>::default();
        if let Some(stderr) = child.stderr.take() {
            let heard = Arc::clone(&remarks);
            // Ends with the run.
            std::thread::Builder::new().name("remarks".to_owned()).spawn(move || {
                for text in BufReader::new(stderr).lines().map_while(Result::ok) {
                    own(&heard).push(Remark { at_ns: clock::monotonic_ns(), text });
                }
            })?;
        }
        Ok(Self { child, remarks, printed, started_ns })
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn said(&self) -> String {
        own(&self.remarks).iter().map(|remark| remark.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// The same, each with its time since the start.
    fn timeline(&self) -> Vec<String> {
        let remarks = own(&self.remarks);
        let since_start =
            remarks.iter().map(|remark| (remark.at_ns.saturating_sub(self.started_ns), &remark.text));
        since_start.map(|(ns, text)| format!("{} ms: {}", ns / 1_000_000, text.trim())).collect()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it says that it is in this state; `false` if it ended without, or the time is over.
    pub(crate) fn await_state(&mut self, state: &str, deadline_ns: u64) -> bool {
        let line = line_of_state(state);
        while clock::monotonic_ns() < deadline_ns {
            let has_ended = self.has_ended();
            if self.said().lines().any(|said| said.trim() == line) {
                return true;
            }
            if has_ended {
                return false;
            }
            pause(1);
        }
        false
    }

    pub(crate) fn kill(&mut self) {
        // One that has ended is not there to be killed.
        self.child.kill().unwrap_or(());
    }

    /// Waits for its end after it was killed.
    pub(crate) fn await_meter_end(&mut self) {
        drop(self.child.wait());
    }

    /// Waits for its end; at the deadline it is killed.
    pub(crate) fn finish(mut self, deadline_ns: u64) -> RunEnd {
        let mut end = RunEnd::default();
        while !self.has_ended() {
            if clock::monotonic_ns() > deadline_ns {
                end.hung = true;
                self.kill();
                break;
            }
            pause(2);
        }
        end.code = self.child.wait().ok().and_then(|status| status.code());
        end.ended_ns = clock::monotonic_ns();
        // The thread that reads takes a moment for the last lines.
        pause(20);
        end.said = self.said();
        end.timeline = self.timeline();
        let printed = std::fs::read(&self.printed).unwrap_or_default();
        end.report = serde_json::from_slice(&printed).ok();
        end
    }
}

fn own(remarks: &Mutex<Vec<Remark>>) -> MutexGuard<'_, Vec<Remark>> {
    remarks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for RunProcess {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.kill();
            drop(self.child.wait());
        }
    }
}
