//! A line for each trial that has ended: a campaign that was stopped does not perform these again.
//!
//! Only lines of the same seed and the same code count.

use anyhow::Context;
use packetrig_eval::directory;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// What was sent in a trial, and what became of it at the collector.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrialCounts {
    pub(crate) sent: u64,
    /// Packets that were sent and are not stored.
    pub(crate) missing: u64,
    /// Packets that are stored and were not sent, or twice.
    pub(crate) surplus: u64,
    /// Records that came to the collector and had nothing new.
    pub(crate) repeated: u64,
}

impl TrialCounts {
    pub(crate) const fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.missing += other.missing;
        self.surplus += other.surplus;
        self.repeated += other.repeated;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TrialName {
    pub(crate) fault: &'static str,
    pub(crate) number: u64,
}

pub(crate) struct TrialJournal {
    path: PathBuf,
    seed: u64,
    commit: String,
    lines: Vec<Value>,
}

impl TrialJournal {
    pub(crate) fn open(seed: u64) -> anyhow::Result<Self> {
        let path = directory("failover").join("trials.jsonl");
        let text = if path.exists() { std::fs::read_to_string(&path)? } else { String::new() };
        // A line that was cut off when the campaign was stopped is no result.
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let of = std::env::var("EVAL_OF").unwrap_or_default();
        let commit = of.rsplit("commit ").next().unwrap_or_default().to_owned();
        Ok(Self { path, seed, commit, lines })
    }

    /// The result of a trial that was performed before.
    pub(crate) fn finished(&self, trial: TrialName) -> Option<TrialCounts> {
        let is_of = |line: &&Value| {
            line["seed"] == self.seed
                && line["commit"] == self.commit.as_str()
                && line["fault"] == trial.fault
                && line["trial"] == trial.number
        };
        let line = self.lines.iter().rfind(is_of)?;
        let number = |name: &str| line[name].as_u64();
        Some(TrialCounts {
            sent: number("sent")?,
            missing: number("missing")?,
            surplus: number("twice")?,
            repeated: number("repeated")?,
        })
    }

    pub(crate) fn append(&mut self, trial: TrialName, counts: TrialCounts) -> anyhow::Result<TrialCounts> {
        let line = json!({
            "seed": self.seed,
            "commit": self.commit,
            "fault": trial.fault,
            "trial": trial.number,
            "sent": counts.sent,
            "missing": counts.missing,
            "twice": counts.surplus,
            "repeated": counts.repeated,
        });
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.path)?;
        // A line that was cut off must not spoil this one.
        writeln!(file, "\n{line}").with_context(|| self.path.display().to_string())?;
        self.lines.push(line);
        Ok(counts)
    }
}
