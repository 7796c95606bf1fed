//! The dispatcher: takes batches from the queue of the workers and puts them into the backlogs of the targets.

use super::accounts::{BatchContent, DeliveryCounts};
use super::outbox::{ExportQueueReceiver, WorkerProgress};
use crate::backpressure::OutputQueue;
use crate::batch::WorkerBatch;
use crate::group;
use crossbeam_channel::Receiver;
use packetrig_flow::LossCause;
use packetrig_flow::group::CopyComparison;
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::cell::Cell;
use std::sync::Arc;

/// Time after which the dispatcher stops waiting for a full backlog.
const FULL_BACKLOG_TIMEOUT: Nanos = Nanos::from_secs(1);

/// A batch in the backlog of a target.
#[derive(Clone, Debug)]
pub(super) struct BacklogBatch {
    /// Time at which the batch was passed on, on the clock of the group.
    pub(super) at_ns: u64,
    /// True if another meter has exported the batch before. Such a batch is in no account.
    pub(super) is_repeated: bool,
    pub(super) batch: Arc<WorkerBatch>,
}

#[derive(Debug)]
pub(super) struct Dispatcher {
    inlet: ExportQueueReceiver,
    backlogs: Vec<OutputQueue<BacklogBatch>>,
    linger: Nanos,
    /// Time since which a backlog has been full.
    full_since_ns: Cell<Option<u64>>,
}

impl Dispatcher {
    pub(super) const fn new(
        inlet: ExportQueueReceiver,
        backlogs: Vec<OutputQueue<BacklogBatch>>,
        linger: Nanos,
    ) -> Self {
        Self { inlet, backlogs, linger, full_since_ns: Cell::new(None) }
    }

    /// Passes all batches to the targets. Returns when all workers have dropped their senders of the queue.
    pub(super) fn run_until_closed(&self) {
        // The loop does not end before the queue is empty.
        for batch in &self.inlet.batches {
            self.hand_over(batch);
        }
    }

    pub(super) const fn batches(&self) -> &Receiver<WorkerBatch> {
        &self.inlet.batches
    }

    pub(super) fn combined_progress(&self) -> WorkerProgress {
        self.inlet.progress.combined_progress()
    }

    pub(super) fn delivery_counts(&self) -> DeliveryCounts {
        self.inlet.accounts.delivery_counts()
    }

    /// Announces that this meter exports for its group from now on, so that workers report the flows that continue.
    pub(super) fn announce_takeover(&self) {
        self.inlet.takeovers.add_one();
    }

    /// Announces what other meters show: after a loss, workers mark their flows as incomplete.
    pub(super) fn announce_copy_comparison(&self, comparison: CopyComparison) {
        self.inlet.comparison.publish(comparison);
    }

    /// Maximum time that the export waits at its end for a target that accepts no data.
    pub(super) const fn linger(&self) -> Nanos {
        self.linger
    }

    /// Reports whether each target has room, or has been full for so long that the dispatcher does not wait for it.
    pub(super) fn has_room(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        // One full backlog delays all targets for a second, so that a short stall loses nothing.
        let is_full = self.backlogs.iter().any(OutputQueue::is_full);
        let since_ns = self.full_since_ns.get().unwrap_or(now_ns);
        // The backlog of an unreachable target stays full. The dispatcher waits for it once. After that, only
        // that target loses batches.
        self.full_since_ns.set(is_full.then_some(since_ns));
        !is_full || now_ns.saturating_sub(since_ns) >= FULL_BACKLOG_TIMEOUT.as_u64()
    }

    /// Puts a batch into the backlog of every target of its content. If waiting is enabled, it first waits for room. A
    /// target whose backlog is full loses the batch.
    pub(super) fn hand_over(&self, batch: WorkerBatch) {
        let carried = batch.carried_records();
        let content = BatchContent::from_batch(&batch);
        // The batch is shared and not copied, because several targets may wait for it.
        let handed =
            BacklogBatch { at_ns: group::group_time_ns(), is_repeated: false, batch: Arc::new(batch) };
        // Waits here and not below, because the accounts are locked while the batch goes into the backlogs. Only this
        // thread fills the backlogs, so room that was found is still there.
        OutputQueue::await_queue_room(&self.backlogs);
        self.inlet.accounts.move_batch_to_targets(content, carried, |index| {
            // A target without a backlog has no thread that would serve it.
            let backlog = self.backlogs.get(index).ok_or(LossCause::Refused)?;
            backlog.try_send(handed.clone()).map_err(|_| backlog.loss_cause())
        });
    }

    /// Offers every target a batch that another meter has already exported, because a collector may have lost it. A
    /// target with a full backlog does not get it.
    pub(super) fn dispatch_repeated_batch(&self, batch: WorkerBatch) {
        let handed =
            BacklogBatch { at_ns: group::group_time_ns(), is_repeated: true, batch: Arc::new(batch) };
        for backlog in &self.backlogs {
            // The batch is not offered again: new records need the room.
            drop(backlog.try_send(handed.clone()));
        }
    }

    /// Returns the time of the last connection to any target, on the clock of the group; 0 if there was none.
    pub(super) fn last_connection_ns(&self) -> u64 {
        self.inlet.accounts.last_connection_ns()
    }

    /// Counts a batch as left to another meter of the group, which exports it.
    pub(super) fn count_batch_as_exported_by_others(&self, batch: &WorkerBatch) {
        self.inlet
            .accounts
            .count_exported_by_others(BatchContent::from_batch(batch), batch.carried_records());
    }

    /// Counts a kept batch as dropped: no target gets it.
    pub(super) fn count_kept_batch_as_dropped(&self, cause: LossCause, batch: &WorkerBatch) {
        self.inlet.accounts.count_offered_as_dropped(
            cause,
            BatchContent::from_batch(batch),
            batch.carried_records(),
        );
    }
}
