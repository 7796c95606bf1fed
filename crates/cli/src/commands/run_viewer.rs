//! Lets other programs of the same user watch the run of this process without `packetrig serve`. It serves the live
//! page and its API on a free port of the loopback interface. `packetrig watch` reads the port in an announcement file.
//!
//! Invariant: a run does not depend on its viewers. If the page cannot be served, for example because the loopback
//! interface is down, the run goes on without viewers.

use super::serve::access;
use crate::archive::CatalogueArchive;
use crate::identity;
use packetrig_plan::Plan;
use packetrig_report::event::RunEvent;
use packetrig_server::{BoundAddresses, ServedRig, ServerOptions, WatchedRun, run_server};
use packetrig_sys::netns::NetNs;
use packetrig_sys::{clock, process, runtime_directory};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the directory of announcement files in the runtime directory.
const RUN_ANNOUNCEMENT_KIND: &str = "runs";
/// Time for requests in progress to end when the run is over: the result of the run must not wait long for viewers.
const REQUEST_GRACE_TIME: Duration = Duration::from_secs(1);
/// Maximum number of connections of viewers. A browser opens about six for one page.
const MAX_VIEWER_CONNECTIONS: usize = 32;

/// The run of this process, for viewers.
#[derive(Debug)]
pub(crate) struct RunViewer {
    run: Arc<WatchedRun>,
    server: Option<ViewerServer>,
}

impl RunViewer {
    /// Serves viewers until the value is dropped. `store`: the directory of the catalogue, if not the default one.
    pub(crate) fn start_serving(name: &str, store: Option<&Path>) -> Self {
        let run = Arc::new(WatchedRun::new(clock::wall_clock_ns().wrapping_sub(clock::monotonic_ns())));
        let rig = ServedRig {
            live: Some(Arc::clone(&run) as _),
            results: Some(Arc::new(CatalogueArchive::new(store.map(Path::to_owned)))),
            ..ServedRig::default()
        };
        Self { run, server: ViewerServer::start(rig, name) }
    }

    /// Shows the run of this plan from now on.
    pub(crate) fn switch_to_plan(&self, plan: &Plan) {
        if self.server.is_some() {
            self.run.switch_to_plan(plan);
        }
    }

    /// Adds an event of the run.
    pub(crate) fn add_event(&self, event: &RunEvent) {
        if self.server.is_some() {
            self.run.add_event(event);
        }
    }

    /// Address of the page; `None` if the page cannot be served.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(|server| server.address)
    }
}

/// The server of the page. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct ViewerServer {
    address: SocketAddr,
    /// The server ends when this channel is closed.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _announcement: Option<RunAnnouncement>,
}

impl ViewerServer {
    /// Starts a server for viewers, and announces the run under this name. `None` if the server cannot start.
    pub(crate) fn start(rig: ServedRig, name: &str) -> Option<Self> {
        let options = server_options()?;
        let (stop, stopped) = channel::<()>();
        let (bound, address) = channel();
        let thread = std::thread::Builder::new()
            .name("viewers".to_owned())
            .spawn(move || serve_until_closed(options, rig, &bound, stopped))
            .ok()?;
        // The channel is closed without an address if the server could not start.
        let address = address.recv().ok().flatten()?;
        let announcement = RunAnnouncement::publish(&AnnouncedRun {
            address,
            netns: own_netns_inode()?,
            process: process::current_process_id(),
            name: name.to_owned(),
            started_ms: clock::wall_clock_ns() / 1_000_000,
        });
        Some(Self { address, stop: Some(stop), thread: Some(thread), _announcement: announcement })
    }
}

/// Serves until the sender of `stopped` is dropped, which never sends a message. The address of the server is sent
/// through `bound`.
fn serve_until_closed(
    options: ServerOptions,
    rig: ServedRig,
    bound: &Sender<Option<SocketAddr>>,
    stopped: Receiver<()>,
) {
    let served = run_server(
        options,
        rig,
        // If nobody waits for the address, the run has ended.
        |addresses: BoundAddresses| bound.send(addresses.http).unwrap_or_default(),
        move || while stopped.recv().is_ok() {},
    );
    if let Err(error) = served {
        tracing::debug!(%error, "viewers cannot watch the run");
    }
}

