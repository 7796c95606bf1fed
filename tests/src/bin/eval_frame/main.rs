//! Evaluation of the frame: faults found, send rate beside peers, rate accuracy. Run by `eval/frame/run.sh`, which puts
//! it into a private lab.
//!
//! It runs the built program as a user does and judges it by others: the reference device's own list of faults, the
//! kernel's interface counters, and peers in the same lab in the same minutes.

mod accuracy;
mod faults;
mod output;
mod plot;
mod send_rate;

use output::Output;
use std::path::PathBuf;

/// How much time is taken.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// A run under a minute.
    quick: bool,
}

fn main() -> anyhow::Result<()> {
    let effort = Effort { quick: std::env::var("EVAL_QUICK").is_ok_and(|value| value == "1") };
    let directory =
        std::env::args_os().nth(1).map_or_else(|| PathBuf::from("target/eval/frame"), PathBuf::from);
    let mut output = Output::new(&directory, effort.quick)?;
    faults::evaluate(effort, &mut output)?;
    send_rate::evaluate(effort, &mut output)?;
    accuracy::evaluate(effort, &mut output)?;
    output.finish()
}
