//! The outputs of a worker: the [export](crate::export), and sinks that store records.
//!
//! Records for sinks are collected into batches; a full batch goes to the queue of each sink. While packets may arrive,
//! a live meter never waits: a sink whose queue is full loses the batch, and its records are counted. At its
//! end it waits for room. A meter of files waits all the time, except in a replay ([`BackpressurePolicy`]).
//!
//! Invariant, for every sink: offered = accepted by its queue + lost here, by cause.

use crate::backpressure::{OpenSourceGuard, OutputQueue};
use crate::export::WorkerProgress;
use crate::{BackpressurePolicy, WorkerBatch, export};
use packetrig_flow::group::CopyComparison;
use packetrig_flow::sim::SimEvent;
use packetrig_flow::table::FlowEventReceiver;
use packetrig_flow::{CarriedRecords, FlowKey, FlowRecord, RecordLosses};

/// Maximum number of records of a batch.
const RECORDS_PER_BATCH: usize = 256;

/// The sending halves of the outputs' queues, for the workers.
#[derive(Clone, Debug, Default)]
pub struct OutputChannels {
    /// The export's queue, and whether it takes events instead of records.
    pub export: Option<(export::ExportQueueSender, bool)>,
    pub sinks: Vec<OutputQueue<WorkerBatch>>,
    /// Decides whether to wait for room or to lose the batch.
    pub backpressure: BackpressurePolicy,
}

/// Counts of the records that a sink was offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferedCounts {
    pub offered: CarriedRecords,
    /// Records that the sink's queue did not accept, by cause.
    pub lost: RecordLosses,
}

#[derive(Debug)]
pub struct OutputQueues {
    records_out: Option<export::WorkerExportBuffer>,
    events_out: Option<export::WorkerExportBuffer>,
    sinks: Vec<OutputQueue<WorkerBatch>>,
    backpressure: BackpressurePolicy,
    /// Present until the worker's source has ended.
    source: Option<OpenSourceGuard>,
    offered: Vec<OfferedCounts>,
    records: Vec<FlowRecord>,
}

impl OutputQueues {
    /// Makes the queues of one worker to the outputs. Also counts the worker's source as open.
    pub fn new(channels: &OutputChannels) -> Self {
        Self {
            records_out: make_export_outbox(channels, false),
            events_out: make_export_outbox(channels, true),
            sinks: channels.sinks.clone(),
            backpressure: channels.backpressure.clone(),
            source: Some(channels.backpressure.register_source()),
            offered: vec![OfferedCounts::default(); channels.sinks.len()],
            records: Vec::with_capacity(if channels.sinks.is_empty() { 0 } else { RECORDS_PER_BATCH }),
        }
    }

    /// Marks the source as ended, and waits up to a second for the other sources. After that, sending
    /// may wait for room.
    pub(crate) fn end_source_and_wait(&mut self) {
        if let Some(source) = self.source.take() {
            self.backpressure.unregister_source_and_enable_waiting(source);
        }
    }

    /// Reports whether the export takes events.
    pub fn wants_events(&self) -> bool {
        self.events_out.is_some()
    }

    /// Returns the counts of each sink so far.
    pub fn offered_counts(&self) -> &[OfferedCounts] {
        &self.offered
    }

    #[inline]
    pub fn add_event(&mut self, event: SimEvent) {
        if let Some(out) = &mut self.events_out {
            out.add_event(event);
        }
    }

    /// Sends all batches, also incomplete ones.
    pub fn flush_batches(&mut self) {
        for out in [&mut self.records_out, &mut self.events_out].into_iter().flatten() {
            out.flush_batches();
        }
        self.send_records();
    }

    /// Sends all batches, also incomplete ones, and then publishes the worker's progress.
    pub(crate) fn report_progress(&mut self, progress: WorkerProgress) {
        self.flush_batches();
        for out in [&mut self.records_out, &mut self.events_out].into_iter().flatten() {
            out.report_progress(progress);
        }
    }

    /// See [`WorkerExportBuffer::take_copy_comparison`](export::WorkerExportBuffer::take_copy_comparison).
    pub(crate) fn take_copy_comparison(&mut self) -> (bool, CopyComparison) {
        let out = self.records_out.as_mut();
        out.map(export::WorkerExportBuffer::take_copy_comparison).unwrap_or_default()
    }

    /// Reports whether the export needs the flows in progress again, because this meter has taken over.
    pub(crate) fn take_open_flows_request(&mut self) -> bool {
        self.events_out.as_mut().is_some_and(export::WorkerExportBuffer::take_takeover_flag)
    }

