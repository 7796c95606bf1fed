//! `packetrig fleet up`: creates the keys of a fleet, and runs its message server and enrolment server until a signal.
//! After a restart of `fleet up`, nodes and runs continue.

use super::presence::PresenceWatch;
use super::{make_join_line, request_sender_priority};
use crate::args::FleetUpArgs;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::fleet_place::{FleetAddresses, FleetPlace};
use crate::output::{CommandOutput, print_remark, print_warning};
use crate::sandbox;
use packetrig_fleet::fabric::Fabric;
use packetrig_fleet::history::NodeEvent;
use packetrig_nats::authority::{AdmittedNode, FleetAuthority, ServerCertificateRenewer};
use packetrig_nats::broker::{
    BrokerHealth, BrokerSetup, HealthWatch, MessageServer, PreparedServer, ServerSecurity,
};
use packetrig_nats::enrol::{EnrolServer, JoinLine};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, signal};
use packetrig_units::{MonoTime, Nanos};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Bytes that the message server may store: waiting results, records, and some reserve.
const SERVER_STORE_BYTES: u64 = 2 << 30;
/// Pause after a certificate could not be renewed.
const RENEWAL_RETRY_PAUSE: Nanos = Nanos::from_secs(5);
/// Time after a signal for threads to end. After it, the process exits even if some still run.
const THREAD_END_TIMEOUT: Duration = Duration::from_millis(800);
/// Interval between two checks of signals, the server and the nodes.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn run_message_server(
    arguments: &FleetUpArgs,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // The message server inherits this priority.
    request_sender_priority();
    let place = FleetPlace::from_arguments(&arguments.place)?;
    let authority = Arc::new(place.open_authority()?);
    // Rights are dropped before any thread of this process reads from the network.
    let isolation = drop_unneeded_rights(arguments, &place)?;
    let host = arguments.address.clone().map_or_else(guess_local_address, Ok)?;
    let mut certificate = ServerCertificateRenewer::with_new_certificate(
        Arc::clone(&authority),
        list_server_certificate_names(&host)?,
        wall_clock_seconds(),
    )?;
    signal::record_end_signals()?;
    start_exit_watchdog()?;
    // The enrolment server shares this broker and admits nodes on its own threads. With `--cluster` the broker
    // is `None`.
    let broker = start_broker(isolation, arguments, &place, &authority, certificate.security())?;
    let broker = Arc::new(Mutex::new(broker));
    let addresses = FleetAddresses {
        servers: server_addresses(arguments, &host, lock_mutex(&broker).as_ref()),
        enrol: host_with_port(&host, arguments.enrol),
    };
    // The file is written after the record store exists: commands without `--fleet` take a directory with this file
    // for a fleet that works.
    create_record_store(&place, &addresses)?;
    place.write_addresses(&addresses)?;
    let enrolment = start_enrolment(arguments, &place, &authority, certificate.security(), &broker)?;
    output.write_line(format_args!("Fleet in {}", place.directory().display()));
    // A guessed address is printed, so that the user notices a wrong one before a node fails to reach it.
    if arguments.address.is_none() {
        output.write_line(format_args!("Nodes reach this machine at {host} (--address changes it)"));
    }
    let servers = addresses.servers.join(", ");
    output.write_line(format_args!("Messages at {servers}, nodes join at {}", enrolment.address()));
    print_first_invitation(
        arguments,
        &make_join_line(&authority, &addresses, arguments.uses, arguments.valid)?,
        output,
    );
    let _presence = PresenceWatch::start_thread(&place)?;
    watch_until_signal(&place, &authority, &broker, &mut certificate, &enrolment)?;
    // The server ends first, so that threads that wait for a hanging server stop waiting.
    drop(lock_mutex(&broker).take());
    Ok(CommandExit::Ok)
}

