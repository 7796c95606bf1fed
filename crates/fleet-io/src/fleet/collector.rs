//! Receives segments of the nodes' results from the fabric, stores them, and confirms them to the fabric.
//!
//! Waiting segments are stored together, so that the number of writes to the disk does not grow with the number of
//! nodes. [`reading`] decides for which runs segments are received.
//!
//! Invariant: a segment is confirmed to the fabric only after the store has stored it.

mod reading;
#[cfg(test)]
mod tests;

pub(super) use reading::OtherRuns;

use crate::error::{Error, ignore_failure};
use crossbeam_channel::{Receiver, Sender, unbounded};
use packetrig_fleet::fabric::{self, RecordStore, ResultReceiver, SegmentDelivery, SegmentId};
use packetrig_fleet::message::StoredWatermark;
use packetrig_report::{NodeName, RunId};
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_units::Nanos;
use reading::RunReadingState;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Time within which the collector notices that it is to end.
const END_CHECK_INTERVAL: Nanos = Nanos::from_millis(50);
/// Maximum number of segments that are stored together.
const MAX_SEGMENTS_STORED_TOGETHER: usize = 64;
/// A batch gets no further segment once its segments have this many bytes together.
const SEGMENT_BATCH_BYTES: usize = 16 << 20;

/// Permanent store of segments.
pub trait ResultStore: Send {
    /// Stores segments; storing a segment twice does no harm. An error with one segment does not affect the others.
    fn store_segments(&mut self, segments: &[ReceivedSegment]) -> StoredBatch;
    /// Returns whether this store has the run. If it has, late results of the run belong here.
    fn knows_run(&self, run: &RunId) -> bool;
}

/// A segment as it was received.
#[derive(Clone, Debug)]
pub struct ReceivedSegment {
    pub id: SegmentId,
    pub body: Vec<u8>,
}

/// Outcome of storing several segments together.
#[derive(Debug, Default)]
pub struct StoredBatch {
    /// One outcome for each segment, in the order of the segments.
    pub outcomes: Vec<Result<(), ResultStoreError>>,
    /// New state of each part of a run that got segments.
    pub parts: Vec<StoredPart>,
}

/// Reason why a segment was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultStoreError {
    /// Temporary: the disk is full, or the catalogue is in use. The fabric delivers the segment again.
    ForNow(String),
    /// Permanent: the segment cannot be read. It was set aside, if the store has space, and must
    /// not be delivered again.
    Unreadable(String),
}

/// Results of one node in one attempt of a run, as far as they are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredPart {
    pub node: NodeName,
    /// The run, the attempt, and the first number that is not stored. The node may delete the segments below it.
    pub mark: StoredWatermark,
    pub contents: PartContents,
    /// Sentence that a late result was added to the report of its run; `None` if no report was written again.
    pub completed: Option<String>,
}

/// Contents of a part (the results of one node in an attempt); empty until all its segments are stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartContents {
    /// The node's result; `None` if segments are missing, or if the node did not finish.
    pub result: Option<Arc<NodeResult>>,
    /// How far the node came, if it did not finish: then its segments are all stored, but contain no result.
    pub cut_short: Option<UnfinishedPart>,
    /// Losses in the node's results, known once its last segment is stored.
    pub doubts: Vec<String>,
    /// Captures that are still on the node.
    pub elsewhere: Vec<String>,
}

/// A node that did not finish: the reason, and its last known counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedPart {
    pub reason: Option<String>,
    pub counted: Option<KnownFrameCounts>,
}

/// Frames that a node had sent and received at some time before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFrameCounts {
    pub sent: u64,
    pub received: u64,
}

impl KnownFrameCounts {
    pub fn from_sample(sample: &CountSample) -> Self {
        Self {
            sent: sample.tx.iter().map(|(_, counts)| counts.frames).sum(),
            received: sample.rx.iter().map(|(.., counts)| counts.frames).sum(),
        }
    }

    /// Returns the larger value of each count. Counts only rise, so these are the newer ones.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { sent: self.sent.max(other.sent), received: self.received.max(other.received) }
    }
}

