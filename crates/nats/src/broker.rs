//! A server of our own: found, configured, started as a child, watched, and ended with us.
//!
//! It is not the user's cluster: the addresses of such a cluster go to the fabric instead. Invariant: the child never
//! outlives this process; when it dies it is started again, after a pause that grows, and the user is told.

mod accounts;
mod configuration;
mod health;
mod log;
mod program;

pub use configuration::{ServerSecurity, configuration};
pub use health::{BrokerHealth, HealthWatch};
pub use program::{INSTALL, MAJOR, OLDEST, find};

use crate::authority::AdmittedNode;
use crate::connection::FleetCredentials;
use packetrig_sys::{child, private_files};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the keeper looks after the server.
const LOOK: Duration = Duration::from_millis(50);
/// How long a server may take to be ready, in looks.
const READY_LOOKS: u32 = 400;
/// How long it may take to end when asked, in looks.
const END_LOOKS: u32 = 200;
/// The same when the program ends, and nobody is to wait for it.
const LAST_LOOKS: u32 = 12;
/// First pause before it is started again; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
/// What it says when it has read its configuration again.
const RELOADED: &str = "Reloaded server configuration";
const PAUSE_MOST: Duration = Duration::from_secs(5);
/// Of these words is the server's complaint about a port that another program has.
const PORT_TAKEN: &str = "address already in use";
/// Ports that are tried where any will do.
const PORT_CHOICES: u32 = 5;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is not there.
    #[error("nats-server is not installed; install it with `{INSTALL}`")]
    Missing,
    /// The program is too old or too new.
    #[error("{program} is nats-server {found}, but {OLDEST} or newer (below {}) is needed; install it with `{INSTALL}`", MAJOR + 1)]
    Version { program: String, found: String },
    /// A node cannot be called so.
    #[error("`{0}` is not a valid node name: use {rule}", rule = packetrig_fleet::NodeName::RULE)]
    Name(String),
    /// A file or the process.
    #[error("{what}: {source}")]
    World { what: String, source: std::io::Error },
    /// The authority's directory.
    #[error(transparent)]
    Authority(#[from] crate::authority::Error),
    /// It ended or did not become ready.
    #[error("nats-server is not ready: {0}")]
    NotReady(String),
}

pub(crate) fn world(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |source| Error::World { what, source }
}

/// What the server shall be.
#[derive(Clone, Debug)]
pub struct BrokerSetup {
    /// The program; without one it is looked for, see [`find`].
    pub program: Option<PathBuf>,
    /// Where it listens; port 0 takes a free one, and keeps it.
    pub listen: SocketAddr,
    /// Its configuration, its log and its store.
    pub directory: PathBuf,
    /// Bytes it may keep in all; more than the fabric's `results_room`.
    pub store_room: u64,
    /// Certificates. Without them every connection may do anything: only for tests on one machine.
    pub security: Option<ServerSecurity>,
    /// Nodes that may connect from the start, with security.
    pub nodes: Vec<AdmittedNode>,
}

/// A server that runs. Dropping it ends it.
#[derive(Debug)]
pub struct MessageServer {
    setup: BrokerSetup,
    orders: Sender<KeeperOrder>,
    keeper: Option<JoinHandle<()>>,
    notes: Arc<Mutex<KeeperNotes>>,
}

/// What the keeper tells.
#[derive(Debug, Default)]
struct KeeperNotes {
    process: u32,
    starts: u64,
    troubles: Vec<String>,
}

#[derive(Debug)]
enum KeeperOrder {
    Reload(Sender<Result<(), Error>>),
    Restart,
    End,
}

impl MessageServer {
    /// Starts the server and waits until it is ready.
    pub fn start(setup: BrokerSetup) -> Result<Self, Error> {
        if setup.listen.port() != 0 {
            return Self::start_at(setup);
        }
        for _ in 1..PORT_CHOICES {
            match Self::start_at(at_free_port(&setup)?) {
                // Since it was found free somebody else has taken the port.
                Err(Error::NotReady(why)) if why.contains(PORT_TAKEN) => {}
                started => return started,
            }
        }
        Self::start_at(at_free_port(&setup)?)
    }

    fn start_at(setup: BrokerSetup) -> Result<Self, Error> {
        let program = find(setup.program.as_deref())?;
        write(&setup)?;
        let notes = Arc::new(Mutex::new(KeeperNotes::default()));
        let (orders, inbox) = channel();
        let (ready, is_ready) = channel();
        let mut keeper = ServerKeeper { program, setup: setup.clone(), notes: Arc::clone(&notes), inbox };
        let keeper = std::thread::Builder::new()
            .name("broker".to_owned())
            .spawn(move || keeper.run(&ready))
            .map_err(world("cannot start a thread for the server"))?;
        let broker = Self { setup, orders, keeper: Some(keeper), notes };
        is_ready.recv().map_err(|_| keeper_ended())??;
        Ok(broker)
    }

    pub fn address(&self) -> SocketAddr {
        self.setup.listen
    }

