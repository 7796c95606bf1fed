//! Evaluation of the collector: is everything that was offered stored, or its loss stated? Run by `eval/run.sh collect`, which puts
//! it into a private lab. `EVAL_ONLY=restarts` measures one part only, `EVAL_SEED` draws other moments, `EVAL_CAPTURES` names a
//! directory of captures (`scripts/captures.sh` gets those of nDPI), and `EVAL_SFLOW` recordings of sFlow agents.

mod captures;
mod collector;
mod datagrams;
mod rates;
mod restarts;
mod sflow;
mod whole;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

/// Parts by name, in the order they are measured.
const PARTS: [(&str, Part); 6] = [
    ("whole", whole::evaluate),
    ("datagrams", datagrams::evaluate),
    ("rates", rates::evaluate),
    ("restarts", restarts::evaluate),
    ("captures", captures::evaluate),
    ("sflow", sflow::evaluate),
];

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("collect", &directory("collect"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    for (name, evaluate) in PARTS {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
