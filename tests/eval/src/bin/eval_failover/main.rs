//! Evaluation of a pair of meters: what a failure costs. Run by `eval/run.sh failover`, which puts it into a private lab.
//! `EVAL_ONLY=reboots` measures one part only, `EVAL_SEED` draws other moments, `EVAL_FAULT` takes only faults with these words. Trials of faults that have
//! their line in `trials.jsonl` are not performed again, so a campaign that was stopped goes on.

mod cost;
mod decider;
mod echo;
mod faults;
mod journal;
mod reboots;
mod rig;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

/// Parts by name, in the order they are measured.
const PARTS: [(&str, Part); 3] =
    [("reboots", reboots::evaluate), ("faults", faults::evaluate), ("cost", cost::evaluate)];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("failover", &directory("failover"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    for (name, evaluate) in PARTS {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
