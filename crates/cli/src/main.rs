//! The program `packetrig`: parses the command line (`args`), calls the other crates and prints their results
//! (`commands`). The other crates measure, and judge the runs.
//!
//! Results go to standard output, remarks and progress to standard error. `exit` lists the exit codes.
#![forbid(unsafe_code)]

mod alerts;
mod archive;
mod args;
mod commands;
mod diagnostics;
mod document;
mod error;
mod explanation;
mod faults;
mod fleet_place;
mod losses;
mod measured;
mod page_opener;
mod progress;
mod protocols;
mod record_stores;
mod results;
mod sandbox;
mod secret_key;
mod sparkline;
mod speeds;

pub(crate) use packetrig_program::{exit, identity, numbers, output, table};

use packetrig_program::{ProgramName, run_program};
use std::process::ExitCode;

const PROGRAM_NAME: ProgramName = ProgramName {
    name: "packetrig",
    version: env!("CARGO_PKG_VERSION"),
    after_bug: "; `packetrig doctor` shows interfaces that are still changed",
};

/// Allocator of static (musl) builds: the allocator of musl has one lock for all threads, so threads wait for it.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    run_program(
        PROGRAM_NAME,
        // Help pages are written for this program, so nothing is replaced in them.
        |help| help,
        |line: args::CommandLine, output| {
            line.event_log.start_log().into_iter().for_each(output::print_remark);
            commands::run_command(line.command, output)
        },
    )
}