    fn send_records(&mut self) {
        // The worker calls this several times a second, so an idle worker must not allocate or send.
        if self.records.is_empty() {
            return;
        }
        // A new vector of full size: the old one leaves with the batch, and growing would copy records.
        let records = std::mem::replace(&mut self.records, Vec::with_capacity(RECORDS_PER_BATCH));
        let batch = WorkerBatch::Records(records);
        let carried = batch.carried_records();
        // A sink exists: records are collected only for sinks.
        let last = self.sinks.len() - 1;
        let mut batch = Some(batch);
        for (number, (queue, offered)) in self.sinks.iter().zip(&mut self.offered).enumerate() {
            // The last sink gets the batch itself, so one sink costs no copy.
            let own = if number < last { batch.clone() } else { batch.take() };
            offered.offered.add_records(carried);
            if own.is_none_or(|own| queue.send_or_wait(own).is_err()) {
                offered.lost.add_loss(queue.loss_cause(), carried);
            }
        }
    }
}

fn make_export_outbox(channels: &OutputChannels, events: bool) -> Option<export::WorkerExportBuffer> {
    let export = channels.export.as_ref().filter(|(_, wants_events)| *wants_events == events);
    export.map(|(queue, _)| queue.make_outbox())
}

impl FlowEventReceiver for OutputQueues {
    fn on_record(&mut self, record: &FlowRecord) {
        if let Some(out) = &mut self.records_out {
            out.add_record(record);
        }
        if !self.sinks.is_empty() {
            self.records.push(record.clone());
            if self.records.len() >= RECORDS_PER_BATCH {
                self.send_records();
            }
        }
    }

    fn on_flow_opened(&mut self, flow_id: u64, key: &FlowKey, at_ns: u64) {
        self.add_event(SimEvent::Flow { flow_id, key: *key, at_ns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, Sender, bounded};
    use packetrig_flow::LossCause;

    fn record(packets: u64) -> FlowRecord {
        let mut record = FlowRecord::default();
        (record.forward.packets, record.forward.bytes) = (packets, 100 * packets);
        record
    }

    fn to(sinks: Vec<Sender<WorkerBatch>>) -> OutputChannels {
        let policy = BackpressurePolicy::default();
        let sinks = sinks.into_iter().map(|queue| OutputQueue::new(queue, &policy)).collect();
        OutputChannels { export: None, sinks, backpressure: policy }
    }

    fn carried(receiver: &Receiver<WorkerBatch>) -> CarriedRecords {
        let mut sum = CarriedRecords::default();
        receiver.try_iter().for_each(|batch| sum.add_records(batch.carried_records()));
        sum
    }

    #[test]
    fn full_queue_counts_records_of_dropped_batches() {
        let (batches, taken) = bounded(2);
        let mut outbox = OutputQueues::new(&to(vec![batches]));
        (0..RECORDS_PER_BATCH as u64 * 5).for_each(|n| outbox.on_record(&record(n)));
        outbox.flush_batches();
        let OfferedCounts { offered, lost } = outbox.offered_counts()[0];
        let dropped = lost.total_records();
        let mut accepted = carried(&taken);
        assert_eq!(
            (accepted.records, dropped.records),
            (2 * RECORDS_PER_BATCH as u64, 3 * RECORDS_PER_BATCH as u64)
        );
        accepted.add_records(dropped);
        assert_eq!(accepted, offered);
    }

    #[test]
    fn every_sink_gets_every_record() {
        let ((first, one), (second, two)) = (bounded(9), bounded(9));
        let mut outbox = OutputQueues::new(&to(vec![first, second]));
        outbox.on_flow_opened(1, &FlowKey::default(), 5);
        assert!(!outbox.wants_events());
        outbox.on_record(&record(3));
        outbox.flush_batches();
        outbox.flush_batches();
        let wanted = CarriedRecords { records: 1, packets: 3, bytes: 300 };
        assert_eq!((carried(&one), carried(&two)), (wanted, wanted));
        assert!(outbox.offered_counts().iter().all(|sink| sink.lost.is_empty()));
    }

    #[test]
    fn the_export_gets_what_it_wants() {
        for wants_events in [true, false] {
            let (queue, incoming) = export::open_export_queue(4 << 20, &BackpressurePolicy::default());
            let channels =
                OutputChannels { export: Some((queue, wants_events)), ..OutputChannels::default() };
            let mut outbox = OutputQueues::new(&channels);
            outbox.on_flow_opened(1, &FlowKey::default(), 5);
            outbox.add_event(SimEvent::Packet { flow_id: 1, bytes: 70, at_ns: 5 });
            outbox.on_record(&record(3));
            outbox.flush_batches();
            let sum = incoming.waiting();
            let (events, records) = ((2, 1, 70), (1, 3, 300));
            let wanted = if wants_events { events } else { records };
            assert_eq!((sum.records, sum.packets, sum.bytes), wanted);
        }
    }

    #[test]
    fn closed_sink_is_given_up_despite_waiting() {
        let (batches, taken) = bounded(1);
        drop(taken);
        let channels = to(vec![batches]);
        channels.backpressure.enable_backpressure();
        let mut outbox = OutputQueues::new(&channels);
        outbox.on_record(&record(3));
        outbox.flush_batches();
        let mut expected = RecordLosses::default();
        expected.add_loss(LossCause::GivenUp, CarriedRecords { records: 1, packets: 3, bytes: 300 });
        assert_eq!(outbox.offered_counts()[0].lost, expected);
    }
}
