//! The fabric inside one process: channels between threads, records and results in memory.
//!
//! Records and unconfirmed results are lost when the process ends.

use crate::fabric::{
    Endpoint, Error, Fabric, MAX_SEGMENT_BYTES, RecordStore, ResultReceiver, ResultSender, SegmentDelivery,
    SegmentId, StoredRecord,
};
use crate::message::{MessageBody, MessageEnvelope, NodeName, RunId};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select, unbounded};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of samples and hellos that wait for a slow reader. Further ones are dropped: a later sample or
/// hello has newer values.
const MAX_WAITING_SAMPLES: usize = 64;
/// Default capacity for segments that wait to be collected, in bytes.
const DEFAULT_RESULT_CAPACITY_BYTES: usize = 1 << 30;

/// A fabric in memory. All clones share its state.
#[derive(Clone, Debug, Default)]
pub struct LocalFabric {
    places: Arc<Mutex<BTreeMap<NodeName, LocalMailbox>>>,
    records: Arc<Mutex<BTreeMap<String, StoredRecord>>>,
    results: Arc<LocalResults>,
}

#[derive(Clone, Debug)]
struct LocalMailbox {
    /// Nodes whose messages are delivered here; `None` for all nodes. Hellos of all nodes are delivered in any case.
    listens_to: Option<Arc<Mutex<BTreeSet<NodeName>>>>,
    /// Messages that must not be lost.
    letters: Sender<MessageEnvelope>,
    telemetry: Sender<MessageEnvelope>,
    dropped: Arc<AtomicU64>,
}

/// An endpoint of the local fabric. Dropping it leaves the fabric.
#[derive(Debug)]
pub struct LocalEndpoint {
    name: NodeName,
    fabric: LocalFabric,
    letters: Receiver<MessageEnvelope>,
    telemetry: Receiver<MessageEnvelope>,
    dropped: Arc<AtomicU64>,
}

/// Segments that are not delivered yet, or delivered but not confirmed. `room` is the capacity for them, in bytes.
#[derive(Debug)]
struct LocalResults {
    room: usize,
    waiting: Mutex<WaitingSegments>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct WaitingSegments {
    fresh: BTreeMap<SegmentId, Vec<u8>>,
    taken: BTreeMap<SegmentId, Vec<u8>>,
    /// Reader of each run.
    readers: BTreeMap<RunId, String>,
}

impl WaitingSegments {
    /// Removes the reader of a run. Segments that it took and did not confirm are delivered again.
    fn remove_reader(&mut self, run: &RunId) {
        self.readers.remove(run);
        let again: Vec<SegmentId> = self.taken.keys().filter(|id| id.run == *run).cloned().collect();
        for id in again {
            self.fresh.extend(self.taken.remove(&id).map(|body| (id, body)));
        }
    }

    fn take_next_segment(&mut self, reader: &str) -> Option<SegmentDelivery<SegmentId>> {
        // The map is sorted by segment ID, so a reader gets the segments of a node in the order of their numbers.
        let mut fresh = self.fresh.keys();
        let id = fresh.find(|id| self.readers.get(&id.run).is_some_and(|own| own == reader))?.clone();
        let body = self.fresh.remove(&id)?;
        // A copy is kept until the segment is confirmed, because the next reader may need it.
        self.taken.insert(id.clone(), body.clone());
        Some(SegmentDelivery { token: id.clone(), id, body })
    }
}

impl Default for LocalResults {
    fn default() -> Self {
        Self { room: DEFAULT_RESULT_CAPACITY_BYTES, waiting: Mutex::default(), came: Condvar::new() }
    }
}

// A poisoned lock is usable: each of the maps is consistent between any two operations on it.
fn lock_ignoring_poison<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalFabric {
    /// Creates a fabric that keeps at most this many bytes of results.
    pub fn with_result_capacity(room: usize) -> Self {
        Self { results: Arc::new(LocalResults { room, ..LocalResults::default() }), ..Self::default() }
    }

    fn lock_mailboxes(&self) -> MutexGuard<'_, BTreeMap<NodeName, LocalMailbox>> {
        lock_ignoring_poison(&self.places)
    }
}

impl Fabric for LocalFabric {
    type Endpoint = LocalEndpoint;
    type Records = LocalRecords;
    type Outgoing = LocalOutgoing;
    type Incoming = LocalIncoming;

    fn open_endpoint(&self, name: NodeName) -> Result<LocalEndpoint, Error> {
        let mut places = self.lock_mailboxes();
        if places.contains_key(&name) {
            return Err(Error::Taken(name));
        }
        // Commands and replies must not be lost, so this channel is unbounded. The state machines send few of them, and
        // repeat them only after a while.
        let (letters, letters_in) = unbounded();
        let (telemetry, telemetry_in) = bounded(MAX_WAITING_SAMPLES);
        let dropped = Arc::new(AtomicU64::new(0));
        // A node receives from its controller, and a fleet's only controller from all nodes, so neither needs a list.
        let receives_all = !name.is_controller() || name == NodeName::controller();
        let listens_to = (!receives_all).then(Arc::default);
        let mailbox = LocalMailbox { listens_to, letters, telemetry, dropped: Arc::clone(&dropped) };
        places.insert(name.clone(), mailbox);
        Ok(LocalEndpoint {
            name,
            fabric: self.clone(),
            letters: letters_in,
            telemetry: telemetry_in,
            dropped,
        })
    }

