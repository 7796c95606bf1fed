//! Store of batches that wait until this meter exports, or until another meter has exported the same packets.
//!
//! The store does not enforce its memory bound: the gate removes batches while it is exceeded.

use crate::batch::WorkerBatch;
use packetrig_flow::{FlowHistory, FlowRecord};
use std::collections::VecDeque;

/// Memory of a record with its history, which is on the heap.
const RECORD_BYTES: usize = size_of::<FlowRecord>() + size_of::<FlowHistory>();

#[derive(Debug)]
pub(super) struct KeptBatch {
    /// Time at which the gate took the batch from the queue, on the clock of the group. The records left the
    /// table before that time.
    pub(super) at_ns: u64,
    pub(super) batch: WorkerBatch,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct StandbyBatchStore {
    batches: VecDeque<KeptBatch>,
    bytes: usize,
    most_bytes: usize,
}

impl StandbyBatchStore {
    pub(super) const fn new(most_bytes: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, most_bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn record_count(&self) -> u64 {
        self.batches.iter().map(|kept| kept.batch.carried_records().records).sum()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn max_bytes(&self) -> usize {
        self.most_bytes
    }

    pub(super) const fn is_over_bound(&self) -> bool {
        self.bytes > self.most_bytes
    }

    pub(super) fn push_batch(&mut self, at_ns: u64, mut batch: WorkerBatch) {
        let bytes = match &mut batch {
            WorkerBatch::Records(records) => {
                // Most batches are not full, because workers send them several times a second.
                records.shrink_to_fit();
                records.len() * RECORD_BYTES
            }
            WorkerBatch::Sim(events) => {
                events.shrink_to_fit();
                size_of_val(events.as_slice())
            }
        };
        self.push_kept(KeptBatch { at_ns, batch, bytes });
    }

    /// Adds a batch that another store has held.
    pub(super) fn push_kept(&mut self, kept: KeptBatch) {
        self.bytes += kept.bytes;
        self.batches.push_back(kept);
    }

    pub(super) fn pop_oldest(&mut self) -> Option<KeptBatch> {
        let kept = self.batches.pop_front()?;
        self.bytes -= kept.bytes;
        Some(kept)
    }

    /// Removes the oldest batch and returns it, if it was taken from the queue before `ns`.
    pub(super) fn pop_before(&mut self, ns: u64) -> Option<KeptBatch> {
        if self.batches.front()?.at_ns < ns { self.pop_oldest() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_batches_pop_oldest_and_track_memory() {
        let batch = |records| WorkerBatch::Records(vec![FlowRecord::default(); records]);
        let mut kept = StandbyBatchStore::new(3 * RECORD_BYTES);
        for (at_ns, records) in [(10, 1), (20, 2)] {
            kept.push_batch(at_ns, batch(records));
        }
        assert!(!kept.is_over_bound());
        kept.push_batch(30, batch(1));
        assert!(kept.is_over_bound());
        assert!(kept.pop_before(10).is_none());
        assert_eq!(kept.pop_before(11).map(|kept| kept.batch.carried_records().records), Some(1));
        assert!(!kept.is_over_bound());
        assert_eq!(kept.pop_oldest().map(|kept| kept.batch.carried_records().records), Some(2));
        assert_eq!(kept.pop_before(31).map(|kept| kept.batch.carried_records().records), Some(1));
        assert!(kept.is_empty() && kept.pop_oldest().is_none());
    }
}
