//! `packetrig fleet up`: keys, a server, a door. It works until it is told to stop; nodes and runs go on as soon as it is up
//! again.

use super::line;
use super::presence::PresenceWatch;
use crate::args::UpArgs;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetAddresses, FleetPlace};
use crate::output::{CommandOutput, remark};
use crate::sandbox;
use packetrig_fleet::fabric::Fabric;
use packetrig_fleet::history::NodeEvent;
use packetrig_nats::authority::{AdmittedNode, FleetAuthority, ServerCertificateKeeper};
use packetrig_nats::broker::{BrokerHealth, BrokerSetup, HealthWatch, MessageServer, ServerSecurity};
use packetrig_nats::enrol::EnrolServer;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, signal};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes the server may keep: results that wait, records, and room.
const STORE: u64 = 2 << 30;
/// Before a certificate that could not be made anew is tried again.
const RENEWAL_AGAIN: Duration = Duration::from_secs(5);
/// How often the user's wish to stop is looked for.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn perform(arguments: &UpArgs, output: &mut CommandOutput) -> Result<CommandExit, Error> {
    let place = FleetPlace::of(&arguments.place)?;
    let authority = Arc::new(place.authority()?);
    sandbox::limit_broker(place.directory(), [arguments.listen.port(), arguments.enrol.port()])?;
    let host = arguments.address.clone().map_or_else(own_address, Ok)?;
    let mut certificate = ServerCertificateKeeper::issue(Arc::clone(&authority), names(&host)?, seconds())?;
    signal::latch()?;
    let broker = Arc::new(Mutex::new(start_broker(arguments, &place, &authority, certificate.security())?));
    let addresses = FleetAddresses {
        servers: servers(arguments, &host, own(&broker).as_ref()),
        enrol: at(&host, arguments.enrol),
    };
    place.write(&addresses)?;
    found(&place)?;
    let door = open_door(arguments, &place, &authority, certificate.security(), &broker)?;
    output.line(format_args!("Fleet in {}", place.directory().display()));
    output.line(format_args!(
        "Messages at {}, nodes join at {}",
        addresses.servers.join(", "),
        door.address()
    ));
    let line = line(&authority, &addresses, arguments.uses, arguments.valid)?;
    let nodes = if arguments.uses == 1 { "one node".to_owned() } else { format!("{} nodes", arguments.uses) };
    output.line(format_args!(
        "\nOn the other machine, with this line in a file (it admits {nodes} within {}):\n\n{line}\n\n  \
         packetrig agent --name NAME --join FILE\n\n\
         `packetrig fleet invite` prints a line for more nodes.\n",
        arguments.valid
    ));
    let health = own(&broker).is_some().then(|| watch_health(&place)).transpose()?;
    let _presence = PresenceWatch::start(&place)?;
    let mut nodes = ToldNodes::default();
    while signal::received().is_none() {
        std::thread::sleep(LOOK);
        nodes.watch(&place, &broker, &authority);
        keep_certificate_valid(&mut certificate, &broker, &door);
        if let Some(found) = health.as_ref().and_then(HealthWatch::news) {
            heed(&found, &place, &broker);
        }
    }
    Ok(CommandExit::Ok)
}

fn watch_health(place: &FleetPlace) -> Result<HealthWatch, Error> {
    let directory = place.broker_directory();
    let failed = packetrig_node::Error::Thread;
    Ok(HealthWatch::start(place.fabric()?, &directory).map_err(failed)?)
}

/// Writes down how the server is, for `fleet status`, and has it started again where that helps.
fn heed(found: &BrokerHealth, place: &FleetPlace, broker: &Mutex<Option<MessageServer>>) {
    place.write_health(found);
    if let Some(broker) = own(broker).as_ref().filter(|_| found.needs_restart) {
        remark("the store of the message server does not work: the server is started again");
        broker.restart();
    }
}

/// Since 1970.
fn seconds() -> u64 {
    clock::wall_clock_ns() / 1_000_000_000
}

fn keep_certificate_valid(
    certificate: &mut ServerCertificateKeeper,
    broker: &Mutex<Option<MessageServer>>,
    door: &EnrolServer,
) {
    match certificate.renew_if_due(seconds(), own(broker).as_ref(), door) {
        Ok(false) => {}
        Ok(true) => remark("the certificate of the message server was renewed"),
        // It is tried again, and not at once: the reason lasts.
        Err(error) => {
            remark(format_args!("cannot renew the certificate of the message server: {error}; trying again"));
            std::thread::sleep(RENEWAL_AGAIN);
        }
    }
}

