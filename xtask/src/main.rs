//! Chores of the workspace: `layers` holds the walls between rooms, `promises` looks for the tests that promises name, `lab`
//! gives a command a private network, `vm` a machine with another kernel, `vm-fleet` a fleet of two of them.
//!
//! Nothing of the product is here. `anyhow` is fine in this place: a chore that fails prints why and ends.
#![forbid(unsafe_code)]

mod lab;
mod layers;
mod metadata;
mod promises;
mod vm;

use anyhow::{Result, bail};
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo run -p xtask -- layers | promises | lab -- COMMAND… | vm -- COMMAND… | vm-fleet";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match perform(&arguments) {
        Ok(code) => code,
        Err(error) => {
            report(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["layers"] => Ok(check("layers", &layers::check()?)),
        ["promises"] => Ok(check("promises", &promises::check(&promises::root())?)),
        ["lab", "--", command, ref rest @ ..] => lab::run(command, rest),
        ["vm", ref words @ ..] => vm::run(words),
        ["vm-fleet", ref words @ ..] => vm::run_fleet(words),
        _ => bail!(USAGE),
    }
}

/// What a check found.
struct Checked {
    /// What was looked at, in words.
    looked_at: String,
    violations: Vec<String>,
}

fn check(name: &str, checked: &Checked) -> ExitCode {
    for violation in &checked.violations {
        report(&format!("{name}: {violation}"));
    }
    report(&format!("{name}: {}, {} violations", checked.looked_at, checked.violations.len()));
    if checked.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[expect(clippy::print_stderr, reason = "a chore talks to the terminal")]
fn report(line: &str) {
    eprintln!("{line}");
}
