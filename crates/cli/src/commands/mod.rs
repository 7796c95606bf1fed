//! One module per command: request in, calls of the rooms below, text out.

mod doctor;
mod plan;

use crate::args::Command;
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;

/// Does what the command line asks.
pub(crate) fn perform(command: Command, output: &mut Output) -> Result<Exit, Error> {
    match command {
        Command::Plan(arguments) => plan::perform(&arguments, output),
        Command::Doctor(arguments) => doctor::perform(&arguments, output),
        _ => Err(Error::Usage("not wired up yet".into())),
    }
}
