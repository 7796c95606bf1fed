//! Accounts of the records on their way out: in the queue, in a target's backlog, sent, or lost for a target.
//!
//! One lock guards all accounts. A thread takes it once per batch and once per message, so a reader never sees a record
//! in two accounts or in none: offered = queue dropped + sent + refused + left to others + waiting, at any time.
//! Dropped and refused records are also in the losses, by cause.

use crate::batch::WorkerBatch;
use crate::group;
use crate::output_report::OutputReport;
use packetrig_flow::{CarriedRecords, ExportCounts, LossCause, RecordLosses};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A target that has had no connection for this long no longer delays the group's watermark (see `gate`).
const SILENT_TARGET_TIMEOUT: Nanos = Nanos::from_secs(10);

/// Kind of content of a batch: flow records or SIM events. Each target gets one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchContent {
    Records,
    Sim,
}

impl BatchContent {
    pub(super) const fn from_batch(batch: &WorkerBatch) -> Self {
        match batch {
            WorkerBatch::Records(_) => Self::Records,
            WorkerBatch::Sim(_) => Self::Sim,
        }
    }
}

/// Accounts of the queue for one kind of content; all targets of that kind share them.
#[derive(Clone, Copy, Debug, Default)]
struct QueuedContent {
    offered: CarriedRecords,
    /// Records that were dropped, by cause.
    losses: RecordLosses,
    left: CarriedRecords,
    waiting: CarriedRecords,
}

/// Accounts of one target.
#[derive(Debug)]
struct TargetCounters {
    name: String,
    content: BatchContent,
    dropped: CarriedRecords,
    left: CarriedRecords,
    waiting: CarriedRecords,
    sent: CarriedRecords,
    refused: CarriedRecords,
    /// Records that were dropped or refused, by cause.
    losses: RecordLosses,
    /// Text of the last error.
    failure: Option<String>,
    messages: u64,
    message_bytes: u64,
    options_records: u64,
    /// Time at which the target stopped accepting data, on the monotonic clock.
    unreachable_since_ns: Option<u64>,
    /// Time of the target's last connection, on the clock of the group; 0 if there was none.
    connected_ns: u64,
    /// Records that were lost while the target had a connection, or had lost it less than `SILENT_TARGET_TIMEOUT`
    /// before.
    lost: u64,
}

/// Delivery of the records to all targets. A target that is unreachable for long does not delay `confirmed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeliveryCounts {
    pub(super) offered: u64,
    /// Number of records, counted from the first one offered, that every target has received or lost.
    pub(super) confirmed: u64,
    pub(super) lost: u64,
    /// True while all targets accept data.
    pub(super) is_reachable: bool,
}

impl DeliveryCounts {
    pub(super) const fn is_complete(&self) -> bool {
        self.confirmed >= self.offered && self.lost == 0
    }
}

#[derive(Debug, Default)]
struct AccountState {
    queued: [QueuedContent; 2],
    targets: Vec<TargetCounters>,
}

/// The accounts, shared by workers, export threads and readers.
#[derive(Clone, Debug, Default)]
pub(super) struct TargetAccounts(Arc<Mutex<AccountState>>);

