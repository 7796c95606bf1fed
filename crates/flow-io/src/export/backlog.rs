//! The batches that wait for one target.

use super::accounts::TargetAccount;
use super::dispatch::BacklogBatch;
use super::gate::{STANDBY_END_MARGIN, WATERMARK_MARGIN};
use crate::group::{self, GroupRoleHandle};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use packetrig_flow::GroupMembership;
use packetrig_flow::group::GroupRole;
use std::cell::Cell;
use std::time::Duration;

/// Pause before checking again whether a batch that must not be sent now may be sent.
const BATCH_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Error: the backlog is empty, and no more batches will come.
#[derive(Debug)]
pub(super) struct BacklogClosed;

#[derive(Debug)]
pub(super) struct TargetBacklog {
    batches: Receiver<BacklogBatch>,
    /// Present if one meter of a group exports for all.
    role_handle: Option<GroupRoleHandle>,
    /// The next batch, while this meter may not send it.
    held: Option<BacklogBatch>,
    role: Option<GroupRole>,
    /// Latest time at which sending was allowed, on the clock of the group.
    allowed_ns: Cell<u64>,
}

impl TargetBacklog {
    pub(super) const fn new(batches: Receiver<BacklogBatch>, role_handle: Option<GroupRoleHandle>) -> Self {
        Self { batches, role_handle, held: None, role: None, allowed_ns: Cell::new(0) }
    }

    /// Returns what this meter announces about its group; `packets` is the number of packets in its copy of the link.
    /// `None` if the meter is in no group.
    pub(super) fn group_membership(&self, packets: u64) -> Option<GroupMembership> {
        self.role_handle.as_ref().map(|seat| seat.group_membership(packets))
    }

    /// Reports whether the meter's role has changed since the last call.
    pub(super) fn take_role_change(&mut self) -> bool {
        let now = self.role_handle.as_ref().map(GroupRoleHandle::role);
        // In a group, the first call finds a change, so the group membership is sent before any record.
        std::mem::replace(&mut self.role, now) != now
    }

    /// Reports whether records may be sent. A meter that was stopped for some time has lost its role,
    /// although it has not noticed this yet.
    pub(super) fn may_send(&self) -> bool {
        let is_allowed = self.role_handle.as_ref().is_none_or(GroupRoleHandle::may_export);
        if is_allowed {
            self.allowed_ns.set(group::group_time_ns());
        }
        is_allowed
    }

    /// Reports whether another meter has exported the records that this meter could not send: the watermark of the
    /// active meter is later than the time at which this meter could last send.
    pub(super) fn is_exported_by_others(&self) -> bool {
        let watermark_ns = self.role_handle.as_ref().and_then(GroupRoleHandle::active_watermark);
        // The margin is larger than the difference between the clocks of two meters.
        let others_ns = self.allowed_ns.get().saturating_add(STANDBY_END_MARGIN.as_u64());
        !self.may_send() && watermark_ns.is_some_and(|ns| ns >= others_ns)
    }

    /// Takes the next batch to send, and waits up to `within` for it; `None` if none came or it may not be sent now.
    pub(super) fn next_batch(
        &mut self,
        within: Duration,
        account: &TargetAccount,
    ) -> Result<Option<BacklogBatch>, BacklogClosed> {
        if self.held.is_none() {
            match self.batches.recv_timeout(within) {
                Ok(batch) => self.held = Some(batch),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(BacklogClosed),
            }
        }
        // The role is checked before each batch: the right to send ends by itself, even while the process is stopped.
        if self.may_send() {
            return Ok(self.held.take());
        }
        self.count_held_batch_as_left_if_exported(account);
        Ok(None)
    }

    /// Counts the held batch as left to another meter if that meter has exported the same packets. Otherwise the batch
    /// waits, because this meter may have to send it.
    fn count_held_batch_as_left_if_exported(&mut self, account: &TargetAccount) {
        let watermark_ns =
            self.role_handle.as_ref().and_then(GroupRoleHandle::active_watermark).unwrap_or_default();
        // The clocks of meters differ, so only records from well before the watermark have certainly been exported.
        let before_ns = watermark_ns.saturating_sub(WATERMARK_MARGIN.as_u64());
        match self.held.take_if(|held| held.at_ns < before_ns) {
            Some(left) if left.is_repeated => {}
            Some(left) => account.count_exported_by_others(left.batch.carried_records()),
            // A short sleep, because this meter may become active at any moment.
            None => std::thread::sleep(BATCH_CHECK_INTERVAL),
        }
    }
}
