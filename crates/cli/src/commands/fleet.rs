//! `packetrig fleet`: the centre of a fleet, and the commands that show and change its nodes.

mod charge;
mod collect;
mod fetch;
mod history;
mod label;
mod lead_reader;
mod presence;
mod probe;
mod status;
mod up;

pub(crate) use charge::{LateResults, request_precedence, served_runs, take};
pub(crate) use status::{shown_nodes, who_belongs};

use crate::args::{FleetCommand, InviteArgs, RemoveArgs};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetAddresses, FleetPlace};
use crate::output::CommandOutput;
use packetrig_fleet::NodeName;
use packetrig_fleet::history::NodeEvent;
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::enrol::{JoinLine, join_line};
use packetrig_sys::clock;
use packetrig_units::Nanos;

/// Label of the secrets in join lines; `invite --revoke` revokes all secrets with it.
const LABEL: &str = "join";

pub(crate) fn perform(arguments: &FleetCommand, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    match arguments {
        FleetCommand::Up(arguments) => up::perform(arguments, output),
        FleetCommand::Status(arguments) => status::perform(arguments, output),
        FleetCommand::History(arguments) => history::perform(arguments, output),
        FleetCommand::Label(arguments) => label::perform(arguments, output),
        FleetCommand::Invite(arguments) => invite(arguments, output),
        FleetCommand::Remove(arguments) => remove(arguments, output),
        FleetCommand::Probe(arguments) => probe::perform(arguments, output),
        FleetCommand::Fetch(arguments) => fetch::perform(arguments, output),
        FleetCommand::Collect(arguments) => collect::perform(arguments, output),
    }
}

fn invite(arguments: &InviteArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let authority = place.authority()?;
    let addresses = place.addresses()?;
    if arguments.revoke {
        let taken = authority.revoke(LABEL)?;
        output.line(format_args!("{taken} join lines revoked; no node can join with them"));
        return Ok(CommandExit::Ok);
    }
    let line = line(&authority, &addresses, arguments.uses, arguments.valid)?;
    output.line(format_args!("{line}"));
    Ok(CommandExit::Ok)
}

/// A new join line for this number of nodes, valid for this long.
fn line(
    authority: &FleetAuthority,
    addresses: &FleetAddresses,
    uses: u32,
    valid: Nanos,
) -> Result<JoinLine, Error> {
    let now = clock::wall_clock_ns() / 1_000_000_000;
    // Secrets expire by whole seconds since 1970, like certificates.
    let until = now + valid.as_u64() / 1_000_000_000;
    let secret = authority.allow(LABEL, Some(uses), Some(until))?;
    Ok(join_line(authority, addresses.servers.join(","), addresses.enrol.clone(), secret)?)
}

fn remove(arguments: &RemoveArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let node = NodeName(arguments.node.clone());
    if !place.authority()?.nodes()?.contains(&node) {
        return Err(Error::Usage(format!(
            "the fleet has no node called {node}; `packetrig fleet status` lists the nodes"
        )));
    }
    // `fleet up` watches the authority's directory and disconnects the node; without it the server still knows the node.
    place.authority()?.remove(&node)?;
    place.note_history(vec![(node.clone(), NodeEvent::Removed)]);
    output.line(format_args!(
        "{node} removed; `packetrig fleet up` disconnects it and does not admit it again"
    ));
    Ok(CommandExit::Ok)
}
