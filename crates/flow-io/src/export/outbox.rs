//! The workers' side of the export queue: collects records and events into batches and puts these into the queue. A
//! worker waits for room only once its [`BackpressurePolicy`] allows that.
//!
//! Invariant: memory is bounded by the bytes of the queue and one batch per worker. Batches that find the queue full
//! are counted with their packets.

use super::accounts::{BatchContent, TargetAccounts};
use crate::backpressure::BackpressurePolicy;
use crate::batch::WorkerBatch;
use crossbeam_channel::{Receiver, Sender, bounded};
use packetrig_flow::group::CopyComparison;
use packetrig_flow::sim::SimEvent;
use packetrig_flow::{FlowRecord, LossCause};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of records in a full batch.
const RECORDS_PER_BATCH: usize = 256;
/// Number of events in a full batch.
const EVENTS_PER_BATCH: usize = 1024;
/// Memory of a full batch, without the histories of its records, which are on the heap.
pub const BATCH_BYTES: usize = {
    let records = RECORDS_PER_BATCH * size_of::<FlowRecord>();
    let events = EVENTS_PER_BATCH * size_of::<SimEvent>();
    if records > events { records } else { events }
};

/// Returns how many full batches fit into this many bytes, at least one.
pub fn full_batches_in_bytes(bytes: usize) -> usize {
    (bytes / BATCH_BYTES).max(1)
}

/// Progress of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerProgress {
    /// All flows that were due by this time, on the clock of the group, have left the table and were offered. A worker that has
    /// ended stays at its last time: it meters no packets after it.
    pub settled_ns: u64,
    /// The source has delivered all packets up to this time, on the clock of the group. Some may still be held back.
    pub delivered_ns: u64,
    /// Number of packets that the worker's source has delivered.
    pub packets: u64,
    /// Time at which `packets` was read, on the clock of the group. Later packets are not counted.
    pub read_ns: u64,
    /// Packets that the worker's ring dropped.
    pub ring_dropped: u64,
    /// See [`FlowTable::strange_flows`](packetrig_flow::table::FlowTable::strange_flows).
    pub strange_flows: usize,
    /// True if the worker has ended. Combined: true if all workers have.
    pub has_ended: bool,
}

/// The progress of all workers that have an outbox.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedProgress(Arc<Mutex<Vec<WorkerProgress>>>);

impl SharedProgress {
    fn lock_progress(&self) -> MutexGuard<'_, Vec<WorkerProgress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_worker(&self) -> usize {
        let mut workers = self.lock_progress();
        workers.push(WorkerProgress::default());
        workers.len() - 1
    }

    /// Combines the progress of all workers: the earliest `settled_ns`, the latest `read_ns`, and the sums of the
    /// counts.
    pub(super) fn combined_progress(&self) -> WorkerProgress {
        let workers = self.lock_progress();
        WorkerProgress {
            // Without any worker the time is zero, so that the watermark does not move.
            settled_ns: workers.iter().map(|worker| worker.settled_ns).min().unwrap_or_default(),
            delivered_ns: workers.iter().map(|worker| worker.delivered_ns).min().unwrap_or_default(),
            packets: workers.iter().map(|worker| worker.packets).sum(),
            read_ns: workers.iter().map(|worker| worker.read_ns).max().unwrap_or_default(),
            ring_dropped: workers.iter().map(|worker| worker.ring_dropped).sum(),
            strange_flows: workers.iter().map(|worker| worker.strange_flows).sum(),
            has_ended: workers.iter().all(|worker| worker.has_ended),
        }
    }
}

/// Counts how often an event has happened that every worker must notice.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedEventCounter(Arc<AtomicU64>);

