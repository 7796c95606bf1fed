//! The release service: other programs of this machine hand packets over, with the times at which they are to leave.
//!
//! ```text
//!  program A --\                                              /-> report, answers --> program A
//!  program B ---> intake (checks, one thread each) -> queue -> outlet (one thread) -> release mechanism -> interface
//!  program C --/                                              \-> report, answers --> program C
//! ```
//! The knowledge is in [`packetrig_probe::service`]; this module has the sockets and threads. The protocol is in the crate `release`.
//!
//! Invariants: only the outlet sends, and it takes each packet from the limits of its target first. No client waits for another one: what
//! a client does not read waits in its own outbox; with a full one, nothing more is read from it.

mod answers;
mod client;
mod flows;
mod intake;
mod outlet;
mod report;
mod shared;

use crate::path::OpenLoopback;
use crate::release::ReleasePipeline;
use crate::{Error, now, path};
use client::{ClientConnection, ClientRights};
use intake::TargetPaths;
use outlet::ServiceOutlet;
use packetrig_plan::PortLocation;
use packetrig_probe::service::ClientQuota;
use packetrig_probe::{PermitRefusal, PermittedTarget, ReleaseMechanism};
use packetrig_release::message::{ProtocolErrorCode, ServiceMessage};
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::seqpacket::{ReceivedMessage, SeqpacketListener, SeqpacketStream, SocketAccess};
use packetrig_units::{MonoTime, Nanos};
pub use report::{PacketCounts, PastClient};
use shared::ServiceShared;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Longest wait before a thread checks whether to stop.
const PIECE_NS: u64 = 20_000_000;
/// Clients at a time, and those of one user other than root.
const MOST_CLIENTS: usize = 64;
const MOST_CLIENTS_OF_USER: usize = 16;

/// A user who may use the service, and the highest priority that they may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedUser {
    pub user: u32,
    pub priority: u8,
}

#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Root and the user of the service always may.
    pub allowed: Vec<AllowedUser>,
    pub quota: ClientQuota,
    /// Release times further ahead are refused.
    pub horizon: Nanos,
    /// A packet that leaves later than this after its time is flagged late.
    pub tolerance: Nanos,
}

/// Which targets may be probed now.
pub type TargetPermission = dyn Fn(IpAddr) -> Result<PermittedTarget, PermitRefusal> + Send + Sync;

/// The interface through which the service sends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServiceInterface {
    location: PortLocation,
    index: u32,
    mtu: u32,
    mac: [u8; 6],
    mechanism: ReleaseMechanism,
    /// Bytes of the longest frame that the mechanism sends.
    longest_frame: usize,
    /// How long before they are due frames are given to the mechanism.
    lead: Nanos,
}

impl ServiceInterface {
    /// How long before they are due packets must be handed over.
    fn handed_over_before(&self) -> Nanos {
        self.lead + outlet::SLICE
    }
}

/// A service that is ready to be run.
pub struct ReleaseService {
    listener: SeqpacketListener,
    release: Box<dyn ReleasePipeline>,
    shared: Arc<ServiceShared>,
    netns: NetNs,
    /// Restores settings of the loopback interface when dropped.
    _loopback: Option<OpenLoopback>,
}

impl fmt::Debug for ReleaseService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseService").field("socket", &self.listener.path()).finish_non_exhaustive()
    }
}

impl ReleaseService {
    /// Listens at a socket for packets that `release` sends through the interface at `location`.
    pub fn open(
        socket: &Path,
        location: &PortLocation,
        release: Box<dyn ReleasePipeline>,
        options: ServiceOptions,
        permission: Box<TargetPermission>,
    ) -> Result<Self, Error> {
        let netns = NetNs::open_or_current(location.namespace.as_deref())?;
        let link = NamespaceLinks::open(&netns)?.by_name(&location.interface)?;
        let interface = ServiceInterface {
            location: location.clone(),
            index: link.index,
            mtu: link.mtu,
            mac: link.mac.unwrap_or_default(),
            mechanism: release.mechanism(),
            longest_frame: release.longest_frame(),
            lead: outlet::PREPARING + release.lead(),
        };
        let loopback = link.loopback.then(|| open_loopback(location, &permission)).transpose()?.flatten();
        let access = if options.allowed.is_empty() { SocketAccess::OwnUser } else { SocketAccess::AllUsers };
        let paths = TargetPaths::new(interface.clone(), permission);
        let shared = Arc::new(ServiceShared::new(interface, options, paths));
        let listener = SeqpacketListener::bind(socket, access)?;
        Ok(Self { listener, release, shared, netns, _loopback: loopback })
    }

    /// How long before they are due packets must be handed over.
    pub fn lead(&self) -> Nanos {
        self.shared.interface.handed_over_before()
    }

    /// Serves until `stop` says so. Returns what became of the packets of all clients.
    pub fn run(self, stop: &dyn Fn() -> bool) -> Result<Vec<PastClient>, Error> {
        let Self { listener, release, shared, netns, _loopback } = self;
        let outlet = {
            let shared = Arc::clone(&shared);
            netns.spawn_in("release-outlet".to_owned(), move || {
                ServiceOutlet::new(release, &shared).run();
                Ok(())
            })?
        };
        let served = serve_clients(&listener, &shared, &netns, stop, &outlet);
        // In this order: nothing is taken in any more, the outlet reports everything, and then clients are left.
        shared.stop_intake();
        let is_whole = outlet.join().is_ok();
        shared.end();
        for thread in served? {
            // Threads of clients and of answers have no result.
            drop(thread.join());
        }
        if is_whole { shared.result() } else { Err(Error::Gone) }
    }
}

