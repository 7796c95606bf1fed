//! The batches that wait for one target.

use super::accounts::TargetAccount;
use super::dispatch::HandedBatch;
use super::gate::MARGIN;
use crate::group::GroupSeat;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use packetrig_flow::GroupMembership;
use packetrig_flow::group::GroupRole;
use std::time::Duration;

/// How often a batch that must not be sent is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// All batches were taken, and no more will come.
#[derive(Debug)]
pub(super) struct BacklogEnd;

#[derive(Debug)]
pub(super) struct TargetBacklog {
    batches: Receiver<HandedBatch>,
    /// If one meter of a group exports for all.
    seat: Option<GroupSeat>,
    /// Came before this meter lost its role.
    held: Option<HandedBatch>,
    role: Option<GroupRole>,
}

impl TargetBacklog {
    pub(super) const fn new(batches: Receiver<HandedBatch>, seat: Option<GroupSeat>) -> Self {
        Self { batches, seat, held: None, role: None }
    }

    /// What the meter says of its group, with the packets of its copy of the link.
    pub(super) fn membership(&self, packets: u64) -> Option<GroupMembership> {
        self.seat.as_ref().map(|seat| seat.membership(packets))
    }

    /// Whether the meter's role has changed since this was asked for the last time.
    pub(super) fn has_new_role(&mut self) -> bool {
        let now = self.seat.as_ref().map(GroupSeat::role);
        std::mem::replace(&mut self.role, now) != now
    }

    /// Whether anything may be sent. A meter that was stopped for a while has lost its role, though nothing in it knows that yet.
    pub(super) fn may_send(&self) -> bool {
        self.seat.as_ref().is_none_or(GroupSeat::may_export)
    }

    /// The next batch to send; `None` if there is none in time.
    pub(super) fn next(
        &mut self,
        within: Duration,
        account: &TargetAccount,
    ) -> Result<Option<HandedBatch>, BacklogEnd> {
        if self.held.is_none() {
            match self.batches.recv_timeout(within) {
                Ok(batch) => self.held = Some(batch),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(BacklogEnd),
            }
        }
        if self.may_send() {
            return Ok(self.held.take());
        }
        self.leave_exported(account);
        Ok(None)
    }

    /// What another meter has exported since this one lost its role is not sent. The rest waits: this meter may have to send it.
    fn leave_exported(&mut self, account: &TargetAccount) {
        let watermark_ns = self.seat.as_ref().and_then(GroupSeat::active_watermark).unwrap_or_default();
        let before_ns = watermark_ns.saturating_sub(MARGIN.as_u64());
        match self.held.take_if(|held| held.at_ns < before_ns) {
            Some(left) => account.leave(left.batch.carried()),
            // Not longer: it may become active at any moment.
            None => std::thread::sleep(LOOK),
        }
    }
}