    /// The present process id of the server.
    pub fn process(&self) -> u32 {
        lock(&self.notes).process
    }

    /// How often it was started.
    pub fn starts(&self) -> u64 {
        lock(&self.notes).starts
    }

    /// Takes the troubles since the last call.
    pub fn troubles(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.notes).troubles)
    }

    /// Lets one more node connect. The server looks for it when it comes: nothing else is touched.
    pub fn admit(&self, node: &AdmittedNode) -> Result<(), Error> {
        accounts::add(&self.setup, node)
    }

    /// Lets exactly these nodes connect from now on. Those that are connected and still named stay so, all others are cut
    /// off, for which the server is asked as `remover`; a server that does not answer is started again.
    pub fn allow(&self, nodes: &[AdmittedNode], remover: FleetCredentials) -> Result<(), Error> {
        let left = accounts::settle(&self.setup, nodes)?;
        let Some(security) = self.setup.security.as_ref().filter(|_| !left.is_empty()) else { return Ok(()) };
        let server = configuration::reachable(self.setup.listen).to_string();
        // A server that does not answer keeps the removed nodes connected. Without their files it refuses
        // them when it comes back.
        if accounts::remove(server, &security.accounts, &left, remover).is_err() {
            accounts::delete(&self.setup, &left)?;
            self.restart();
        }
        Ok(())
    }

    /// Ends the server and starts it again. What it has confirmed stays; those that are connected come back by themselves.
    pub fn restart(&self) {
        // A keeper that has ended has no server.
        ignore_closed(self.orders.send(KeeperOrder::Restart));
    }

    /// Has the server read its configuration and its certificate again. Connections stay.
    pub fn reload(&self) -> Result<(), Error> {
        let (done, is_done) = channel();
        self.orders.send(KeeperOrder::Reload(done)).map_err(|_| keeper_ended())?;
        is_done.recv().map_err(|_| keeper_ended())?
    }
}

impl Drop for MessageServer {
    fn drop(&mut self) {
        // A keeper that has ended needs no order.
        ignore_closed(self.orders.send(KeeperOrder::End));
        if let Some(keeper) = self.keeper.take() {
            // It fails only after a panic, which the thread itself has reported.
            drop(keeper.join());
        }
    }
}

fn keeper_ended() -> Error {
    Error::NotReady("the thread that supervises it has ended".to_owned())
}

/// The other end of the channel may have gone, and then nobody waits for this.
fn ignore_closed<T>(sent: Result<(), SendError<T>>) {
    drop(sent);
}

fn lock(notes: &Mutex<KeeperNotes>) -> std::sync::MutexGuard<'_, KeeperNotes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(setup: &BrokerSetup) -> Result<(), Error> {
    let directory = &setup.directory;
    let file = path(setup);
    private_files::create_directories(directory).map_err(world(directory.display().to_string()))?;
    // No server of ours runs yet: nobody has to be asked.
    let left = accounts::settle(setup, &setup.nodes)?;
    accounts::delete(setup, &left)?;
    private_files::write(&file, configuration(setup)?).map_err(world(file.display().to_string()))
}

/// Where the server logs.
fn log_file(setup: &BrokerSetup) -> PathBuf {
    setup.directory.join("nats-server.log")
}

/// What it says before it has read where to log.
fn first_output(setup: &BrokerSetup) -> PathBuf {
    setup.directory.join("nats-server.out")
}

fn path(setup: &BrokerSetup) -> PathBuf {
    setup.directory.join("nats-server.conf")
}

/// The thread that owns the child: the kernel's guard is bound to it.
struct ServerKeeper {
    program: PathBuf,
    setup: BrokerSetup,
    notes: Arc<Mutex<KeeperNotes>>,
    inbox: Receiver<KeeperOrder>,
}

