//! Tools of the workspace. `layers` checks the dependencies of crates, `names` and `house` check the names of
//! types, `pages` checks the links between pages, `promises` finds the tests that promises name. Environments
//! for a command: `lab` has a private network, `starve` loses its processors now and then, `vm` has another
//! kernel, `vm-fleet` is a fleet of two such machines.
//!
//! The product does not use this crate, so `anyhow` is enough: a tool that fails prints the reason and ends.
#![forbid(unsafe_code)]

mod house;
mod lab;
mod layers;
mod metadata;
mod pages;
mod promises;
mod starve;
mod vm;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- house | layers | names | pages | promises | lab -- COMMAND… | starve -- COMMAND… | vm -- COMMAND… | vm-fleet";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match perform_task(&arguments) {
        Ok(code) => code,
        Err(error) => {
            report(&format!("xtask: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn perform_task(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["layers"] => Ok(check("layers", &layers::check()?)),
        ["house"] => house::compare_with_goals(&promises::root()),
        ["names"] => Ok(check("names", &house::check_names(&promises::root())?)),
        ["pages"] => Ok(check("pages", &pages::check(&promises::root())?)),
        ["promises"] => Ok(check("promises", &promises::check(&promises::root())?)),
        ["lab", "--", command, ref rest @ ..] => lab::run(command, rest),
        ["starve", "--", command, ref rest @ ..] => starve::run(command, rest),
        ["vm", ref words @ ..] => vm::run(words),
        ["vm-fleet", ref words @ ..] => vm::run_fleet(words),
        _ => bail!(USAGE),
    }
}

/// Findings of a check.
struct CheckFindings {
    /// Description of the files or names that it looked at.
    looked_at: String,
    violations: Vec<String>,
}

/// Files with this ending below `root`, named from there. Build output and hidden files are left out.
fn list_files_with_ending(root: &Path, ending: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = directory.join(&name);
            if entry.file_type()?.is_dir() {
                let is_source = !name.starts_with('.') && name != "target" && name != "node_modules";
                directories.extend(is_source.then_some(path));
            } else if name.ends_with(ending) {
                names.push(path.to_string_lossy().into_owned());
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn check(name: &str, checked: &CheckFindings) -> ExitCode {
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
