//! Evaluation of verdicts: random scenarios with faults of the rig, of the device, of both and of neither, each judged by a
//! forwarder with an exact log that shares no code with the product. Run by `eval/run.sh truth`, which puts it into a private lab.
//!
//! `EVAL_SEED` draws other scenarios. Each result is a line of `scenarios.jsonl`; a scenario that has its line there is not run
//! again, so an evaluation that was stopped goes on.

mod findings;
mod scenario;
mod summary;

use anyhow::Context;
use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};
use packetrig_tests::judged_run::{JudgedRun, flow};
use scenario::{KEY, SIZE, Scenario};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::path::Path;

const DEFAULT_SEED: u64 = 16;
const MOST_REPEATS: u64 = 5;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let seed =
        std::env::var("EVAL_SEED").map_or(Ok(DEFAULT_SEED), |seed| seed.parse()).context("EVAL_SEED")?;
    let count = if effort.quick { 60 } else { 1000 };
    let directory = directory("truth");
    let mut output = Output::new("truth", &directory, effort)?;
    let file = directory.join("scenarios.jsonl");
    let mut records = finished(&file, seed)?;
    output.say(&format!("Seed {seed}: {count} scenarios, {} of them run before.\n", records.len()))?;
    for index in 0..count {
        if let Entry::Vacant(vacant) = records.entry(index) {
            let record = run(seed, index).context("no rights or tools for scenarios")?;
            append(&file, &record)?;
            vacant.insert(record);
        }
    }
    let records: Vec<&Value> = records.range(..count).map(|(_, record)| record).collect();
    summary::show(&mut output, &records)?;
    output.finish()
}

/// Results of scenarios of this seed, by number.
fn finished(file: &Path, seed: u64) -> anyhow::Result<BTreeMap<u64, Value>> {
    let text = if file.exists() { std::fs::read_to_string(file)? } else { String::new() };
    // A line that was cut off when the evaluation was stopped is no result.
    let records = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of_seed = records.filter(|record| record["seed"] == seed);
    Ok(of_seed.filter_map(|record| Some((record["index"].as_u64()?, record))).collect())
}

fn append(file: &Path, record: &Value) -> anyhow::Result<()> {
    let mut open = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    writeln!(open, "{record}").with_context(|| file.display().to_string())
}

/// Runs one scenario; `None` without rights. If the verdict is unknown and the judge saw that the machine held up the sender, the
/// scenario is run again: such a pause is a fault of the rig that was not drawn.
fn run(seed: u64, index: u64) -> Option<Value> {
    for repeated in 0.. {
        let mut record = run_or_break(seed, index)?;
        let is_disturbed = record["class"] == "Unknown" && record["was_held_up"] == true;
        if !is_disturbed || repeated == MOST_REPEATS {
            record["repeated"] = json!(repeated);
            return Some(record);
        }
    }
    None
}

/// One that breaks is a result, too.
fn run_or_break(seed: u64, index: u64) -> Option<Value> {
    let scenario = Scenario::draw(seed, index);
    let in_thread = std::thread::scope(|scope| scope.spawn(|| run_once(&scenario)).join());
    let mut record = match in_thread {
        Ok(record) => record?,
        Err(_) => {
            json!({"index": index, "class": "Broken", "kind": format!("{:?}", scenario.kind), "back_end": scenario.back_end})
        }
    };
    record["seed"] = json!(seed);
    Some(record)
}

fn run_once(scenario: &Scenario) -> Option<Value> {
    let stream = flow(findings::STREAM, KEY).size(SIZE).pps(scenario.pps).packets(scenario.packets);
    let run = JudgedRun {
        back_end: scenario.back_end,
        flows: vec![stream],
        rules: &scenario.rules,
        rig_fault: scenario.rig_fault,
        fault_after: scenario.fault_after,
        fault_ns: scenario.fault_ns,
        flags: &["--max-late", "200ms"],
    };
    Some(findings::record(scenario, &run.run()?))
}
