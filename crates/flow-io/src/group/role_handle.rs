//! Handle to the role of a meter in its group, for the other parts of the meter.
//!
//! Invariant: the deadline of the export is cleared before a change to standby is published. So a thread that has seen
//! the change never finds that it may export.

use super::GroupStatus;
use super::steady::boottime_now;
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::GroupMembership;
use packetrig_flow::group::{CopyComparison, GroupRole, GroupTerm, MeterCoverage, PacketCount, RoleChange};
use packetrig_units::MonoTime;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Value that means "no watermark".
const NO_WATERMARK: u64 = u64::MAX;

/// Handle to the role of a meter in its group. Clones share one state.
#[derive(Clone, Debug)]
pub struct GroupRoleHandle(Arc<SharedGroupRole>);

/// The role of this meter at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleView {
    /// Grows by one with every change of role.
    pub generation: u64,
    pub role: GroupRole,
    /// Start of the replay at the last takeover: kept records from this time on, less the margin, must be exported
    /// first. Zero means all kept records.
    pub replay_from_ns: u64,
}

#[derive(Debug)]
struct SharedGroupRole {
    /// Time until which this meter may export, on `CLOCK_BOOTTIME`; zero while it is a standby.
    export_until_ns: AtomicU64,
    watermark_ns: AtomicU64,
    inputs: Mutex<RoleInputs>,
    view: Mutex<RoleView>,
    changed: Condvar,
    /// Channel that holds one item after a change.
    changes: (Sender<()>, Receiver<()>),
    status: Mutex<GroupStatus>,
}

/// State that the export threads have reported to the member thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoleInputs {
    pub(crate) coverage: MeterCoverage,
    pub(crate) exported: Option<(GroupTerm, u64)>,
    pub(crate) can_export: bool,
    pub(crate) is_ending: bool,
    /// Packets of this meter's copy of the link, with times of `CLOCK_BOOTTIME`.
    pub(crate) seen: PacketCount,
}

