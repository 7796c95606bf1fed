//! The election of the active member.
//!
//! `heard`, `ordered` and the setters only record. All decisions are made in [`GroupElection::tick`], which the owner calls after
//! each of them and at each deadline.

use super::peers::PeerTable;
use super::rank::{defers_to, takeover_skew, yields_to};
use super::{
    AdvertisedRole, Advertisement, ElectionOptions, GroupPeer, GroupRole, GroupTerm, HeardOutcome,
    OrderedRole, RoleChange, RoleSource,
};
use packetrig_units::{MonoTime, Nanos};

/// What to do after a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct GroupStep {
    pub change: Option<RoleChange>,
    /// Send this to all peers.
    pub advertisement: Option<Advertisement>,
}

/// One member of a group.
#[derive(Clone, Debug)]
pub struct GroupElection {
    options: ElectionOptions,
    boot: u64,
    role: GroupRole,
    ordered: OrderedRole,
    is_ready: bool,
    peers: PeerTable,
    /// The latest term that this member was in or heard of.
    latest_term: GroupTerm,
    /// Everything of this member before this time has been exported: by itself since it took over, before by others.
    watermark_ns: u64,
    /// Where a takeover would replay from. `None`: no ready active member was ever heard.
    replay_mark_ns: Option<u64>,
    /// No takeover before: this member does not know yet what the others do.
    listening_until: MonoTime,
    /// When an active member last came, went or changed.
    contested_at: MonoTime,
    /// When a ready peer was last heard, or when this member started.
    ready_heard_at: MonoTime,
    sequence: u64,
    advertised_at: Option<MonoTime>,
    next_advertisement: MonoTime,
}

impl GroupElection {
    /// A standby that is not ready. `boot` is a random number of this start.
    pub fn new(options: ElectionOptions, boot: u64, now: MonoTime) -> Self {
        Self {
            options,
            boot,
            role: GroupRole::Standby,
            ordered: OrderedRole::Standby,
            is_ready: false,
            peers: PeerTable::default(),
            latest_term: GroupTerm::default(),
            watermark_ns: 0,
            replay_mark_ns: None,
            listening_until: match options.role_source {
                RoleSource::Election => now + options.detection_time(),
                // The program that orders the role has listened already.
                RoleSource::Ordered => now,
            },
            contested_at: now,
            ready_heard_at: now,
            sequence: 0,
            advertised_at: None,
            next_advertisement: now,
        }
    }

    pub const fn options(&self) -> &ElectionOptions {
        &self.options
    }

    pub const fn role(&self) -> GroupRole {
        self.role
    }

    pub const fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// The other members that were ever heard.
    pub fn peers(&self) -> impl Iterator<Item = &GroupPeer> {
        self.peers.iter()
    }

    /// Whether this peer still counts as running.
    pub fn is_alive(&self, peer: &GroupPeer, now: MonoTime) -> bool {
        !peer.advertisement.role.is_leaving() && now < self.lapses_at(peer)
    }

    /// The other member that is active, as far as this one can hear. Of several, the one of the latest term.
    pub fn active_peer(&self, now: MonoTime) -> Option<u32> {
        let latest = self.active_peers(now).max_by_key(|advertisement| advertisement.term);
        latest.map(|advertisement| advertisement.meter)
    }

    /// Everything before this time has been exported, as far as this member knows: by itself if it is active, else by the active
    /// member. A standby needs no records from before this watermark less the margin. `None`: it must keep all.
    pub fn watermark(&self) -> Option<u64> {
        if self.role.is_active() { Some(self.watermark_ns) } else { self.replay_mark_ns }
    }

    /// Until when an active member may export without another tick. A process that was stopped for longer than that has been
    /// replaced.
    pub fn export_until(&self) -> MonoTime {
        match (self.role, self.advertised_at) {
            (GroupRole::Active { .. }, Some(at)) => at + self.options.detection_time(),
            _ => MonoTime::default(),
        }
    }

    /// Whether this member has seen all running flows from their beginning.
    pub const fn set_ready(&mut self, is_ready: bool) {
        self.is_ready = is_ready;
    }

