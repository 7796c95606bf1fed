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
//! a client does not read waits in its own outbox, which is bounded by its quota.

mod answers;
mod client;
mod intake;
mod outlet;
mod report;
mod shared;

use crate::path::OpenLoopback;
use crate::release::ReleasePipeline;
use crate::{Error, path};
use client::ClientConnection;
use intake::TargetPaths;
use outlet::ServiceOutlet;
use packetrig_plan::PortLocation;
use packetrig_probe::service::ClientQuota;
use packetrig_probe::{PermitRefusal, PermittedTarget, ReleaseMechanism};
use packetrig_release::message::ProtocolErrorCode;
use packetrig_sys::caps::ThreadRights;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::seqpacket::{SeqpacketListener, SeqpacketStream, SocketAccess};
use packetrig_units::Nanos;
pub use report::ClientCounts;
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
    lead: Nanos,
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
        self.shared.interface.lead
    }

    /// Serves until `stop` says so. Returns the counts of all clients that there were, in the order of their connections.
    pub fn run(self, stop: &dyn Fn() -> bool) -> Result<Vec<ClientCounts>, Error> {
        let Self { listener, release, shared, netns, _loopback } = self;
        let outlet = {
            let shared = Arc::clone(&shared);
            netns.spawn_in("release-outlet".to_owned(), move || {
                ServiceOutlet::new(release, &shared).run();
                Ok(())
            })?
        };
        let answers = {
            let shared = Arc::clone(&shared);
            netns.spawn_in("release-answers".to_owned(), move || {
                answers::run(&shared);
                Ok(())
            })?
        };
        let mut threads = Vec::new();
        while !stop() && !shared.has_ended() {
            if let Some(stream) = listener.accept(PIECE_NS)? {
                threads.extend(admit(stream, &shared, &netns)?);
            }
            threads.retain(|thread: &ServiceThread| !thread.is_finished());
        }
        shared.end();
        for thread in threads.into_iter().chain([outlet, answers]) {
            // Threads of clients report their errors in the counts of the client; the outlet's is kept in `shared`.
            drop(thread.join());
        }
        shared.into_result()
    }
}

type ServiceThread = JoinHandle<Result<(), packetrig_sys::Error>>;

fn open_loopback(
    location: &PortLocation,
    permission: &TargetPermission,
) -> Result<Option<OpenLoopback>, Error> {
    let Ok(permitted) = permission(IpAddr::from([127, 0, 0, 1])) else { return Ok(None) };
    let way = path::find(location.namespace.as_deref(), permitted, Some(&location.interface))?;
    OpenLoopback::open(&way).map(Some)
}

/// Starts the thread of a client, or tells it why not.
fn admit(
    stream: SeqpacketStream,
    shared: &Arc<ServiceShared>,
    netns: &NetNs,
) -> Result<Option<ServiceThread>, Error> {
    let Ok(peer) = stream.peer() else { return Ok(None) };
    let Some(priority) = highest_priority(peer.user, &shared.options) else {
        let why = format!(
            "user {} may not use this service; its owner can add --allow-user {}",
            peer.user, peer.user
        );
        client::refuse(&stream, ProtocolErrorCode::NotAllowed, &why);
        return Ok(None);
    };
    if !shared.has_room_for(peer.user) {
        client::refuse(
            &stream,
            ProtocolErrorCode::TooManyClients,
            "too many programs are connected; try again later",
        );
        return Ok(None);
    }
    let id = shared.new_client_id();
    let connection = Arc::new(ClientConnection::new(id, stream, peer, priority));
    shared.add(&connection);
    let inside = Arc::clone(shared);
    let name = format!("release-client-{}", id.0);
    let thread = netns.spawn_in(name, move || {
        client::serve(&connection, &inside);
        inside.remove(&connection);
        Ok(())
    })?;
    Ok(Some(thread))
}

/// `None`: the user may not use the service.
fn highest_priority(user: u32, options: &ServiceOptions) -> Option<u8> {
    /// Of root and of the user of the service.
    const HIGHEST: u8 = 7;
    if user == 0 || user == ThreadRights::current().user {
        return Some(HIGHEST);
    }
    options.allowed.iter().find(|allowed| allowed.user == user).map(|allowed| allowed.priority)
}

#[cfg(test)]
mod tests;
