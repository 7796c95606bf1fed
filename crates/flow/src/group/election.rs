//! The election of the active member.
//!
//! [`GroupElection::on_advertisement`] and the setters only record their arguments. All decisions are made in
//! [`GroupElection::tick`]. The caller calls `tick` after each of these functions and at each deadline.

use super::copies::{CopyComparison, CopyLossDetector, PacketCount};
use super::coverage::{ExportedSpan, NO_WHOLE_RECORD};
use super::peers::PeerTable;
use super::rank::{is_trusted, must_step_down_for, takeover_skew};
use super::{
    AdvertisedRole, Advertisement, AdvertisementOutcome, ElectionOptions, GroupPeer, GroupRole, GroupTerm,
    MeterCoverage, OrderedRole, RoleChange, RoleSource,
};
use packetrig_units::{MonoTime, Nanos};

/// Actions that the caller must take after a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct ElectionActions {
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
    is_ending: bool,
    coverage: MeterCoverage,
    copies: CopyLossDetector,
    can_export: bool,
    peers: PeerTable,
    /// The latest term that this member was in or knows of.
    latest_term: GroupTerm,
    /// While active: the span that this member and its predecessors have exported.
    exported: ExportedSpan,
    /// While standby: the span that is known to be exported, by the active member or by this member before it stepped
    /// down. A takeover replays from its end. `None` if no span is known, or if the active member's records are less
    /// complete than those of this member.
    mark: Option<ExportedSpan>,
    /// This member takes over at this time at the earliest: before it, the member does not know the
    /// state of the others.
    listening_until: MonoTime,
    /// Time at which an active member last appeared, left or changed.
    contested_at: MonoTime,
    /// Time of the last advertisement of a ready peer, or of this member's start.
    ready_heard_at: MonoTime,
    /// Sequence number of this member's last advertisement.
    sequence: u64,
    advertised_at: Option<MonoTime>,
    next_advertisement: MonoTime,
}

