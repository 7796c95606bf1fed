//! What can go wrong in a command, and whose fault it is.

use crate::exit::CommandExit;
use crate::output::{TextStyle, remark};
use packetrig_fleet::outcome::FaultOwner;
use std::error::Error as _;
use std::io;
use std::path::Path;

/// Why a command could not do its work. Variants without a comment wrap errors that say themselves whose fault they are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// User: the plan cannot be read.
    #[error("cannot read the plan from {name}")]
    ReadPlan {
        /// File name, or what stands for it.
        name: String,
        source: io::Error,
    },
    /// User: a file that was named cannot be read.
    #[error("cannot read {name}")]
    ReadFile { name: String, source: io::Error },
    /// User: the plan has errors; they are already shown in full.
    #[error("the plan in {name} cannot run: {tally}")]
    BadPlan {
        /// File name, or what stands for it.
        name: String,
        /// Every problem with its source line.
        shown: String,
        tally: String,
    },
    /// User: flags that contradict each other in ways the parser cannot know.
    #[error("{0}")]
    Usage(String),
    /// World: results could not be written.
    #[error("cannot write {what}")]
    Write { what: String, source: io::Error },
    /// World, mostly: see [`packetrig_sys::Error`].
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    #[error(transparent)]
    Server(#[from] packetrig_server::Error),
    #[error(transparent)]
    Run(#[from] packetrig_node::Error),
    #[error(transparent)]
    Engine(#[from] packetrig_engine::Error),
    #[error(transparent)]
    Export(#[from] packetrig_meter::export::Error),
    #[error(transparent)]
    Meter(#[from] packetrig_meter::Error),
    #[error(transparent)]
    Probe(#[from] packetrig_prober::Error),
    #[error(transparent)]
    ProbeFile(#[from] packetrig_store::probes::Error),
    /// User: the permit file for probes is invalid.
    #[error(transparent)]
    ProbePermit(#[from] packetrig_probe::permit::FileError),
    #[error(transparent)]
    Store(#[from] packetrig_store::Error),
    /// World: the directory of the catalogue cannot be written.
    #[error("{0}; name a directory that can be written with --store")]
    UnusableStore(packetrig_store::Error),
    #[error(transparent)]
    Flows(#[from] packetrig_store::flows::Error),
    #[error(transparent)]
    Collect(#[from] packetrig_meter::collect::Error),
    #[error(transparent)]
    Broker(#[from] packetrig_nats::broker::Error),
    #[error(transparent)]
    Authority(#[from] packetrig_nats::authority::Error),
    #[error(transparent)]
    Fetch(#[from] packetrig_node::fleet::FetchError),
    #[error(transparent)]
    Enrol(#[from] packetrig_nats::enrol::Error),
    #[error(transparent)]
    Log(#[from] packetrig_engine::capture::log::Error),
    /// User: impairments that are not valid.
    #[error(transparent)]
    Impair(#[from] packetrig_engine::impair::BadSpec),
    /// World: the demo's lab could not be built.
    #[error(transparent)]
    Lab(#[from] packetrig_testkit::device::Error),
}

impl Error {
    /// For a file that was named and cannot be read.
    pub(crate) fn unreadable(file: &Path, source: io::Error) -> Self {
        Self::ReadFile { name: file.display().to_string(), source }
    }

    pub(crate) fn unwritable(file: &Path, source: io::Error) -> Self {
        Self::Write { what: file.display().to_string(), source }
    }

    pub(crate) fn exit(&self) -> CommandExit {
        match self {
            Self::ReadPlan { .. } | Self::BadPlan { .. } => CommandExit::Plan,
            Self::Usage(_)
            | Self::ReadFile { .. }
            | Self::Impair(_)
            | Self::ProbePermit(_)
            | Self::ProbeFile(packetrig_store::probes::Error::Form(_)) => CommandExit::Usage,
            Self::Write { .. } | Self::ProbeFile(_) | Self::Fetch(_) => CommandExit::World,
            Self::Kernel(error) | Self::Lab(packetrig_testkit::device::Error::Kernel(error)) => {
                of_kernel(error)
            }
            // The lab is made of this program's own parts: apart from the kernel, nothing in it can refuse.
            Self::Lab(_) => CommandExit::Bug,
            Self::Server(error) => of_server(error),
            Self::Run(error) => of_run(error),
            Self::Engine(error) => of_engine(error),
            Self::Export(error) => of_export(error),
            Self::Meter(error) => of_meter(error),
            Self::Probe(error) => of_probe(error),
            Self::Store(error) | Self::UnusableStore(error) => of_store(error),
            Self::Flows(error) => of_flows(error),
            Self::Collect(error) => of_collect(error),
            Self::Broker(error) => of_broker(error),
            Self::Authority(error) => of_authority(error),
            Self::Enrol(error) => of_enrol(error),
            Self::Log(error) => of_log(error),
        }
    }

    pub(crate) fn show(&self, style: TextStyle) {
        // The problems come first, so that the last line on the terminal is the summary.
        if let Self::BadPlan { shown, .. } = self {
            remark(shown.trim_end_matches('\n'));
        }
        remark(format_args!("{} {}", style.bad("error:"), self.chain()));
    }

    /// The message and its causes, each once: some errors repeat the message of their cause.
    pub(crate) fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            let message = error.to_string();
            if !text.contains(&message) {
                text.push_str(": ");
                text.push_str(&message);
            }
            cause = error.source();
        }
        text
    }
}

// In most of the functions below, kinds that are not listed are failures of the machine, the disk or the network.

fn of_log(error: &packetrig_engine::capture::log::Error) -> CommandExit {
    use packetrig_engine::capture::log::Error as Log;
    match error {
        Log::InUse(_) => CommandExit::Busy,
        Log::Damaged { .. } => CommandExit::Usage,
        Log::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => CommandExit::Rights,
        _ => CommandExit::World,
    }
}

fn of_server(error: &packetrig_server::Error) -> CommandExit {
    use packetrig_server::Error as Server;
    match error {
        Server::Listen { source, .. } => of_listening(source),
        Server::File { .. } | Server::Tls(_) | Server::Options(_) => CommandExit::Usage,
        Server::Runtime(_) => CommandExit::World,
    }
}

/// An address that cannot be listened on.
fn of_listening(error: &io::Error) -> CommandExit {
    match error.kind() {
        io::ErrorKind::PermissionDenied => CommandExit::Rights,
        io::ErrorKind::AddrInUse => CommandExit::Busy,
        _ => CommandExit::World,
    }
}

fn of_kernel(error: &packetrig_sys::Error) -> CommandExit {
    match error {
        packetrig_sys::Error::Busy { .. } => CommandExit::Busy,
        error if error.is_permission() => CommandExit::Rights,
        _ => CommandExit::World,
    }
}

fn of_export(error: &packetrig_meter::export::Error) -> CommandExit {
    use packetrig_meter::export::Error as Export;
    match error {
        Export::Target { .. } | Export::Thread(_) => CommandExit::World,
        Export::NotFramed { .. } | Export::NoAuthorities { .. } | Export::Tls(_) => CommandExit::Usage,
    }
}

fn of_meter(error: &packetrig_meter::Error) -> CommandExit {
    use packetrig_meter::Error as Meter;
    match error {
        Meter::Kernel(error) => of_kernel(error),
        Meter::Engine(error) => of_engine(error),
        Meter::File { .. }
        | Meter::NoCapture { .. }
        | Meter::TooManyInputs { .. }
        | Meter::OneWorker { .. } => CommandExit::Usage,
        Meter::Metrics { source, .. } => of_listening(source),
        Meter::Panicked(_) => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

fn of_probe(error: &packetrig_prober::Error) -> CommandExit {
    use packetrig_prober::Error as Probe;
    match error {
        Probe::Kernel(error) => of_kernel(error),
        Probe::Engine(error) => of_engine(error),
        // Like an interface that is not confirmed: the user or the owner of the machine can allow the target.
        Probe::Target(_) => CommandExit::Unconfirmed,
        Probe::Limits(_) | Probe::Train { .. } => CommandExit::Usage,
        Probe::Gone => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

fn of_store(error: &packetrig_store::Error) -> CommandExit {
    use packetrig_store::Error as Store;
    match error {
        Store::NoPlace | Store::Unknown(_) | Store::Ambiguous { .. } => CommandExit::Usage,
        Store::UnderWay { .. } => CommandExit::Busy,
        Store::Taken(_) | Store::BadId(_) => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

fn of_flows(error: &packetrig_store::flows::Error) -> CommandExit {
    use packetrig_store::flows::Error as Flows;
    match error {
        Flows::Nothing { .. } | Flows::Foreign { .. } | Flows::Damaged { .. } | Flows::Target { .. } => {
            CommandExit::Usage
        }
        // A place that the user named and that does not exist; other failures of files are those of the disk.
        Flows::File { source, .. } if source.kind() == io::ErrorKind::NotFound => CommandExit::Usage,
        Flows::Encode(_) => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

fn of_collect(error: &packetrig_meter::collect::Error) -> CommandExit {
    use packetrig_meter::collect::Error as Collect;
    match error {
        // `sys` binds UDP sockets, and has no kind of its own for an address in use.
        Collect::Kernel(packetrig_sys::Error::Call { source, .. })
            if source.kind() == io::ErrorKind::AddrInUse =>
        {
            CommandExit::Busy
        }
        Collect::Kernel(error) => of_kernel(error),
        Collect::Listen { source, .. } => of_listening(source),
        Collect::NoIdentity(_) | Collect::Tls { .. } | Collect::File { .. } => CommandExit::Usage,
        Collect::Panicked(_) => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

fn of_broker(error: &packetrig_nats::broker::Error) -> CommandExit {
    use packetrig_nats::broker::Error as Broker;
    match error {
        Broker::Missing | Broker::Version { .. } | Broker::Name(_) => CommandExit::Usage,
        Broker::Authority(error) => of_authority(error),
        _ => CommandExit::World,
    }
}

fn of_authority(error: &packetrig_nats::authority::Error) -> CommandExit {
    use packetrig_nats::authority::Error as Authority;
    match error {
        Authority::Name(_) | Authority::Taken(_) | Authority::Secret | Authority::Labels { .. } => {
            CommandExit::Usage
        }
        Authority::Certificate(_) => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

fn of_enrol(error: &packetrig_nats::enrol::Error) -> CommandExit {
    use packetrig_nats::enrol::Error as Enrol;
    match error {
        Enrol::Line | Enrol::Name(_) | Enrol::Refused(_) => CommandExit::Usage,
        _ => CommandExit::World,
    }
}

fn of_run(error: &packetrig_node::Error) -> CommandExit {
    use packetrig_node::Error as Node;
    match error {
        Node::Plan(_) => CommandExit::Plan,
        Node::Engine(error) => of_engine(error),
        // A fault of a node comes over the network; it carries its blame, because its type is unknown here.
        Node::Failed { fault } => match fault.blame {
            FaultOwner::User => CommandExit::Plan,
            FaultOwner::World | FaultOwner::Peer => CommandExit::World,
            FaultOwner::Bug => CommandExit::Bug,
        },
        Node::NotPermitted(_) => CommandExit::Usage,
        Node::NodesTaken(_)
        | Node::OldController(_)
        | Node::Fabric(packetrig_fleet::fabric::Error::Taken(_)) => CommandExit::Busy,
        Node::Thread(_)
        | Node::Fabric(_)
        | Node::Spool(_)
        | Node::Watch(_)
        | Node::Epoch(_)
        | Node::ClockSocket(_)
        | Node::LeadershipLost
        | Node::NeverRan => CommandExit::World,
        // The rest are broken promises between parts of packetrig.
        _ => CommandExit::Bug,
    }
}

fn of_engine(error: &packetrig_engine::Error) -> CommandExit {
    use packetrig_engine::Error as Engine;
    use packetrig_sys::pcap::PcapError;
    match error {
        Engine::Kernel(error) => of_kernel(error),
        Engine::Guard(_) => CommandExit::Unconfirmed,
        Engine::Expression(PcapError::Expression { .. }) | Engine::Filter { .. } | Engine::Tap(_) => {
            CommandExit::Usage
        }
        Engine::Plan(_)
        | Engine::Recording { .. }
        | Engine::NoDevices { .. }
        | Engine::NotForBackEnd { .. }
        | Engine::NoCaptureDirectory => CommandExit::Plan,
        Engine::Panicked(_) | Engine::Bug(_) => CommandExit::Bug,
        _ => CommandExit::World,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once_and_in_order() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "not text");
        let error = Error::ReadPlan { name: "a.yaml".into(), source };
        assert_eq!(error.chain(), "cannot read the plan from a.yaml: not text");
        assert_eq!(error.exit(), CommandExit::Plan);
    }

    #[test]
    fn a_held_port_and_missing_rights_have_codes_of_their_own() {
        let busy = packetrig_sys::Error::Busy { object: "eth1".into(), holder: Some(7) };
        assert_eq!(Error::from(busy).exit(), CommandExit::Busy);
        let forbidden = packetrig_sys::Error::Call {
            call: "socket",
            object: "eth1".into(),
            source: io::Error::from_raw_os_error(1),
            remedy: None,
        };
        assert_eq!(Error::from(forbidden).exit(), CommandExit::Rights);
        let listening = |kind: io::ErrorKind| packetrig_meter::Error::Metrics {
            address: "198.18.0.1:9".parse().unwrap(),
            source: kind.into(),
        };
        assert_eq!(Error::from(listening(io::ErrorKind::AddrInUse)).exit(), CommandExit::Busy);
        assert_eq!(Error::from(listening(io::ErrorKind::PermissionDenied)).exit(), CommandExit::Rights);
        assert_eq!(Error::from(listening(io::ErrorKind::AddrNotAvailable)).exit(), CommandExit::World);
        let missing =
            packetrig_sys::Error::Missing { what: "interface", name: "eth9".into(), remedy: "`ip link`" };
        assert_eq!(Error::from(missing).exit(), CommandExit::World);
    }
}