type ServiceThread = JoinHandle<Result<(), packetrig_sys::Error>>;

/// Takes connections until the service is to end. Returns the threads that serve them.
fn serve_clients(
    listener: &SeqpacketListener,
    shared: &Arc<ServiceShared>,
    netns: &NetNs,
    stop: &dyn Fn() -> bool,
    outlet: &ServiceThread,
) -> Result<Vec<ServiceThread>, Error> {
    let inside = Arc::clone(shared);
    let mut threads = vec![netns.spawn_in("release-answers".to_owned(), move || {
        answers::run(&inside);
        Ok(())
    })?];
    let mut refused = Vec::new();
    while !stop() && !shared.is_ending() && !outlet.is_finished() {
        if let Some(stream) = listener.accept(PIECE_NS)? {
            match admit(stream, shared, netns) {
                Admission::Served(thread) => threads.push(thread?),
                Admission::Refused(connection) if refused.len() < MOST_REFUSED => refused.push(connection),
                Admission::Refused(_) => {}
            }
        }
        refused.retain(RefusedConnection::is_open);
        threads.retain(|thread| !thread.is_finished());
    }
    Ok(threads)
}

/// Connections that were refused and have not been told yet.
const MOST_REFUSED: usize = 16;
/// How long a refused program has to introduce itself.
const REFUSED_WITHIN: Nanos = Nanos::from_secs(1);

/// A program that cannot be a client. It is told so when it has introduced itself: a connection that closes before has an unread message,
/// and the kernel then reports an error in place of the answer.
struct RefusedConnection {
    stream: SeqpacketStream,
    since: MonoTime,
    message: Vec<u8>,
}

impl RefusedConnection {
    fn new(stream: SeqpacketStream, code: ProtocolErrorCode, text: String) -> Self {
        let message = ServiceMessage::Error { id: 0, code, closes: true, text }.write();
        Self { stream, since: now(), message }
    }

    /// Whether it still has to be told.
    fn is_open(&self) -> bool {
        match self.stream.receive(&mut [0; 64]) {
            Ok(ReceivedMessage::Nothing) => now().since(self.since) < REFUSED_WITHIN,
            Ok(ReceivedMessage::Message(_)) => {
                // A program that has gone meanwhile needs no answer.
                drop(self.stream.send(&self.message));
                false
            }
            Ok(ReceivedMessage::Closed) | Err(_) => false,
        }
    }
}

enum Admission {
    Served(Result<ServiceThread, packetrig_sys::Error>),
    Refused(RefusedConnection),
}

fn open_loopback(
    location: &PortLocation,
    permission: &TargetPermission,
) -> Result<Option<OpenLoopback>, Error> {
    let Ok(permitted) = permission(IpAddr::from([127, 0, 0, 1])) else { return Ok(None) };
    let way = path::find(location.namespace.as_deref(), permitted, Some(&location.interface))?;
    OpenLoopback::open(&way).map(Some)
}

/// Starts the thread of a client, unless it may not use the service.
fn admit(stream: SeqpacketStream, shared: &Arc<ServiceShared>, netns: &NetNs) -> Admission {
    let peer = stream.peer().ok();
    let rights = peer.and_then(|peer| Some((peer, rights(peer.user, &shared.options)?)));
    let Some((peer, rights)) = rights else {
        let user = peer.map_or_else(|| "this user".to_owned(), |peer| format!("user {}", peer.user));
        let text = format!("{user} may not use this service; its owner can add --allow-user");
        return Admission::Refused(RefusedConnection::new(stream, ProtocolErrorCode::NotAllowed, text));
    };
    if !shared.has_room_for(peer.user) {
        let text = format!(
            "{MOST_CLIENTS} programs are connected, or {MOST_CLIENTS_OF_USER} of this user; try again later"
        );
        return Admission::Refused(RefusedConnection::new(stream, ProtocolErrorCode::TooManyClients, text));
    }
    let id = shared.new_client_id();
    let connection = Arc::new(ClientConnection::new(id, stream, peer, rights));
    shared.add(&connection);
    let (served, inside) = (Arc::clone(&connection), Arc::clone(shared));
    let thread = netns.spawn_in(format!("release-client-{}", id.0), move || {
        client::serve(&served, &inside);
        inside.remove(&served);
        Ok(())
    });
    if thread.is_err() {
        shared.remove(&connection);
    }
    Admission::Served(thread)
}

/// `None`: the user may not use the service.
fn rights(user: u32, options: &ServiceOptions) -> Option<ClientRights> {
    /// Of root and of the user of the service.
    const HIGHEST: u8 = 7;
    if user == 0 || user == ThreadRights::current().user {
        return Some(ClientRights { priority: HIGHEST, is_trusted: true });
    }
    let allowed = options.allowed.iter().find(|allowed| allowed.user == user)?;
    Some(ClientRights { priority: allowed.priority, is_trusted: false })
}

#[cfg(test)]
mod tests;
