//! packetrig-probe: the commands of `packetrig probe` in a small program for routers and boards.
#![forbid(unsafe_code)]

use clap::Parser;
use packetrig_probe_cli::args::ProbeCommand;
use packetrig_probe_cli::{Error, HostProgram, RecordFiles, run_probe_command};
use packetrig_program::event_log::EventLogArgs;
use packetrig_program::exit::CommandExit;
use packetrig_program::output::{CommandOutput, print_remark};
use packetrig_program::{ProgramName, run_program};
use std::process::ExitCode;

const PROGRAM_NAME: ProgramName =
    ProgramName { name: "packetrig-probe", version: env!("CARGO_PKG_VERSION"), after_bug: "" };

/// Measure a path with probes that leave at planned times; the commands of `packetrig probe` alone.
// Lines of more than 100 columns are hard to read, however wide the terminal is.
#[derive(Debug, Parser)]
#[command(name = "packetrig-probe", version, max_term_width = 100, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: ProbeCommand,
    #[command(flatten)]
    event_log: EventLogArgs,
}

fn main() -> ExitCode {
    run_program(PROGRAM_NAME, replace_program_name, perform_command)
}

/// The examples in the help texts are written for `packetrig`, where the commands follow `probe`.
fn replace_program_name(help: String) -> String {
    help.replace("packetrig probe ", "packetrig-probe ")
}

fn perform_command(line: CommandLine, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    line.event_log.start_log().into_iter().for_each(print_remark);
    // This program contains neither Parquet nor a server for viewers: their libraries are too large for a
    // router, and have not been tried on many processors of routers
    // (docs/decisions/0034-the-small-program.md).
    let host = HostProgram { files: RecordFiles { parquet: None }, open_viewer: None };
    run_probe_command(&line.command, host, output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn examples_name_this_program() {
        let refusal = CommandLine::try_parse_from(["packetrig-probe", "ping", "--help"]).unwrap_err();
        let help = replace_program_name(refusal.render().to_string());
        assert!(
            help.contains("  packetrig-probe ping 192.0.2.1") && !help.contains("packetrig probe"),
            "{help}"
        );
        assert!(help.contains("Usage: packetrig-probe ping"), "{help}");
    }
}
