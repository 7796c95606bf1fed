//! The reference library, in a process of its own (`eval/mlr_oracle.py`).

use anyhow::{Context, bail};
use packetrig_method::mlrsearch::SearchGoal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The reference library at work.
pub(crate) struct ReferenceLibrary {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ReferenceLibrary {
    /// Starts it with the interpreter that `eval/run.sh` names.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let python = std::env::var("EVAL_MLRSEARCH").context("there is no library MLRsearch")?;
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../eval/mlr_oracle.py");
        let mut command = Command::new(python);
        let mut process = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take().context("no way to ask the library")?;
        let answers = BufReader::new(process.stdout.take().context("no way to hear the library")?);
        Ok(Self { process, requests, answers })
    }

    pub(crate) fn send(&mut self, message: &Value) -> anyhow::Result<()> {
        writeln!(self.requests, "{message}").context("the library is gone")
    }

    pub(crate) fn receive(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the library ended");
        }
        serde_json::from_str(&line).with_context(|| line)
    }
}

impl Drop for ReferenceLibrary {
    fn drop(&mut self) {
        // It may be amid a search whose trials nobody makes any more.
        self.process.kill().unwrap_or(());
        drop(self.process.wait());
    }
}

/// Goals as the library's side reads them: times in seconds.
pub(crate) fn describe_goals(goals: &[SearchGoal]) -> Value {
    goals
        .iter()
        .map(|goal| {
            json!({
                "loss_ratio": goal.loss_ratio,
                "exceed_ratio": goal.exceed_ratio,
                "width": goal.width,
                "initial_trial": goal.initial_trial.as_secs_f64(),
                "final_trial": goal.final_trial.as_secs_f64(),
                "duration_sum": goal.duration_sum.as_secs_f64(),
                "preceding_targets": goal.preceding_targets,
                "expansion": goal.expansion,
            })
        })
        .collect()
}