    /// In this term, everything that left this member's table before `ns` has been exported. A late call of an earlier term changes
    /// nothing, and a watermark never goes back within its term.
    pub fn set_watermark(&mut self, term: GroupTerm, ns: u64) {
        if self.role == (GroupRole::Active { term }) {
            self.watermark_ns = self.watermark_ns.max(ns);
        }
    }

    /// Another program orders the role; for [`RoleSource::Ordered`].
    pub const fn ordered(&mut self, role: OrderedRole) {
        self.ordered = role;
    }

    /// An advertisement came.
    pub fn heard(&mut self, advertisement: &Advertisement, now: MonoTime) -> HeardOutcome {
        if advertisement.meter == self.options.meter {
            let is_own = advertisement.boot == self.boot;
            return if is_own { HeardOutcome::OwnEcho } else { HeardOutcome::SameMeter };
        }
        if !advertisement.is_valid() {
            return HeardOutcome::Invalid;
        }
        let before = self.peers.latest(advertisement.meter);
        let outcome = self.peers.hear(advertisement, now);
        if outcome == HeardOutcome::Accepted {
            self.learn(before, advertisement, now);
        }
        outcome
    }

    fn learn(&mut self, before: Option<Advertisement>, latest: &Advertisement, now: MonoTime) {
        self.latest_term = self.latest_term.max(latest.term);
        if latest.is_ready && !latest.role.is_leaving() {
            self.ready_heard_at = now;
        }
        let was_active = before.is_some_and(|before| before.role.is_active());
        let is_same = before.is_some_and(|before| {
            (before.boot, before.term, before.role, before.is_ready)
                == (latest.boot, latest.term, latest.role, latest.is_ready)
        });
        if (was_active || latest.role.is_active()) && !is_same {
            self.contested_at = now;
        }
        if latest.claims_watermark() {
            // Of several active members the lowest: each of them may be the one that fails next.
            let lowest = self.lowest_watermark(now).unwrap_or(u64::MAX);
            self.replay_mark_ns = Some(lowest.min(latest.watermark_ns));
        }
    }

    /// Decides and advertises. Call it after each input, and when [`Self::next_deadline`] has come.
    pub fn tick(&mut self, now: MonoTime) -> GroupStep {
        let change = self.decide(now);
        if change.is_some() {
            self.next_advertisement = now;
        }
        let advertisement = (now >= self.next_advertisement).then(|| self.advertise(now));
        GroupStep { change, advertisement }
    }

    /// When to call [`Self::tick`] next if nothing is heard.
    pub fn next_deadline(&self, now: MonoTime) -> MonoTime {
        let takeover = if self.role.is_active() { None } else { self.takeover_at(now) };
        takeover.map_or(self.next_advertisement, |at| at.min(self.next_advertisement))
    }

    /// The last advertisement of this member. A standby succeeds it at once.
    pub fn leave(mut self, now: MonoTime) -> Advertisement {
        let mut farewell = self.advertise(now);
        farewell.role = if self.role.is_active() {
            AdvertisedRole::LeavingActive
        } else {
            AdvertisedRole::LeavingStandby
        };
        farewell
    }

    fn decide(&mut self, now: MonoTime) -> Option<RoleChange> {
        if self.was_stopped(now) {
            // This process stood still for so long that another member may be active. Before anything else it stops exporting, and
            // then it listens: a takeover at once would be decided by news from before the pause.
            self.listening_until = now + self.options.hold_time(self.slowest_interval());
            return self.role.is_active().then(|| self.step_down(now));
        }
        match self.role {
            GroupRole::Active { term } => self.must_step_down(term, now).then(|| self.step_down(now)),
            GroupRole::Standby => {
                self.takeover_at(now).is_some_and(|at| now >= at).then(|| self.take_over())
            }
        }
    }

    fn was_stopped(&self, now: MonoTime) -> bool {
        self.advertised_at.is_some_and(|at| now >= at + self.options.detection_time())
    }

