//! Evaluation of line rate: sending and receiving against peers and the machine's limit. Run by `eval/run.sh rate`, which
//! puts it into a private lab.

mod capture;
mod receive;
mod send;
mod thesis;

use packetrig_tests::eval::output::Output;
use packetrig_tests::eval::{Effort, directory};

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("rate", &directory("rate"), effort)?;
    send::evaluate(effort, &mut output)?;
    receive::evaluate(effort, &mut output)?;
    capture::evaluate(effort, &mut output)?;
    thesis::evaluate(effort, &mut output)?;
    output.finish()
}
