//! `packetrig run`: a document, or flags that make one, becomes a request to execute.

use super::execution::{self, ExecutionRequest, FleetUnderControl};
use crate::args::{ExecutionArgs, RunArgs as Arguments};
use crate::document::PlanText;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetPlace, is_directory_given};
use crate::output::{CommandOutput, print_remark};
use packetrig_fleet::places;

pub(crate) fn run_plan(arguments: Arguments, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    if let Some(file) = &arguments.plan {
        let document = PlanText::read_file(file)?;
        return execute_document(document, arguments, output);
    }
    match find_fleet_if_all_is_used(&arguments)? {
        // `*all` stands for ports of all nodes. To print the plan, it is enough to listen to the nodes. To run it, this
        // process becomes their controller.
        None => execute_document(document_from_flags(&arguments)?, arguments, output),
        Some(place) if arguments.execution.print_plan => {
            let members = super::fleet::read_fleet_members(&place)?;
            let document = make_plan_for_members(&arguments, &|label| {
                places::count_labelled_ports_in_fleet(label, &members)
            })?;
            execute_document(document, arguments, output)
        }
        Some(place) => execute_with_all_nodes(&place, arguments, output),
    }
}

fn execute_document(
    document: PlanText,
    arguments: Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    check_fleet_options(&arguments.execution, &document)?;
    if arguments.execution.print_plan {
        return execution::print_plan(&document, &arguments.execution.fleet, output);
    }
    let request = ExecutionRequest {
        seed: arguments.seed,
        ..ExecutionRequest::from_arguments(document, arguments.execution)
    };
    execution::execute_request(&request, output)
}

/// Fails if the plan runs on this machine and an option is given that has an effect only on a fleet.
pub(crate) fn check_fleet_options(arguments: &ExecutionArgs, document: &PlanText) -> Result<(), Error> {
    let options = [
        (arguments.start_with.is_some(), "--start-with"),
        (arguments.go_on, "--go-on"),
        (arguments.wait_for_nodes, "--wait-for-nodes"),
    ];
    // Without these options, the plan is not read here: to find the fleet, the whole document must be parsed.
    let Some((_, option)) = options.into_iter().find(|(is_given, _)| *is_given) else { return Ok(()) };
    match execution::find_fleet(&arguments.fleet, &document.text)? {
        Some(_) => Ok(()),
        None => Err(Error::Usage(format!("{option} has no effect without a fleet; name one with --fleet"))),
    }
}

/// The fleet, if a port of the flags ends in `*all`: the nodes of the fleet then decide the number of ports.
fn find_fleet_if_all_is_used(arguments: &Arguments) -> Result<Option<FleetPlace>, Error> {
    let flags = &arguments.flags;
    let place = find_fleet_place(arguments)?;
    let says_all = flags.tx.iter().chain(&flags.rx).any(|port| port.0.ends_with("*all"));
    Ok(place.filter(|_| says_all))
}

fn find_fleet_place(arguments: &Arguments) -> Result<Option<FleetPlace>, Error> {
    let fleet = &arguments.execution.fleet;
    let place = FleetPlace::from_arguments(fleet)?;
    let place = if is_directory_given(fleet) { place.require_existing()? } else { place };
    Ok(Some(place).filter(FleetPlace::exists))
}

/// The document for flags that do not contain `any-LABEL*all`.
fn document_from_flags(arguments: &Arguments) -> Result<PlanText, Error> {
    let flags = &arguments.flags;
    super::quick::print_imix_size_remark(flags.size, flags.vlan.is_some(), flags.sends_ipv6());
    match find_fleet_place(arguments)? {
        None => super::quick::plan_text_from_flags(&arguments.flags, None),
        // No ports are counted here: only `*all` needs a number, and another function handles it.
        Some(_) => super::quick::plan_text_from_flags(&arguments.flags, Some(&|_| None)),
    }
}

fn make_plan_for_members(arguments: &Arguments, how_many: &dyn Fn(&str) -> usize) -> Result<PlanText, Error> {
    super::quick::plan_text_from_flags(
        &arguments.flags,
        Some(&|group: &str| Some(how_many(group.trim_start_matches("any-")))),
    )
}

/// Becomes a controller of the fleet, makes the plan and runs it. The plan comes second, because only a controller
/// knows the ports and labels of all nodes.
fn execute_with_all_nodes(
    place: &FleetPlace,
    arguments: Arguments,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let policies = execution::fleet_policies(&arguments.execution);
    let store = arguments.execution.record.store.directory.clone();
    let taken = FleetUnderControl::become_fleet_controller(place, store.as_deref(), policies)?;
    // Nodes that have never reported are named, because `*all` has fewer ports without them than the user expects.
    for node in taken.fleet().enrolled_nodes_without_hello() {
        print_remark(format_args!(
            "node {node} was admitted but has never reported, so `*all` does not include its ports"
        ));
    }
    let document = make_plan_for_members(&arguments, &|label| taken.fleet().count_labelled_ports(label))?;
    let request = ExecutionRequest {
        seed: arguments.seed,
        ..ExecutionRequest::from_arguments(document, arguments.execution)
    };
    taken.execute_new_plan(&request, output)
}
