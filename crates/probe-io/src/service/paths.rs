//! Paths to targets, and the targets that may not be probed for now.
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

/// Time for which a path is used before it is looked up again, because routes, neighbours and permissions change.
const PATH_CACHE_TIME: Nanos = Nanos::from_secs(30);
/// Time after which a target without a path is looked up again.
const FAILURE_CACHE_TIME: Nanos = Nanos::from_secs(10);
/// Time for which the addresses of the interface are cached.
const ADDRESS_CACHE_TIME: Nanos = Nanos::from_secs(2);
/// Maximum number of paths that are cached for each user: as many as the targets that one client may have.
const MAX_CACHED_PATHS_PER_USER: usize = 4_096;
/// Time for which a target that refuses probes is not probed.
const CLOSED_TARGET_TIME: Nanos = Nanos::from_secs(600);
/// Number of users whose packets a target must refuse before it is closed for all users. One user alone can
/// provoke refusals, so they count only for that user.
const MIN_USERS_TO_CLOSE_TARGET: usize = 3;
/// Maximum number of targets that are closed for one user at a time. Beyond it, the user may probe nothing.
const MAX_CLOSED_TARGETS_PER_USER: usize = 65_536;

/// The paths to targets, as they were last looked up.
pub(super) struct TargetPaths {
    interface: ServiceInterface,
    permission: Box<TargetPermission>,
    known: Mutex<PathCache>,
}

#[derive(Debug, Default)]
struct PathCache {
    /// Paths by user, so that the look-ups of one user do not make other users wait. There are few users, so
    /// no user is removed.
    paths: BTreeMap<u32, BTreeMap<IpAddr, CachedPath>>,
    /// Closed targets. For each user whose packets a target refused, the time until which the target is closed.
    closed: BTreeMap<IpAddr, BTreeMap<u32, MonoTime>>,
    /// Number of targets that are closed for each user.
    closed_of_user: BTreeMap<u32, usize>,
    sources: BTreeSet<IpAddr>,
    sources_until: MonoTime,
}

#[derive(Clone, Debug)]
struct CachedPath {
    found: Result<ProbePath, PacketRefusal>,
    until: MonoTime,
}

impl TargetPaths {
    pub(super) fn new(interface: ServiceInterface, permission: Box<TargetPermission>) -> Self {
        Self { interface, permission, known: Mutex::default() }
    }

    fn lock_paths(&self) -> MutexGuard<'_, PathCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a target refuses packets of a user; returns `false` if that was already recorded.
    pub(super) fn close_target(&self, target: IpAddr, user: u32) -> bool {
        let now = now();
        let mut known = self.lock_paths();
        known.reopen_closed_targets(now);
        // `::ffff:192.0.2.1` is the same host as `192.0.2.1`.
        // A second refusal for the same user only prolongs the time: it must not be counted twice.
        let before =
            known.closed.entry(target.to_canonical()).or_default().insert(user, now + CLOSED_TARGET_TIME);
        if before.is_none() {
            *known.closed_of_user.entry(user).or_default() += 1;
        }
        before.is_none()
    }

    /// Returns whether a target is closed for a user now.
    pub(super) fn is_closed(&self, target: IpAddr, user: u32) -> bool {
        let now = now();
        let mut known = self.lock_paths();
        known.has_too_many_closed_targets(user, now) || known.is_closed(target.to_canonical(), user, now)
    }

    /// Returns whether a user may probe a target now.
    pub(super) fn is_permitted(&self, target: IpAddr, user: u32) -> bool {
        !self.is_closed(target, user) && (self.permission)(target).is_ok()
    }

    /// Returns the limits of a target; `None` if the user may not probe it now.
    pub(super) fn limits_for(&self, target: IpAddr, user: u32) -> Option<TargetLimits> {
        self.is_permitted(target, user).then(|| (self.permission)(target).ok())?.map(PermittedTarget::limits)
    }

    /// Returns the path to a target, or the reason for refusing it; `None` if the path must be looked up.
    pub(super) fn find_cached_path(
        &self,
        target: IpAddr,
        user: u32,
    ) -> Option<Result<ProbePath, PacketRefusal>> {
        // The permission is checked before the cached path, because it can expire, and a target can close,
        // while the path is still known.
        if !self.is_permitted(target, user) {
            return Some(Err(PacketRefusal::NotPermitted));
        }
        let now = now();
        let known = self.lock_paths();
        let path = known.paths.get(&user).and_then(|paths| paths.get(&target));
        path.filter(|path| now < path.until).map(|path| path.found.clone())
    }

    /// Looks up the path to a target. The next hop may take seconds to answer with its hardware address; no lock is held meanwhile.
    pub(super) fn find_path(
        &self,
        target: IpAddr,
        user: u32,
        deadline: MonoTime,
    ) -> Result<ProbePath, PacketRefusal> {
        let now = now();
        // A batch may name many targets whose next hops do not answer, and each of them takes seconds.
        if now >= deadline {
            return Err(PacketRefusal::NoRoute);
        }
        let found = self.look_up_path(target);
        let holds = if found.is_ok() { PATH_CACHE_TIME } else { FAILURE_CACHE_TIME };
        self.lock_paths().store_path(target, user, CachedPath { found: found.clone(), until: now + holds });
        found
    }

