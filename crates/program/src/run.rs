//! Runs a program from its command line to its exit code, in the same way for every program.

use crate::exit::CommandExit;
use crate::output::{CommandOutput, TextStyle, print_deciding_error, print_remark};
use crate::{UnwrittenResult, panic};
use clap::Parser;
use packetrig_sys::private_files;
use packetrig_units::message_with_causes;
use std::process::ExitCode;

/// Name and version of a program, for its messages.
#[derive(Clone, Copy, Debug)]
pub struct ProgramName {
    pub name: &'static str,
    pub version: &'static str,
    /// Advice to a user after a bug, as the end of a sentence; may be empty.
    pub after_bug: &'static str,
}

/// Error of a command, which ends the program.
pub trait CommandError: std::error::Error + From<UnwrittenResult> + 'static {
    /// Exit code, by the party at fault.
    fn command_exit(&self) -> CommandExit;

    /// Prints the error as the last line on standard error.
    fn show_error(&self) {
        print_deciding_error(message_with_causes(self));
    }
}

/// Parses the arguments of this process, runs the command with `perform`, and returns the exit code. `help` may change
/// the text of help pages and usage errors.
pub fn run_program<C: Parser, E: CommandError>(
    program: ProgramName,
    help: fn(String) -> String,
    perform: fn(C, &mut CommandOutput) -> Result<CommandExit, E>,
) -> ExitCode {
    // The umask is set before any file is made: only the owner may read captures and keys.
    private_files::restrict_new_files_to_owner();
    private_files::set_exposed_file_callback(|file, error| {
        print_remark(format_args!(
            "warning: cannot make {} private ({error}): other users may be able to read this file and \
             other files in its directory",
            file.display()
        ));
    });
    // The hook comes first: without it, a panic would print a backtrace that users cannot understand.
    panic::install_panic_hook(program);
    panic::run_and_report_panic(|| run_command(help, perform)).into()
}

fn run_command<C: Parser, E: CommandError>(
    help: fn(String) -> String,
    perform: fn(C, &mut CommandOutput) -> Result<CommandExit, E>,
) -> CommandExit {
    let mut output = CommandOutput::to_standard_output();
    let done = match C::try_parse() {
        Ok(command) => perform(command, &mut output),
        Err(refusal) => return print_parser_text(&refusal, help, output),
    };
    let written = output.into_result().map_err(|source| UnwrittenResult { what: "results", source });
    // If both failed, the error of the command is reported, because it is the cause that the user can act on.
    match done.and_then(|exit| Ok(written.map(|()| exit)?)) {
        Ok(exit) => exit,
        Err(error) => {
            error.show_error();
            error.command_exit()
        }
    }
}

/// Prints the text of the argument parser: help and version on standard output, usage errors on standard error.
fn print_parser_text(
    refusal: &clap::Error,
    help: fn(String) -> String,
    mut output: CommandOutput,
) -> CommandExit {
    if refusal.use_stderr() {
        print_remark(help(render_usage(refusal, TextStyle::for_remarks())).trim_end());
        return CommandExit::Usage;
    }
    output.write_text(help(render_usage(refusal, output.style())));
    if output.into_result().is_ok() { CommandExit::Ok } else { CommandExit::World }
}

/// Renders the text of the argument parser, with colours only if all other text has them: clap has its own rules.
fn render_usage(refusal: &clap::Error, style: TextStyle) -> String {
    let text = refusal.render();
    if style.is_coloured() { text.ansi().to_string() } else { text.to_string() }
}
