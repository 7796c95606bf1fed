//! One module for each command, and the code that the commands share.

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
use crate::{Error, HostProgram};
use packetrig_program::exit::CommandExit;
use packetrig_program::output::CommandOutput;

/// The text that is printed in place of a number that is not known.
const UNKNOWN_FIGURE: &str = "–";

/// Runs one of the commands of `packetrig probe`.
pub fn run_probe_command(
    command: &ProbeCommand,
    host: HostProgram,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    match command {
        ProbeCommand::Allowed(arguments) => allowed::show_limits(arguments, output),
        ProbeCommand::Ping(arguments) => ping::run_ping(arguments, host, output),
        ProbeCommand::Stamp(arguments) => stamp::run_stamp(arguments, host, output),
        ProbeCommand::Reflect(arguments) => reflect::run_reflect_command(arguments, output),
        ProbeCommand::Oneway(arguments) => oneway::run_oneway(arguments, host, output),
        ProbeCommand::Oneprobe(arguments) => oneprobe::run_oneprobe(arguments, output),
        ProbeCommand::Capacity(arguments) => estimates::estimate_capacity(arguments, host.files, output),
        ProbeCommand::Available(arguments) => {
            estimates::estimate_available_bandwidth(arguments, host.files, output)
        }
        ProbeCommand::Send(arguments) => send::run_send_command(arguments, host.files, output),
        ProbeCommand::Serve(arguments) => serve::run_serve_command(arguments, output),
        ProbeCommand::Caps(arguments) => caps::show_capabilities(arguments, output),
        ProbeCommand::Calibrate(arguments) => calibrate::run_calibration(arguments, output),
    }
}
