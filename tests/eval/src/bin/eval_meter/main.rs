//! Evaluation of the flow meter: packets per second beside its peers, hash, memory, what it loses live, its stamps, its threads, mixes of
//! traffic, and several meters together. Run by `eval/run.sh meter`, which puts it into a private lab. `EVAL_ONLY=stamps,cluster` measures
//! these parts only, `EVAL_SEED` draws other mixes.

mod cluster;
mod cores;
mod hash;
mod layout;
mod live;
mod machine;
mod memory;
mod metered;
mod mixes;
mod peers;
mod rate;
mod sampled;
mod sampler;
mod slow;
mod stamps;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory, parts};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

/// Parts by name, in the order they are measured.
const PARTS: [(&str, Part); 9] = [
    ("rate", rate::evaluate),
    ("mixes", mixes::evaluate),
    ("hash", hash::evaluate),
    ("memory", memory::evaluate),
    ("loss", sampled::evaluate),
    ("live", live::evaluate),
    ("stamps", stamps::evaluate),
    ("layout", layout::evaluate),
    ("cluster", cluster::evaluate),
];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("meter", &directory("meter"), effort)?;
    parts::evaluate(PARTS, effort, &mut output)?;
    output.finish()
}
