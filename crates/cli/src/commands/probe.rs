//! `packetrig probe`: one module per subcommand, and what they have in common.

mod allowed;
mod asking;
pub(crate) mod bounds;
mod calibrate;
mod caps;
mod estimates;
pub(crate) mod mechanism;
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
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;

pub(crate) fn perform(command: &ProbeCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    match command {
        ProbeCommand::Allowed(arguments) => allowed::perform(arguments, output),
        ProbeCommand::Ping(arguments) => ping::perform(arguments, output),
        ProbeCommand::Stamp(arguments) => stamp::perform(arguments, output),
        ProbeCommand::Reflect(arguments) => reflect::perform(arguments, output),
        ProbeCommand::Oneway(arguments) => oneway::perform(arguments, output),
        ProbeCommand::Oneprobe(arguments) => oneprobe::perform(arguments, output),
        ProbeCommand::Capacity(arguments) => estimates::capacity(arguments, output),
        ProbeCommand::Available(arguments) => estimates::available(arguments, output),
        ProbeCommand::Send(arguments) => send::perform(arguments, output),
        ProbeCommand::Serve(arguments) => serve::perform(arguments, output),
        ProbeCommand::Caps(arguments) => caps::perform(arguments, output),
        ProbeCommand::Calibrate(arguments) => calibrate::perform(arguments, output),
    }
}
