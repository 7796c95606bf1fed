//! The worker: everything a node does, until its supervisor or a signal ends it.

use super::NodeHome;
use super::describe::NodeDescriber;
use super::membership::{CertificateExpiry, MembershipWatch, refusal_error};
use super::metrics::NodeObserver;
use crate::args::AgentArgs as Arguments;
use crate::commands::execution::open_catalogue;
use crate::commands::is_interrupted;
use crate::error::Error;
use crate::exit::CommandExit;
use crate::identity;
use crate::output::{CommandOutput, print_remark};
use crate::sandbox::{self, needs};
use packetrig_engine::gate::SendGate;
use packetrig_engine::rig::{OwnerPermit, PermitPort, PermitQuestion};
use packetrig_fleet::agent::{AgentMachine, PersistentAgentState};
use packetrig_fleet::captures::CaptureQuestions;
use packetrig_fleet::fabric::{Error as FabricError, Fabric, ResultSender};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::message::Nonce;
use packetrig_fleet::permit::{LendingPermit, OwnPlanPort, PermitRequest};
use packetrig_fleet_io::{
    CaptureServer, DateReader, EnginePlaneSource, LentMachine, NodeMembership as Duties, NodeSite,
    ProbePolicy, ResultUplink, UplinkSource, epoch, serve_fleet_agent,
};
use packetrig_nats::enrol::FleetMembership;
use packetrig_nats::{NatsFabric, ServerAccess};
use packetrig_plan::PortLocation;
use packetrig_probe::ProbePermit;
use packetrig_report::NodeName;
use packetrig_store::spool::{ResultSpool, SpoolLimits};
use packetrig_sys::{clock, disk, kernel, memory, process, signal};
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Free disk space, in bytes, that captures and values per second must not use. Final results may use it.
pub(crate) const RESERVED_DISK_BYTES: u64 = 256 << 20;
/// Time between two attempts to reach a server that does not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Interval between two checks for signals.
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Reads the owner's permit file: the one that `--owner` names, or `owner.toml` in the node's directory.
pub(super) fn read_permit(arguments: &Arguments, home: &NodeHome) -> Result<LendingPermit, Error> {
    // A file that `--owner` names must exist. Without `owner.toml`, the default permit applies.
    let usual = home.file_path("owner.toml");
    let file = arguments.owner.clone().or_else(|| usual.exists().then_some(usual));
    let mut permit = match file {
        None => LendingPermit::default(),
        Some(file) => {
            let name = file.display().to_string();
            let text = fs::read_to_string(&file);
            let text = text.map_err(|source| Error::ReadFile { name: name.clone(), source })?;
            LendingPermit::from_toml(&text).map_err(|error| Error::Usage(format!("{name}: {error}")))?
        }
    };
    // Labels of the command line are added to the labels of the file; they lend no ports.
    permit.labels.extend(arguments.labels.iter().cloned());
    permit.replays = match &permit.replays {
        None => None,
        // Paths in plans are resolved before they are compared with this directory, so a symbolic link cannot lead out of it.
        Some(directory) => Some(
            directory
                .canonicalize()
                .map_err(|source| Error::ReadFile { name: directory.display().to_string(), source })?,
        ),
    };
    Ok(permit)
}

/// Rights of this node's probes: those that the machine's owner grants all probes, narrowed by the section
/// `[probe]` of the node's permit file.
pub(super) fn read_probe_policy(permit: &LendingPermit) -> Result<ProbePolicy, Error> {
    let machine = packetrig_probe_cli::read_owner_permit()?;
    let permit = match &permit.probes {
        None => machine.unwrap_or_default(),
        Some(section) => {
            let own = ProbePermit::from_text(section).map_err(|error| {
                Error::Usage(format!("section [probe] of the node's permit file: {error}"))
            })?;
            match machine {
                Some(machine) => own.limited_by_owner(machine),
                None => own,
            }
        }
    };
    Ok(ProbePolicy {
        permit,
        calibration: packetrig_probe_cli::kept_calibration(),
        today: DateReader(identity::format_utc_today),
    })
}