impl Drop for ViewerServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // Joining fails only after a panic, which was printed already.
            drop(thread.join());
        }
    }
}

/// Plain HTTP on the loopback interface, for this user and root. The kernel tells which user has opened a connection,
/// so no token is needed.
fn server_options() -> Option<ServerOptions> {
    Some(ServerOptions {
        http: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        grpc: None,
        http_tls: false,
        local_users: Some(access::add_own_user_and_root(&[]).ok()?),
        most_connections: MAX_VIEWER_CONNECTIONS,
        grace: REQUEST_GRACE_TIME,
        ..ServerOptions::default()
    })
}

/// Contents of an announcement file: a run that can be watched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AnnouncedRun {
    pub(crate) address: SocketAddr,
    /// Inode of the network namespace in which the server listens.
    netns: u64,
    pub(crate) process: u32,
    pub(crate) name: String,
    /// Start in ms since 1970.
    pub(crate) started_ms: u64,
}

/// An announcement file. It is valid as long as its process holds the lock file beside it. The process number alone
/// would not do, because the kernel uses such numbers again.
#[derive(Debug)]
struct RunAnnouncement {
    path: PathBuf,
    _lock: File,
}

impl RunAnnouncement {
    fn publish(run: &AnnouncedRun) -> Option<Self> {
        remove_stale_announcements();
        let path = announcement_directory().join(format!("{:016x}.json", identity::random_number()));
        let lock = runtime_directory::lock_file_for_update(&path)?;
        let announcement = Self { path, _lock: lock };
        let text = serde_json::to_vec(run).ok()?;
        match runtime_directory::write_file(&announcement.path, &text) {
            Ok(()) => Some(announcement),
            Err(error) => {
                tracing::debug!(%error, "the run is not announced");
                None
            }
        }
    }
}

impl Drop for RunAnnouncement {
    fn drop(&mut self) {
        remove_announcement(&self.path);
    }
}

fn own_netns_inode() -> Option<u64> {
    NetNs::current().and_then(|netns| netns.inode()).ok()
}

fn announcement_directory() -> PathBuf {
    runtime_directory::runtime_path_for(RUN_ANNOUNCEMENT_KIND)
}

/// Removes an announcement and its lock. An announcement that stays behind is harmless: no process holds its lock.
fn remove_announcement(path: &Path) {
    drop(runtime_directory::remove_file(path));
    drop(runtime_directory::remove_file(&runtime_directory::update_lock_path(path)));
}

fn announcement_paths() -> Vec<PathBuf> {
    let names = runtime_directory::list_names(&announcement_directory()).into_iter().map(PathBuf::from);
    names
        .filter(|name| name.extension().is_some_and(|end| end == "json"))
        .map(|name| announcement_directory().join(name))
        .collect()
}

/// Removes the announcements of processes that were killed.
fn remove_stale_announcements() {
    for path in announcement_paths().into_iter().filter(|path| !runtime_directory::is_locked_for_update(path))
    {
        remove_announcement(&path);
    }
}

fn read_announcement(path: &Path) -> Option<AnnouncedRun> {
    serde_json::from_slice(&runtime_directory::read_file(path).ok()?).ok()
}

/// The runs of this user that can be watched from this network namespace now, the latest first.
pub(crate) fn announced_runs() -> Vec<AnnouncedRun> {
    let held = announcement_paths().into_iter().filter(|path| runtime_directory::is_locked_for_update(path));
    let netns = own_netns_inode();
    let mut runs: Vec<AnnouncedRun> =
        held.filter_map(|path| read_announcement(&path)).filter(|run| Some(run.netns) == netns).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.started_ms));
    runs
}