fn own<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address nodes are most likely to reach.
fn own_address() -> Result<String, Error> {
    let addresses = NamespaceLinks::open(&NetNs::current()?)?.global_addresses()?;
    let best = addresses.iter().find(|ip| ip.is_ipv4()).or_else(|| addresses.first());
    Ok(best.map_or_else(|| "127.0.0.1".to_owned(), ToString::to_string))
}

/// Everything by which this machine may be called.
fn names(host: &str) -> Result<Vec<String>, Error> {
    let addresses = NamespaceLinks::open(&NetNs::current()?)?.global_addresses()?;
    let mut names = vec![host.to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned()];
    names.extend(addresses.iter().map(IpAddr::to_string));
    names.sort();
    names.dedup();
    Ok(names)
}

fn start_broker(
    arguments: &UpArgs,
    place: &FleetPlace,
    authority: &FleetAuthority,
    security: &ServerSecurity,
) -> Result<Option<MessageServer>, Error> {
    if !arguments.cluster.is_empty() {
        return Ok(None);
    }
    let setup = BrokerSetup {
        program: arguments.server.clone(),
        listen: arguments.listen,
        directory: place.broker_directory(),
        store_room: STORE,
        security: Some(security.clone()),
        nodes: authority.admitted()?,
    };
    Ok(Some(MessageServer::start(setup)?))
}

fn servers(arguments: &UpArgs, host: &str, broker: Option<&MessageServer>) -> Vec<String> {
    match broker {
        Some(broker) => vec![at(host, broker.address())],
        None => arguments.cluster.clone(),
    }
}

fn at(host: &str, listens: SocketAddr) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!("{host}:{}", listens.port())
}

/// Makes the store of the records.
fn found(place: &FleetPlace) -> Result<(), Error> {
    place.fabric()?.records().map_err(packetrig_node::Error::from)?;
    Ok(())
}

fn open_door(
    arguments: &UpArgs,
    place: &FleetPlace,
    authority: &Arc<FleetAuthority>,
    security: &ServerSecurity,
    broker: &Arc<Mutex<Option<MessageServer>>>,
) -> Result<EnrolServer, Error> {
    let (known, broker, place) = (Arc::clone(authority), Arc::clone(broker), place.clone());
    let on_join = Arc::new(move |node: &packetrig_fleet::NodeName| {
        let admitted = known.admitted_node(node).map_err(|error| error.to_string())?;
        if let (Some(broker), Some(admitted)) = (own(&broker).as_ref(), admitted) {
            broker.admit(&admitted).map_err(|error| error.to_string())?;
        }
        remark(format_args!("node {node} was admitted"));
        place.note_history(vec![(node.clone(), NodeEvent::Joined)]);
        Ok(())
    });
    Ok(EnrolServer::start(Arc::clone(authority), security, arguments.enrol, on_join)?)
}

/// The nodes that the server was told of, and when the authority's directory had them.
#[derive(Default)]
struct ToldNodes {
    nodes: Option<Vec<AdmittedNode>>,
    as_of: Option<SystemTime>,
}

impl ToldNodes {
    /// Says what went wrong with the server. Nodes that were forgotten meanwhile are not let in any more.
    fn watch(
        &mut self,
        place: &FleetPlace,
        broker: &Mutex<Option<MessageServer>>,
        authority: &FleetAuthority,
    ) {
        let broker = own(broker);
        let Some(broker) = broker.as_ref() else { return };
        for trouble in broker.troubles() {
            remark(format_args!("message server in {}: {trouble}", place.directory().display()));
        }
        if let Err(error) = self.tell(broker, authority) {
            // It is tried again.
            remark(format_args!("cannot tell the message server which nodes to admit: {error}; trying again"));
        }
    }

    fn tell(&mut self, broker: &MessageServer, authority: &FleetAuthority) -> Result<(), Error> {
        let changed = authority.settled_since();
        if self.nodes.is_some() && changed.is_some() && changed == self.as_of {
            return Ok(());
        }
        let nodes = authority.admitted()?;
        if self.nodes.as_ref() != Some(&nodes) {
            broker.allow(&nodes, authority.remover()?)?;
        }
        self.nodes = Some(nodes);
        self.as_of = changed;
        Ok(())
    }
}
