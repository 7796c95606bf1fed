//! Evaluation of a fleet under faults: a seeded campaign of trials, each a fault in a phase of a run on some node. Run by
//! `eval/run.sh faults`, which puts it into a private lab.
//!
//! `EVAL_SEED` draws other trials, `EVAL_TRIALS=3,17` performs these only. Each result is a line of `trials.jsonl`; a trial that
//! has its line there is not performed again, so a campaign that was stopped goes on.

mod control_link;
mod fault;
mod fleet;
mod inflict;
mod judge;
mod network;
mod perform;
mod record;
mod run;
mod serve;
mod summary;
mod witness;

use anyhow::Context;
use fault::{CROWD_FROM, CROWDS, LATER, LATER_FROM, Trial};
use fleet::Fleet;
use network::Network;
use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};
use perform::Stage;
use serde_json::Value;
use std::path::Path;
use witness::TrafficWitness;

const DEFAULT_SEED: u64 = 18;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let seed =
        std::env::var("EVAL_SEED").map_or(Ok(DEFAULT_SEED), |seed| seed.parse()).context("EVAL_SEED")?;
    let directory = directory("faults");
    let mut output = Output::new("faults", &directory, effort)?;
    let file = directory.join("trials.jsonl");
    let wanted = if effort.quick { wanted(60, LATER / 5, 1) } else { wanted(LATER_FROM, LATER, CROWDS) }?;
    let known = record::finished(&file, seed)?;
    let left: Vec<u64> = wanted.iter().copied().filter(|index| !known.contains_key(index)).collect();
    output.say(&format!(
        "Seed {seed}: {} trials, {} of them performed before.\n",
        wanted.len(),
        wanted.len() - left.len()
    ))?;
    if !left.is_empty() {
        perform_all(seed, &left, &file, &mut output)?;
    }
    let records = record::finished(&file, seed)?;
    let records: Vec<&Value> = wanted.iter().filter_map(|index| records.get(index)).collect();
    summary::show(&mut output, &records)?;
    output.finish()
}

/// Numbers of trials.
fn wanted(count: u64, later: u64, crowds: u64) -> anyhow::Result<Vec<u64>> {
    match std::env::var("EVAL_TRIALS") {
        Ok(list) => list.split(',').map(|number| number.trim().parse().context("EVAL_TRIALS")).collect(),
        Err(_) => Ok((0..count)
            .chain(LATER_FROM..LATER_FROM + later)
            .chain(CROWD_FROM..CROWD_FROM + crowds)
            .collect()),
    }
}

fn perform_all(seed: u64, indices: &[u64], file: &Path, output: &mut Output) -> anyhow::Result<()> {
    let network = Network::build(seed)?;
    let witness = TrafficWitness::start()?;
    let mut fleet = None;
    for index in indices {
        let trial = Trial::draw(seed, *index);
        let name = format!("t{seed}-{index}");
        let is_new = fleet.is_none();
        let mut current = fleet.take().map_or_else(Fleet::start, Ok)?;
        let mut stage = Stage { fleet: &mut current, network: &network, witness: &witness };
        if is_new {
            stage.warm_up(&name)?;
        }
        let performed = stage.perform_until_hit(&trial, &name);
        network.mend();
        let line = match &performed {
            Ok(seen) => record::record(seed, &trial, seen, &judge::judge(&trial, seen)),
            Err(error) => record::broken(seed, &trial, &format!("{error:#}")),
        };
        record::append(file, &line)?;
        output.say(&summary::row(&line).join(" | "))?;
        // A fleet that is not usable is replaced: the next trial is not to blame.
        if performed.is_ok_and(|seen| seen.usable_after_ns.is_some() && !seen.is_in_doubt) {
            fleet = Some(current);
        }
    }
    Ok(())
}
