//! Runs nats-server as a child process: finds its program, writes its configuration, watches it, and ends it
//! when this process ends.
//!
//! If the user runs a NATS cluster, this module is not used: the fabric gets the addresses of that cluster.
//! Invariant: the child never outlives this process. If it dies, it is started again after a pause, which grows with
//! each failed start, and the user is informed.

mod accounts;
mod configuration;
mod health;
mod isolation;
mod keeper;
mod log;
mod program;
mod system;
mod walls;

pub use configuration::{ServerSecurity, build_configuration};
pub use health::{BrokerHealth, HealthWatch};
pub use isolation::{PreparedServer, ServerUser};
pub use program::{INSTALL_COMMAND, MIN_NATS_SERVER_VERSION, NATS_SERVER_MAJOR_VERSION, find_program};

use crate::authority::AdmittedNode;
use crate::connection::FleetCredentials;
use keeper::{NatsServerSupervisor, ServerProcessStatus, SupervisorCommand};
use packetrig_sys::private_files;
use packetrig_sys::sandbox::ProcessCapabilities;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Words in the server's error message for a port that another program uses.
const PORT_TAKEN_TEXT: &str = "address already in use";
/// Maximum number of times that the server is asked whether it has read its configuration again.
const MAX_RELOAD_CHECKS: u32 = 100;
const RELOAD_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of ports that are tried if the user has not chosen one.
const MAX_PORT_ATTEMPTS: u32 = 5;

/// Reasons why the message server cannot be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is not installed.
    #[error(
        "nats-server is not installed: it is neither in PATH nor in packetrig/bin of $XDG_DATA_HOME or ~/.local/share; install it \
         with `{INSTALL_COMMAND}`, or name it with --server"
    )]
    Missing,
    /// The program is too old or too new.
    #[error("{program} reports version `{found}`; packetrig needs nats-server {MIN_NATS_SERVER_VERSION} or newer, but older than {}; install it with `{INSTALL_COMMAND}`", NATS_SERVER_MAJOR_VERSION + 1)]
    Version { program: String, found: String },
    /// The text is not a valid node name.
    #[error("`{0}` is not a valid node name: use {rule}", rule = packetrig_fleet::message::NodeName::NAME_RULE)]
    Name(String),
    /// An operation on a file, a port, a thread or the process failed.
    #[error("{what}: {source}")]
    World { what: String, source: std::io::Error },
    /// The authority's directory could not be read or changed.
    #[error(transparent)]
    Authority(#[from] crate::authority::Error),
    /// The server ended, or did not become ready.
    #[error("nats-server is not ready: {0}")]
    NotReady(String),
}

pub(crate) fn server_io_error(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::World { what, source }
}

/// Parameters of the server.
#[derive(Clone, Debug)]
pub struct BrokerSetup {
    /// Path or name of the program; if `None`, [`find_program`] searches for it.
    pub program: Option<PathBuf>,
    /// Listen address; port 0 is replaced by a free port, which then stays the same.
    pub listen: SocketAddr,
    /// Directory of its configuration, its log and its store.
    pub directory: PathBuf,
    /// Size limit of its store in bytes. It must be larger than [`crate::ServerAccess::results_room`].
    pub store_room: u64,
    /// Certificates and accounts. Without them every connection has all rights, which is only for tests on one machine.
    pub security: Option<ServerSecurity>,
    /// Nodes that may connect from the start; used only with `security`.
    pub nodes: Vec<AdmittedNode>,
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct MessageServer {
    /// Its `directory` is the path by which threads that act as the server's user reach the server's directory.
    setup: BrokerSetup,
    isolation: Arc<PreparedServer>,
    orders: Sender<SupervisorCommand>,
    keeper: Option<JoinHandle<()>>,
    notes: Arc<Mutex<ServerProcessStatus>>,
}

impl MessageServer {
    /// Prepares and starts the server with all capabilities of this process, and waits until it is ready.
    pub fn start_server_and_wait(setup: BrokerSetup) -> Result<Self, Error> {
        let most =
            ProcessCapabilities::read_permitted().map_err(|error| Error::NotReady(error.to_string()))?;
        Self::start_isolated(PreparedServer::prepare(&setup, most)?, setup)
    }