impl TargetAccounts {
    /// Locks the accounts. A poisoned lock is fine: no change can panic half way, so the sums are true.
    fn lock_state(&self) -> MutexGuard<'_, AccountState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_target(&self, name: String, content: BatchContent) -> TargetAccount {
        let mut state = self.lock_state();
        let zero = CarriedRecords::default();
        state.targets.push(TargetCounters {
            name,
            content,
            dropped: zero,
            left: zero,
            waiting: zero,
            sent: zero,
            refused: zero,
            losses: RecordLosses::default(),
            failure: None,
            messages: 0,
            message_bytes: 0,
            options_records: 0,
            unreachable_since_ns: None,
            connected_ns: 0,
            lost: 0,
        });
        TargetAccount { all: self.clone(), index: state.targets.len() - 1 }
    }

    /// Counts a batch that a worker offers.
    pub(super) fn count_offered(&self, content: BatchContent, carried: CarriedRecords) {
        let queued = &mut self.lock_state().queued[content as usize];
        queued.offered.add_records(carried);
        queued.waiting.add_records(carried);
    }

    /// Counts an offered batch as lost in the queue: no target gets it.
    pub(super) fn count_offered_as_dropped(
        &self,
        cause: LossCause,
        content: BatchContent,
        carried: CarriedRecords,
    ) {
        let queued = &mut self.lock_state().queued[content as usize];
        subtract_carried(&mut queued.waiting, carried);
        queued.losses.add_loss(cause, carried);
    }

    /// Counts a batch that leaves the queue because another meter of the group exports.
    pub(super) fn count_exported_by_others(&self, content: BatchContent, carried: CarriedRecords) {
        let queued = &mut self.lock_state().queued[content as usize];
        subtract_carried(&mut queued.waiting, carried);
        queued.left.add_records(carried);
    }

    /// Moves a batch from the queue's account to the targets' accounts. `give` puts it into the backlog of
    /// one target, and returns the cause if there was no room.
    pub(super) fn move_batch_to_targets(
        &self,
        content: BatchContent,
        carried: CarriedRecords,
        mut give: impl FnMut(usize) -> Result<(), LossCause>,
    ) {
        // The lock is held while `give` fills the backlogs. Otherwise a fast target could report a batch as
        // sent before the batch is in that target's account.
        let mut state = self.lock_state();
        subtract_carried(&mut state.queued[content as usize].waiting, carried);
        for (index, own) in state.targets.iter_mut().enumerate().filter(|(_, own)| own.content == content) {
            match give(index) {
                Ok(()) => own.waiting.add_records(carried),
                Err(cause) => {
                    own.dropped.add_records(carried);
                    own.count_lost_records(cause, carried);
                }
            }
        }
    }

    pub(super) fn delivery_counts(&self) -> DeliveryCounts {
        let state = self.lock_state();
        // The targets of a group all have the same content, so the first target represents all.
        let content = state.targets.first().map_or(BatchContent::Records, |own| own.content);
        let queued = &state.queued[content as usize];
        let targets = || state.targets.iter().filter(|own| own.content == content);
        let dropped = queued.losses.total_records().records;
        let gone = dropped + queued.left.records;
        // The slowest target decides. A target that is unreachable for long is left out: it must not stop
        // the watermark of the other targets.
        let confirmed =
            targets().filter(|own| !own.is_long_unreachable()).map(|own| gone + own.done_records()).min();
        DeliveryCounts {
            offered: queued.offered.records,
            // Without a target no record is confirmed, so a standby keeps all records.
            confirmed: confirmed.unwrap_or_default(),
            lost: dropped + targets().map(|own| own.lost).sum::<u64>(),
            is_reachable: targets().all(|own| own.unreachable_since_ns.is_none()),
        }
    }

    /// Returns the time of the last connection to any target, on the clock of the group; 0 if there was none.
    pub(super) fn last_connection_ns(&self) -> u64 {
        self.lock_state().targets.iter().map(|own| own.connected_ns).max().unwrap_or_default()
    }

    /// Returns the report of each target.
    pub(super) fn output_reports(&self) -> Vec<OutputReport> {
        let state = self.lock_state();
        state.targets.iter().map(|own| own.output_report(&state.queued)).collect()
    }

    pub(super) fn total_counts(&self) -> ExportCounts {
        let state = self.lock_state();
        let mut total = ExportCounts::default();
        for own in &state.targets {
            let counts = own.export_counts(&state.queued);
            total.offered.add_records(counts.offered);
            total.queue_dropped.add_records(counts.queue_dropped);
            total.sent.add_records(counts.sent);
            total.refused.add_records(counts.refused);
            total.left_to_others.add_records(counts.left_to_others);
            total.waiting.add_records(counts.waiting);
            total.messages += counts.messages;
            total.message_bytes += counts.message_bytes;
            total.own_records += counts.own_records;
        }
        total
    }
}

impl TargetCounters {
    fn is_long_unreachable(&self) -> bool {
        let since_ns = self.unreachable_since_ns.unwrap_or(u64::MAX);
        clock::monotonic_ns().saturating_sub(since_ns) >= SILENT_TARGET_TIMEOUT.as_u64()
    }

    fn count_lost_records(&mut self, cause: LossCause, carried: CarriedRecords) {
        self.losses.add_loss(cause, carried);
        if !self.is_long_unreachable() {
            // Later losses do not count here: another meter could not reach the target either.
            self.lost += carried.records;
        }
    }

    fn done_records(&self) -> u64 {
        self.sent.records + self.dropped.records + self.refused.records + self.left.records
    }

    fn output_report(&self, queued: &[QueuedContent; 2]) -> OutputReport {
        let mut losses = self.losses;
        losses.add_losses(&queued[self.content as usize].losses);
        OutputReport {
            to: self.name.clone(),
            counts: self.export_counts(queued),
            losses,
            failure: self.failure.clone(),
            ..OutputReport::default()
        }
    }

