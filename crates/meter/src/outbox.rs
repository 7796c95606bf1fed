//! What leaves a worker, on its way to the outputs.
//!
//! Records and events are collected into batches; a full batch goes to the queue of each output that wants its kind. A live
//! meter never waits: an output whose queue is full loses the batch, and what it carried is counted. A meter of files waits.
//!
//! Invariant: of every output, offered = accepted by its queue + dropped here.

use crate::Batch;
use crossbeam_channel::{Sender, TrySendError};
use packetrig_flow::sim::SimEvent;
use packetrig_flow::table::Outlet;
use packetrig_flow::{Carried, FlowKey, FlowRecord};

/// Records of a batch at most.
const RECORDS: usize = 256;
/// Events of a batch at most.
const EVENTS: usize = 1024;

/// What an output takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Flow records.
    Records,
    /// SIM: every packet and every new flow.
    Events,
}

/// The queue of an output.
#[derive(Clone, Debug)]
pub struct Queue {
    /// What it takes.
    pub wants: Wants,
    /// Where batches go.
    pub batches: Sender<Batch>,
}

/// What was given to an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// All of it.
    pub offered: Carried,
    /// What found its queue full.
    pub dropped: Carried,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    queues: Vec<Queue>,
    offered: Vec<Offered>,
    records: Vec<FlowRecord>,
    events: Vec<SimEvent>,
    wants_records: bool,
    wants_events: bool,
    /// Wait rather than lose.
    waits: bool,
}

impl Outbox {
    /// To these outputs.
    pub fn new(queues: Vec<Queue>, waits: bool) -> Self {
        let wants = |kind| queues.iter().any(|queue: &Queue| queue.wants == kind);
        let (wants_records, wants_events) = (wants(Wants::Records), wants(Wants::Events));
        Self {
            offered: vec![Offered::default(); queues.len()],
            records: Vec::with_capacity(if wants_records { RECORDS } else { 0 }),
            events: Vec::with_capacity(if wants_events { EVENTS } else { 0 }),
            wants_records,
            wants_events,
            waits,
            queues,
        }
    }

    /// Whether events are wanted.
    pub fn wants_events(&self) -> bool {
        self.wants_events
    }

    /// What was given to each output so far.
    pub fn offered(&self) -> &[Offered] {
        &self.offered
    }

    /// Takes an event.
    #[inline]
    pub fn event(&mut self, event: SimEvent) {
        self.events.push(event);
        if self.events.len() >= EVENTS {
            self.send_events();
        }
    }

    /// Sends what is there, full batch or not.
    pub fn flush(&mut self) {
        self.send_events();
        self.send_records();
    }

    fn send_events(&mut self) {
        if !self.events.is_empty() {
            let events = std::mem::replace(&mut self.events, Vec::with_capacity(EVENTS));
            self.send(Wants::Events, Batch::Sim(events));
        }
    }

    fn send_records(&mut self) {
        if !self.records.is_empty() {
            let records = std::mem::replace(&mut self.records, Vec::with_capacity(RECORDS));
            self.send(Wants::Records, Batch::Records(records));
        }
    }

    fn send(&mut self, kind: Wants, batch: Batch) {
        let carried = batch.carried();
        let waits = self.waits;
        let takers = self.queues.iter().zip(&mut self.offered).filter(|(queue, _)| queue.wants == kind);
        let mut takers = takers.peekable();
        let mut batch = Some(batch);
        while let Some((queue, offered)) = takers.next() {
            // The last one gets the batch itself.
            let own = if takers.peek().is_some() { batch.clone() } else { batch.take() };
            let Some(own) = own else { return };
            offered.offered.add(carried);
            let sent = if waits {
                queue.batches.send(own).map_err(|gone| TrySendError::Disconnected(gone.into_inner()))
            } else {
                queue.batches.try_send(own)
            };
            if sent.is_err() {
                offered.dropped.add(carried);
            }
        }
    }
}

impl Outlet for Outbox {
    fn record(&mut self, record: &FlowRecord) {
        if self.wants_records {
            self.records.push(*record);
            if self.records.len() >= RECORDS {
                self.send_records();
            }
        }
    }

    fn opened(&mut self, flow_id: u64, key: &FlowKey, at_ns: u64) {
        if self.wants_events {
            self.event(SimEvent::Flow { flow_id, key: *key, at_ns });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    fn record(packets: u64) -> FlowRecord {
        let mut record = FlowRecord::default();
        (record.forward.packets, record.forward.bytes) = (packets, 100 * packets);
        record
    }

    #[test]
    fn a_full_queue_loses_batches_and_says_what_they_carried() {
        let (batches, taken) = bounded(2);
        let mut outbox = Outbox::new(vec![Queue { wants: Wants::Records, batches }], false);
        (0..RECORDS as u64 * 5).for_each(|n| outbox.record(&record(n)));
        outbox.flush();
        let Offered { offered, dropped } = outbox.offered()[0];
        let mut accepted = Carried::default();
        taken.try_iter().for_each(|batch| accepted.add(batch.carried()));
        assert_eq!((accepted.records, dropped.records), (2 * RECORDS as u64, 3 * RECORDS as u64));
        accepted.add(dropped);
        assert_eq!(accepted, offered);
    }

    #[test]
    fn every_output_gets_what_it_wants() {
        let ((first, records), (second, events), (third, again)) = (bounded(9), bounded(9), bounded(9));
        let queue = |wants, batches| Queue { wants, batches };
        let queues =
            vec![queue(Wants::Records, first), queue(Wants::Events, second), queue(Wants::Records, third)];
        let mut outbox = Outbox::new(queues, true);
        outbox.opened(1, &FlowKey::default(), 5);
        outbox.event(SimEvent::Packet { flow_id: 1, bytes: 70, at_ns: 5 });
        outbox.record(&record(3));
        outbox.flush();
        outbox.flush();
        let carried = |receiver: &crossbeam_channel::Receiver<Batch>| {
            let mut sum = Carried::default();
            receiver.try_iter().for_each(|batch| sum.add(batch.carried()));
            sum
        };
        assert_eq!(carried(&records), Carried { records: 1, packets: 3, bytes: 300 });
        assert_eq!(carried(&again), Carried { records: 1, packets: 3, bytes: 300 });
        assert_eq!(carried(&events), Carried { records: 2, packets: 1, bytes: 70 });
        assert!(outbox.offered().iter().all(|output| output.dropped == Carried::default()));
    }

    #[test]
    fn an_output_that_has_gone_is_a_drop_also_where_one_waits() {
        let (batches, taken) = bounded(1);
        drop(taken);
        let mut outbox = Outbox::new(vec![Queue { wants: Wants::Records, batches }], true);
        outbox.record(&record(3));
        outbox.flush();
        assert_eq!(outbox.offered()[0].dropped, Carried { records: 1, packets: 3, bytes: 300 });
    }
}