impl SharedEventCounter {
    pub(super) fn add_one(&self) {
        // A count and not a flag: if one worker cleared a flag, the other workers would miss the event.
        self.0.fetch_add(1, Ordering::Release);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// What the packet counts of other meters show, for all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedCopyComparison(Arc<Mutex<CopyComparison>>);

impl SharedCopyComparison {
    pub(super) fn publish(&self, comparison: CopyComparison) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = comparison;
    }

    fn latest(&self) -> CopyComparison {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the export queue, for at most this many bytes (but at least one batch). The first result makes outboxes for
/// workers; [`spawn_export`](super::spawn_export) takes the second. A worker that finds the queue full waits for room
/// if `backpressure` allows it.
pub fn open_export_queue(
    bytes: usize,
    backpressure: &BackpressurePolicy,
) -> (ExportQueueSender, ExportQueueReceiver) {
    // Bounded in batches and not in records, because a batch of few records takes the memory of a full one.
    let (sender, receiver) = bounded(full_batches_in_bytes(bytes));
    let accounts = TargetAccounts::default();
    let backpressure = backpressure.clone();
    let progress = SharedProgress::default();
    let takeovers = SharedEventCounter::default();
    let comparison = SharedCopyComparison::default();
    let queue = ExportQueueSender {
        sender,
        accounts: accounts.clone(),
        backpressure: backpressure.clone(),
        progress: progress.clone(),
        takeovers: takeovers.clone(),
        comparison: comparison.clone(),
    };
    (
        queue,
        ExportQueueReceiver { batches: receiver, accounts, backpressure, progress, takeovers, comparison },
    )
}

/// The sending half of the export queue: makes an outbox for each worker.
#[derive(Clone, Debug)]
pub struct ExportQueueSender {
    sender: Sender<WorkerBatch>,
    accounts: TargetAccounts,
    backpressure: BackpressurePolicy,
    progress: SharedProgress,
    takeovers: SharedEventCounter,
    comparison: SharedCopyComparison,
}

impl ExportQueueSender {
    /// Makes an outbox for one worker.
    pub fn make_outbox(&self) -> WorkerExportBuffer {
        WorkerExportBuffer {
            sender: self.sender.clone(),
            accounts: self.accounts.clone(),
            backpressure: self.backpressure.clone(),
            number: self.progress.add_worker(),
            progress: self.progress.clone(),
            takeovers: self.takeovers.clone(),
            takeovers_noted: 0,
            comparison: self.comparison.clone(),
            losses_noted: 0,
            records: Vec::new(),
            events: Vec::new(),
        }
    }
}

/// The receiving half of the export queue, for the export threads.
#[derive(Debug)]
pub struct ExportQueueReceiver {
    pub(super) batches: Receiver<WorkerBatch>,
    pub(super) accounts: TargetAccounts,
    pub(super) backpressure: BackpressurePolicy,
    pub(super) progress: SharedProgress,
    /// Number of times this meter has begun to export for its group. Targets of SIM events
    /// then lack the flows in progress.
    pub(super) takeovers: SharedEventCounter,
    pub(super) comparison: SharedCopyComparison,
}

#[cfg(test)]
impl ExportQueueReceiver {
    /// Takes everything out of the queue and sums it up.
    pub(crate) fn waiting(&self) -> packetrig_flow::CarriedRecords {
        let mut sum = packetrig_flow::CarriedRecords::default();
        self.batches.try_iter().for_each(|batch| sum.add_records(batch.carried_records()));
        sum
    }

    pub(crate) fn publish_copy_comparison(&self, comparison: CopyComparison) {
        self.comparison.publish(comparison);
    }
}

/// Collects a worker's records and events into batches for the export queue. Dropping the outbox also puts incomplete
/// batches into the queue.
#[derive(Debug)]
pub struct WorkerExportBuffer {
    sender: Sender<WorkerBatch>,
    accounts: TargetAccounts,
    backpressure: BackpressurePolicy,
    progress: SharedProgress,
    /// Index of this worker in `progress`.
    number: usize,
    takeovers: SharedEventCounter,
    /// Number of takeovers that the worker has noticed.
    takeovers_noted: u64,
    comparison: SharedCopyComparison,
    losses_noted: u64,
    records: Vec<FlowRecord>,
    events: Vec<SimEvent>,
}

impl WorkerExportBuffer {
    pub fn add_record(&mut self, record: &FlowRecord) {
        // Reserves exactly one batch: growth by doubling could reserve twice `BATCH_BYTES`.
        if self.records.capacity() == 0 {
            self.records.reserve_exact(RECORDS_PER_BATCH);
        }
        self.records.push(record.clone());
        if self.records.len() == RECORDS_PER_BATCH {
            self.offer_records();
        }
    }

    /// Adds an event of SIM.
    pub fn add_event(&mut self, event: SimEvent) {
        if self.events.capacity() == 0 {
            self.events.reserve_exact(EVENTS_PER_BATCH);
        }
        self.events.push(event);
        if self.events.len() == EVENTS_PER_BATCH {
            self.offer_events();
        }
    }

    /// Reports whether this meter has begun to export for its group since the last call.
    pub fn take_takeover_flag(&mut self) -> bool {
        // Each worker compares with its own count, so that every worker notices each takeover.
        let count = self.takeovers.count();
        std::mem::replace(&mut self.takeovers_noted, count) != count
    }

    /// Puts incomplete batches into the queue, too. The worker must call this regularly and at the end.
    pub fn flush_batches(&mut self) {
        if !self.records.is_empty() {
            self.offer_records();
        }
        if !self.events.is_empty() {
            self.offer_events();
        }
    }

    /// Returns what the packet counts of other meters show, and whether there is a new loss since the last call.
    pub(crate) fn take_copy_comparison(&mut self) -> (bool, CopyComparison) {
        let comparison = self.comparison.latest();
        let has_loss = comparison.losses != self.losses_noted;
        self.losses_noted = comparison.losses;
        (has_loss, comparison)
    }

    /// Offers incomplete batches, and then publishes the worker's progress.
    pub fn report_progress(&mut self, progress: WorkerProgress) {
        self.flush_batches();
        // The progress is published after the offers: the watermark may pass records only once they are in the
        // accounts.
        self.progress.lock_progress()[self.number] = progress;
    }

    fn offer_records(&mut self) {
        let batch = WorkerBatch::Records(std::mem::take(&mut self.records));
        self.offer_batch(BatchContent::Records, batch);
    }

    fn offer_events(&mut self) {
        let batch = WorkerBatch::Sim(std::mem::take(&mut self.events));
        self.offer_batch(BatchContent::Sim, batch);
    }

    fn offer_batch(&mut self, content: BatchContent, batch: WorkerBatch) {
        let carried = batch.carried_records();
        // The batch is counted before it is sent: the export thread may take and count it
        // before this thread continues.
        self.accounts.count_offered(content, carried);
        if let Err(refused) = self.backpressure.send_or_wait(&self.sender, batch) {
            self.accounts.count_offered_as_dropped(LossCause::QueueFull, content, carried);
            self.reuse_batch_memory(refused);
        }
    }

    /// Reuses the memory of a batch that found the queue full.
    fn reuse_batch_memory(&mut self, batch: WorkerBatch) {
        match batch {
            WorkerBatch::Records(mut records) => {
                records.clear();
                self.records = records;
            }
            WorkerBatch::Sim(mut events) => {
                events.clear();
                self.events = events;
            }
        }
    }
}

impl Drop for WorkerExportBuffer {
    fn drop(&mut self) {
        self.flush_batches();
        self.progress.lock_progress()[self.number].has_ended = true;
    }
}
