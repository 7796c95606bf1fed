//! The packetrig command: arguments as typed (`args`) become calls of the crates below (`commands`), and what they return
//! becomes text. It measures nothing and decides nothing about a run.
//!
//! Results go to standard output, remarks and progress to standard error. Each way to end has its exit code (`exit`).
#![forbid(unsafe_code)]

mod args;
mod clamp;
mod commands;
mod diagnostics;
mod document;
mod error;
mod exit;
mod explanation;
mod faults;
mod fleet_place;
mod identity;
mod numbers;
mod output;
mod panic;
mod progress;
mod protocols;
mod results;
mod safe_text;
mod sandbox;
mod sparkline;
mod speeds;
mod table;

use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, remark};
use clap::Parser;
use packetrig_sys::private_files;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before any file is made: captures and keys are readable by their owner only.
    private_files::tighten_process();
    private_files::on_exposed(|file, error| {
        remark(format_args!(
            "warning: cannot make {} private ({error}): other users may read this and other files there",
            file.display()
        ));
    });
    // The hook comes first: without it, a panic would print a backtrace that means nothing to the user.
    panic::report_briefly();
    panic::guarded(command).into()
}

fn command() -> CommandExit {
    let mut output = CommandOutput::standard();
    let done = match args::CommandLine::try_parse() {
        Ok(cli) => commands::perform(cli.command, &mut output),
        Err(refusal) => return explain_usage(&refusal, output),
    };
    let written = output.finish().map_err(|source| error::Error::Write { what: "results".into(), source });
    // If both failed, the error of the command is the one that helps.
    match done.and_then(|exit| written.map(|()| exit)) {
        Ok(exit) => exit,
        Err(error) => {
            error.show(TextStyle::of_remarks());
            error.exit()
        }
    }
}

/// Help and version are results; anything else the parser says is a remark.
fn explain_usage(refusal: &clap::Error, mut output: CommandOutput) -> CommandExit {
    if refusal.use_stderr() {
        remark(usage_text(refusal, TextStyle::of_remarks()).trim_end());
        return CommandExit::Usage;
    }
    output.text(usage_text(refusal, output.style()));
    if output.finish().is_ok() { CommandExit::Ok } else { CommandExit::World }
}

/// clap would ask the terminal itself; here the same rules hold for help as for all other text (`NO_COLOR`, `TERM`).
fn usage_text(refusal: &clap::Error, style: TextStyle) -> String {
    let text = refusal.render();
    if style.is_coloured() { text.ansi().to_string() } else { text.to_string() }
}
