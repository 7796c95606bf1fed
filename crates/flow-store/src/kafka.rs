//! The sink for a Kafka topic: one message per record, a line of JSON with the flow id as key.
//!
//! It is a small producer over plain TCP. It waits for all replicas, numbers its batches so that brokers store a
//! repeated batch once, and sends all records of a flow to one partition. It supports neither TLS nor passwords.
//! Messages have no Kafka time, because brokers refuse a whole batch if one time is in the future; the flow's own times
//! are in the message.
//!
//! Invariant: every batch is counted as stored after a positive answer, or as lost after the last attempt. A batch that
//! is counted as lost may be stored nevertheless, if only the answers were lost.

mod batch;
mod broker;
mod wire;

use super::columns::ExporterRow;
use super::sink::sum_carried;
use super::{Error, RecordExporter, RecordSink, SinkRecordCounts};
use batch::{KafkaProducer, RecordBatch, split_into_batches};
use broker::{KafkaBroker, ProduceOutcome};
use packetrig_flow::FlowRecord;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, VecDeque};
use std::thread;

/// When this many rows wait, they are sent without waiting for the next tick.
const SEND_THRESHOLD_ROWS: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaOptions {
    /// Brokers to ask first, as `host` or `host:port`; the port is 9092 if none is named. They name the remaining
    /// brokers.
    pub brokers: Vec<String>,
    /// Name of the topic. Brokers that create topics automatically create it.
    pub topic: String,
    /// Number of attempts to send a batch.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles with each further attempt.
    pub wait: Nanos,
    /// Timeout of each attempt to connect, and of each read and write.
    pub timeout: Nanos,
}

impl KafkaOptions {
    /// The defaults: five attempts of ten seconds each, and a pause of 200 ms after the first one, twice as long
    /// after each further one.
    pub fn new(brokers: Vec<String>, topic: String) -> Self {
        Self { brokers, topic, attempts: 5, wait: Nanos::from_millis(200), timeout: Nanos::from_secs(10) }
    }
}

#[derive(Debug)]
pub struct KafkaSink {
    options: KafkaOptions,
    rows: Vec<ExporterRow>,
    kept: SinkRecordCounts,
    /// Partitions of the topic, in the order of their numbers; empty while unknown.
    partitions: Vec<TopicPartition>,
    connections: BTreeMap<i32, KafkaBroker>,
    producer: Option<KafkaProducer>,
    /// True after batches were lost. Each delivery then gets a single attempt, until one succeeds: an unreachable
    /// broker then costs little time.
    is_down: bool,
    /// Error of a batch that a broker will never accept. It is returned after the other batches are sent.
    refusal: Option<Error>,
}

/// A partition of the topic.
#[derive(Clone, Debug)]
struct TopicPartition {
    number: i32,
    /// `None` while no broker leads the partition. Such a partition accepts no batch.
    leader: Option<PartitionLeader>,
}

/// The broker that leads a partition.
#[derive(Clone, Debug)]
struct PartitionLeader {
    broker: i32,
    address: String,
}

impl KafkaSink {
    /// Creates a sink, which connects when it has rows to send.
    pub fn new(options: KafkaOptions) -> Self {
        Self {
            options,
            rows: Vec::new(),
            kept: SinkRecordCounts::default(),
            partitions: Vec::new(),
            connections: BTreeMap::new(),
            producer: None,
            is_down: false,
            refusal: None,
        }
    }

