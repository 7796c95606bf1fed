//! Evaluation of the frame: faults found, send rate beside peers, rate accuracy. Run by `eval/run.sh frame`, which puts
//! it into a private lab.

mod accuracy;
mod faults;
mod send_rate;

use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};

fn main() -> anyhow::Result<()> {
    let effort = Effort::from_environment();
    let mut output = Output::new("frame", &directory("frame"), effort)?;
    faults::evaluate(effort, &mut output)?;
    send_rate::evaluate(effort, &mut output)?;
    accuracy::evaluate(effort, &mut output)?;
    output.finish()
}