impl UnfinishedPart {
    /// Adds counts from another source, and keeps the larger values.
    #[must_use]
    pub fn with_counts(self, others: Option<KnownFrameCounts>) -> Self {
        Self { counted: self.counted.into_iter().chain(others).reduce(KnownFrameCounts::max), ..self }
    }
}

impl fmt::Display for UnfinishedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.counted.map(|KnownFrameCounts { sent, received }| {
            format!("last known frame counts: {sent} sent, {received} received")
        });
        let words: Vec<String> = self.reason.clone().into_iter().chain(counted).collect();
        if words.is_empty() {
            f.write_str("it stored no result and no counts")
        } else {
            f.write_str(&words.join("; "))
        }
    }
}

/// Event of the collector.
#[derive(Debug)]
pub(super) enum CollectorEvent {
    /// Segments of a node were stored.
    Stored(Box<StoredPart>),
    /// Segments could not be stored or confirmed, or runs could not be read; this is tried again.
    Trouble(String),
    /// This many segments of a node will never be stored.
    Refused { node: NodeName, count: u64, why: String },
}

#[derive(Debug)]
pub(super) struct SegmentCollector {
    events: Receiver<CollectorEvent>,
    wanted: Sender<RunId>,
    is_drained: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SegmentCollector {
    pub(super) fn start_collecting<I: ResultReceiver + 'static, R: RecordStore + 'static>(
        incoming: I,
        store: Box<dyn ResultStore>,
        others: OtherRuns<R>,
    ) -> Result<Self, Error> {
        // The channel is unbounded: the collector must not wait for the executor, which reads no events between runs.
        let (event_sender, events) = unbounded();
        let (wanted, wanted_runs) = unbounded();
        let over = Arc::new(AtomicBool::new(false));
        let is_drained = Arc::new(AtomicBool::new(false));
        let reading = RunReadingState::new(incoming, others, Arc::clone(&is_drained));
        let is_over = Arc::clone(&over);
        let thread = Builder::new()
            .name("collector".to_owned())
            .spawn(move || collect_segments(reading, store, &event_sender, &wanted_runs, &is_over))
            .map_err(Error::Thread)?;
        Ok(Self { events, wanted, is_drained, over, thread: Some(thread) })
    }

    /// Makes the collector read the results of this run from now on.
    pub(super) fn read_run(&self, run: &RunId) {
        // If the thread has ended, the collector is being dropped: no result is read any more.
        ignore_failure(self.wanted.send(run.clone()));
    }

    /// Returns whether no result waited for this controller when the collector last checked.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Acquire)
    }

    /// Returns the next event, without waiting for one.
    pub(super) fn next_event(&self) -> Option<CollectorEvent> {
        self.events.try_recv().ok()
    }
}

impl Drop for SegmentCollector {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The fabric delivers unconfirmed segments once more, to the next collector.
            drop(thread.join());
        }
    }
}

fn collect_segments<I: ResultReceiver, R: RecordStore>(
    mut reading: RunReadingState<I, R>,
    mut store: Box<dyn ResultStore>,
    event_sender: &Sender<CollectorEvent>,
    wanted_runs: &Receiver<RunId>,
    over: &AtomicBool,
) {
    while !over.load(Ordering::Acquire) {
        reading.update_run_reading(wanted_runs, &*store);
        let incoming = &mut reading.incoming;
        let deliveries = take_waiting_segments(incoming);
        let mut events = take_refusal_events(incoming);
        if !deliveries.is_empty() {
            events.extend(store_deliveries(incoming, &mut *store, deliveries));
        }
        events.extend(reading.take_events());
        for event in events {
            // The receiver may be gone already, because the collector is about to end.
            ignore_failure(event_sender.send(event));
        }
    }
}

/// Takes the waiting segments, up to the maximum that is stored together. Waits only for the first one.
fn take_waiting_segments<I: ResultReceiver>(incoming: &mut I) -> Vec<SegmentDelivery<I::Token>> {
    let mut deliveries = Vec::new();
    let mut bytes = 0;
    let mut within = END_CHECK_INTERVAL;
    while deliveries.len() < MAX_SEGMENTS_STORED_TOGETHER && bytes < SEGMENT_BATCH_BYTES {
        let Some(delivery) = incoming.receive_segment(within) else { break };
        // The size is checked before each segment is added, so a batch exceeds its limit by at most one segment.
        bytes += delivery.body.len();
        deliveries.push(delivery);
        within = Nanos::ZERO;
    }
    deliveries
}