impl ServerKeeper {
    fn run(&mut self, ready: &Sender<Result<(), Error>>) {
        let mut child = match self.start() {
            Ok(child) => child,
            Err(error) => return ignore_closed(ready.send(Err(error))),
        };
        ignore_closed(ready.send(Ok(())));
        loop {
            match self.inbox.recv_timeout(LOOK) {
                Ok(KeeperOrder::Reload(done)) => ignore_closed(done.send(self.reload(&child))),
                // It is found ended below.
                Ok(KeeperOrder::Restart) => end(&mut child, END_LOOKS),
                Ok(KeeperOrder::End) | Err(RecvTimeoutError::Disconnected) => {
                    return end(&mut child, LAST_LOOKS);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Ok(Some(status)) = child.try_wait() {
                self.report(format!("nats-server exited ({status}); starting it again"));
                match self.start_again() {
                    Some(new) => child = new,
                    None => return,
                }
            }
        }
    }

    /// Has the server read its configuration again, and waits until it says that it has.
    fn reload(&self, child: &Child) -> Result<(), Error> {
        let log = self.log();
        // Only what is logged from here on can be the answer.
        let before = fs::metadata(&log).map_or(0, |facts| facts.len());
        child::reload(child).map_err(|error| Error::NotReady(error.to_string()))?;
        for _ in 0..READY_LOOKS {
            let text = log::tail(&log, before);
            if text.contains(RELOADED) {
                return Ok(());
            }
            // Lines with `cid:` are errors of a connection, not of the server.
            let mut lines = text.lines();
            if let Some(line) = lines.find(|line| line.contains("[ERR]") && !line.contains("cid:")) {
                return Err(Error::NotReady(line.to_owned()));
            }
            std::thread::sleep(LOOK);
        }
        Err(Error::NotReady("it did not reload its configuration".to_owned()))
    }

    fn log(&self) -> PathBuf {
        log_file(&self.setup)
    }

    fn report(&self, trouble: String) {
        lock(&self.notes).troubles.push(trouble);
    }

    /// Tries again and again until it succeeds or is to end.
    fn start_again(&self) -> Option<Child> {
        let mut pause = PAUSE;
        loop {
            match self.inbox.recv_timeout(pause) {
                // It reads its configuration when it starts.
                Ok(KeeperOrder::Reload(done)) => ignore_closed(done.send(Ok(()))),
                Ok(KeeperOrder::End) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(KeeperOrder::Restart) | Err(RecvTimeoutError::Timeout) => {}
            }
            match self.start() {
                Ok(child) => return Some(child),
                Err(error) => self.report(error.to_string()),
            }
            pause = PAUSE_MOST.min(2 * pause);
        }
    }

    fn start(&self) -> Result<Child, Error> {
        let output = first_output(&self.setup);
        let writer = private_files::create(&output).map_err(world(output.display().to_string()))?;
        let errors = writer.try_clone().map_err(world(output.display().to_string()))?;
        let mut command = Command::new(&self.program);
        command.arg("-c").arg(path(&self.setup));
        command.stdin(Stdio::null()).stdout(writer).stderr(errors);
        // PR_SET_PDEATHSIG: the kernel ends the child when the thread that forked it ends, so this thread
        // must live as long as the server.
        child::end_with_us(&mut command);
        let program = self.program.display();
        let mut child = command.spawn().map_err(world(format!("cannot start nats-server `{program}`")))?;
        if let Err(error) = self.wait_until_ready(&mut child) {
            end(&mut child, LAST_LOOKS);
            return Err(error);
        }
        let mut notes = lock(&self.notes);
        notes.process = child.id();
        notes.starts += 1;
        Ok(child)
    }

    fn wait_until_ready(&self, child: &mut Child) -> Result<(), Error> {
        let before = fs::metadata(self.log()).map_or(0, |facts| facts.len());
        for _ in 0..READY_LOOKS {
            if let Ok(Some(status)) = child.try_wait() {
                let reason = self.reported_reason(before);
                return Err(Error::NotReady(reason.unwrap_or_else(|| status.to_string())));
            }
            if greets(&self.setup) {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        let reason = self.reported_reason(before);
        Err(Error::NotReady(reason.unwrap_or_else(|| format!("it does not answer at {}", self.setup.listen))))
    }

    /// The last error in the log after that many bytes, or the last line that the server wrote before it had a log.
    fn reported_reason(&self, before: u64) -> Option<String> {
        let text = log::tail(&self.log(), before);
        let logged = text.lines().rfind(|line| line.contains("[FTL]") || line.contains("[ERR]"));
        let first = fs::read_to_string(first_output(&self.setup)).unwrap_or_default();
        logged.or_else(|| first.lines().last()).map(str::to_owned)
    }
}

/// The same with a port that is free now. It has to stay the same when the server is started again, so the server cannot choose it.
fn at_free_port(setup: &BrokerSetup) -> Result<BrokerSetup, Error> {
    let free = TcpListener::bind(setup.listen).and_then(|socket| socket.local_addr());
    let listen = free.map_err(world(format!("no free port at {}", setup.listen)))?;
    Ok(BrokerSetup { listen, ..setup.clone() })
}

/// Whether our server, not another's at the same address, greets with JetStream ready.
fn greets(setup: &BrokerSetup) -> bool {
    let name = format!("\"server_name\":\"{}\"", configuration::server_name(setup));
    greeting(setup).is_ok_and(|line| line.contains(&name) && line.contains("\"jetstream\":true"))
}

/// The line of facts that a server sends to every new connection.
fn greeting(setup: &BrokerSetup) -> std::io::Result<String> {
    let socket = TcpStream::connect_timeout(&configuration::reachable(setup.listen), LOOK * 10)?;
    socket.set_read_timeout(Some(LOOK * 10))?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    Ok(line)
}

/// Asks the server to end, and ends it when it has not after so many looks.
fn end(child: &mut Child, looks: u32) {
    // One that has ended already cannot be asked.
    drop(child::terminate(child));
    for _ in 0..looks {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(LOOK);
    }
    // It holds the port and the store. What it has confirmed is on the disk.
    drop(child.kill());
    drop(child.wait());
}