    /// Sends the waiting rows. Counts the rows as lost that no attempt could send.
    fn deliver_rows(&mut self) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let attempts = if self.is_down { 1 } else { self.options.attempts.max(1) };
        let mut wait = self.options.wait;
        // All attempts share the batches: the first attempt that learns the partitions makes them from the rows.
        let mut batches = VecDeque::new();
        let mut done = Ok(());
        for attempt in 0..attempts {
            if attempt > 0 {
                thread::sleep(wait.to_std());
                wait = Nanos::new(wait.as_u64().saturating_mul(2));
            }
            done = self.try_deliver_batches(&mut batches);
            match &done {
                Ok(()) => break,
                Err(_) => self.count_failure_and_forget_cluster(),
            }
        }
        // A refusal of one batch does not stop the other batches, so it is reported only now.
        self.is_down = done.is_err();
        let done = done.and(self.refusal.take().map_or(Ok(()), Err));
        // `self.rows` has rows here only if no attempt could find the partitions.
        let unsent = batches.iter().flat_map(|batch| &batch.rows).chain(&self.rows);
        let lost = sum_carried(unsent.map(|row| &row.record));
        if lost.records > 0 {
            self.kept.count_lost(lost);
            self.rows.clear();
            // The broker would miss the sequence numbers of the lost batches: a new producer begins a new sequence.
            self.producer = None;
        }
        done
    }

    /// Counts a failed attempt. Forgets connections and partitions, because outdated leaders may be the reason.
    fn count_failure_and_forget_cluster(&mut self) {
        self.kept.failures += 1;
        self.connections.clear();
        self.partitions.clear();
    }

    fn try_deliver_batches(&mut self, unsent: &mut VecDeque<RecordBatch>) -> Result<(), Error> {
        if self.partitions.is_empty() {
            self.partitions = self.find_partitions()?;
        }
        // Rows become batches once, when the partitions are known. Later attempts send the same batches, with the same sequence
        // numbers as long as the producer is the same.
        if !self.rows.is_empty() {
            unsent.extend(split_into_batches(std::mem::take(&mut self.rows), &self.partitions));
        }
        while let Some(batch) = unsent.front_mut() {
            match self.send_batch(batch)? {
                ProduceOutcome::Stored => {
                    // Batches are counted one by one: a later failure must not take back rows that
                    // the broker has acknowledged.
                    self.kept.count_stored_records(sum_carried(batch.rows.iter().map(|row| &row.record)));
                }
                ProduceOutcome::Never(error) => {
                    self.kept.count_lost(sum_carried(batch.rows.iter().map(|row| &row.record)));
                    // The broker never stored the sequence numbers of this batch, see `deliver_rows`.
                    self.producer = None;
                    self.refusal = Some(error);
                }
            }
            unsent.pop_front();
        }
        Ok(())
    }

    fn send_batch(&mut self, batch: &mut RecordBatch) -> Result<ProduceOutcome, Error> {
        let partition = self.partitions.iter().find(|partition| partition.number == batch.partition);
        let leader = partition.and_then(|found| found.leader.clone()).ok_or_else(no_leader_error)?;
        if !self.connections.contains_key(&leader.broker) {
            let broker = KafkaBroker::connect(&leader.address, &self.options)?;
            self.connections.insert(leader.broker, broker);
        }
        let broker = self.connections.get_mut(&leader.broker).ok_or_else(no_leader_error)?;
        if self.producer.is_none() {
            self.producer = Some(broker.request_producer_id()?);
        }
        let Some(producer) = &mut self.producer else { return Err(no_leader_error()) };
        // Encoded for each attempt, because a new producer changes the sequence numbers in the batch.
        let bytes = batch.encode_for(producer);
        match broker.produce_batch(&self.options.topic, batch.partition, &bytes) {
            Err(Error::OutOfSequence { peer }) => {
                // The next attempt gets a new producer. Batches that were acknowledged are not sent again.
                self.producer = None;
                Err(Error::OutOfSequence { peer })
            }
            other => other,
        }
    }

    fn find_partitions(&self) -> Result<Vec<TopicPartition>, Error> {
        let mut last = Error::Refused { peer: "Kafka".into(), said: "no broker address was given".into() };
        // Any broker can name the leaders, so if one broker is down, the next one is asked.
        for address in &self.options.brokers {
            match KafkaBroker::connect(address, &self.options)
                .and_then(|mut broker| broker.fetch_partitions(&self.options.topic))
            {
                Ok(partitions) => return Ok(partitions),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn no_leader_error() -> Error {
    Error::Refused {
        peer: "Kafka".into(),
        said: "a partition of the topic has no leader at the moment".into(),
    }
}

impl RecordSink for KafkaSink {
    fn write_records(&mut self, records: &[FlowRecord], source: RecordExporter) -> Result<(), Error> {
        let mut done = Ok(());
        // Rows are added in portions: even in a large call, fewer than twice `SEND_THRESHOLD_ROWS` rows wait.
        for some in records.chunks(SEND_THRESHOLD_ROWS) {
            self.kept.count_offered(some);
            self.rows.extend(some.iter().map(|record| ExporterRow { record: record.clone(), source }));
            if self.rows.len() >= SEND_THRESHOLD_ROWS {
                done = self.deliver_rows().and(done);
            }
        }
        done
    }

    fn on_tick(&mut self, _now: MonoTime) -> Result<(), Error> {
        self.deliver_rows()
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        self.deliver_rows()
    }

    fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
        let done = self.deliver_rows();
        (self.kept, done)
    }

    fn kept_counts(&self) -> SinkRecordCounts {
        self.kept
    }
}

#[cfg(test)]
mod tests;
