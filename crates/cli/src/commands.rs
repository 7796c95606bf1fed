//! One module per command. Each module calls other crates with the command's arguments, and formats their results.

mod agent;
mod calibrate;
mod capture;
mod collect;
mod demo;
mod docs;
mod doctor;
mod execution;
mod fleet;
mod flows;
mod kept;
mod log;
mod mcp;
mod merge;
mod meter;
mod method;
mod metrics;
mod notify;
mod page;
mod plan;
mod probe;
mod quick;
mod recorded;
mod replay;
mod report;
mod run;
mod run_viewer;
mod serve;
mod tap;
mod watch;

pub(crate) use execution::open_catalogue_to_read;
pub(crate) use fleet::build_nodes_json;
pub(crate) use flows::{exporter_name, group_json, group_measures};
pub(crate) use report::render_stored_page;

use crate::args::{RigCommand, TestCommand};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::CommandOutput;
use method::MethodRequest;
use packetrig_program::is_interrupted;
use std::time::Duration;

/// Interval between two checks for signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run_command(command: RigCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    match command {
        RigCommand::Run(arguments) => run::run_plan(*arguments, output),
        RigCommand::Replay(arguments) => replay::replay_file(*arguments, output),
        RigCommand::Plan(arguments) => plan::run_plan_command(&arguments, output),
        RigCommand::Demo(arguments) => demo::run_demo(&arguments, output),
        RigCommand::Capture(arguments) => capture::run_capture(&arguments, output),
        RigCommand::Tap(arguments) => tap::run_tap(&arguments, output),
        RigCommand::Collect(arguments) => collect::run_collector(&arguments, output),
        RigCommand::Flows(arguments) => flows::run_flows_command(&arguments, output),
        RigCommand::Log(arguments) => log::run_log(&arguments, output),
        RigCommand::Merge(arguments) => merge::merge_captures(&arguments, output),
        RigCommand::Meter(arguments) => meter::run_meter(&arguments, output),
        RigCommand::Agent(arguments) => agent::run_agent(&arguments, output),
        RigCommand::Fleet(arguments) => fleet::run_fleet_command(&arguments, output),
        RigCommand::Probe(command) => probe::run_probe(&command, output),
        RigCommand::Serve(arguments) => serve::run_server(&arguments, output),
        RigCommand::Page(arguments) => page::serve_page(&arguments, output),
        RigCommand::Watch(arguments) => watch::watch_server(&arguments, output),
        RigCommand::Doctor(arguments) => doctor::run_doctor(&arguments, output),
        RigCommand::Test(command) => run_test_command(command, output),
        RigCommand::Report(arguments) => report::run_report(*arguments, output),
        RigCommand::Mcp(arguments) => mcp::serve_assistant(&arguments),
        RigCommand::Docs(arguments) => docs::show_docs(&arguments, output),
    }
}

/// Waits until the user ends the command with a signal.
fn wait_for_interrupt() {
    while !is_interrupted() {
        // `sleep` continues after a signal, so a single long sleep would not notice it.
        std::thread::sleep(SIGNAL_POLL_INTERVAL);
    }
}

fn run_test_command(command: TestCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let request = match command {
        // A calibration is not a test method: it measures the rig and needs no device under test.
        TestCommand::Calibrate(arguments) => return calibrate::run_calibration(&arguments, output),
        TestCommand::Resume(arguments) => return method::resume_test(&arguments, output),
        TestCommand::Rfc2544(arguments) => MethodRequest::Rfc2544(arguments),
        TestCommand::Mlrsearch(arguments) => MethodRequest::Mlrsearch(arguments),
        TestCommand::Bisect(arguments) => MethodRequest::Bisect(arguments),
        TestCommand::Convergence(arguments) => MethodRequest::Convergence(arguments),
        TestCommand::Compare(arguments) => MethodRequest::Compare(arguments),
        TestCommand::LossShare(arguments) => MethodRequest::LossShare(arguments),
    };
    method::run_method(&request, output)
}
