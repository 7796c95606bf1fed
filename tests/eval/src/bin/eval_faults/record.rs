//! A trial's line in the file that makes a campaign resumable.

use crate::fault::{Trial, name_nodes};
use crate::judge::Findings;
use crate::perform::{Observation, why_not};
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

pub(crate) fn record(seed: u64, trial: &Trial, seen: &Observation, findings: &Findings) -> Value {
    json!({
        "seed": seed,
        "trial": trial.index,
        "of": std::env::var("EVAL_OF").unwrap_or_default(),
        "fault": trial.fault.to_string(),
        "phase": trial.phase.name(),
        "node": name_nodes(&trial.fault.nodes()),
        "was_hit": seen.was_hit,
        "fault_ms": ms(seen.fault_ended_ns.saturating_sub(seen.fault_began_ns)),
        "run": said(seen),
        "truth": {
            "frames": seen.truth.iter().map(|counts| counts.of_trial).collect::<Vec<_>>(),
            "last_frame_after_fault_ms": seen.last_frame_ns.iter().map(|at_ns| at_ns.map(|at_ns| ms(at_ns.saturating_sub(seen.fault_began_ns)))).collect::<Vec<_>>(),
            "is_in_doubt": seen.is_in_doubt,
        },
        "usable_after_ms": seen.usable_after_ns.map(ms),
        "refusals": seen.refusals,
        "check": if findings.unusable.is_empty() { &[] } else { seen.check_timeline.as_slice() },
        "waiting": seen.waiting,
        "collected": seen.collected,
        "not_joined": seen.not_joined,
        "wrong": findings.wrong,
        "culprit": findings.culprit,
        "lost": findings.lost,
        "doubled": findings.doubled,
        "late": findings.late,
        "unusable": findings.unusable,
        "turned_away": findings.turned_away,
        "verdict": findings.all(),
    })
}

/// A trial that came to no end, because the fault could not be made or the fleet could not be asked.
pub(crate) fn broken(seed: u64, trial: &Trial, why: &str) -> Value {
    json!({
        "seed": seed,
        "trial": trial.index,
        "of": std::env::var("EVAL_OF").unwrap_or_default(),
        "fault": trial.fault.to_string(),
        "phase": trial.phase.name(),
        "node": name_nodes(&trial.fault.nodes()),
        "was_hit": false,
        "broken": why,
        "verdict": [format!("broken: {why}")],
    })
}

/// What the run said: at its end, and in the catalogue when all was collected.
fn said(seen: &Observation) -> Value {
    json!({
        "exit": seen.end.code,
        "hung": seen.end.hung,
        "why": why_not(&seen.end),
        "printed": seen.end.report.as_ref().map(shortened),
        "final": seen.final_report.as_ref().map(shortened),
    })
}

fn shortened(report: &Value) -> Value {
    let rows = report["nodes"].as_array().into_iter().flatten();
    let counts = rows.map(|row| json!([row["node"], row["reported"], row["sent"], row["received"]]));
    json!({
        "outcome": report["outcome"],
        "verdict": report["verdict"],
        "coverage": report["coverage"],
        "lost": report["lost"],
        "nodes": counts.collect::<Vec<_>>(),
    })
}

const fn ms(ns: u64) -> u64 {
    ns / 1_000_000
}

/// Records of this seed, by number.
pub(crate) fn finished(file: &Path, seed: u64) -> anyhow::Result<BTreeMap<u64, Value>> {
    let text = if file.exists() { std::fs::read_to_string(file)? } else { String::new() };
    // A line that was cut off when the campaign was stopped is no result.
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_seed = records.filter(|record| record["seed"] == seed);
    Ok(of_seed.filter_map(|record| Some((record["trial"].as_u64()?, record))).collect())
}

pub(crate) fn append(file: &Path, record: &Value) -> anyhow::Result<()> {
    let mut open = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    writeln!(open, "{record}").with_context(|| file.display().to_string())
}