impl GroupElection {
    /// Creates a member that is a standby. `boot` is a random number that is drawn at this start.
    pub fn new(options: ElectionOptions, boot: u64, coverage: MeterCoverage, now: MonoTime) -> Self {
        Self {
            options,
            boot,
            role: GroupRole::Standby,
            ordered: OrderedRole::Standby,
            is_ending: false,
            coverage,
            copies: CopyLossDetector::default(),
            can_export: true,
            peers: PeerTable::default(),
            latest_term: GroupTerm::default(),
            exported: ExportedSpan { whole_from_ns: NO_WHOLE_RECORD, watermark_ns: 0 },
            mark: None,
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

    /// Returns whether this member is fit to export, and its records are complete from the watermark at which it took
    /// over or would take over.
    pub fn is_ready(&self) -> bool {
        self.is_fit_to_export() && self.is_whole()
    }

    /// Returns whether the records of this member reach the collector, and its copy of the link is not cut.
    pub const fn is_fit_to_export(&self) -> bool {
        self.can_export && !self.is_blind()
    }

    /// Returns whether packets arrived at another member and not at this one, and either the coverage does not show
    /// this yet or no packet has arrived since.
    pub const fn is_blind(&self) -> bool {
        self.copies.is_blind()
    }

    /// Returns what the packet counts of the other members show.
    pub fn copy_comparison(&self, now: MonoTime) -> CopyComparison {
        self.copies.comparison(now)
    }

    fn is_whole(&self) -> bool {
        if self.role.is_active() {
            return self.exported.whole_from_ns != NO_WHOLE_RECORD;
        }
        let mark_ns = self.mark.map_or(u64::MAX, |mark| mark.watermark_ns);
        self.coverage.complete_from_ns.is_some_and(|complete| complete <= mark_ns)
    }

    /// Returns all other members that have sent an advertisement.
    pub fn peers(&self) -> impl Iterator<Item = &GroupPeer> {
        self.peers.iter()
    }

    /// Returns whether a peer still counts as running.
    pub fn is_alive(&self, peer: &GroupPeer, now: MonoTime) -> bool {
        peer.is_alive(&self.options, now)
    }

    /// Returns the number of the active member that is not this one; `None` if none is known. If there are several, it
    /// is the one of the latest term.
    pub fn active_peer(&self, now: MonoTime) -> Option<u32> {
        let latest = self.active_peers(now).max_by_key(|advertisement| advertisement.term);
        latest.map(|advertisement| advertisement.meter)
    }

    /// Returns the time before which everything has been exported, as far as this member knows: by this member if it is
    /// active, otherwise by the active member. A standby needs no records from before this watermark minus the margin.
    /// `None` if it must keep all records.
    pub fn watermark(&self) -> Option<u64> {
        if self.role.is_active() {
            Some(self.exported.watermark_ns)
        } else {
            self.mark.map(|mark| mark.watermark_ns)
        }
    }

    /// Returns the time until which an active member may export without another tick. If the process is stopped for
    /// longer, another member may have taken over.
    pub fn export_until(&self) -> MonoTime {
        match (self.role, self.advertised_at) {
            (GroupRole::Active { .. }, Some(at)) => at + self.options.detection_time(),
            _ => MonoTime::default(),
        }
    }

    /// Sets how complete the records of this member are. After a loss of packets, call this before
    /// setting a later watermark.
    pub fn set_coverage(&mut self, coverage: MeterCoverage) {
        let has_lost = coverage.seen_since_ns > self.coverage.seen_since_ns;
        if has_lost {
            self.copies.mark_loss_as_known();
        }
        // A new span begins only at a loss of packets, or if no exported record was complete before: other
        // changes do not concern exported records.
        if self.role.is_active()
            && self.coverage != coverage
            && (has_lost || self.exported.whole_from_ns == NO_WHOLE_RECORD)
        {
            self.exported.whole_from_ns = coverage.complete_from_ns.unwrap_or(NO_WHOLE_RECORD);
        }
        self.coverage = coverage;
    }

    /// Sets whether the records that this member exports reach the collector.
    pub const fn set_can_export(&mut self, can_export: bool) {
        self.can_export = can_export;
    }

    /// Sets the number of packets of this member's copy of the link.
    pub fn set_seen_packets(&mut self, count: PacketCount) {
        self.copies.on_own_packet_count(count);
    }

    /// Advances the watermark: in this term, everything that left this member's table before `ns` has been exported. A
    /// late call of an earlier term changes nothing, and a watermark never goes back within its term.
    pub fn set_watermark(&mut self, term: GroupTerm, ns: u64) {
        if self.role == (GroupRole::Active { term }) {
            self.exported.watermark_ns = self.exported.watermark_ns.max(ns);
        }
    }

    /// Sets the role that another program orders; for [`RoleSource::Ordered`].
    pub const fn set_ordered_role(&mut self, role: OrderedRole) {
        self.ordered = role;
    }

    /// Sets whether the packets of this meter have ended. Then an order to be a standby no longer binds, and the
    /// member takes over if no other one is active: no other program knows its kept records.
    pub const fn set_ending(&mut self, is_ending: bool) {
        self.is_ending = is_ending;
    }

    /// Returns the role that another program orders; `None` if the members decide.
    fn binding_order(&self) -> Option<OrderedRole> {
        let is_binding = self.ordered == OrderedRole::Active || !self.is_ending;
        (self.options.role_source == RoleSource::Ordered && is_binding).then_some(self.ordered)
    }

    /// Processes a received advertisement. Returns whether it was accepted, or why it was not.
    pub fn on_advertisement(&mut self, advertisement: &Advertisement, now: MonoTime) -> AdvertisementOutcome {
        if advertisement.meter == self.options.meter {
            let is_own = advertisement.boot == self.boot;
            return if is_own { AdvertisementOutcome::OwnEcho } else { AdvertisementOutcome::SameMeter };
        }
        if !advertisement.is_valid() {
            return AdvertisementOutcome::Invalid;
        }
        // The earlier advertisement is read first, because the table replaces it.
        let before = self.peers.latest_advertisement(advertisement.meter);
        let outcome = self.peers.on_advertisement(advertisement, &self.options, now);
        if outcome == AdvertisementOutcome::Accepted {
            self.copies.on_advertisement(advertisement, now);
            self.learn_from_advertisement(before, advertisement, now);
        }
        outcome
    }

    fn learn_from_advertisement(
        &mut self,
        before: Option<Advertisement>,
        latest: &Advertisement,
        now: MonoTime,
    ) {
        self.latest_term = self.latest_term.max(latest.term);
        // A member that leaves never takes over, so an unready member need not wait for it.
        if latest.is_ready && !latest.role.is_leaving() {
            self.ready_heard_at = now;
        }
        let was_active = before.is_some_and(|before| before.role.is_active());
        let is_same = before.is_some_and(|before| {
            (
                before.boot,
                before.term,
                before.role,
                before.seen_since_ns,
                before.whole_from_ns,
                before.is_ready,
            ) == (
                latest.boot,
                latest.term,
                latest.role,
                latest.seen_since_ns,
                latest.whole_from_ns,
                latest.is_ready,
            )
        });
        if (was_active || latest.role.is_active()) && !is_same {
            // The skew of a takeover counts from this moment, so that standbys do not all succeed at once.
            self.contested_at = now;
        }
        if !self.role.is_active() && latest.is_exporting() && self.trusts_peer(latest) {
            // If there are several active members, the lowest watermark counts: each of them may fail next.
            let lowest = self.lowest_trusted_span(now).filter(|span| span.watermark_ns < latest.watermark_ns);
            self.mark =
                ExportedSpan::merge_latest_span(self.mark, lowest.unwrap_or_else(|| latest.exported_span()));
        }
    }

    /// Decides the role of this member, and makes an advertisement if one is due. Call it after each input, and
    /// when [`Self::next_deadline`] has come.
    pub fn tick(&mut self, now: MonoTime) -> ElectionActions {
        let change = self.decide_role(now);
        if change.is_some() {
            // A change of role is advertised at once: the other members need not wait for the interval.
            self.next_advertisement = now;
        }
        let advertisement = (now >= self.next_advertisement).then(|| self.build_advertisement(now));
        ElectionActions { change, advertisement }
    }

    /// Returns the time of the next [`Self::tick`] if no advertisement comes.
    pub fn next_deadline(&self, now: MonoTime) -> MonoTime {
        let takeover = if self.role.is_active() { None } else { self.takeover_at(now) };
        takeover.map_or(self.next_advertisement, |at| at.min(self.next_advertisement))
    }

    /// Returns the last advertisement of this member. If the member is active, a standby takes over as soon
    /// as it receives this.
    pub fn into_last_advertisement(mut self, now: MonoTime) -> Advertisement {
        let mut farewell = self.build_advertisement(now);
        farewell.role = if self.role.is_active() {
            AdvertisedRole::LeavingActive
        } else {
            AdvertisedRole::LeavingStandby
        };
        farewell
    }

    fn decide_role(&mut self, now: MonoTime) -> Option<RoleChange> {
        if self.was_paused_too_long(now) {
            // This process was stopped for so long that another member may be active. It stops exporting first. Then it
            // waits for advertisements: a takeover at once would use information from before the pause.
            self.listening_until = now + self.options.hold_time(self.slowest_interval());
            return self.role.is_active().then(|| self.step_down_from_leadership(now));
        }
        match self.role {
            GroupRole::Active { .. } => {
                self.must_become_standby(now).then(|| self.step_down_from_leadership(now))
            }
            GroupRole::Standby => {
                self.takeover_at(now).is_some_and(|at| now >= at).then(|| self.take_over_leadership())
            }
        }
    }

    fn was_paused_too_long(&self, now: MonoTime) -> bool {
        self.advertised_at.is_some_and(|at| now >= at + self.options.detection_time())
    }

    fn must_become_standby(&self, now: MonoTime) -> bool {
        if let Some(order) = self.binding_order() {
            return order == OrderedRole::Standby;
        }
        let own = self.current_advertisement();
        self.active_peers(now).any(|other| must_step_down_for(other, &own))
    }

    /// Returns the time at which this standby takes over if no more advertisements arrive; `None` if another program
    /// orders it to be a standby.
    fn takeover_at(&self, now: MonoTime) -> Option<MonoTime> {
        if let Some(order) = self.binding_order() {
            return (order == OrderedRole::Active).then_some(self.listening_until);
        }
        let mut vacant_at = self.listening_until.max(self.contested_at);
        for peer in self.peers.iter() {
            let advertisement = &peer.advertisement;
            // Only a member with precedence holds this one back. It takes over from any other member at once.
            if advertisement.role.is_active() && self.leaves_role_to(advertisement) {
                vacant_at = vacant_at.max(peer.advertisement_lapse_time(&self.options));
            }
        }
        let is_ready = self.is_ready();
        if !is_ready {
            vacant_at = vacant_at.max(self.ready_heard_at + self.options.unready_wait);
        }
        // Standbys with different readiness are no rivals: unready standbys wait for `unready_wait` in addition.
        let rivals = self
            .alive_peers(now)
            .filter(|rival| rival.role == AdvertisedRole::Standby && rival.is_ready == is_ready);
        Some(vacant_at + takeover_skew(rivals, &self.options))
    }

    fn take_over_leadership(&mut self) -> RoleChange {
        // The other members refuse an advertisement with a count above the maximum.
        let count = self.latest_term.count.saturating_add(1).min(GroupTerm::MAX_VALID_COUNT);
        let term = GroupTerm { count, meter: self.options.meter };
        self.latest_term = self.latest_term.max(term);
        // This member starts with the predecessor's watermark: no later record has been exported in this term yet.
        self.exported = ExportedSpan::for_takeover(self.mark, self.coverage);
        self.role = GroupRole::Active { term };
        RoleChange::BecameActive { term, replay_from_ns: self.exported.watermark_ns }
    }

    fn step_down_from_leadership(&mut self, now: MonoTime) -> RoleChange {
        self.role = GroupRole::Standby;
        self.contested_at = now;
        // If no other member is active, the next takeover continues where this one stopped.
        if self.exported.whole_from_ns != NO_WHOLE_RECORD {
            self.mark = ExportedSpan::merge_latest_span(self.mark, self.exported);
        }
        if let Some(lowest) = self.lowest_trusted_span(now) {
            self.mark = ExportedSpan::merge_latest_span(self.mark, lowest);
        }
        RoleChange::BecameStandby { active: self.active_peer(now) }
    }

    fn trusts_peer(&self, active: &Advertisement) -> bool {
        is_trusted(active, self.coverage, self.mark)
    }

    /// Returns whether this standby leaves the active role to the member `active`. A standby with
    /// incomplete records always does.
    fn leaves_role_to(&self, active: &Advertisement) -> bool {
        if self.coverage.complete_from_ns.is_none() {
            return true;
        }
        let is_better = !active.is_ready || self.options.preempt && active.priority < self.options.priority;
        self.trusts_peer(active) && !(is_better && self.is_ready())
    }

    fn build_advertisement(&mut self, now: MonoTime) -> Advertisement {
        // The interval counts from the planned time, so that a late tick does not shift all later ones. After a long
        // pause, missed advertisements are not repeated.
        let planned = self.next_advertisement + self.options.interval;
        self.next_advertisement = if planned > now { planned } else { now + self.options.interval };
        self.advertised_at = Some(now);
        self.sequence += 1;
        let count = self.copies.own_packet_count();
        Advertisement {
            seen_all_ago: now.since(count.all_until),
            seen_none_ago: now.since(count.none_after),
            ..self.current_advertisement()
        }
    }

    /// Returns the advertisement that this member would send now.
    fn current_advertisement(&self) -> Advertisement {
        let exported = match self.role {
            GroupRole::Active { .. } => self.exported,
            GroupRole::Standby => ExportedSpan::for_takeover(self.mark, self.coverage),
        };
        let role = if self.role.is_active() { AdvertisedRole::Active } else { AdvertisedRole::Standby };
        Advertisement {
            meter: self.options.meter,
            boot: self.boot,
            sequence: self.sequence,
            role,
            term: self.role.term().unwrap_or(self.latest_term),
            priority: self.options.priority,
            preempts: self.options.preempt,
            is_ready: self.is_ready(),
            seen_packets: self.copies.own_packet_count().packets,
            seen_all_ago: Nanos::ZERO,
            seen_none_ago: Nanos::ZERO,
            seen_since_ns: self.coverage.seen_since_ns,
            whole_from_ns: exported.whole_from_ns,
            interval: self.options.interval,
            watermark_ns: exported.watermark_ns,
        }
    }

    fn alive_peers(&self, now: MonoTime) -> impl Iterator<Item = &Advertisement> {
        self.peers.iter().filter(move |peer| self.is_alive(peer, now)).map(|peer| &peer.advertisement)
    }

    fn active_peers(&self, now: MonoTime) -> impl Iterator<Item = &Advertisement> {
        self.alive_peers(now).filter(|advertisement| advertisement.role.is_active())
    }

    fn lowest_trusted_span(&self, now: MonoTime) -> Option<ExportedSpan> {
        let trusted = self.active_peers(now).filter(|advertisement| self.trusts_peer(advertisement));
        trusted.map(Advertisement::exported_span).min_by_key(|span| span.watermark_ns)
    }

    fn slowest_interval(&self) -> Nanos {
        let intervals = self.peers.iter().map(|peer| peer.advertisement.interval);
        intervals.fold(self.options.interval, Nanos::max)
    }
}
