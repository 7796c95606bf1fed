//! What each long-running command needs: capabilities at its start and afterwards, files, TCP ports, and its class
//! of system calls. `docs/book/sandbox.md` describes the same in words; `tests/tests/security/walls.rs` compares it
//! with the kernel's answers.

use crate::args::{
    AgentArgs, CollectArgs, MeterArgs, MeterSourceArg, PageArgs, RecordDirectoryArgs, ServeArgs,
};
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use packetrig_flow::collect::MessageTransport;
use packetrig_flow_io::group::RoleDecisionSource;
use packetrig_flow_store::find_linked_tables;
use packetrig_program::sandbox::{
    ProgramNeeds, RING_CAPABILITIES, START_CAPABILITIES, UserToBecome, capabilities_for_files,
    capabilities_for_ports, file_rules, rig_file_rules,
};
use packetrig_sys::sandbox::{ProcessCapabilities, TcpRules, ThreadClass};
use packetrig_sys::{kernel, netns, private_files};
use std::path::{Path, PathBuf};

/// Kernels before this one require CAP_BPF for every access to a map, unless unprivileged users may load programs.
const FIRST_KERNEL_WITH_FREE_MAPS: (u32, u32) = (5, 19);

pub(crate) fn collector_program_needs(arguments: &CollectArgs) -> Result<ProgramNeeds, Error> {
    let CollectArgs { cert, key, client_ca, files, directory, .. } = arguments;
    let of_tls = [cert, key, client_ca].into_iter().flatten();
    let ports = arguments.listen.iter().filter(|listen| listen.transport != MessageTransport::Udp);
    let ports = ports.map(|listen| listen.address.port());
    let metrics = arguments.metrics.as_ref().map(|listen| listen.0.port());
    // With a store or a webhook, connections are not limited to known ports: a Kafka broker, for example, names
    // further brokers on ports of its choice.
    let has_sinks = arguments.stores.is_any_given() || arguments.alerts.has_webhook();
    let read = of_tls.chain(files).cloned().chain(arguments.stores.read_files());
    let alerts = create_files(arguments.alerts.written_files())?;
    Ok(ProgramNeeds {
        program: "collect",
        opening: START_CAPABILITIES.union_with(ProcessCapabilities::NET_ADMIN),
        kept: ProcessCapabilities::NONE,
        network_thread_capabilities: ProcessCapabilities::NONE,
        files: file_rules(
            read.chain(arguments.alerts.read_files()),
            create_directory(directory.as_deref())?.into_iter().chain(alerts),
        ),
        tcp: TcpRules { listen: Some(ports.chain(metrics).collect()), connect: (!has_sinks).then(Vec::new) },
        class: ThreadClass::Parser,
        user: choose_user(arguments.user.user.as_deref(), directory.as_deref(), !files.is_empty()),
    })
}

/// Creates files that are written later: the sandbox has rules only for files that exist.
fn create_files(files: impl Iterator<Item = PathBuf>) -> Result<Vec<PathBuf>, Error> {
    let files: Vec<PathBuf> = files.collect();
    for file in &files {
        let made = private_files::open_to_append(file);
        made.map_err(|source| Error::Write { what: file.display().to_string(), source })?;
    }
    Ok(files)
}

pub(crate) fn create_meter_files_and_list_needs(arguments: &MeterArgs) -> Result<ProgramNeeds, Error> {
    let MeterArgs { tls_ca, tls_cert, tls_key, directory, inputs, of_group, .. } = arguments;
    let of_tls = [tls_ca, tls_cert, tls_key].into_iter().flatten().cloned();
    let of_tls = of_tls.chain(of_group.peer_key.clone()).chain(arguments.flow_id_key.clone());
    let inputs = inputs.iter().map(PathBuf::from);
    // The program opens these files after it has changed its user, and the new user may not be permitted to read them.
    let reads_files = inputs.clone().any(|input| input.metadata().is_ok_and(|facts| !facts.is_dir()));
    // Creating the files is enough here: the export truncates its file later.
    let exports =
        arguments.export.iter().filter_map(|target| target.strip_prefix("file:")).map(PathBuf::from);
    let exports = create_files(exports)?;
    let alerts = create_files(arguments.alerts.written_files())?;
    let exports_by_tcp =
        arguments.export.iter().any(|target| target.starts_with("tcp:") || target.starts_with("tls:"));
    let metrics = arguments.metrics.as_ref().map(|listen| listen.0.port());
    let written = directory.as_deref().or_else(|| exports.first().map(PathBuf::as_path));
    let user = choose_user(arguments.user.user.as_deref(), written, reads_files);
    let has_maps = !matches!(arguments.source, MeterSourceArg::Packet);
    let namespaces = PathBuf::from(netns::NETNS_DIRECTORY);
    // The sandbox gets rules for the directories and not for the files, because other programs replace the files.
    let (role_file, role_pipe) = match of_group.role_source() {
        RoleDecisionSource::Election => (None, None),
        RoleDecisionSource::StateFile(path) => (path.parent().map(Path::to_owned), None),
        RoleDecisionSource::Keepalived { fifo, .. } => (None, fifo.parent().map(Path::to_owned)),
    };
    Ok(ProgramNeeds {
        program: "meter",
        // CAP_SYS_ADMIN is needed to enter other network namespaces and open interfaces there.
        opening: START_CAPABILITIES.union_with(RING_CAPABILITIES).union_with(ProcessCapabilities::SYS_ADMIN),
        kept: if has_maps && kernel::version_numbers() < FIRST_KERNEL_WITH_FREE_MAPS {
            ProcessCapabilities::BPF
        } else {
            ProcessCapabilities::NONE
        },
        network_thread_capabilities: ProcessCapabilities::NONE,
        files: file_rules(
            of_tls
                .chain(inputs)
                .chain([namespaces])
                .chain(role_file)
                .chain(arguments.stores.read_files())
                .chain(arguments.alerts.read_files()),
            create_directory(directory.as_deref())?
                .into_iter()
                .chain(exports.iter().cloned())
                .chain(alerts)
                .chain(role_pipe),
        ),
        tcp: TcpRules {
            listen: Some(metrics.into_iter().collect()),
            // With an export over TCP or TLS, a store or a webhook, connections are not limited to known ports: a Kafka
            // broker, for example, names further brokers on ports of its choice.
            connect: (!exports_by_tcp && !arguments.stores.is_any_given() && !arguments.alerts.has_webhook())
                .then(Vec::new),
        },
        class: if has_maps { ThreadClass::MapReader } else { ThreadClass::Parser },
        user,
    })
}