/// Checks the nodes, the certificate and the server's store until a signal comes.
fn watch_until_signal(
    place: &FleetPlace,
    authority: &FleetAuthority,
    broker: &Mutex<Option<MessageServer>>,
    certificate: &mut ServerCertificateRenewer,
    enrolment: &EnrolServer,
) -> Result<(), Error> {
    // The servers of `--cluster` are managed elsewhere, so they are neither watched nor restarted.
    let health = lock_mutex(broker).is_some().then(|| start_health_watch(place)).transpose()?;
    let mut nodes = NodesKnownToServer::default();
    // The time 0 makes the first pass of the loop check the certificate.
    let mut renew_at = MonoTime::default();
    while !is_interrupted() {
        std::thread::sleep(SIGNAL_POLL_INTERVAL);
        // The directory is polled, because `fleet remove` is another process that only changes files.
        nodes.report_problems_and_update_nodes(place, broker, authority);
        if monotonic_now() >= renew_at {
            renew_at = renew_certificate_and_get_next_check(certificate, broker, enrolment);
        }
        if let Some(found) = health.as_ref().and_then(HealthWatch::take_newest_health) {
            handle_server_health(&found, place, broker);
        }
    }
    Ok(())
}

fn print_first_invitation(arguments: &FleetUpArgs, line: &JoinLine, output: &mut CommandOutput) {
    let nodes = if arguments.uses == 1 { "one node".to_owned() } else { format!("{} nodes", arguments.uses) };
    output.write_line(format_args!(
        "\nOn the other machine, write this line to a file (it admits {nodes} within {}):\n\n{line}\n\n\
         Then start the agent there:\n\n  \
         packetrig agent --name NAME --join FILE\n\n\
         `packetrig fleet invite` prints a line for more nodes.\n",
        arguments.valid
    ));
}

fn monotonic_now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

/// Starts a thread that ends the program soon after a signal, even if other threads wait for a hanging message
/// server, a disk or a name lookup. All threads write each file as a whole or not at all, and the kernel ends the
/// message server with the thread that started it.
#[expect(clippy::exit, reason = "the main thread may be what waits")]
fn start_exit_watchdog() -> Result<(), Error> {
    let watching = std::thread::Builder::new().name("end".to_owned()).spawn(|| {
        while !is_interrupted() {
            std::thread::sleep(SIGNAL_POLL_INTERVAL / 2);
        }
        std::thread::sleep(THREAD_END_TIMEOUT);
        print_remark("fleet: some threads have not stopped in time; the process ends without them");
        // A signal is the regular end of `fleet up`, so the code is that of success.
        std::process::exit(CommandExit::Ok.code().into());
    });
    watching.map(drop).map_err(|error| packetrig_fleet_io::Error::Thread(error).into())
}

fn start_health_watch(place: &FleetPlace) -> Result<HealthWatch, Error> {
    let directory = place.broker_directory();
    Ok(HealthWatch::start_watching(place.make_controller_fabric()?, &directory)
        .map_err(packetrig_fleet_io::Error::Thread)?)
}

/// Saves the state of the server for `fleet status`, and restarts the server if it needs a restart.
fn handle_server_health(found: &BrokerHealth, place: &FleetPlace, broker: &Mutex<Option<MessageServer>>) {
    place.write_broker_health(found);
    if let Some(broker) = lock_mutex(broker).as_ref().filter(|_| found.needs_restart) {
        // After a full disk, the store works again only after a restart (`BrokerHealth::needs_restart`).
        print_warning("fleet", "the store of the message server does not work; the server is restarted");
        broker.restart_server();
    }
}

/// Seconds since 1970 (UTC), as certificates count.
fn wall_clock_seconds() -> u64 {
    clock::wall_clock_ns() / 1_000_000_000
}