    fn open_records(&self) -> Result<LocalRecords, Error> {
        Ok(LocalRecords(Arc::clone(&self.records)))
    }

    fn open_result_outlet(&self, _: &NodeName) -> Result<LocalOutgoing, Error> {
        Ok(LocalOutgoing(Arc::clone(&self.results)))
    }

    fn open_result_inlet(&self, reader: &str) -> Result<LocalIncoming, Error> {
        Ok(LocalIncoming { results: Arc::clone(&self.results), reader: reader.to_owned() })
    }
}

impl LocalEndpoint {
    /// The sender's name as the receiver sees it. All controllers have the same name for nodes.
    fn sender_name(&self) -> NodeName {
        if self.name.is_controller() { NodeName::controller() } else { self.name.clone() }
    }

    /// Delivers a message to every controller that listens to its sender.
    fn post_to_controllers(&self, letter: &MessageEnvelope) -> Result<(), Error> {
        let places = self.fabric.lock_mailboxes();
        let controllers = places.iter().filter(|(name, _)| name.is_controller());
        let controllers: Vec<_> =
            controllers.map(|(name, mailbox)| (name.clone(), mailbox.clone())).collect();
        // The lock is released before the message is delivered, so that other endpoints do not wait for it.
        drop(places);
        if controllers.is_empty() {
            return Err(Error::Unknown(NodeName::controller()));
        }
        for (name, mailbox) in controllers {
            if mailbox.accepts_message(letter) {
                // A controller that has just left gets nothing; the other endpoints still get the message.
                _ = mailbox.deliver_message(&name, letter.clone());
            }
        }
        Ok(())
    }

    fn change_listen_list(&self, change: impl FnOnce(&mut BTreeSet<NodeName>)) {
        // The list has its own lock, so a change does not delay messages of other endpoints.
        let own_place =
            self.fabric.lock_mailboxes().get(&self.name).and_then(|place| place.listens_to.clone());
        if let Some(listens_to) = own_place {
            change(&mut lock_ignoring_poison(&listens_to));
        }
    }
}

impl Endpoint for LocalEndpoint {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error> {
        let letter = MessageEnvelope { from: self.sender_name(), body };
        if *to == NodeName::controller() {
            return self.post_to_controllers(&letter);
        }
        let mailbox =
            self.fabric.lock_mailboxes().get(to).cloned().ok_or_else(|| Error::Unknown(to.clone()))?;
        mailbox.deliver_message(to, letter)
    }

    fn post_to_all_nodes(&mut self, body: MessageBody) -> Result<(), Error> {
        // The list is copied, so that the lock is not held while the message is put into the mailboxes.
        let others: Vec<_> =
            self.fabric.lock_mailboxes().iter().map(|(n, m)| (n.clone(), m.clone())).collect();
        for (to, mailbox) in others.into_iter().filter(|(name, _)| *name != self.name) {
            let letter = MessageEnvelope { from: self.sender_name(), body: body.clone() };
            // A member that has just left gets nothing; the other members still get the message.
            _ = mailbox.deliver_message(&to, letter);
        }
        Ok(())
    }

    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error> {
        self.change_listen_list(|listens_to| listens_to.extend(nodes.iter().cloned()));
        Ok(())
    }

    fn stop_listening_to(&mut self, nodes: &[NodeName]) {
        self.change_listen_list(|listens_to| listens_to.retain(|node| !nodes.contains(node)));
    }

    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        // Commands and replies come first, because `select!` chooses at random among channels that are ready.
        if let Ok(letter) = self.letters.try_recv() {
            return Some(letter);
        }
        // Neither channel closes while this endpoint exists: the fabric holds its senders.
        select! {
            recv(self.letters) -> letter => letter.ok(),
            recv(self.telemetry) -> sample => sample.ok(),
            default(within.to_std()) => None,
        }
    }

    fn dropped_telemetry(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for LocalEndpoint {
    fn drop(&mut self) {
        self.fabric.lock_mailboxes().remove(&self.name);
    }
}

impl LocalMailbox {
    fn accepts_message(&self, letter: &MessageEnvelope) -> bool {
        let is_for_all = matches!(letter.body, MessageBody::Hello(_));
        is_for_all
            || self.listens_to.as_ref().is_none_or(|nodes| lock_ignoring_poison(nodes).contains(&letter.from))
    }

    fn deliver_message(&self, to: &NodeName, letter: MessageEnvelope) -> Result<(), Error> {
        if !letter.body.may_be_dropped() {
            return self.letters.send(letter).map_err(|_| Error::Gone(to.clone()));
        }
        match self.telemetry.try_send(letter) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                // If the reader is slow, samples and hellos are dropped; the sender never waits.
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => Err(Error::Gone(to.clone())),
        }
    }
}

