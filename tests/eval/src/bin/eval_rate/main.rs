//! Evaluation of line rate: sending and receiving against peers and the machine's limit. Run by `eval/run.sh rate`, which
//! puts it into a private lab. `EVAL_ONLY=capture` measures one part only.

mod capture;
mod cost;
mod receive;
mod send;
mod thesis;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("rate", &directory("rate"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    let parts: [(&str, Part); 4] = [
        ("send", send::evaluate),
        ("receive", receive::evaluate),
        ("capture", capture::evaluate),
        ("thesis", thesis::evaluate),
    ];
    for (name, evaluate) in parts {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
