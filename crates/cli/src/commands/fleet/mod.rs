//! `packetrig fleet`: the middle of a fleet, and what there is to be known of it.

mod charge;
mod collect;
mod fetch;
mod history;
mod label;
mod lead_reader;
mod presence;
mod served;
mod status;
mod up;

pub(crate) use charge::{Charged, LateResults, take};
pub(crate) use served::FleetRigs;
pub(crate) use status::who_belongs;

use crate::args::{Fleet, Invite, Remove};
use crate::error::Error;
use crate::exit::Exit;
use crate::fleet_place::{Addresses, FleetPlace};
use crate::output::Output;
use packetrig_fleet::NodeName;
use packetrig_fleet::history::NodeEvent;
use packetrig_nats::authority::FleetAuthority;
use packetrig_nats::enrol::{JoinLine, join_line};
use packetrig_sys::clock;
use packetrig_units::Nanos;

/// What the secrets of join lines are called.
const LABEL: &str = "join";

pub(crate) fn perform(arguments: &Fleet, output: &mut Output) -> Result<Exit, Error> {
    match arguments {
        Fleet::Up(arguments) => up::perform(arguments, output),
        Fleet::Status(arguments) => status::perform(arguments, output),
        Fleet::History(arguments) => history::perform(arguments, output),
        Fleet::Label(arguments) => label::perform(arguments, output),
        Fleet::Invite(arguments) => invite(arguments, output),
        Fleet::Remove(arguments) => remove(arguments, output),
        Fleet::Fetch(arguments) => fetch::perform(arguments, output),
        Fleet::Collect(arguments) => collect::perform(arguments, output),
    }
}

fn invite(arguments: &Invite, output: &mut Output) -> Result<Exit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let (authority, addresses) = (place.authority()?, place.addresses()?);
    if arguments.revoke {
        let taken = authority.revoke(LABEL)?;
        output.line(format_args!("{taken} lines taken back; no node joins by them any more"));
        return Ok(Exit::Ok);
    }
    let line = line(&authority, &addresses, arguments.uses, arguments.valid)?;
    output.line(format_args!("{line}"));
    Ok(Exit::Ok)
}

/// A new join line for so many nodes, good for so long.
fn line(
    authority: &FleetAuthority,
    addresses: &Addresses,
    uses: u32,
    valid: Nanos,
) -> Result<JoinLine, Error> {
    let now = clock::wall_clock_ns() / 1_000_000_000;
    let until = now + valid.as_u64() / 1_000_000_000;
    let secret = authority.allow(LABEL, Some(uses), Some(until))?;
    Ok(join_line(authority, addresses.servers.join(","), addresses.enrol.clone(), secret)?)
}

fn remove(arguments: &Remove, output: &mut Output) -> Result<Exit, Error> {
    let place = FleetPlace::of(&arguments.place)?.existing()?;
    let node = NodeName(arguments.node.clone());
    if !place.authority()?.nodes()?.contains(&node) {
        return Err(Error::Usage(format!("the fleet has no node called {node}")));
    }
    place.authority()?.remove(&node)?;
    place.note_history(vec![(node.clone(), NodeEvent::Removed)]);
    output.line(format_args!("{node} is forgotten; `packetrig fleet up` cuts it off and lets it in no more"));
    Ok(Exit::Ok)
}