#[derive(Clone, Debug)]
pub struct LocalRecords(Arc<Mutex<BTreeMap<String, StoredRecord>>>);

impl RecordStore for LocalRecords {
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, Error> {
        Ok(lock_ignoring_poison(&self.0).get(key).cloned())
    }

    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, Error> {
        let mut records = lock_ignoring_poison(&self.0);
        if records.contains_key(key) {
            return Err(Error::Exists(key.to_owned()));
        }
        records.insert(key.to_owned(), StoredRecord { value: value.to_vec(), revision: 1 });
        Ok(1)
    }

    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error> {
        match lock_ignoring_poison(&self.0).get_mut(key).filter(|record| record.revision == revision) {
            Some(record) => {
                *record = StoredRecord { value: value.to_vec(), revision: revision + 1 };
                Ok(revision + 1)
            }
            None => Err(Error::Stale(key.to_owned())),
        }
    }

    fn remove_record(&mut self, key: &str) -> Result<(), Error> {
        lock_ignoring_poison(&self.0).remove(key);
        Ok(())
    }

    fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, Error> {
        let records = lock_ignoring_poison(&self.0);
        Ok(records.keys().filter(|key| key.starts_with(prefix)).cloned().collect())
    }
}

/// The node's side of result delivery in memory.
#[derive(Clone, Debug)]
pub struct LocalOutgoing(Arc<LocalResults>);

impl ResultSender for LocalOutgoing {
    fn append_segment(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error> {
        if body.len() > MAX_SEGMENT_BYTES {
            return Err(Error::TooLarge(body.len()));
        }
        let mut waiting = lock_ignoring_poison(&self.0.waiting);
        // A repetition after a lost answer: the first copy counts.
        if waiting.fresh.contains_key(id) || waiting.taken.contains_key(id) {
            return Ok(());
        }
        // Delivered segments that are not confirmed count as well, because they may have to be delivered again.
        let kept: usize = waiting.fresh.values().chain(waiting.taken.values()).map(Vec::len).sum();
        if kept + body.len() > self.0.room {
            return Err(Error::Full);
        }
        waiting.fresh.insert(id.clone(), body.to_vec());
        self.0.came.notify_all();
        Ok(())
    }
}

/// A controller's side of result delivery in memory. Dropping it stops reading all its runs.
#[derive(Debug)]
pub struct LocalIncoming {
    results: Arc<LocalResults>,
    reader: String,
}

impl Drop for LocalIncoming {
    fn drop(&mut self) {
        let mut waiting = lock_ignoring_poison(&self.results.waiting);
        let of_this = waiting.readers.iter().filter(|(_, reader)| **reader == self.reader);
        let runs: Vec<RunId> = of_this.map(|(run, _)| run.clone()).collect();
        for run in runs {
            waiting.remove_reader(&run);
        }
        self.results.came.notify_all();
    }
}

impl ResultReceiver for LocalIncoming {
    type Token = SegmentId;

    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), Error> {
        let mut waiting = lock_ignoring_poison(&self.results.waiting);
        match waiting.readers.get(run) {
            Some(reader) if *reader == self.reader => return Ok(()),
            Some(reader) if !instead_of.contains(reader) => {
                return Err(Error::Taken(NodeName(reader.clone())));
            }
            _ => {}
        }
        // Unconfirmed segments of the former reader are delivered again, so its confirmations are refused from now on.
        waiting.remove_reader(run);
        waiting.readers.insert(run.clone(), self.reader.clone());
        self.results.came.notify_all();
        Ok(())
    }

    fn leave_run(&mut self, run: &RunId) {
        let mut waiting = lock_ignoring_poison(&self.results.waiting);
        if waiting.readers.get(run) == Some(&self.reader) {
            waiting.remove_reader(run);
        }
    }

    fn list_runs_with_waiting_segments(&mut self) -> Result<BTreeMap<RunId, BTreeSet<String>>, Error> {
        let waiting = lock_ignoring_poison(&self.results.waiting);
        let runs = waiting.fresh.keys().chain(waiting.taken.keys()).map(|id| id.run.clone());
        Ok(runs.map(|run| (run.clone(), waiting.readers.get(&run).cloned().into_iter().collect())).collect())
    }

    fn receive_segment(&mut self, within: Nanos) -> Option<SegmentDelivery<SegmentId>> {
        let mut next = None;
        let waiting = lock_ignoring_poison(&self.results.waiting);
        // The segment is taken in the condition, under the lock, so that two readers never get the same segment.
        drop(self.results.came.wait_timeout_while(waiting, within.to_std(), |waiting| {
            next = waiting.take_next_segment(&self.reader);
            next.is_none()
        }));
        next
    }

    fn confirm_segment(&mut self, token: SegmentId) -> Result<(), Error> {
        let mut waiting = lock_ignoring_poison(&self.results.waiting);
        // A reader that was replaced can confirm nothing.
        if waiting.readers.get(&token.run) != Some(&self.reader) {
            return Err(Error::Unanswered(format!(
                "reader {} does not read run {} any more",
                self.reader, token.run
            )));
        }
        waiting.taken.remove(&token);
        Ok(())
    }
}
