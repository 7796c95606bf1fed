//! The needs of the long-running commands in the sandbox: see [`ProgramNeeds`].

use crate::args::{ReflectArgs, ServeProbes};
use packetrig_program::sandbox::{
    ProgramNeeds, RING_CAPABILITIES, START_CAPABILITIES, UserToBecome, capabilities_for_ports, file_rules,
    rig_file_rules,
};
use packetrig_sys::sandbox::{ProcessCapabilities, TcpRules, ThreadClass};
use packetrig_sys::{data_directory, netns, runtime_directory};
use std::path::{Path, PathBuf};

pub(crate) fn reflect_program_needs(arguments: &ReflectArgs) -> ProgramNeeds {
    ProgramNeeds {
        program: "reflect",
        // setns(2) needs CAP_SYS_ADMIN to open an interface or a socket in another network namespace. No
        // thread keeps this capability.
        opening: START_CAPABILITIES.union_with(RING_CAPABILITIES).union_with(ProcessCapabilities::SYS_ADMIN),
        kept: ProcessCapabilities::NONE,
        network_thread_capabilities: ProcessCapabilities::NONE,
        files: file_rules(
            arguments
                .auth
                .iter()
                .chain(&arguments.bounds.permit)
                .cloned()
                .chain([PathBuf::from(netns::NETNS_DIRECTORY)]),
            None,
        ),
        // No TCP port is allowed, because sessions with a reflector use UDP (RFC 8762).
        tcp: TcpRules { listen: Some(Vec::new()), connect: Some(Vec::new()) },
        class: ThreadClass::Parser,
        user: arguments.user.user.clone().map_or(UserToBecome::Nobody, UserToBecome::Named),
    }
}

pub(crate) fn serve_program_needs(arguments: &ServeProbes, socket: &Path) -> ProgramNeeds {
    // The service removes the socket file at its end, so it may write to the directory.
    let directory = socket.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.map_or_else(|| PathBuf::from("."), Path::to_owned);
    let ports: Vec<u16> = arguments.metrics.iter().map(|listen| listen.0.port()).collect();
    let network_thread_capabilities = RING_CAPABILITIES.union_with(capabilities_for_ports(&ports));
    // The data directory contains the calibration of release mechanisms.
    let read = arguments.bounds.permit.clone().into_iter().chain(data_directory::data_directory()).collect();
    ProgramNeeds {
        program: "probe serve",
        opening: START_CAPABILITIES.union_with(RING_CAPABILITIES).union_with(ProcessCapabilities::SYS_ADMIN),
        // Threads that serve clients look up paths and hardware addresses, and open packet rings when clients
        // request answers.
        kept: network_thread_capabilities,
        network_thread_capabilities,
        files: rig_file_rules(read, vec![directory, runtime_directory::runtime_directory()]),
        // The service binds sockets to the source ports of its clients. The only port that it listens on is
        // that for metrics.
        tcp: TcpRules { listen: None, connect: Some(Vec::new()) },
        class: ThreadClass::Rig,
        user: UserToBecome::Stay("it looks up neighbours and opens packet rings while it serves"),
    }
}
