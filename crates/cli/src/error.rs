//! Errors of commands, and the party at fault, which decides the exit code.

use crate::exit::CommandExit;
use crate::output::{print_deciding_error, print_remark};
use packetrig_fleet_io::fleet::FetchError;
use packetrig_program::{CommandError, UnwrittenResult};
use packetrig_units::{Blame, message_with_causes};
use std::io;
use std::path::Path;

/// Error of a command. Variants without a comment contain an error of another crate, which says who is at fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The plan cannot be read.
    #[error("cannot read the plan from {name}")]
    ReadPlan {
        /// File name, or a description such as `standard input`.
        name: String,
        source: io::Error,
    },
    /// A file that the user named cannot be read.
    #[error("cannot read {name}")]
    ReadFile { name: String, source: io::Error },
    /// The plan has errors. `show_error` prints them in full before this message.
    #[error("{name} cannot be run: {tally}")]
    BadPlan {
        /// File name, or a description such as `standard input`.
        name: String,
        /// Every problem with its source line.
        shown: String,
        tally: String,
        /// The party at fault: the plan itself, or this machine.
        blame: Blame,
    },
    /// The first part of a location is neither a network namespace of this machine nor a node of a fleet.
    #[error(
        "{namespace} is neither a network namespace of this machine (`ip netns list`) nor a node: there is no fleet in \
         {fleet} (--fleet, $PACKETRIG_FLEET)"
    )]
    NoSuchPlace { namespace: String, fleet: String },
    /// Wrong usage that the parser of the command line cannot find.
    #[error("{0}")]
    Usage(String),
    /// A file or an output could not be written.
    #[error("cannot write {what}")]
    Write { what: String, source: io::Error },
    /// The page of a finished report could not be shown.
    #[error("cannot open {page} with {program}: {why}; the report is complete")]
    OpenPage { page: String, program: &'static str, why: String },
    /// The supervisor of an agent could not start its worker.
    #[error("cannot start the worker process of the agent")]
    StartWorker(#[source] io::Error),
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    #[error(transparent)]
    Server(#[from] packetrig_server::Error),
    #[error(transparent)]
    Client(#[from] packetrig_server::client::ClientError),
    #[error(transparent)]
    Run(#[from] packetrig_fleet_io::Error),
    #[error(transparent)]
    Engine(#[from] packetrig_engine::Error),
    #[error(transparent)]
    Export(#[from] packetrig_flow_io::export::Error),
    #[error(transparent)]
    Resend(#[from] packetrig_flow_io::resend::ResendError),
    #[error(transparent)]
    Meter(#[from] packetrig_flow_io::Error),
    #[error(transparent)]
    Probe(#[from] packetrig_probe_cli::Error),
    #[error(transparent)]
    Output(#[from] UnwrittenResult),
    #[error(transparent)]
    Program(#[from] packetrig_program::Error),
    #[error(transparent)]
    Store(#[from] packetrig_store::Error),
    /// The catalogue cannot be opened, or a result cannot be stored in its directory.
    #[error("{0}; choose a writable directory with --store")]
    UnusableStore(packetrig_store::Error),
    /// Options of a test method that cannot be run.
    #[error(transparent)]
    MethodOptions(#[from] packetrig_method::MethodOptionsError),
    #[error(transparent)]
    Flows(#[from] packetrig_flow_store::Error),
    #[error(transparent)]
    Collect(#[from] packetrig_flow_io::collect::Error),
    #[error(transparent)]
    Broker(#[from] packetrig_nats::broker::Error),
    #[error(transparent)]
    Authority(#[from] packetrig_nats::authority::Error),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Enrol(#[from] packetrig_nats::enrol::Error),
    #[error(transparent)]
    Tap(#[from] packetrig_link_io::Error),
    #[error(transparent)]
    Log(#[from] packetrig_link_io::log::Error),
    #[error(transparent)]
    Merge(#[from] packetrig_link_io::merge::Error),
    /// Impairments that are not valid.
    #[error(transparent)]
    Impair(#[from] packetrig_link::InvalidImpairmentSpec),
    /// The demo's lab could not be built.
    #[error(transparent)]
    Lab(#[from] packetrig_testkit::device::Error),
}

impl Error {
    /// Makes the error for a file that the user named and that cannot be read.
    pub(crate) fn unreadable_file(file: &Path, source: io::Error) -> Self {
        Self::ReadFile { name: file.display().to_string(), source }
    }

    pub(crate) fn unwritable_file(file: &Path, source: io::Error) -> Self {
        Self::Write { what: file.display().to_string(), source }
    }

    /// Returns who is at fault, which decides the exit code. An error of another crate says so itself.
    fn blame(&self) -> Blame {
        // This match has no default arm: a new variant must not compile until somebody has decided who is at
        // fault, because that decides the exit code.
        match self {
            // A plan that is missing or is no text has the exit code of plans, not the exit code of the command line.
            Self::ReadPlan { source, .. } => match Blame::from_named_file(source) {
                Blame::Usage => Blame::Plan,
                other => other,
            },
            Self::ReadFile { source, .. } => Blame::from_named_file(source),
            Self::BadPlan { blame, .. } => *blame,
            Self::Usage(_) | Self::MethodOptions(_) => Blame::Usage,
            // The plan is valid, but it names a thing that this machine or the fleet lacks now.
            Self::NoSuchPlace { .. } | Self::OpenPage { .. } => Blame::World,
            Self::Write { source, .. } | Self::StartWorker(source) => Blame::from_io(source),
            Self::Kernel(error) => error.blame(),
            Self::Server(error) => error.blame(),
            Self::Client(error) => error.blame(),
            Self::Run(error) => error.blame(),
            Self::Engine(error) => error.blame(),
            Self::Export(error) => error.blame(),
            Self::Resend(error) => error.blame(),
            Self::Meter(error) => error.blame(),
            Self::Probe(error) => error.blame(),
            Self::Output(error) => error.blame(),
            Self::Program(error) => error.blame(),
            Self::Store(error) | Self::UnusableStore(error) => error.blame(),
            Self::Flows(error) => error.blame(),
            Self::Collect(error) => error.blame(),
            Self::Broker(error) => error.blame(),
            Self::Authority(error) => error.blame(),
            Self::Fetch(error) => error.blame(),
            Self::Enrol(error) => error.blame(),
            Self::Tap(error) => error.blame(),
            Self::Log(error) => error.blame(),
            Self::Merge(error) => error.blame(),
            Self::Impair(error) => error.blame(),
            Self::Lab(error) => error.blame(),
        }
    }

    /// Returns the message and its causes.
    pub(crate) fn full_message(&self) -> String {
        message_with_causes(self)
    }
}

impl CommandError for Error {
    fn command_exit(&self) -> CommandExit {
        match self {
            // An interrupted fetch is resumed by the next one, so no node and no disk is at fault.
            Self::Fetch(FetchError::Interrupted) => CommandExit::Interrupted,
            error => error.blame().into(),
        }
    }

    fn show_error(&self) {
        // The problems come first, so that the last line on the terminal is the summary.
        if let Self::BadPlan { shown, .. } = self {
            print_remark(shown.trim_end_matches('\n'));
        }
        print_deciding_error(self.full_message());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_causes_are_listed_once_in_order() {
        let source = io::Error::new(io::ErrorKind::InvalidData, "not text");
        let error = Error::ReadPlan { name: "a.yaml".into(), source };
        assert_eq!(error.full_message(), "cannot read the plan from a.yaml: not text");
        assert_eq!(error.command_exit(), CommandExit::Plan);
    }

    #[test]
    fn exit_code_distinguishes_busy_from_missing_rights() {
        let busy = packetrig_sys::Error::Busy { object: "eth1".into(), holder: Some(7) };
        assert_eq!(Error::from(busy).command_exit(), CommandExit::Busy);
        let forbidden = packetrig_sys::Error::Call {
            call: "socket",
            object: "eth1".into(),
            source: io::Error::from_raw_os_error(1),
            remedy: None,
        };
        assert_eq!(Error::from(forbidden).command_exit(), CommandExit::Rights);
        let listening = |kind: io::ErrorKind| packetrig_program::Error::Metrics {
            address: "198.18.0.1:9".parse().unwrap(),
            source: kind.into(),
        };
        assert_eq!(Error::from(listening(io::ErrorKind::AddrInUse)).command_exit(), CommandExit::Busy);
        assert_eq!(
            Error::from(listening(io::ErrorKind::PermissionDenied)).command_exit(),
            CommandExit::Rights
        );
        assert_eq!(
            Error::from(listening(io::ErrorKind::AddrNotAvailable)).command_exit(),
            CommandExit::World
        );
        let missing =
            packetrig_sys::Error::Missing { what: "interface", name: "eth9".into(), remedy: "`ip link`" };
        assert_eq!(Error::from(missing).command_exit(), CommandExit::World);
    }

    /// Makes the same failure twice: here, and on a node of a fleet, whose fault travels as JSON.
    #[test]
    fn exit_code_matches_for_local_and_remote_failures() {
        use packetrig_engine::Error as Engine;
        use packetrig_sys::Error as Kernel;
        let cases: [(Engine, CommandExit); 8] = [
            (
                Kernel::Missing { what: "interface", name: "eth9".into(), remedy: "`ip link`" }.into(),
                CommandExit::World,
            ),
            (Kernel::Busy { object: "eth1".into(), holder: None }.into(), CommandExit::Busy),
            (Engine::NotPermitted(vec!["port secret is not lent".into()]), CommandExit::Unconfirmed),
            (Engine::CannotSteer { port: "a".into(), back_end: "pktgen" }, CommandExit::Plan),
            (Engine::NoLease { port: "a".into(), back_end: "pktgen" }, CommandExit::Plan),
            (Engine::NoCaptureDirectory, CommandExit::Plan),
            (
                Engine::File { path: "x".into(), source: io::ErrorKind::PermissionDenied.into() },
                CommandExit::Rights,
            ),
            (Engine::Bug("a case that cannot be"), CommandExit::Bug),
        ];
        for (error, exit) in cases {
            let fault = packetrig_fleet_io::Error::Engine(error).to_fault();
            let json = serde_json::to_string(&fault).unwrap();
            let fault = serde_json::from_str(&json).unwrap();
            assert_eq!(
                Error::Run(packetrig_fleet_io::Error::Failed { fault }).command_exit(),
                exit,
                "{json}"
            );
        }
    }

    /// A variant that nobody has thought of must not compile: so no mapping has a default.
    #[test]
    fn blame_mappings_have_no_default_arm() {
        let crates = [
            "engine", "fleet", "fleet-io", "flow-io", "link-io", "nats", "probe-io", "server", "store",
            "sys", "testkit",
        ];
        for name in crates {
            let path = format!("{}/../{name}/src/blame.rs", env!("CARGO_MANIFEST_DIR"));
            let source = std::fs::read_to_string(&path).unwrap();
            let has_default =
                source.lines().map(str::trim).any(|line| line.starts_with("_ ") || line.contains("| _ "));
            assert!(source.contains("fn blame(&self) -> Blame") && !has_default, "{path}");
        }
    }
}
