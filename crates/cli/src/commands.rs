//! One module per command: arguments in, calls of the crates below, text out.

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
mod merge;
mod meter;
mod method;
mod notify;
mod page;
mod plan;
mod probe;
mod quick;
mod recorded;
mod replay;
mod report;
mod run;
mod serve;
mod tap;
mod watch;

pub(crate) use execution::open_catalogue_to_read;
pub(crate) use fleet::shown_nodes;
pub(crate) use flows::{exporter, group_json};
pub(crate) use report::page_of;

use crate::args::{RigCommand, TestCommand};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use method::MethodRequest;
use packetrig_program::is_interrupted;
use std::time::Duration;

/// Interval between two checks for signals.
const POLL: Duration = Duration::from_millis(50);

pub(crate) fn perform(command: RigCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    match command {
        RigCommand::Run(arguments) => run::perform(*arguments, output),
        RigCommand::Replay(arguments) => replay::perform(*arguments, output),
        RigCommand::Plan(arguments) => plan::perform(&arguments, output),
        RigCommand::Demo(arguments) => demo::perform(&arguments, output),
        RigCommand::Capture(arguments) => capture::perform(&arguments, output),
        RigCommand::Tap(arguments) => tap::perform(&arguments, output),
        RigCommand::Collect(arguments) => collect::perform(&arguments, output),
        RigCommand::Flows(arguments) => flows::perform(&arguments, output),
        RigCommand::Log(arguments) => log::perform(&arguments, output),
        RigCommand::Merge(arguments) => merge::perform(&arguments, output),
        RigCommand::Meter(arguments) => meter::perform(&arguments, output),
        RigCommand::Agent(arguments) => agent::perform(&arguments, output),
        RigCommand::Fleet(arguments) => fleet::perform(&arguments, output),
        RigCommand::Probe(command) => probe::perform(&command, output),
        RigCommand::Serve(arguments) => serve::perform(&arguments, output),
        RigCommand::Page(arguments) => page::perform(&arguments, output),
        RigCommand::Watch(arguments) => watch::perform(&arguments, output),
        RigCommand::Doctor(arguments) => doctor::perform(&arguments, output),
        RigCommand::Test(command) => test(command, output),
        RigCommand::Report(arguments) => report::perform(*arguments, output),
    }
}

/// Waits until the user ends the command with a signal.
fn await_interrupt() {
    while !is_interrupted() {
        std::thread::sleep(POLL);
    }
}

fn test(command: TestCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let request = match command {
        TestCommand::Calibrate(arguments) => return calibrate::perform(&arguments, output),
        TestCommand::Resume(arguments) => return method::resume(&arguments, output),
        TestCommand::Rfc2544(arguments) => MethodRequest::Rfc2544(arguments),
        TestCommand::Mlrsearch(arguments) => MethodRequest::Mlrsearch(arguments),
        TestCommand::Bisect(arguments) => MethodRequest::Bisect(arguments),
        TestCommand::Convergence(arguments) => MethodRequest::Convergence(arguments),
        TestCommand::Compare(arguments) => MethodRequest::Compare(arguments),
        TestCommand::LossShare(arguments) => MethodRequest::LossShare(arguments),
    };
    method::perform(&request, output)
}
