//! Evaluation of the flow meter: packets per second beside its peers, hash, memory, and what it loses live. Run by
//! `eval/run.sh meter`, which puts it into a private lab. `EVAL_ONLY=rate` measures one part only.

mod cores;
mod hash;
mod live;
mod machine;
mod memory;
mod metered;
mod peers;
mod rate;
mod sampled;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("meter", &directory("meter"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    let parts: [(&str, Part); 5] = [
        ("rate", rate::evaluate),
        ("hash", hash::evaluate),
        ("memory", memory::evaluate),
        ("loss", sampled::evaluate),
        ("live", live::evaluate),
    ];
    for (name, evaluate) in parts {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