pub(super) fn run_worker(
    arguments: &Arguments,
    home: &NodeHome,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    // This must come before the first thread starts: otherwise each of the many threads of runs gets its own heap.
    memory::limit_to_one_malloc_arena();
    // Without its supervisor, nothing would kill this process when it sends beyond its lease.
    process::die_with_parent_process()?;
    signal::record_end_signals()?;
    let permit = Arc::new(read_permit(arguments, home)?);
    // The probe permit is read before the sandbox starts, because its file is outside of the directories that the
    // sandbox will allow.
    let probes = read_probe_policy(&permit)?;
    // The certificate is renewed before the node connects: the message server refuses an expired certificate, but
    // the enrolment server still renews it.
    if let Err(error) = super::renew_membership_if_due(home) {
        print_remark(format_args!("cannot renew the certificate of this node: {error}"));
    }
    let membership = FleetMembership::load_from(&home.membership_file())?;
    let needs = needs::agent_program_needs(arguments, home.directory(), permit.replays.as_deref())?;
    // Landlock must be active before a second thread starts. The connection to the message server starts threads.
    let opening = sandbox::begin_sandbox(&arguments.sandbox, needs)?;
    let fabric_sandbox = opening.drop_rights_except_confined(&list_lent_port_namespaces(&permit))?;
    let node = membership.name.clone();
    let access =
        ServerAccess { epoch_proof: Some(home.file_path("epoch-proof")), ..membership.server_access()? };
    // The threads that talk to the message server have none of the rights that runs need.
    let fabric = fabric_sandbox
        .run_confined_work(|| NatsFabric::new(access))?
        .map_err(packetrig_fleet_io::Error::from)?;
    let Some(endpoint) = retry_until_server_answers(|| fabric.open_endpoint(node.clone())) else {
        return Ok(CommandExit::Ok);
    };
    let endpoint = endpoint.map_err(|error| refusal_error(home, error))?;
    // Sending is forbidden until the first lease: a node sends only while a controller renews its lease.
    let gate = SendGate::under_lease();
    let uplink = start_uplink(arguments, home, &fabric, &membership, &permit)?;
    // This thread reads requests from the network and needs none of the rights of runs.
    let _captures = fabric_sandbox.run_confined_work(|| serve_captures(home, &fabric, &node, &uplink))??;
    let expiry = CertificateExpiry::from_membership(&membership);
    let observer = NodeObserver::new(arguments, home, &expiry, (&node, &endpoint), (&uplink, &gate));
    let metrics = observer.serve_if_requested(arguments, &fabric_sandbox)?;
    let agent = AgentMachine::new_leased(LeaseTerms::FLEET_TERMS, read_earlier_agent_state(home, &permit)?);
    let site = build_node_site(arguments, home, &node, &permit)?;
    let mut planes = EnginePlaneSource::for_lent_machine(describe_lent_machine(
        arguments,
        home,
        (&node, &gate),
        (permit, probes),
    )?);
    output.write_line(format_args!("Node {node} of the fleet at {} waits for runs", membership.address));
    // `serve_fleet_agent` checks this flag in its loop, because it waits for messages and not for signals.
    let over = Arc::new(AtomicBool::new(false));
    start_signal_watch(&over)?;
    let watch = MembershipWatch::start_thread(home, fabric, expiry, Arc::clone(&over))?;
    serve_fleet_agent(endpoint, &mut planes, agent, Duties::new(site, gate, uplink), &over);
    // The metrics server ends here, because it keeps the connection to the message server open.
    drop(metrics);
    // Checked after all runs have ended: if the operator removed this node, the command ends with that error.
    watch.into_result()?;
    Ok(CommandExit::Ok)
}

/// State from this node's earlier processes. Commands of an epoch below the highest one seen are refused, also after a
/// restart. Nonces must not repeat: they count up from the wall clock, so they are larger than those of earlier
/// processes, unless the clock was set back.
fn read_earlier_agent_state(home: &NodeHome, permit: &LendingPermit) -> Result<PersistentAgentState, Error> {
    let file = home.file_path("epoch");
    // An unreadable epoch is an error: without it the node would obey a controller that has lost its lead.
    let epoch = epoch::read_epoch(&file).map_err(|source| Error::unreadable_file(&file, source))?;
    Ok(PersistentAgentState {
        epoch,
        nonce: Nonce(clock::wall_clock_ns()),
        longest: Some(permit.max_duration),
    })
}

fn build_node_site(
    arguments: &Arguments,
    home: &NodeHome,
    node: &NodeName,
    permit: &Arc<LendingPermit>,
) -> Result<NodeSite, Error> {
    let mut describer =
        NodeDescriber::new(Arc::clone(permit), home.file_path("spool"), identity::random_number());
    Ok(NodeSite {
        node: node.clone(),
        describe: Box::new(move || describer.make_hello()),
        always_compare: arguments.compare_clocks,
        epoch_file: home.file_path("epoch"),
        watch: Some(home.open_deadline_file()?),
    })
}

/// Collects what runs may use on this machine: back end, limits of the rig, captures, and rights to send and probe.
fn describe_lent_machine(
    arguments: &Arguments,
    home: &NodeHome,
    (node, gate): (&NodeName, &SendGate),
    (permit, probes): (Arc<LendingPermit>, ProbePolicy),
) -> Result<LentMachine, Error> {
    Ok(LentMachine {
        node: node.clone(),
        gate: gate.clone(),
        confirmed: permit.list_confirmed_interfaces().iter().filter_map(|text| text.parse().ok()).collect(),
        captures: home.file_path("captures"),
        limits: open_catalogue(arguments.store.directory.as_deref())?
            .read_rig_limits_of_kernel(&kernel::kernel_release_name())?,
        back_end: permit.back_ends.as_ref().and_then(|allowed| allowed.first().copied()),
        permit: Arc::new(OwnerFile { permit }),
        probes,
    })
}

