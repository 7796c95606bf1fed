//! The release service: other programs of this machine hand packets over, with their release times.
//!
//! ```text
//!  program A --\                                              /-> report, answers --> program A
//!  program B ---> intake (checks, one thread each) -> queue -> outlet (one thread) -> release mechanism -> interface
//!  program C --/                                              \-> report, answers --> program C
//! ```
//! The rules are in [`packetrig_probe::service`]; this module has the sockets and threads. The protocol is
//! in the crate `packetrig-release`.
//!
//! Invariants: only the sending thread (the outlet) sends, and it charges each packet to the limits of its
//! target first. No client has to wait for another client. Messages that a client does not read wait in its own
//! outbox. While the outbox is full, the service reads nothing more from that client.

mod admission;
mod answers;
mod client;
mod connection;
mod flows;
mod intake;
mod outlet;
mod paths;
mod ports;
mod report;
mod shared;
mod totals;

use crate::release::ReleasePipeline;
use crate::{Error, path};
use outlet::ServiceReleaseThread;
use packetrig_plan::PortLocation;
use packetrig_probe::service::ClientQuota;
use packetrig_probe::{PermitRefusal, PermittedTarget, ReleaseMechanism, TargetLimits};
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::loopback::LoopbackSettingsHolder;
use packetrig_sys::netns::NetNs;
use packetrig_sys::seqpacket::{SeqpacketListener, SocketAccess};
use packetrig_units::Nanos;
use paths::TargetPaths;
use ports::ClientPorts;
pub use report::{PacketCounts, PastClient};
use shared::ServiceShared;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
pub use totals::ServiceStatus;
use totals::ServiceTotals;

/// Longest wait before a thread checks whether to stop.
const STOP_CHECK_INTERVAL_NS: u64 = 20_000_000;

/// A user who may use the service, and the highest priority that the user may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedUser {
    pub user: u32,
    pub priority: u8,
}

#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Users who may use the service, besides root and the service's own user.
    pub allowed: Vec<AllowedUser>,
    pub quota: ClientQuota,
    /// Packets with release times further in the future than this are refused.
    pub horizon: Nanos,
    /// A packet that leaves later than this after its requested time is flagged late.
    pub tolerance: Nanos,
    /// The smallest limits of all permitted targets; clients read them in WELCOME.
    pub least_limits: TargetLimits,
}

impl ServiceOptions {
    /// Number of users of the service: root and the service's own user, in addition to the named users.
    const fn user_count(&self) -> usize {
        self.allowed.len() + 2
    }
}

/// Function that checks whether a target may be probed now, and returns the target with its limits.
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
    /// Time between the hand-over of frames to the mechanism and their departure.
    lead: Nanos,
}

impl ServiceInterface {
    /// Minimum time between the submission of packets by a client and their departure.
    fn hand_over_lead_time(&self) -> Nanos {
        self.lead + outlet::SLICE_DURATION
    }
}

/// A service whose socket is open; [`Self::serve_until`] runs it.
pub struct ReleaseService {
    listener: SeqpacketListener,
    release: Box<dyn ReleasePipeline>,
    shared: Arc<ServiceShared>,
    netns: NetNs,
    /// Restores settings of the loopback interface when dropped.
    _loopback: Option<LoopbackSettingsHolder>,
}

/// Reads the counts of a service while it serves.
#[derive(Clone, Debug)]
pub struct ServiceObserver(Arc<ServiceTotals>);

impl ServiceObserver {
    pub fn read_status(&self) -> ServiceStatus {
        self.0.read_status()
    }
}

impl fmt::Debug for ReleaseService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReleaseService").field("socket", &self.listener.path()).finish_non_exhaustive()
    }
}

impl ReleaseService {
    /// Opens the socket of a service that uses `release` to send packets through the interface at `location`.
    pub fn listen_at(
        socket: &Path,
        location: &PortLocation,
        release: Box<dyn ReleasePipeline>,
        options: ServiceOptions,
        permission: Box<TargetPermission>,
    ) -> Result<Self, Error> {
        let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref())?;
        let link = NamespaceLinks::open_in(&netns)?.find_link_by_name(&location.interface)?;
        let interface = ServiceInterface {
            location: location.clone(),
            index: link.index,
            mtu: link.mtu,
            // If the interface has no hardware address, like loopback, its frames have zeros there.
            mac: link.mac.unwrap_or_default(),
            mechanism: release.mechanism(),
            longest_frame: release.longest_frame(),
            lead: outlet::SLICE_PREPARE_TIME + release.lead_time(),
        };
        let loopback = link.loopback.then(|| open_loopback(location, &permission)).transpose()?.flatten();
        // With other users allowed, the socket is open to all, and `admission` checks the user of each connection.
        let access = if options.allowed.is_empty() { SocketAccess::OwnUser } else { SocketAccess::AllUsers };
        let paths = TargetPaths::new(interface.clone(), permission);
        let ports = ClientPorts::new(netns.duplicate()?, options.user_count());
        let shared = Arc::new(ServiceShared::new(interface, options, paths, ports));
        // The listener is opened last, so that no program can connect before everything that serves it exists.
        let listener = SeqpacketListener::listen_at(socket, access)?;
        Ok(Self { listener, release, shared, netns, _loopback: loopback })
    }

    /// Minimum time between the submission of packets by a client and their departure.
    pub fn lead_time(&self) -> Nanos {
        self.shared.interface.hand_over_lead_time()
    }

    /// Returns a reader of the service's counts, which works on any thread and never makes the service wait.
    pub fn observer(&self) -> ServiceObserver {
        ServiceObserver(Arc::clone(&self.shared.totals))
    }

    /// Serves until `stop` returns true or the mechanism fails. Returns the packet counts of its clients, for a limited
    /// number of clients of each user.
    pub fn serve_until(self, stop: &dyn Fn() -> bool) -> Result<Vec<PastClient>, Error> {
        let Self { listener, release, shared, netns, _loopback } = self;
        let outlet = {
            let shared = Arc::clone(&shared);
            netns.spawn_in_namespace("release-outlet".to_owned(), move || {
                ServiceReleaseThread::new(release, &shared).run_sending_thread();
                Ok(())
            })?
        };
        let served = admission::serve_clients(&listener, &shared, &netns, stop, &outlet);
        // The order matters: first the service stops accepting packets, then the sending thread reports all
        // outcomes, and then the clients' threads end.
        shared.stop_intake();
        let is_whole = outlet.join().is_ok();
        shared.end_clients();
        for thread in served? {
            // The threads of the clients and the answer thread return no result.
            drop(thread.join());
        }
        if is_whole { shared.take_past_clients() } else { Err(Error::Gone) }
    }
}

fn open_loopback(
    location: &PortLocation,
    permission: &TargetPermission,
) -> Result<Option<LoopbackSettingsHolder>, Error> {
    let Ok(permitted) = permission(IpAddr::from([127, 0, 0, 1])) else { return Ok(None) };
    let way = path::find_path(location.namespace.as_deref(), permitted, Some(&location.interface))?;
    path::open_loopback(&way)
}

#[cfg(test)]
mod tests;
