//! What is known of targets: the paths to them, and which of them may not be probed for now.
//!
//! Invariant: no lock is held while a path is looked up.

use super::{ServiceInterface, TargetPermission};
use crate::now;
use crate::path::{self, ProbePath};
use packetrig_probe::service::PacketRefusal;
use packetrig_probe::{PermittedTarget, TargetLimits};
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a path is used before it is looked up again: routes, neighbours and permissions change.
const PATH_HOLDS: Nanos = Nanos::from_secs(30);
/// A target without a path is looked up again sooner.
const FAILURE_HOLDS: Nanos = Nanos::from_secs(10);
/// How long the addresses of the interface are taken for known.
const ADDRESSES_HOLD: Nanos = Nanos::from_secs(2);
/// Paths that are kept.
const MOST_PATHS: usize = 4_096;
/// A target that does not want to be probed is left alone for this long.
const CLOSED_FOR: Nanos = Nanos::from_secs(600);
/// Closed targets at a time. With more, nothing new is probed.
const MOST_CLOSED: usize = 65_536;

/// The paths to targets, as they were found last.
pub(super) struct TargetPaths {
    interface: ServiceInterface,
    permission: Box<TargetPermission>,
    known: Mutex<KnownPaths>,
}

#[derive(Debug, Default)]
struct KnownPaths {
    paths: BTreeMap<IpAddr, KnownPath>,
    /// Until when targets are left alone that do not want to be probed.
    closed: BTreeMap<IpAddr, MonoTime>,
    sources: BTreeSet<IpAddr>,
    sources_until: MonoTime,
}

#[derive(Clone, Debug)]
struct KnownPath {
    found: Result<ProbePath, PacketRefusal>,
    until: MonoTime,
}

impl TargetPaths {
    pub(super) fn new(interface: ServiceInterface, permission: Box<TargetPermission>) -> Self {
        Self { interface, permission, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, KnownPaths> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a target does not want to be probed; `false` if that was known.
    pub(super) fn close(&self, target: IpAddr) -> bool {
        let now = now();
        let mut known = self.known();
        known.closed.retain(|_, until| now < *until);
        if known.closed.len() >= MOST_CLOSED {
            return false;
        }
        known.closed.insert(target, now + CLOSED_FOR).is_none()
    }

    /// Whether a target may be probed now.
    pub(super) fn is_permitted(&self, target: IpAddr) -> bool {
        let now = now();
        let known = self.known();
        let is_closed = known.closed.get(&target).is_some_and(|until| now < *until);
        let is_full = known.closed.len() >= MOST_CLOSED;
        drop(known);
        !is_closed && !is_full && (self.permission)(target).is_ok()
    }

    /// The limits of a target; `None`: it may not be probed.
    pub(super) fn limits(&self, target: IpAddr) -> Option<TargetLimits> {
        self.is_permitted(target).then(|| (self.permission)(target).ok())?.map(PermittedTarget::limits)
    }

    /// The path to a target, if it was looked up lately.
    pub(super) fn known_path(&self, target: IpAddr) -> Option<Result<ProbePath, PacketRefusal>> {
        if !self.is_permitted(target) {
            return Some(Err(PacketRefusal::NotPermitted));
        }
        let now = now();
        self.known().paths.get(&target).filter(|path| now < path.until).map(|path| path.found.clone())
    }

    /// Looks up the path to a target. It may take seconds until the next hop has told its hardware address; no lock is held meanwhile.
    pub(super) fn find(&self, target: IpAddr, deadline: MonoTime) -> Result<ProbePath, PacketRefusal> {
        let now = now();
        if now >= deadline {
            return Err(PacketRefusal::NoRoute);
        }
        let found = self.look_up(target);
        let holds = if found.is_ok() { PATH_HOLDS } else { FAILURE_HOLDS };
        let mut known = self.known();
        if known.paths.len() >= MOST_PATHS {
            known.paths.clear();
        }
        known.paths.insert(target, KnownPath { found: found.clone(), until: now + holds });
        found
    }

    fn look_up(&self, target: IpAddr) -> Result<ProbePath, PacketRefusal> {
        let permitted = (self.permission)(target).map_err(|_| PacketRefusal::NotPermitted)?;
        // The thread is in the namespace of the interface.
        let way = path::find(None, permitted, Some(&self.interface.location.interface));
        let way = way.map_err(|_| PacketRefusal::NoRoute)?;
        if way.index == self.interface.index { Ok(way) } else { Err(PacketRefusal::NoRoute) }
    }

    /// Whether an address is one of the interface.
    pub(super) fn is_own(&self, source: IpAddr) -> bool {
        let now = now();
        let mut known = self.known();
        if now >= known.sources_until {
            let inside = packetrig_plan::PortLocation { namespace: None, ..self.interface.location.clone() };
            known.sources = path::own_addresses(&inside).unwrap_or_default().into_iter().collect();
            known.sources_until = now + ADDRESSES_HOLD;
        }
        known.sources.contains(&source)
    }
}