/// Returns events for the segments that the fabric refused, and for the problems that it met, since the last call.
fn take_refusal_events<I: ResultReceiver>(incoming: &mut I) -> Vec<CollectorEvent> {
    let why = "their name, or their signature by the node, is missing or not valid";
    let refused = incoming.take_refused_counts().into_iter();
    let refused = refused.map(|(node, count)| CollectorEvent::Refused { node, count, why: why.to_owned() });
    let mut events: Vec<CollectorEvent> = refused.collect();
    events.extend(incoming.take_unreadable_keys().into_iter().map(|(node, why)| {
        CollectorEvent::Trouble(format!(
            "cannot store results of node {node} yet, because its key cannot be read: {why}"
        ))
    }));
    events.extend(incoming.take_problems().into_iter().map(|error| {
        CollectorEvent::Trouble(format!("cannot read results from the message server: {error}; trying again"))
    }));
    events
}

/// Stores segments together. Confirms the segments that are stored or can never be stored.
fn store_deliveries<I: ResultReceiver>(
    incoming: &mut I,
    store: &mut dyn ResultStore,
    deliveries: Vec<SegmentDelivery<I::Token>>,
) -> Vec<CollectorEvent> {
    let mut segments = Vec::with_capacity(deliveries.len());
    let mut tokens = Vec::with_capacity(deliveries.len());
    for SegmentDelivery { id, body, token } in deliveries {
        // Segments and tokens keep the same order: outcomes are matched to them by position.
        segments.push(ReceivedSegment { id, body });
        tokens.push(token);
    }
    let StoredBatch { outcomes, parts } = store.store_segments(&segments);
    let mut events = Vec::new();
    let mut finished = Vec::new();
    let mut finished_tokens = Vec::new();
    for ((ReceivedSegment { id, .. }, token), outcome) in segments.into_iter().zip(tokens).zip(outcomes) {
        // The segment is not confirmed, so the fabric delivers it again. An unreadable segment is confirmed:
        // otherwise it would come for ever.
        if let Err(ResultStoreError::ForNow(error)) = outcome {
            events.push(CollectorEvent::Trouble(format!(
                "cannot store segment {id} of the results yet: {error}; trying again"
            )));
        } else {
            finished.push((id, outcome));
            finished_tokens.push(token);
        }
    }
    // This comes after the store: a crash in between causes a second delivery, but loses no result.
    let confirmed = incoming.confirm_segments(finished_tokens);
    events.extend(confirmed_events(finished, confirmed, parts));
    events
}

/// Returns the events for segments that were confirmed, and for the parts that they belong to. A part without a
/// confirmed segment gets no event, because another controller may read its run now.
fn confirmed_events(
    finished: Vec<(SegmentId, Result<(), ResultStoreError>)>,
    confirmed: Vec<Result<(), fabric::Error>>,
    parts: Vec<StoredPart>,
) -> Vec<CollectorEvent> {
    let mut events = Vec::new();
    let mut stored = BTreeSet::new();
    for ((id, outcome), confirmed) in finished.into_iter().zip(confirmed) {
        match (confirmed, outcome) {
            // The segment is stored, but the fabric may deliver it again. Storing it twice does no harm.
            (Err(error), _) => {
                events.push(CollectorEvent::Trouble(format!(
                    "segment {id} of the results was stored, but the message server was not informed: {error}"
                )));
            }
            (Ok(()), Err(ResultStoreError::Unreadable(why) | ResultStoreError::ForNow(why))) => {
                events.push(CollectorEvent::Refused { node: id.node, count: 1, why });
            }
            (Ok(()), Ok(())) => {
                stored.insert((id.run, id.attempt, id.node));
            }
        }
    }
    for part in parts {
        if stored.contains(&(part.mark.run.clone(), part.mark.attempt, part.node.clone())) {
            events.push(CollectorEvent::Stored(Box::new(part)));
        }
    }
    events
}