/// Returns the other network namespaces from which the owner lends ports. A namespace may occur several times.
pub(super) fn list_lent_port_namespaces(permit: &LendingPermit) -> Vec<String> {
    let locations =
        permit.ports.iter().flatten().filter_map(|port| port.interface.parse::<PortLocation>().ok());
    locations.filter_map(|location| location.namespace).collect()
}

/// Repeats the attempt while the server does not answer or the node's name is still in use. Returns the first other
/// result; `None` after a signal.
fn retry_until_server_answers<T>(
    mut attempt: impl FnMut() -> Result<T, FabricError>,
) -> Option<Result<T, FabricError>> {
    let mut is_reported = false;
    while !is_interrupted() {
        match attempt() {
            // `Taken` too: the name is in use until the server notices that this node's earlier process has gone.
            Err(error @ (FabricError::Down(_) | FabricError::Unanswered(_) | FabricError::Taken(_))) => {
                if !std::mem::replace(&mut is_reported, true) {
                    print_remark(format_args!("waiting for the fleet: {error}"));
                }
                std::thread::sleep(RETRY_PAUSE);
            }
            done => return Some(done),
        }
    }
    None
}

fn serve_captures(
    home: &NodeHome,
    fabric: &NatsFabric,
    node: &NodeName,
    uplink: &ResultUplink,
) -> Result<CaptureServer, Error> {
    let fabric = fabric.clone();
    let node = node.clone();
    // The capture server gets a function instead of a connection, because its thread tries again until the message
    // server answers.
    let open =
        Box::new(move || Ok(Box::new(fabric.open_capture_questions(&node)?) as Box<dyn CaptureQuestions>));
    Ok(CaptureServer::start_serving(home.file_path("captures"), uplink.capture_allowance(), open)?)
}

fn start_uplink(
    arguments: &Arguments,
    home: &NodeHome,
    fabric: &NatsFabric,
    membership: &FleetMembership,
    permit: &LendingPermit,
) -> Result<ResultUplink, Error> {
    let limits =
        SpoolLimits { bytes: arguments.spool.saturating_mul(1 << 20), keep_free: RESERVED_DISK_BYTES };
    let free = Box::new(|path: &std::path::Path| disk::free_bytes(path).ok());
    let spool = ResultSpool::open_or_create(&home.file_path("spool"), limits, free)
        .map_err(packetrig_fleet_io::Error::from)?;
    let found = spool.recovered_parts();
    if found.cut_short > 0 || found.torn > 0 {
        print_remark(format_args!(
            "runs that ended early when this node last stopped: {}; result segments that wait for the controller: \
                {}; damaged result files: {}",
            found.cut_short, found.waiting, found.torn
        ));
    }
    let fabric = fabric.clone();
    let node = membership.name.clone();
    let open = Box::new(move || Ok(Box::new(fabric.open_result_outlet(&node)?) as Box<dyn ResultSender>));
    let source = UplinkSource {
        spool,
        captures: home.file_path("captures"),
        capture_bytes: permit.max_capture.unwrap_or(u64::MAX),
        node: membership.name.clone(),
    };
    Ok(ResultUplink::start_sending(source, open)?)
}

/// The owner's permit, as read at the start of the worker. The rig checks every plan against it before the run.
#[derive(Debug)]
struct OwnerFile {
    permit: Arc<LendingPermit>,
}

impl OwnerPermit for OwnerFile {
    fn list_objections(&self, question: &PermitQuestion<'_>) -> Vec<String> {
        let own_ports: Vec<OwnPlanPort> = question.ports.iter().map(to_own_plan_port).collect();
        let request = PermitRequest { terms: question.terms, replays: question.replays };
        self.permit.check_plan(question.plan, &own_ports, request)
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        self.permit.networks.contains(address)
    }
}

fn to_own_plan_port(port: &PermitPort) -> OwnPlanPort {
    OwnPlanPort {
        port: port.port,
        interface: port.interface.to_string(),
        link_speed: port.link_speed,
        back_end: port.back_end,
    }
}

fn start_signal_watch(over: &Arc<AtomicBool>) -> Result<(), Error> {
    let over = Arc::clone(over);
    let thread = std::thread::Builder::new().name("signals".to_owned());
    let started = thread.spawn(move || {
        while !is_interrupted() {
            std::thread::sleep(SIGNAL_POLL_INTERVAL);
        }
        over.store(true, Ordering::Release);
    });
    started.map(drop).map_err(|error| packetrig_fleet_io::Error::Thread(error).into())
}