    /// Starts the server that was prepared for `setup`, and waits until it is ready.
    pub fn start_isolated(isolation: PreparedServer, setup: BrokerSetup) -> Result<Self, Error> {
        let isolation = Arc::new(isolation);
        let setup = BrokerSetup { directory: isolation.directory(), ..setup };
        // The user has chosen this port, so no other port is tried.
        if setup.listen.port() != 0 {
            return Self::start_at(&isolation, setup);
        }
        // The last attempt is made below, so that its error is returned in any case.
        for _ in 1..MAX_PORT_ATTEMPTS {
            match Self::start_at(&isolation, with_free_port(&setup)?) {
                // Another program has taken the port since it was found free.
                Err(Error::NotReady(why)) if why.contains(PORT_TAKEN_TEXT) => {}
                started => return started,
            }
        }
        Self::start_at(&isolation, with_free_port(&setup)?)
    }

    fn start_at(isolation: &Arc<PreparedServer>, setup: BrokerSetup) -> Result<Self, Error> {
        write_configuration(isolation, &setup)?;
        let notes = Arc::new(Mutex::new(ServerProcessStatus::default()));
        let (orders, inbox) = channel();
        let (ready, is_ready) = channel();
        let isolation = Arc::clone(isolation);
        let mut keeper = NatsServerSupervisor {
            isolation: Arc::clone(&isolation),
            setup: setup.clone(),
            notes: Arc::clone(&notes),
            inbox,
        };
        let keeper = isolation.run_as_server(move || {
            let thread = std::thread::Builder::new().name("broker".to_owned());
            let started = thread.spawn(move || keeper.run_until_ended(&ready));
            started.map_err(server_io_error("cannot start the thread that supervises nats-server"))
        })?;
        let broker = Self { setup, isolation, orders, keeper: Some(keeper), notes };
        let started = is_ready.recv().map_err(|_| keeper_ended_error())?;
        started.map_err(|error| broker.isolation.replace_internal_paths_in_error(error))?;
        Ok(broker)
    }

    /// The user that the server runs as.
    pub fn user(&self) -> &ServerUser {
        self.isolation.user()
    }

    pub fn address(&self) -> SocketAddr {
        self.setup.listen
    }

    /// The current process id of the server.
    pub fn process_id(&self) -> u32 {
        lock_server_status(&self.notes).process
    }

    /// Number of times that the server was started.
    pub fn server_start_count(&self) -> u64 {
        lock_server_status(&self.notes).starts
    }

    /// Returns and clears the problems since the last call: failures of the server, and protections that are missing.
    pub fn take_problems(&self) -> Vec<String> {
        std::mem::take(&mut lock_server_status(&self.notes).troubles)
    }

    /// Lets one more node connect. The server reads the node's account when the node connects; nothing else changes.
    pub fn admit_node(&self, node: &AdmittedNode) -> Result<(), Error> {
        self.isolation.run_as_server(|| accounts::add_node_account(&self.setup, node))
    }

    /// Lets exactly these nodes connect from now on. Connected nodes in the list stay connected. All other
    /// nodes are disconnected: the server is asked to do this with the credentials `remover`. If it does not
    /// answer, it is restarted.
    pub fn set_allowed_nodes(&self, nodes: &[AdmittedNode], remover: FleetCredentials) -> Result<(), Error> {
        // The accounts of all allowed nodes are written before any other account is removed.
        let left = self.isolation.run_as_server(|| accounts::write_missing_accounts(&self.setup, nodes))?;
        let Some(security) = self.setup.security.as_ref().filter(|_| !left.is_empty()) else { return Ok(()) };
        // A server that does not answer keeps the removed nodes connected. After a restart it refuses them,
        // because their files are gone.
        if accounts::remove_accounts(&self.setup, &security.accounts, &left, &remover).is_err() {
            self.isolation.run_as_server(|| accounts::delete_account_files(&self.setup, &left))?;
            self.restart_server();
        }
        Ok(())
    }

    /// Restarts the server. Confirmed data stays, and clients reconnect by themselves.
    pub fn restart_server(&self) {
        // The send fails only if the keeper thread has ended: then there is no server to restart.
        ignore_closed_channel(self.orders.send(SupervisorCommand::Restart));
    }