    fn must_step_down(&self, term: GroupTerm, now: MonoTime) -> bool {
        match self.options.role_source {
            RoleSource::Ordered => self.ordered == OrderedRole::Standby,
            RoleSource::Election => {
                self.active_peers(now).any(|other| yields_to(other, &self.options, self.is_ready, term))
            }
        }
    }

    /// When this standby takes over, if nothing more is heard.
    fn takeover_at(&self, now: MonoTime) -> Option<MonoTime> {
        if self.options.role_source == RoleSource::Ordered {
            return (self.ordered == OrderedRole::Active).then_some(self.listening_until);
        }
        let mut vacant_at = self.listening_until.max(self.contested_at);
        for peer in self.peers.iter() {
            let advertisement = &peer.advertisement;
            if advertisement.role.is_active() && defers_to(advertisement, &self.options, self.is_ready) {
                vacant_at = vacant_at.max(self.lapses_at(peer));
            }
        }
        if !self.is_ready {
            vacant_at = vacant_at.max(self.ready_heard_at + self.options.unready_wait);
        }
        let rivals = self.alive_peers(now).filter(|rival| {
            rival.role == AdvertisedRole::Standby && rival.is_ready == self.is_ready
        });
        Some(vacant_at + takeover_skew(rivals, &self.options))
    }

    fn take_over(&mut self) -> RoleChange {
        let count = self.latest_term.count.saturating_add(1).min(GroupTerm::LAST_COUNT);
        let term = GroupTerm { count, meter: self.options.meter };
        let replay_from_ns = self.replay_mark_ns.unwrap_or(0);
        self.latest_term = self.latest_term.max(term);
        self.role = GroupRole::Active { term };
        // Nothing after it has been exported in this term yet.
        self.watermark_ns = replay_from_ns;
        RoleChange::BecameActive { term, replay_from_ns }
    }

    fn step_down(&mut self, now: MonoTime) -> RoleChange {
        // Without another active member, a next takeover goes on where this one stopped.
        self.replay_mark_ns = Some(self.lowest_watermark(now).unwrap_or(self.watermark_ns));
        self.role = GroupRole::Standby;
        self.contested_at = now;
        RoleChange::BecameStandby { active: self.active_peer(now) }
    }

    fn advertise(&mut self, now: MonoTime) -> Advertisement {
        // From the planned time on, so that a late tick does not shift all later ones. After a long pause none is made up for.
        let planned = self.next_advertisement + self.options.interval;
        self.next_advertisement = if planned > now { planned } else { now + self.options.interval };
        self.advertised_at = Some(now);
        self.sequence += 1;
        let role = if self.role.is_active() { AdvertisedRole::Active } else { AdvertisedRole::Standby };
        Advertisement {
            meter: self.options.meter,
            boot: self.boot,
            sequence: self.sequence,
            role,
            term: self.role.term().unwrap_or(self.latest_term),
            priority: self.options.priority,
            preempts: self.options.preempt,
            is_ready: self.is_ready,
            interval: self.options.interval,
            watermark_ns: self.watermark().unwrap_or(0),
        }
    }

    fn lapses_at(&self, peer: &GroupPeer) -> MonoTime {
        peer.heard_at + self.options.hold_time(peer.advertisement.interval)
    }

    fn alive_peers(&self, now: MonoTime) -> impl Iterator<Item = &Advertisement> {
        self.peers.iter().filter(move |peer| self.is_alive(peer, now)).map(|peer| &peer.advertisement)
    }

    fn active_peers(&self, now: MonoTime) -> impl Iterator<Item = &Advertisement> {
        self.alive_peers(now).filter(|advertisement| advertisement.role.is_active())
    }

    fn lowest_watermark(&self, now: MonoTime) -> Option<u64> {
        let claims = self.active_peers(now).filter(|advertisement| advertisement.claims_watermark());
        claims.map(|advertisement| advertisement.watermark_ns).min()
    }

    fn slowest_interval(&self) -> Nanos {
        let intervals = self.peers.iter().map(|peer| peer.advertisement.interval);
        intervals.fold(self.options.interval, Nanos::max)
    }
}
