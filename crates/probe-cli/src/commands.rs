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
pub fn perform(
    command: &ProbeCommand,
    files: RecordFiles,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    match command {
        ProbeCommand::Allowed(arguments) => allowed::perform(arguments, output),
        ProbeCommand::Ping(arguments) => ping::perform(arguments, files, output),
        ProbeCommand::Stamp(arguments) => stamp::perform(arguments, files, output),
        ProbeCommand::Reflect(arguments) => reflect::perform(arguments, output),
        ProbeCommand::Oneway(arguments) => oneway::perform(arguments, files, output),
        ProbeCommand::Oneprobe(arguments) => oneprobe::perform(arguments, output),
        ProbeCommand::Capacity(arguments) => estimates::capacity(arguments, files, output),
        ProbeCommand::Available(arguments) => estimates::available(arguments, files, output),
        ProbeCommand::Send(arguments) => send::perform(arguments, files, output),
        ProbeCommand::Serve(arguments) => serve::perform(arguments, output),
        ProbeCommand::Caps(arguments) => caps::perform(arguments, output),
        ProbeCommand::Calibrate(arguments) => calibrate::perform(arguments, output),
    }
}
