//! `packetrig fleet`: the message server of a fleet, and the commands that show and change its nodes.

mod collect;
mod controller;
mod fetch;
mod history;
mod label;
mod lead_reader;
mod presence;
mod probe;
mod status;
mod up;

pub(crate) use controller::{LateResults, become_controller, open_served_runs, request_sender_priority};
pub(crate) use status::{build_nodes_json, read_fleet_members};

use crate::args::{FleetCommand, InviteArgs, RemoveNodeArgs};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetAddresses, FleetPlace};
use crate::output::CommandOutput;
use packetrig_fleet::history::NodeEvent;
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::enrol::{JoinLine, build_join_line};
use packetrig_report::NodeName;
use packetrig_sys::clock;
use packetrig_units::Nanos;

/// Label of the secrets in join lines; `invite --revoke` revokes all secrets with this label.
const JOIN_SECRET_LABEL: &str = "join";

pub(crate) fn run_fleet_command(
    arguments: &FleetCommand,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    match arguments {
        FleetCommand::Up(arguments) => up::run_message_server(arguments, output),
        FleetCommand::Status(arguments) => status::show_status(arguments, output),
        FleetCommand::History(arguments) => history::show_history(arguments, output),
        FleetCommand::Label(arguments) => label::label_node(arguments, output),
        FleetCommand::Invite(arguments) => invite_nodes(arguments, output),
        FleetCommand::Remove(arguments) => remove_node(arguments, output),
        FleetCommand::Probe(arguments) => probe::run_fleet_probe(arguments, output),
        FleetCommand::Fetch(arguments) => fetch::fetch_captures(arguments, output),
        FleetCommand::Collect(arguments) => collect::collect_unfinished_runs(arguments, output),
    }
}

fn invite_nodes(arguments: &InviteArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    let authority = place.open_authority()?;
    let addresses = place.read_addresses()?;
    if arguments.revoke {
        let taken = authority.revoke_secrets(JOIN_SECRET_LABEL)?;
        output.write_line(format_args!("join lines revoked: {taken}; no node can join with them any more"));
        return Ok(CommandExit::Ok);
    }
    let line = make_join_line(&authority, &addresses, arguments.uses, arguments.valid)?;
    output.write_line(format_args!("{line}"));
    Ok(CommandExit::Ok)
}

/// Creates a secret and returns the join line with it. The line admits `uses` nodes and expires after `valid`.
fn make_join_line(
    authority: &FleetAuthority,
    addresses: &FleetAddresses,
    uses: u32,
    valid: Nanos,
) -> Result<JoinLine, Error> {
    let now = clock::wall_clock_ns() / 1_000_000_000;
    // Secrets expire by whole seconds since 1970, like certificates.
    let until = now + valid.as_u64() / 1_000_000_000;
    let secret = authority.create_secret(JOIN_SECRET_LABEL, Some(uses), Some(until))?;
    Ok(build_join_line(authority, addresses.servers.join(","), addresses.enrol.clone(), secret)?)
}

fn remove_node(arguments: &RemoveNodeArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::from_arguments(&arguments.place)?.require_existing()?;
    let node = NodeName(arguments.node.clone());
    // The name is checked first: otherwise a misspelled name would be reported as removed.
    if !place.open_authority()?.list_node_names()?.contains(&node) {
        return Err(Error::Usage(format!(
            "the fleet has no node called {node}; `packetrig fleet status` lists the nodes"
        )));
    }
    // `fleet up` watches the authority's directory and disconnects the node. Without a running `fleet up`, the message
    // server still admits the node.
    place.open_authority()?.remove_node(&node)?;
    place.record_history(vec![(node.clone(), NodeEvent::Removed)]);
    output.write_line(format_args!(
        "{node} removed; `packetrig fleet up` disconnects it and does not admit it again"
    ));
    Ok(CommandExit::Ok)
}
