//! Evaluation of probes: when they leave, what is said of it, and what is found out about paths. Run by `eval/run.sh probe`, which puts
//! it into a private lab. `EVAL_ONLY=trains,pairs` measures these parts only.
//!
//! Whatever is said of a frame is held against the stamp that the far end's kernel gives it, shaped links against their measured output,
//! answers against a truth log or another project's program.

mod answers;
mod available;
mod capacity;
mod capture;
mod departures;
mod figures;
mod foreign;
mod frames;
mod judge;
mod lab;
mod load;
mod mesh;
mod pairs;
mod peers;
mod referee;
mod released;
mod sender;
mod service;
mod trains;
mod truth;
mod way;

use anyhow::ensure;
use packetrig_eval::output::Output;
use packetrig_eval::{Effort, directory};
use std::panic::AssertUnwindSafe;

type Part = fn(Effort, &mut Output) -> anyhow::Result<()>;

fn main() -> anyhow::Result<()> {
    if load::is_it()? {
        return Ok(());
    }
    let effort = Effort::from_environment();
    let mut output = Output::new("probe", &directory("probe"), effort)?;
    let only = std::env::var("EVAL_ONLY").ok();
    let parts: [(&str, Part); 12] = [
        ("trains", trains::evaluate),
        ("pairs", pairs::evaluate),
        ("departures", departures::evaluate),
        ("released", released::evaluate),
        ("capture", capture::evaluate),
        ("capacity", capacity::evaluate),
        ("available", available::evaluate),
        ("answers", answers::evaluate),
        ("truth", truth::evaluate),
        ("mesh", mesh::evaluate),
        ("service", service::evaluate),
        ("foreign", foreign::evaluate),
    ];
    let mut failed = Vec::new();
    for (name, evaluate) in parts {
        if only.as_deref().is_none_or(|only| only.split(',').any(|only| only == name)) {
            // What others have measured in half an hour is not lost with one.
            let part = std::panic::catch_unwind(AssertUnwindSafe(|| evaluate(effort, &mut output)));
            match part {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed.push(format!("{name}: {error:#}")),
                Err(_) => failed.push(format!("{name}: it panicked")),
            }
        }
    }
    output.finish()?;
    ensure!(failed.is_empty(), "not measured to the end: {}", failed.join("; "));
    Ok(())
}