pub(crate) fn serve_program_needs(arguments: &ServeArgs) -> Result<ProgramNeeds, Error> {
    let ServeArgs { cert, key, client_ca, .. } = arguments;
    let store =
        arguments.store.directory.clone().map_or_else(packetrig_store::default_store_directory, Ok)?;
    let of_tls: Vec<PathBuf> = [cert, key, client_ca].into_iter().flatten().cloned().collect();
    let read: Vec<PathBuf> =
        of_tls.into_iter().chain(list_and_create_page_directories(&arguments.measured)?).collect();
    let mut written = vec![store];
    if arguments.on_fleet {
        written.push(FleetPlace::from_arguments(&arguments.fleet)?.directory().to_owned());
    } else {
        written.push(packetrig_sys::runtime_directory::runtime_directory());
    }
    for directory in &written {
        create_directory(Some(directory))?;
    }
    let http = (!arguments.no_http).then(|| arguments.http.port());
    let grpc = (!arguments.no_grpc).then(|| arguments.grpc.port());
    let ports: Vec<u16> = http.into_iter().chain(grpc).collect();
    // The threads of the API open their sockets themselves, after the program has given up most of its rights.
    let network_thread_capabilities =
        capabilities_for_ports(&ports).union_with(capabilities_for_files(read.iter().chain(&written)));
    let rigs = if arguments.on_fleet { ProcessCapabilities::NONE } else { RING_CAPABILITIES };
    let files = if arguments.on_fleet { file_rules(read, written) } else { rig_file_rules(read, written) };
    Ok(ProgramNeeds {
        program: "serve",
        // CAP_SYS_ADMIN is needed to enter all existing namespaces once.
        opening: START_CAPABILITIES.union_with(RING_CAPABILITIES).union_with(ProcessCapabilities::SYS_ADMIN),
        kept: rigs.union_with(network_thread_capabilities),
        network_thread_capabilities,
        files,
        tcp: TcpRules {
            listen: Some(ports),
            // The message servers of a fleet name further servers, on ports of their choice.
            connect: (!arguments.on_fleet).then(Vec::new),
        },
        class: if arguments.on_fleet { ThreadClass::Parser } else { ThreadClass::Rig },
        user: UserToBecome::Stay("the store of results and the settings of interfaces belong to root"),
    })
}

pub(crate) fn page_program_needs(arguments: &PageArgs) -> Result<ProgramNeeds, Error> {
    let store =
        arguments.store.directory.clone().map_or_else(packetrig_store::default_store_directory, Ok)?;
    let of_tls = [&arguments.cert, &arguments.key].into_iter().flatten().cloned();
    let fleet = FleetPlace::from_arguments(&arguments.fleet)?;
    let of_fleet = fleet.exists().then(|| fleet.directory().to_owned());
    let read: Vec<PathBuf> =
        of_tls.chain(of_fleet).chain(list_and_create_page_directories(&arguments.measured)?).collect();
    // SQLite also writes when it reads the catalogue: to the index of the write-ahead log.
    // The catalogue is not created: a page that only reads must not leave an empty catalogue behind.
    let written: Vec<PathBuf> = store.is_dir().then_some(store).into_iter().collect();
    let ports = [arguments.listen.port()];
    let network_thread_capabilities =
        capabilities_for_ports(&ports).union_with(capabilities_for_files(read.iter().chain(&written)));
    Ok(ProgramNeeds {
        program: "page",
        opening: START_CAPABILITIES,
        kept: network_thread_capabilities,
        network_thread_capabilities,
        files: file_rules(read, written),
        tcp: TcpRules { listen: Some(ports.to_vec()), connect: Some(Vec::new()) },
        class: ThreadClass::Parser,
        user: UserToBecome::Stay("the store of results may belong to root"),
    })
}

