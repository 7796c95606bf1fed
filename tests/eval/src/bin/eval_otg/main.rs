//! Evaluation of the OTG server: how soon frames leave, what polling costs, whether memory grows. Run by `eval/run.sh otg`,
//! which puts it into a private lab. `EVAL_ONLY=latency` measures one part only.

mod grpc;
mod http;
mod latency;
mod memory;
mod polls;
mod server;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("otg", &directory("otg"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    let parts: [(&str, Part); 3] =
        [("latency", latency::evaluate), ("polls", polls::evaluate), ("memory", memory::evaluate)];
    for (name, evaluate) in parts {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
