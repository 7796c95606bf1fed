//! One module per command: request in, calls of the rooms below, text out.

mod agent;
mod calibrate;
mod capture;
mod collect;
mod demo;
mod doctor;
mod execution;
mod fleet;
mod flows;
mod kept;
mod log;
mod meter;
mod plan;
mod probe;
mod quick;
mod recorded;
mod replay;
mod report;
mod run;
mod serve;
mod tap;

use crate::args::{Command, Test};
use crate::error::Error;
use crate::exit::Exit;
use crate::output::Output;

/// Does what the command line asks.
pub(crate) fn perform(command: Command, output: &mut Output) -> Result<Exit, Error> {
    match command {
        Command::Run(arguments) => run::perform(*arguments, output),
        Command::Replay(arguments) => replay::perform(*arguments, output),
        Command::Plan(arguments) => plan::perform(&arguments, output),
        Command::Demo(arguments) => demo::perform(&arguments, output),
        Command::Capture(arguments) => capture::perform(&arguments, output),
        Command::Tap(arguments) => tap::perform(&arguments, output),
        Command::Collect(arguments) => collect::perform(&arguments, output),
        Command::Flows(arguments) => flows::perform(&arguments, output),
        Command::Log(arguments) => log::perform(&arguments, output),
        Command::Meter(arguments) => meter::perform(&arguments, output),
        Command::Agent(arguments) => agent::perform(&arguments, output),
        Command::Fleet(arguments) => fleet::perform(&arguments, output),
        Command::Probe(command) => probe::perform(&command, output),
        Command::Serve(arguments) => serve::perform(&arguments, output),
        Command::Doctor(arguments) => doctor::perform(&arguments, output),
        Command::Test(Test::Calibrate(arguments)) => calibrate::perform(&arguments, output),
        Command::Report(arguments) => report::perform(arguments, output),
    }
}