/// Lists the directories that the page reads besides results: those of flow records, logs, taps and the calibration.
/// Creates those of taps and the calibration. Fails if a directory that the user named cannot be read.
fn list_and_create_page_directories(places: &RecordDirectoryArgs) -> Result<Vec<PathBuf>, Error> {
    let named = places.flows.iter().chain(&places.logs);
    for directory in named.clone() {
        std::fs::read_dir(directory).map_err(|source| Error::unreadable_file(directory, source))?;
    }
    // The sandbox gets rules for directories and not for files: a tap or a calibration may create its file later.
    let of_taps = packetrig_sys::runtime_directory::runtime_directory();
    let of_calibration =
        packetrig_probe_cli::default_calibration_file().and_then(|file| Some(file.parent()?.to_owned()));
    // If a directory cannot be created, it will contain no file, so it is left out.
    let later = [Some(of_taps), of_calibration].into_iter().flatten();
    let later = later.filter(|directory| private_files::create_directories(directory).is_ok());
    let elsewhere = places.flows.iter().flat_map(|directory| find_linked_tables(directory));
    Ok(named.cloned().chain(elsewhere).chain(later).collect())
}

/// Returns the needs of an agent's worker. The worker may also read below `replays`, which the owner of the
/// node permits for replays.
pub(crate) fn agent_program_needs(
    arguments: &AgentArgs,
    home: &Path,
    replays: Option<&Path>,
) -> Result<ProgramNeeds, Error> {
    let store =
        arguments.store.directory.clone().map_or_else(packetrig_store::default_store_directory, Ok)?;
    let written = vec![home.to_owned(), store, packetrig_sys::runtime_directory::runtime_directory()];
    for directory in &written {
        create_directory(Some(directory))?;
    }
    let read: Vec<PathBuf> =
        replays.into_iter().chain(arguments.owner.as_deref()).map(Path::to_owned).collect();
    let ports: Vec<u16> = arguments.metrics.iter().map(|listen| listen.0.port()).collect();
    let network_thread_capabilities =
        capabilities_for_files(read.iter().chain(&written)).union_with(capabilities_for_ports(&ports));
    Ok(ProgramNeeds {
        program: "agent",
        opening: START_CAPABILITIES.union_with(RING_CAPABILITIES).union_with(ProcessCapabilities::SYS_ADMIN),
        kept: RING_CAPABILITIES.union_with(network_thread_capabilities),
        network_thread_capabilities,
        files: rig_file_rules(read, written),
        // The message servers of a fleet name further servers, on ports of their choice.
        tcp: TcpRules { listen: Some(ports), connect: None },
        class: ThreadClass::Rig,
        user: UserToBecome::Stay("the results and the settings of interfaces belong to root"),
    })
}

/// Returns the capabilities that an agent's supervisor keeps, because its worker starts with them. CAP_SYS_ADMIN, which
/// is needed to enter namespaces, is among them only with `has_namespaces`.
pub(crate) fn supervisor_capabilities(has_namespaces: bool) -> ProcessCapabilities {
    let entering = if has_namespaces { ProcessCapabilities::SYS_ADMIN } else { ProcessCapabilities::NONE };
    START_CAPABILITIES
        .union_with(RING_CAPABILITIES)
        .union_with(ProcessCapabilities::SETPCAP)
        .union_with(entering)
}

/// Returns the capabilities of `fleet up` and its message server.
pub(crate) fn broker_capabilities(directory: &Path, ports: &[u16]) -> ProcessCapabilities {
    capabilities_for_ports(ports).union_with(capabilities_for_files([directory.to_owned()].iter()))
}

/// Creates a directory, because a Landlock rule needs a directory that exists. Returns `None` without a directory.
fn create_directory(directory: Option<&Path>) -> Result<Option<PathBuf>, Error> {
    let Some(directory) = directory else { return Ok(None) };
    let made = private_files::create_directories(directory);
    made.map_err(|source| Error::Write { what: directory.display().to_string(), source })?;
    Ok(Some(directory.to_owned()))
}

fn choose_user(named: Option<&str>, written: Option<&Path>, reads_files: bool) -> UserToBecome {
    match (named, written) {
        (Some(name), _) => UserToBecome::Named(name.to_owned()),
        (None, Some(path)) => UserToBecome::OwnerOf(path.to_owned()),
        (None, None) if reads_files => UserToBecome::Stay("the files that it reads may belong to root"),
        (None, None) => UserToBecome::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_changes_to_user_that_files_allow() {
        let out = Path::new("records");
        assert_eq!(choose_user(None, None, false), UserToBecome::Nobody);
        assert_eq!(choose_user(None, Some(out), true), UserToBecome::OwnerOf(out.to_owned()));
        assert_eq!(choose_user(Some("flow"), Some(out), false), UserToBecome::Named("flow".to_owned()));
        assert!(matches!(choose_user(None, None, true), UserToBecome::Stay(_)));
    }
}