    /// Makes the server read its configuration and its certificate again. Then asks the server, with the credentials
    /// `asker`, until it reports a newer load time. Connections stay open.
    pub fn reload_configuration(&self, asker: &FleetCredentials) -> Result<(), Error> {
        // A server with an expired certificate cannot be queried before it reloads.
        let before = system::query_configuration_time(&self.setup, asker).ok();
        // The server reads copies of the certificate files, so the copies are replaced before it reads them again.
        copy_certificates(&self.isolation, &self.setup)?;
        let (done, is_done) = channel();
        self.orders.send(SupervisorCommand::Reload(done)).map_err(|_| keeper_ended_error())?;
        is_done.recv().map_err(|_| keeper_ended_error())??;
        let mut answer = Ok(String::new());
        for _ in 0..MAX_RELOAD_CHECKS {
            answer = system::query_configuration_time(&self.setup, asker);
            // The order is only a signal to the process: the server reads its configuration some time later.
            if answer.as_ref().is_ok_and(|now| before.as_ref() != Some(now)) {
                return Ok(());
            }
            std::thread::sleep(RELOAD_CHECK_INTERVAL);
        }
        Err(answer.err().unwrap_or_else(|| Error::NotReady("it did not reload its configuration".to_owned())))
    }
}

impl Drop for MessageServer {
    fn drop(&mut self) {
        // The send fails only if the keeper thread has ended already.
        ignore_closed_channel(self.orders.send(SupervisorCommand::End));
        if let Some(keeper) = self.keeper.take() {
            // `join` fails only if the thread has panicked, and the panic was printed then.
            drop(keeper.join());
        }
    }
}

fn keeper_ended_error() -> Error {
    Error::NotReady("the thread that supervises it has ended".to_owned())
}

/// Ignores a closed channel: if its receiver is gone, nobody waits for the value.
fn ignore_closed_channel<T>(sent: Result<(), SendError<T>>) {
    drop(sent);
}

fn lock_server_status(notes: &Mutex<ServerProcessStatus>) -> std::sync::MutexGuard<'_, ServerProcessStatus> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_configuration(isolation: &PreparedServer, setup: &BrokerSetup) -> Result<(), Error> {
    let file = configuration_file(&setup.directory);
    let text = build_configuration(setup)?;
    copy_certificates(isolation, setup)?;
    isolation.run_as_server(|| {
        // The server is not running yet, so files of removed accounts can be deleted directly.
        let left = accounts::write_missing_accounts(setup, &setup.nodes)?;
        accounts::delete_account_files(setup, &left)?;
        private_files::write_file(&file, text).map_err(server_io_error(file.display().to_string()))
    })
}

/// Copies the certificate files for the server, because it cannot read the fleet's directory, which
/// contains the signing keys.
fn copy_certificates(isolation: &PreparedServer, setup: &BrokerSetup) -> Result<(), Error> {
    let Some(security) = &setup.security else { return Ok(()) };
    let copies = TlsFiles::from_setup(setup);
    let mut files = Vec::new();
    for (from, to) in [
        (&security.certificate, copies.certificate),
        (&security.key, copies.key),
        (&security.authority, copies.authority),
    ] {
        files.push((to, std::fs::read(from).map_err(server_io_error(from.display().to_string()))?));
    }
    isolation.run_as_server(|| write_copies(&files))
}

fn write_copies(files: &[(PathBuf, Vec<u8>)]) -> Result<(), Error> {
    for (to, bytes) in files {
        let failed = |source| Error::World { what: to.display().to_string(), source };
        to.parent().map_or(Ok(()), private_files::create_directories).map_err(failed)?;
        // The file is replaced and not overwritten, so that the server never reads a part of a file.
        private_files::replace_file(to, bytes).map_err(failed)?;
    }
    Ok(())
}

/// The server's TLS files, below its own directory.
struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    authority: PathBuf,
}

impl TlsFiles {
    fn from_setup(setup: &BrokerSetup) -> Self {
        let file = |name: &str| setup.directory.join("tls").join(name);
        Self { certificate: file("server.pem"), key: file("server.key"), authority: file("authority.pem") }
    }
}

/// Path of the server's log.
fn log_file(setup: &BrokerSetup) -> PathBuf {
    setup.directory.join("nats-server.log")
}

/// File for the output that the server writes before it has read the path of its log.
fn startup_output_file(setup: &BrokerSetup) -> PathBuf {
    setup.directory.join("nats-server.out")
}

fn configuration_file(directory: &Path) -> PathBuf {
    directory.join("nats-server.conf")
}

/// Returns the setup with a port that is free now. The server must not choose the port itself, because all restarts
/// must use the same one.
fn with_free_port(setup: &BrokerSetup) -> Result<BrokerSetup, Error> {
    let free = TcpListener::bind(setup.listen).and_then(|socket| socket.local_addr());
    let listen = free.map_err(server_io_error(format!("no port is free at {}", setup.listen)))?;
    Ok(BrokerSetup { listen, ..setup.clone() })
}
