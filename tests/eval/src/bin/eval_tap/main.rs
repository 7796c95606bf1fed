//! Evaluation of the tap and its log, beside a kernel bridge, `tc mirred` and tcpdump in the same minutes. Run by
//! `eval/run.sh tap`, which puts it into a private lab. `EVAL_ONLY=rate` measures one part only.
//!
//! What the far ends got is counted by the kernel at their interfaces; what was logged is counted in the files. What a tap
//! says of itself is shown where nobody else can know it, and judges nothing.

mod failures;
mod flood;
mod latency;
mod rate;
mod rig;
mod table;
mod tcp;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("tap", &directory("tap"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    let parts: [(&str, Part); 5] = [
        ("table", table::evaluate),
        ("rate", rate::evaluate),
        ("latency", latency::evaluate),
        ("tcp", tcp::evaluate),
        ("failures", failures::evaluate),
    ];
    for (name, evaluate) in parts {
        if only.as_deref().is_none_or(|only| only == name) {
            evaluate(effort, &mut output)?;
        }
    }
    output.finish()
}
