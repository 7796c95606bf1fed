//! `packetrig probe`: one module per subcommand, and what they have in common.

mod allowed;
mod asking;
mod bounds;
mod calibrate;
mod caps;
mod estimates;
mod mechanism;
mod oneprobe;
mod oneway;
mod outset;
mod ping;
mod reflect;
mod schedule;
mod send;
mod show;
mod stamp;

use crate::args::Probe;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;

pub(crate) fn perform(command: &Probe, output: &mut Output) -> Result<Exit, Error> {
    match command {
        Probe::Allowed(arguments) => allowed::perform(arguments, output),
        Probe::Ping(arguments) => ping::perform(arguments, output),
        Probe::Stamp(arguments) => stamp::perform(arguments, output),
        Probe::Reflect(arguments) => reflect::perform(arguments, output),
        Probe::Oneway(arguments) => oneway::perform(arguments, output),
        Probe::Oneprobe(arguments) => oneprobe::perform(arguments, output),
        Probe::Capacity(arguments) => estimates::capacity(arguments, output),
        Probe::Available(arguments) => estimates::available(arguments, output),
        Probe::Send(arguments) => send::perform(arguments, output),
        Probe::Caps(arguments) => caps::perform(arguments, output),
        Probe::Calibrate(arguments) => calibrate::perform(arguments, output),
    }
}
