//! The packetrig command: arguments as typed (`args`) become requests (`request`), requests become calls of the rooms
//! below, and what they return becomes text. It measures nothing and decides nothing about a run.
//!
//! Results go to standard output, remarks and progress to standard error. Each way to end has its exit code (`exit`).
#![forbid(unsafe_code)]

mod args;
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
mod speeds;
mod table;

use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, remark};
use clap::Parser;
use packetrig_sys::private_files;
use std::process::ExitCode;

fn main() -> ExitCode {
    private_files::tighten_process();
    private_files::on_exposed(|file, error| {
        remark(format_args!(
            "warning: cannot make {} private ({error}): other users may read this and other files there",
            file.display()
        ));
    });
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
    // A failed command is worth more words than a failed print.
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
    let text = |style: TextStyle| {
        let text = refusal.render();
        if style.is_coloured() { text.ansi().to_string() } else { text.to_string() }
    };
    if refusal.use_stderr() {
        remark(text(TextStyle::of_remarks()).trim_end());
        return CommandExit::Usage;
    }
    output.text(text(output.style()));
    if output.finish().is_ok() { CommandExit::Ok } else { CommandExit::World }
}
