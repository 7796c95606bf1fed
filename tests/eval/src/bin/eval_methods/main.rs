//! Evaluation of the test methods: MLRsearch beside the reference library, and how long searches take and how wrong they are on
//! simulated devices; RFC 2544 in the lab; what a trial takes beside its traffic on a fleet. Run by `eval/run.sh methods`. `EVAL_ONLY=times` measures one part only, `EVAL_SEED` draws other
//! searches.

mod classes;
mod device;
mod fleet;
mod lab;
mod latency;
mod mlrsearch;
mod oracle;
mod searches;
mod times;

use anyhow::Context;
use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory, parts};

type Part = fn(Effort, u64, &mut Output) -> anyhow::Result<()>;

const PARTS: [(&str, Part); 5] = [
    ("mlrsearch", mlrsearch::evaluate),
    ("times", times::evaluate),
    ("lab", lab::evaluate),
    ("latency", latency::evaluate),
    ("fleet", fleet::evaluate),
];
const DEFAULT_SEED: u64 = 9971;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let seed =
        std::env::var("EVAL_SEED").map_or(Ok(DEFAULT_SEED), |seed| seed.parse()).context("EVAL_SEED")?;
    let mut output = Output::new("methods", &directory("methods"), effort)?;
    output.say(&format!("Seed {seed}.\n"))?;
    let seeded =
        PARTS.map(|(name, part)| (name, move |effort, output: &mut Output| part(effort, seed, output)));
    parts::evaluate(seeded, effort, &mut output)?;
    output.finish()
}