    fn export_counts(&self, queued: &[QueuedContent; 2]) -> ExportCounts {
        // The queue's records count for every target of this content, because each of these targets should get them.
        let queued = &queued[self.content as usize];
        ExportCounts {
            offered: queued.offered,
            queue_dropped: sum_carried(queued.losses.total_records(), self.dropped),
            sent: self.sent,
            refused: self.refused,
            left_to_others: sum_carried(queued.left, self.left),
            waiting: sum_carried(queued.waiting, self.waiting),
            messages: self.messages,
            message_bytes: self.message_bytes,
            own_records: self.options_records,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct TargetAccount {
    all: TargetAccounts,
    index: usize,
}

impl TargetAccount {
    fn update_target(&self, change: impl FnOnce(&mut TargetCounters)) {
        if let Some(own) = self.all.lock_state().targets.get_mut(self.index) {
            change(own);
        }
    }

    /// Counts a message that the transport has sent.
    pub(super) fn count_sent(&self, carried: CarriedRecords, own_records: u64, bytes: usize) {
        self.update_target(|own| {
            subtract_carried(&mut own.waiting, carried);
            own.sent.add_records(carried);
            // Both change together under the lock, so that a reader never sees one without the other.
            own.messages += 1;
            own.message_bytes += bytes as u64;
            own.options_records += own_records;
        });
    }

    /// Counts a message that the transport could not send.
    pub(super) fn count_refused(&self, carried: CarriedRecords) {
        self.count_lost(LossCause::Refused, carried);
    }

    /// Counts waiting records that will not be sent.
    pub(super) fn count_lost(&self, cause: LossCause, carried: CarriedRecords) {
        self.update_target(|own| {
            subtract_carried(&mut own.waiting, carried);
            own.refused.add_records(carried);
            own.count_lost_records(cause, carried);
        });
    }

    /// Stores the error text of the transport for the report.
    pub(super) fn note_failure(&self, failure: String) {
        self.update_target(|own| own.failure = Some(failure));
    }

    /// Notes that a new connection begins: the collector at its other end may have been started again.
    pub(super) fn note_connection(&self) {
        self.update_target(|own| own.connected_ns = group::group_time_ns());
    }

    /// Sets whether the target accepts data. The time of the change is stored, because a target that is unreachable for
    /// long no longer delays the watermark.
    pub(super) fn set_reachable(&self, is_reachable: bool) {
        self.update_target(|own| match (is_reachable, own.unreachable_since_ns) {
            (true, _) => own.unreachable_since_ns = None,
            (false, None) => own.unreachable_since_ns = Some(clock::monotonic_ns()),
            // The first time stays, because it is the start of the outage.
            (false, Some(_)) => {}
        });
    }

    /// Counts a batch that is not sent because another meter of the group exports.
    pub(super) fn count_exported_by_others(&self, carried: CarriedRecords) {
        self.update_target(|own| {
            subtract_carried(&mut own.waiting, carried);
            own.left.add_records(carried);
        });
    }

    /// Counts all waiting records as left to another meter of the group, which has exported them.
    pub(super) fn count_waiting_as_exported_by_others(&self) {
        self.update_target(|own| {
            let waiting = std::mem::take(&mut own.waiting);
            own.left.add_records(waiting);
        });
    }

    /// Counts all waiting records as lost, because the export to the target ends.
    pub(super) fn count_waiting_as_lost(&self, cause: LossCause) {
        self.update_target(|own| {
            let waiting = std::mem::take(&mut own.waiting);
            own.refused.add_records(waiting);
            // The final watermark must not pass these records: another meter of the group may still have them.
            own.count_lost_records(cause, waiting);
        });
    }

    pub(super) fn export_counts(&self) -> ExportCounts {
        let state = self.all.lock_state();
        state.targets.get(self.index).map(|own| own.export_counts(&state.queued)).unwrap_or_default()
    }
}

fn sum_carried(mut one: CarriedRecords, other: CarriedRecords) -> CarriedRecords {
    one.add_records(other);
    one
}

/// Saturates at zero. If more records leave an account than it has, that is a bug, and the ledger shows it because it
/// does not balance. Wrapping around would hide the bug.
const fn subtract_carried(from: &mut CarriedRecords, what: CarriedRecords) {
    from.records = from.records.saturating_sub(what.records);
    from.packets = from.packets.saturating_sub(what.packets);
    from.bytes = from.bytes.saturating_sub(what.bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lost_at_the_end_are_not_confirmed() {
        let accounts = TargetAccounts::default();
        let target = accounts.add_target("target".into(), BatchContent::Records);
        let batch = CarriedRecords { records: 3, packets: 30, bytes: 900 };
        for _ in 0..2 {
            accounts.count_offered(BatchContent::Records, batch);
            accounts.move_batch_to_targets(BatchContent::Records, batch, |_| Ok(()));
        }
        target.count_sent(batch, 0, 100);
        target.set_reachable(false);
        target.count_waiting_as_lost(LossCause::Unreachable);
        let counts = accounts.delivery_counts();
        assert_eq!((counts.confirmed, counts.offered, counts.lost), (6, 6, 3));
        assert!(!counts.is_complete(), "a successor sends them");
    }
}
