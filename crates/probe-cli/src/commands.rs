//! One module per command, and what they have in common.

mod allowed;
mod asking;
pub(super) mod bounds;
mod calibrate;
mod caps;
mod estimates;
pub(super) mod mechanism;
mod oneprobe;
mod oneway;
mod ping;
mod reflect;
mod schedule;
mod send;
mod serve;
mod setup;
mod show;
mod stamp;

use crate::args::ProbeCommand;
use crate::{Error, RecordFiles};
use packetrig_program::exit::CommandExit;
use packetrig_program::output::CommandOutput;

/// Text in place of a figure that is not known.
const UNKNOWN: &str = "–";

/// Performs a command. Records go to the files that this program can write.
pub fn run_probe_command(
    command: &ProbeCommand,
    files: RecordFiles,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    match command {
        ProbeCommand::Allowed(arguments) => allowed::show_limits(arguments, output),
        ProbeCommand::Ping(arguments) => ping::run_ping(arguments, files, output),
        ProbeCommand::Stamp(arguments) => stamp::run_stamp(arguments, files, output),
        ProbeCommand::Reflect(arguments) => reflect::run_reflect(arguments, output),
        ProbeCommand::Oneway(arguments) => oneway::run_oneway(arguments, files, output),
        ProbeCommand::Oneprobe(arguments) => oneprobe::run_oneprobe(arguments, output),
        ProbeCommand::Capacity(arguments) => estimates::run_capacity(arguments, files, output),
        ProbeCommand::Available(arguments) => estimates::run_available(arguments, files, output),
        ProbeCommand::Send(arguments) => send::run_send(arguments, files, output),
        ProbeCommand::Serve(arguments) => serve::run_serve(arguments, output),
        ProbeCommand::Caps(arguments) => caps::show_capabilities(arguments, output),
        ProbeCommand::Calibrate(arguments) => calibrate::run_calibration(arguments, output),
    }
}
