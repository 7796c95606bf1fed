//! A message server of our own, in a directory that is deleted with it.

use packetrig_fleet::fabric::{Fabric as _, ResultReceiver as _};
use packetrig_fleet::message::RunId;
use packetrig_nats::broker::{BrokerSetup, MessageServer};
use packetrig_nats::{NatsFabric, NatsIncoming, ServerAccess};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Size limit of results: enough for two of the largest segments.
pub(crate) const RESULTS_ROOM: usize = 1 << 20;

/// A running server and its data.
pub(crate) struct Server {
    pub(crate) broker: MessageServer,
    _place: TempDir,
}

/// Finds the program, or says why it is missing and returns `None`.
pub(crate) fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(install).clone()
}

fn install() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new("sh").args(["scripts/clients.sh", "nats"]).current_dir(root).output();
    let output = output.expect("there is a shell");
    if output.status.success() {
        return Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    say(&format!("skipped: no client `nats` ({})", why.lines().last().unwrap_or("no reason given")));
    None
}

/// The readers of run `r` at this inlet.
pub(crate) fn reader(fabric: &NatsFabric, name: &str) -> NatsIncoming {
    let mut incoming = fabric.open_result_inlet(name).expect("it opens");
    incoming.read_run(&RunId("r".into()), &BTreeSet::new()).expect("nobody else reads it");
    incoming
}

#[expect(clippy::print_stderr, reason = "a skipped test and a count have to be seen")]
pub(crate) fn say(what: &str) {
    eprintln!("{what}");
}

/// Setup of a server without certificates.
pub(crate) fn setup(program: PathBuf, place: &TempDir) -> BrokerSetup {
    BrokerSetup {
        program: Some(program),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        directory: place.path().join("server"),
        store_room: 64 << 20,
        security: None,
        nodes: Vec::new(),
    }
}

impl Server {
    /// Access without certificates: every client has all rights.
    pub(crate) fn open(program: PathBuf) -> Self {
        let place = TempDir::new().expect("a place for the server");
        let broker = MessageServer::start_server_and_wait(setup(program, &place)).expect("the server starts");
        Self { broker, _place: place }
    }

    pub(crate) fn fabric(&self) -> NatsFabric {
        NatsFabric::new(self.access()).expect("a runtime")
    }

    pub(crate) fn access(&self) -> ServerAccess {
        ServerAccess {
            results_room: RESULTS_ROOM as u64,
            timeout: Duration::from_secs(20),
            ..ServerAccess::for_server(self.broker.address().to_string(), None)
        }
    }
}