    fn look_up_path(&self, target: IpAddr) -> Result<ProbePath, PacketRefusal> {
        let permitted = (self.permission)(target).map_err(|_| PacketRefusal::NotPermitted)?;
        // The thread is in the namespace of the interface.
        let way = path::find_path(None, permitted, Some(&self.interface.location.interface));
        let way = way.map_err(|_| PacketRefusal::NoRoute)?;
        // A path through another interface is refused, because there this service neither listens nor enforces limits.
        if way.index == self.interface.index { Ok(way) } else { Err(PacketRefusal::NoRoute) }
    }

    /// Returns whether packets through the interface may have an address as their source.
    pub(super) fn is_own_address(&self, source: IpAddr) -> bool {
        let now = now();
        let mut known = self.lock_paths();
        // Every packet needs this check, so the addresses that the kernel reports are cached for a short time.
        if now >= known.sources_until {
            let inside = packetrig_plan::PortLocation { namespace: None, ..self.interface.location.clone() };
            // If the kernel reports no addresses, every source is refused.
            known.sources = path::own_addresses(&inside).unwrap_or_default().into_iter().collect();
            known.sources_until = now + ADDRESS_CACHE_TIME;
        }
        known.sources.contains(&source)
    }
}

impl PathCache {
    fn store_path(&mut self, target: IpAddr, user: u32, path: CachedPath) {
        let of_user = self.paths.entry(user).or_default();
        if of_user.len() >= MAX_CACHED_PATHS_PER_USER {
            // Removing all paths of the user costs only new look-ups.
            of_user.clear();
        }
        of_user.insert(target, path);
    }

    fn is_closed(&self, target: IpAddr, user: u32, now: MonoTime) -> bool {
        let Some(users) = self.closed.get(&target) else { return false };
        let is_refused = |until: &MonoTime| now < *until;
        users.get(&user).is_some_and(is_refused)
            || users.values().filter(|until| is_refused(until)).count() >= MIN_USERS_TO_CLOSE_TARGET
    }

    /// Returns whether too many targets are closed for a user.
    fn has_too_many_closed_targets(&mut self, user: u32, now: MonoTime) -> bool {
        let are_too_many = |known: &Self| {
            known.closed_of_user.get(&user).is_some_and(|count| *count >= MAX_CLOSED_TARGETS_PER_USER)
        };
        // The count includes targets whose time is over, until they are removed.
        if are_too_many(self) {
            self.reopen_closed_targets(now);
        }
        are_too_many(self)
    }

    /// Removes targets whose closed time is over.
    fn reopen_closed_targets(&mut self, now: MonoTime) {
        let of_user = &mut self.closed_of_user;
        self.closed.retain(|_, users| {
            users.retain(|user, until| {
                let is_closed = now < *until;
                if !is_closed {
                    of_user.entry(*user).and_modify(|count| *count -= 1);
                }
                is_closed
            });
            !users.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_probe::{ProbePermit, ReleaseMechanism};

    #[test]
    fn known_paths_are_evicted_per_user() {
        let mut known = PathCache::default();
        let path = CachedPath { found: Err(PacketRefusal::NoRoute), until: now() };
        known.store_path(IpAddr::from([10, 0, 0, 1]), 1, path.clone());
        for number in 0..5_000_u32 {
            known.store_path(std::net::Ipv4Addr::from(number).into(), 2, path.clone());
        }
        assert_eq!((known.paths[&1].len(), known.paths[&2].len()), (1, 5_000 - MAX_CACHED_PATHS_PER_USER));
    }

    #[test]
    fn target_closes_per_user_then_for_all() {
        let interface = ServiceInterface {
            location: packetrig_plan::PortLocation { namespace: None, interface: "lo".into() },
            index: 1,
            mtu: 1_500,
            mac: [0; 6],
            mechanism: ReleaseMechanism::Spin,
            longest_frame: 1_514,
            lead: Nanos::ZERO,
        };
        let permit = ProbePermit::default();
        let paths = TargetPaths::new(interface, Box::new(move |ip| permit.permit_target(ip, "2026-11-27")));
        let target = "127.0.0.1".parse().unwrap();
        let may = |user| paths.is_permitted(target, user);
        assert!(may(1) && paths.close_target(target, 1) && !paths.close_target(target, 1));
        assert!(!may(1) && may(2) && may(9));
        assert!(!paths.is_permitted("::ffff:127.0.0.1".parse().unwrap(), 1), "the same host");
        assert!(paths.close_target(target, 2) && !may(2) && may(9));
        assert!(paths.close_target(target, 3) && !may(9), "three users' packets were refused");
        paths.lock_paths().reopen_closed_targets(now() + CLOSED_TARGET_TIME + Nanos::from_secs(1));
        assert!(may(1) && may(9) && paths.lock_paths().closed.is_empty());
        let mut known = paths.lock_paths();
        for number in 0..MAX_CLOSED_TARGETS_PER_USER {
            let closed = std::net::Ipv4Addr::from(u32::try_from(number).unwrap());
            known.closed.entry(closed.into()).or_default().insert(4, MonoTime::default());
        }
        known.closed_of_user.insert(4, MAX_CLOSED_TARGETS_PER_USER);
        drop(known);
        assert!(may(4), "as many as may be were closed, and are open again");
    }
}