/// Locks a mutex even if it is poisoned: no code under these locks can panic half way, so the value is whole.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GroupRoleHandle {
    pub(crate) fn new(status: GroupStatus) -> Self {
        let view = RoleView { generation: 0, role: GroupRole::Standby, replay_from_ns: 0 };
        Self(Arc::new(SharedGroupRole {
            export_until_ns: AtomicU64::new(0),
            watermark_ns: AtomicU64::new(NO_WATERMARK),
            inputs: Mutex::new(RoleInputs {
                coverage: status.coverage,
                exported: None,
                // Assumed until the export reports a failure.
                can_export: true,
                is_ending: false,
                seen: PacketCount::default(),
            }),
            view: Mutex::new(view),
            changed: Condvar::new(),
            // One item is enough: it says that the view has changed, and the receiver reads the view itself.
            changes: bounded(1),
            status: Mutex::new(status),
        }))
    }

    pub fn role_view(&self) -> RoleView {
        *lock_ignoring_poison(&self.0.view)
    }

    pub fn role(&self) -> GroupRole {
        self.role_view().role
    }

    /// See [`RoleView::replay_from_ns`].
    pub fn replay_from(&self) -> u64 {
        self.role_view().replay_from_ns
    }

    /// Waits, for at most `within`, until the role has changed since the view with this generation. Returns the current
    /// view in any case.
    pub fn wait_for_change(&self, generation: u64, within: Duration) -> RoleView {
        let waited = self.0.changed.wait_timeout_while(lock_ignoring_poison(&self.0.view), within, |view| {
            view.generation == generation
        });
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns the channel that gets an item after the role has changed. Only one thread should receive from it.
    pub fn role_changes(&self) -> &Receiver<()> {
        &self.0.changes.1
    }

    /// Reports whether records may be sent now. Call this before every message; it only reads the clock. A process that
    /// was stopped and continues has lost the role, although it has not noticed this yet.
    pub fn may_export(&self) -> bool {
        // CLOCK_BOOTTIME also counts suspended time, so a meter that was suspended finds its deadline past.
        self.may_export_at(boottime_now())
    }

    /// Reports whether records may be sent at a time of `CLOCK_BOOTTIME`.
    pub fn may_export_at(&self, now: MonoTime) -> bool {
        now.as_nanos() < self.0.export_until_ns.load(Ordering::Acquire)
    }

    /// Sets the watermark: in this term, everything that left this meter's table before `ns` (since 1970) has been exported, and
    /// acknowledged if the transport has acknowledgements. A watermark with an earlier term or time changes nothing.
    pub fn set_watermark(&self, term: GroupTerm, ns: u64) {
        let mut inputs = lock_ignoring_poison(&self.0.inputs);
        // The terms are compared first: a late call of an earlier term must not move the watermark
        // of the current one.
        let before = inputs.exported.filter(|(before, at)| (*before, *at) >= (term, ns));
        inputs.exported = before.or(Some((term, ns)));
    }

    /// Returns the watermark: everything that left the table before this time has been exported, by the
    /// active member or by this meter if it is active. A standby needs no records from before the watermark
    /// minus the margin. `None` if there is no watermark: then a standby must keep all records.
    pub fn active_watermark(&self) -> Option<u64> {
        Some(self.0.watermark_ns.load(Ordering::Acquire)).filter(|ns| *ns != NO_WATERMARK)
    }

    /// Sets how complete this meter's records are. After a loss of packets, call this before setting a later watermark.
    pub fn set_coverage(&self, coverage: MeterCoverage) {
        lock_ignoring_poison(&self.0.inputs).coverage = coverage;
    }

    /// Sets whether exported records reach the collector at present.
    pub fn set_can_export(&self, can_export: bool) {
        lock_ignoring_poison(&self.0.inputs).can_export = can_export;
    }

    /// Announces that no more records come. If no other meter is active, this meter then takes over and exports its
    /// kept records, even if another program orders the roles.
    pub fn announce_end(&self) {
        lock_ignoring_poison(&self.0.inputs).is_ending = true;
    }

    /// Sets the number of packets of this meter's copy of the link since its start, with times of `CLOCK_BOOTTIME`.
    pub fn set_seen_packets(&self, count: PacketCount) {
        lock_ignoring_poison(&self.0.inputs).seen = count;
    }

    /// Marks this meter as ready: it has seen all running flows from their beginning, so records that leave the table from
    /// `complete_from_ns` (since 1970) on, less the margin, are whole.
    pub fn set_ready(&self, complete_from_ns: u64) {
        lock_ignoring_poison(&self.0.inputs).coverage.complete_from_ns = Some(complete_from_ns);
    }

    /// Sets the number of kept records that are exported at a takeover.
    pub fn set_replayed_records(&self, records: u64) {
        lock_ignoring_poison(&self.0.status).replayed = records;
    }

    /// Returns what this meter announces to collectors; `packets` is the number of packets in its copy of the link.
    pub fn group_membership(&self, packets: u64) -> GroupMembership {
        lock_ignoring_poison(&self.0.status).group_membership(packets)
    }

    pub fn coverage(&self) -> MeterCoverage {
        self.inputs().coverage
    }

    /// Returns [`GroupStatus::is_blind`] and [`GroupStatus::copy_comparison`] of one moment.
    pub fn copy_comparison(&self) -> (bool, CopyComparison) {
        let status = lock_ignoring_poison(&self.0.status);
        (status.is_blind, status.copy_comparison)
    }

    pub fn status(&self) -> GroupStatus {
        lock_ignoring_poison(&self.0.status).clone()
    }

    pub(crate) fn inputs(&self) -> RoleInputs {
        *lock_ignoring_poison(&self.0.inputs)
    }

    pub(super) fn update_status(&self, update: impl FnOnce(&mut GroupStatus)) {
        update(&mut lock_ignoring_poison(&self.0.status));
    }

    pub(crate) fn publish_role(
        &self,
        change: Option<RoleChange>,
        watermark: Option<u64>,
        export_until: MonoTime,
    ) {
        // Stored before the role changes: a thread that sees the new role
        // finds the watermark that belongs to it.
        self.0.watermark_ns.store(watermark.unwrap_or(NO_WATERMARK), Ordering::Release);
        // Cleared before the view changes: no thread that sees the new role may find that it may export.
        if let Some(RoleChange::BecameStandby { .. }) = change {
            self.0.export_until_ns.store(0, Ordering::Release);
        }
        if let Some(change) = change {
            let mut view = lock_ignoring_poison(&self.0.view);
            view.generation += 1;
            match change {
                RoleChange::BecameActive { term, replay_from_ns } => {
                    view.role = GroupRole::Active { term };
                    view.replay_from_ns = replay_from_ns;
                }
                RoleChange::BecameStandby { .. } => view.role = GroupRole::Standby,
            }
            // The lock is released before the waiting threads wake, because they need it at once.
            drop(view);
            self.0.changed.notify_all();
            // A full channel is fine: its item already wakes the receiver.
            self.0.changes.0.try_send(()).unwrap_or_default();
        }
        // This is set after the view: a thread that may export finds the active role and its start of the replay.
        self.0.export_until_ns.store(export_until.as_nanos(), Ordering::Release);
    }

    /// Ends the permission to export, because the member has ended.
    pub(super) fn end_membership(&self) {
        let was_active = self.role().is_active();
        let change = was_active.then_some(RoleChange::BecameStandby { active: None });
        self.publish_role(change, self.active_watermark(), MonoTime::default());
    }

    /// Keeps the member thread from ticking, as if the process were stopped.
    #[cfg(test)]
    pub(super) fn freeze(&self) -> impl Drop + '_ {
        lock_ignoring_poison(&self.0.inputs)
    }
}
