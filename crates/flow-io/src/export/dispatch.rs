//! From the queue of the workers to the backlogs of the targets.

use super::accounts::{BatchContent, DeliveryCounts};
use super::outbox::{ExportInlet, WorkerProgress};
use crate::batch::WorkerBatch;
use crate::group;
use crate::patience::OutputQueue;
use crossbeam_channel::Receiver;
use packetrig_flow::LossCause;
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::cell::Cell;
use std::sync::Arc;

/// A backlog that has been full for this long is not waited for.
const STALL: Nanos = Nanos::from_secs(1);

/// A batch in the backlog of a target.
#[derive(Clone, Debug)]
pub(super) struct HandedBatch {
    /// When it was handed over, by the time of the group.
    pub(super) at_ns: u64,
    pub(super) batch: Arc<WorkerBatch>,
}

#[derive(Debug)]
pub(super) struct Dispatcher {
    inlet: ExportInlet,
    backlogs: Vec<OutputQueue<HandedBatch>>,
    linger: Nanos,
    /// Since when a backlog has been full.
    full_since_ns: Cell<Option<u64>>,
}

impl Dispatcher {
    pub(super) const fn new(
        inlet: ExportInlet,
        backlogs: Vec<OutputQueue<HandedBatch>>,
        linger: Nanos,
    ) -> Self {
        Self { inlet, backlogs, linger, full_since_ns: Cell::new(None) }
    }

    /// Hands over everything until all workers have dropped their ends of the queue.
    pub(super) fn run(&self) {
        for batch in &self.inlet.batches {
            self.hand_over(batch);
        }
    }

    pub(super) const fn batches(&self) -> &Receiver<WorkerBatch> {
        &self.inlet.batches
    }

    pub(super) fn progress(&self) -> WorkerProgress {
        self.inlet.progress.of_all()
    }

    pub(super) fn delivery(&self) -> DeliveryCounts {
        self.inlet.accounts.delivery()
    }

    /// This meter exports for its group from now on: workers tell of the flows that go on.
    pub(super) fn announce_takeover(&self) {
        self.inlet.takeovers.add_one();
    }

    /// Packets come at other meters and not at this one: workers do not know what they missed.
    pub(super) fn announce_blindness(&self) {
        self.inlet.blind_looks.add_one();
    }

    /// How long the end may take.
    pub(super) const fn linger(&self) -> Nanos {
        self.linger
    }

    /// Whether each target has room, or the one that has none is not worth waiting for.
    pub(super) fn has_room(&self) -> bool {
        let now_ns = clock::monotonic_ns();
        let is_full = self.backlogs.iter().any(OutputQueue::is_full);
        let since_ns = self.full_since_ns.get().unwrap_or(now_ns);
        // A target that is gone stays full: it is waited for once, and then it costs its own batches only.
        self.full_since_ns.set(is_full.then_some(since_ns));
        !is_full || now_ns.saturating_sub(since_ns) >= STALL.as_u64()
    }

    /// Gives a batch to every target of its content that has room.
    pub(super) fn hand_over(&self, batch: WorkerBatch) {
        let carried = batch.carried();
        let content = BatchContent::of(&batch);
        let handed = HandedBatch { at_ns: group::steady_ns(), batch: Arc::new(batch) };
        // Waits here and not below: the accounts are locked while the batch is handed over. Only this thread fills the
        // backlogs, so room that was found is still there.
        OutputQueue::await_room(&self.backlogs);
        self.inlet.accounts.hand_over(content, carried, |index| {
            // A target without a backlog would be a target that nobody serves.
            let backlog = self.backlogs.get(index).ok_or(LossCause::Refused)?;
            backlog.try_give(handed.clone()).map_err(|_| backlog.loss_cause())
        });
    }

    /// Another meter of the group exports what is in this batch.
    pub(super) fn leave(&self, batch: &WorkerBatch) {
        self.inlet.accounts.leave(BatchContent::of(batch), batch.carried());
    }

    /// A batch that was kept is given up.
    pub(super) fn drop_kept(&self, cause: LossCause, batch: &WorkerBatch) {
        self.inlet.accounts.drop_offered(cause, BatchContent::of(batch), batch.carried());
    }
}