/// Renews the certificate if its renewal is due; returns the time of the next check.
fn renew_certificate_and_get_next_check(
    certificate: &mut ServerCertificateRenewer,
    broker: &Mutex<Option<MessageServer>>,
    enrolment: &EnrolServer,
) -> MonoTime {
    match certificate.renew_certificate_if_due(wall_clock_seconds(), lock_mutex(broker).as_ref(), enrolment) {
        Ok(false) => {}
        Ok(true) => print_remark("fleet: the certificate of the message server was renewed"),
        // The next attempt comes later, because the reason (for example a full disk) usually persists.
        Err(error) => {
            let text = format_args!(
                "cannot renew the certificate of the message server: {error}; `fleet up` tries again later"
            );
            print_warning("fleet", text);
            return monotonic_now() + RENEWAL_RETRY_PAUSE;
        }
    }
    MonoTime::default()
}

/// Locks a mutex that may be poisoned. A panic elsewhere must not end the message server: the protected value is still usable.
fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Guesses the address at which nodes reach this machine: its first global IPv4 address, otherwise the first IPv6 one.
fn guess_local_address() -> Result<String, Error> {
    // Only global addresses count: a link-local one needs the name of an interface, which differs on each machine.
    let addresses = NamespaceLinks::open_in(&NetNs::current()?)?.list_global_addresses()?;
    // IPv4 first: a node without IPv6 could not use a join line with an IPv6 address.
    let best = addresses.iter().find(|ip| ip.is_ipv4()).or_else(|| addresses.first());
    // With 127.0.0.1 in the join line, every other machine would try to join itself.
    best.map(ToString::to_string).ok_or_else(|| {
        Error::Usage(
            "this machine has no address that other machines can reach; give --address HOST, or --address 127.0.0.1 \
             for nodes on this machine only"
                .into(),
        )
    })
}

/// Names and addresses of this machine that nodes may use, for its certificate.
fn list_server_certificate_names(host: &str) -> Result<Vec<String>, Error> {
    let addresses = NamespaceLinks::open_in(&NetNs::current()?)?.list_global_addresses()?;
    let mut names = vec![host.to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned()];
    // The list has all addresses: a node may reach this machine at another address than that in the join line, for
    // example through a second network.
    names.extend(addresses.iter().map(IpAddr::to_string));
    // The host may be one of these addresses already, so it is not added twice.
    names.sort();
    names.dedup();
    Ok(names)
}

/// Prepares the isolation of the message server, which needs the right to change users, and then drops the rights that
/// this process does not need any more. `None` with `--cluster`.
fn drop_unneeded_rights(
    arguments: &FleetUpArgs,
    place: &FleetPlace,
) -> Result<Option<PreparedServer>, Error> {
    let ports = [arguments.listen.port(), arguments.enrol.port()];
    let kept = sandbox::needs::broker_capabilities(place.directory(), &ports);
    let isolation = if arguments.cluster.is_empty() {
        let isolation = PreparedServer::prepare(&broker_setup(arguments, place), kept)?;
        print_remark(format_args!("fleet: sandbox: {}", isolation.user()));
        Some(isolation)
    } else {
        None
    };
    sandbox::limit_fleet_up_rights(kept)?;
    Ok(isolation)
}

fn broker_setup(arguments: &FleetUpArgs, place: &FleetPlace) -> BrokerSetup {
    BrokerSetup {
        program: arguments.server.clone(),
        listen: arguments.listen,
        directory: place.broker_directory(),
        store_room: SERVER_STORE_BYTES,
        security: None,
        nodes: Vec::new(),
    }
}

fn start_broker(
    isolation: Option<PreparedServer>,
    arguments: &FleetUpArgs,
    place: &FleetPlace,
    authority: &FleetAuthority,
    security: &ServerSecurity,
) -> Result<Option<MessageServer>, Error> {
    let Some(isolation) = isolation else { return Ok(None) };
    let security = Some(security.clone());
    let setup =
        BrokerSetup { security, nodes: authority.list_admitted_nodes()?, ..broker_setup(arguments, place) };
    Ok(Some(MessageServer::start_isolated(isolation, setup)?))
}

