//! Evaluation of safety: what hostile nodes, clients and senders cost those who behave. Run by `eval/run.sh safety`, which puts it
//! into a private lab. `EVAL_ONLY=collector` measures one part only, `EVAL_SECONDS` says how long an attack lasts.

mod collector;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

/// Parts by name, in the order they are measured.
const PARTS: [(&str, Part); 1] = [("collector", collector::evaluate)];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("safety", &directory("safety"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    for (name, evaluate) in PARTS {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