fn server_addresses(arguments: &FleetUpArgs, host: &str, broker: Option<&MessageServer>) -> Vec<String> {
    match broker {
        Some(broker) => vec![host_with_port(host, broker.address())],
        None => arguments.cluster.clone(),
    }
}

/// Formats `HOST:PORT`; an IPv6 address needs brackets.
fn host_with_port(host: &str, listens: SocketAddr) -> String {
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!("{host}:{}", listens.port())
}

/// Creates the streams and the record store on the message server, before any node needs them.
fn create_record_store(place: &FleetPlace, addresses: &FleetAddresses) -> Result<(), Error> {
    place
        .make_controller_fabric_for_servers(addresses.servers.clone())?
        .open_records()
        .map_err(packetrig_fleet_io::Error::from)?;
    Ok(())
}

fn start_enrolment(
    arguments: &FleetUpArgs,
    place: &FleetPlace,
    authority: &Arc<FleetAuthority>,
    security: &ServerSecurity,
    broker: &Arc<Mutex<Option<MessageServer>>>,
) -> Result<EnrolServer, Error> {
    let known = Arc::clone(authority);
    let broker = Arc::clone(broker);
    let place = place.clone();
    let on_join = Arc::new(move |node: &packetrig_report::NodeName| {
        let admitted = known.read_admitted_node(node).map_err(|error| error.to_string())?;
        // The message server learns of the node before the node gets its answer: an admitted node logs in at once.
        if let Some((broker, admitted)) = lock_mutex(&broker).as_ref().zip(admitted) {
            broker.admit_node(&admitted).map_err(|error| error.to_string())?;
        }
        // Printed and recorded only now: after an error above, the node is refused.
        print_remark(format_args!("fleet: node {node} was admitted"));
        place.record_history(vec![(node.clone(), NodeEvent::Joined)]);
        Ok(())
    });
    Ok(EnrolServer::start_listening(Arc::clone(authority), security, arguments.enrol, on_join)?)
}

/// The nodes that the message server admits, and the change time of the authority's directory when it was read.
#[derive(Default)]
struct NodesKnownToServer {
    nodes: Option<Vec<AdmittedNode>>,
    as_of: Option<SystemTime>,
}

impl NodesKnownToServer {
    /// Reports problems of the server, and updates its list of nodes if another process has removed or added some.
    fn report_problems_and_update_nodes(
        &mut self,
        place: &FleetPlace,
        broker: &Mutex<Option<MessageServer>>,
        authority: &FleetAuthority,
    ) {
        let broker = lock_mutex(broker);
        let Some(broker) = broker.as_ref() else { return };
        for trouble in broker.take_problems() {
            let directory = place.directory().display();
            print_warning("fleet", format_args!("message server in {directory}: {trouble}"));
        }
        // After a failure, `as_of` is unchanged, so the next check tries again.
        if let Err(error) = self.update_nodes_of_server(broker, authority) {
            let text = format_args!(
                "cannot update the list of nodes that the message server admits: {error}; `fleet up` tries again"
            );
            print_warning("fleet", text);
        }
    }

    fn update_nodes_of_server(
        &mut self,
        broker: &MessageServer,
        authority: &FleetAuthority,
    ) -> Result<(), Error> {
        // `None` while a later change could still get the same time stamp: then the directory is read every time.
        let changed = authority.read_unambiguous_change_time();
        if self.nodes.is_some() && changed.is_some() && changed == self.as_of {
            return Ok(());
        }
        let nodes = authority.list_admitted_nodes()?;
        // The directory also changes when labels change, and then the server needs no update.
        if self.nodes.as_ref() != Some(&nodes) {
            broker.set_allowed_nodes(&nodes, authority.load_system_user_credentials()?)?;
        }
        self.nodes = Some(nodes);
        self.as_of = changed;
        Ok(())
    }
}
