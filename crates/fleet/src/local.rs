//! The fabric inside one process: channels between threads, records and results in memory.
//!
//! Nothing of it outlives the process; what has to is on the disks of nodes and controller.

use crate::fabric::{
    Delivery, Endpoint, Error, Fabric, Incoming, Outgoing, Record, Records, SEGMENT_ROOM, SegmentId,
};
use crate::message::{Body, Envelope, NodeName};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select, unbounded};
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Samples that wait for a slow reader; newer ones are dropped, and the next to get through makes up for them.
const TELEMETRY_ROOM: usize = 64;
/// Bytes of segments that wait to be collected, unless told otherwise.
const RESULTS_ROOM: usize = 1 << 30;

/// See the module. Clones are the same fabric.
#[derive(Clone, Debug, Default)]
pub struct Local {
    places: Arc<Mutex<BTreeMap<NodeName, Mailbox>>>,
    records: Arc<Mutex<BTreeMap<String, Record>>>,
    results: Arc<Results>,
}

#[derive(Clone, Debug)]
struct Mailbox {
    letters: Sender<Envelope>,
    telemetry: Sender<Envelope>,
    dropped: Arc<AtomicU64>,
}

/// A place on the local fabric; dropping it leaves.
#[derive(Debug)]
pub struct LocalEndpoint {
    name: NodeName,
    fabric: Local,
    letters: Receiver<Envelope>,
    telemetry: Receiver<Envelope>,
    dropped: Arc<AtomicU64>,
}

/// Segments that wait: those not taken yet, and those taken and not confirmed.
#[derive(Debug)]
struct Results {
    room: usize,
    waiting: Mutex<Waiting>,
    came: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    fresh: BTreeMap<SegmentId, Vec<u8>>,
    taken: BTreeMap<SegmentId, Vec<u8>>,
}

impl Default for Results {
    fn default() -> Self {
        Self { room: RESULTS_ROOM, waiting: Mutex::default(), came: Condvar::new() }
    }
}

// Each of the maps is whole between any two operations on it.
fn own<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Local {
    /// A fabric that keeps at most this many bytes of results.
    pub fn with_room(room: usize) -> Self {
        Self { results: Arc::new(Results { room, ..Results::default() }), ..Self::default() }
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<NodeName, Mailbox>> {
        own(&self.places)
    }
}

impl Fabric for Local {
    type Endpoint = LocalEndpoint;
    type Records = LocalRecords;
    type Outgoing = LocalResults;
    type Incoming = LocalResults;

    fn join(&self, name: NodeName) -> Result<LocalEndpoint, Error> {
        let mut places = self.places();
        if places.contains_key(&name) {
            return Err(Error::Taken(name));
        }
        let (letters, letters_in) = unbounded();
        let (telemetry, telemetry_in) = bounded(TELEMETRY_ROOM);
        let dropped = Arc::new(AtomicU64::new(0));
        places.insert(name.clone(), Mailbox { letters, telemetry, dropped: Arc::clone(&dropped) });
        Ok(LocalEndpoint {
            name,
            fabric: self.clone(),
            letters: letters_in,
            telemetry: telemetry_in,
            dropped,
        })
    }

    fn records(&self) -> Result<LocalRecords, Error> {
        Ok(LocalRecords(Arc::clone(&self.records)))
    }

    fn outgoing(&self, _: &NodeName) -> Result<LocalResults, Error> {
        Ok(LocalResults(Arc::clone(&self.results)))
    }

    fn incoming(&self) -> Result<LocalResults, Error> {
        // A new controller is shown again what the one before did not confirm.
        let mut waiting = own(&self.results.waiting);
        let taken = std::mem::take(&mut waiting.taken);
        waiting.fresh.extend(taken);
        drop(waiting);
        Ok(LocalResults(Arc::clone(&self.results)))
    }
}

impl Endpoint for LocalEndpoint {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn post(&mut self, to: &NodeName, body: Body) -> Result<(), Error> {
        let mailbox = self.fabric.places().get(to).cloned().ok_or_else(|| Error::Unknown(to.clone()))?;
        mailbox.put(to, Envelope { from: self.name.clone(), body })
    }

    fn post_all(&mut self, body: Body) -> Result<(), Error> {
        let others: Vec<_> = self.fabric.places().iter().map(|(n, m)| (n.clone(), m.clone())).collect();
        for (to, mailbox) in others.into_iter().filter(|(name, _)| *name != self.name) {
            let letter = Envelope { from: self.name.clone(), body: body.clone() };
            // Who has just left is not there to be told.
            mailbox.put(&to, letter).unwrap_or(());
        }
        Ok(())
    }

    fn receive(&mut self, within: Nanos) -> Option<Envelope> {
        if let Ok(letter) = self.letters.try_recv() {
            return Some(letter);
        }
        // Neither channel closes while this endpoint lives: the fabric holds its senders.
        select! {
            recv(self.letters) -> letter => letter.ok(),
            recv(self.telemetry) -> sample => sample.ok(),
            default(within.to_std()) => None,
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for LocalEndpoint {
    fn drop(&mut self) {
        self.fabric.places().remove(&self.name);
    }
}

impl Mailbox {
    fn put(&self, to: &NodeName, letter: Envelope) -> Result<(), Error> {
        let gone = |_| Error::Gone(to.clone());
        if !letter.body.may_be_dropped() {
            return self.letters.send(letter).map_err(gone);
        }
        match self.telemetry.try_send(letter) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => Err(Error::Gone(to.clone())),
        }
    }
}

/// Records in memory.
#[derive(Clone, Debug)]
pub struct LocalRecords(Arc<Mutex<BTreeMap<String, Record>>>);

impl Records for LocalRecords {
    fn get(&mut self, key: &str) -> Result<Option<Record>, Error> {
        Ok(own(&self.0).get(key).cloned())
    }

    fn create(&mut self, key: &str, value: &[u8]) -> Result<u64, Error> {
        let mut records = own(&self.0);
        if records.contains_key(key) {
            return Err(Error::Exists(key.to_owned()));
        }
        records.insert(key.to_owned(), Record { value: value.to_vec(), revision: 1 });
        Ok(1)
    }

    fn replace(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error> {
        match own(&self.0).get_mut(key).filter(|record| record.revision == revision) {
            Some(record) => {
                *record = Record { value: value.to_vec(), revision: revision + 1 };
                Ok(revision + 1)
            }
            None => Err(Error::Stale(key.to_owned())),
        }
    }

    fn remove(&mut self, key: &str) -> Result<(), Error> {
        own(&self.0).remove(key);
        Ok(())
    }

    fn keys(&mut self, prefix: &str) -> Result<Vec<String>, Error> {
        let records = own(&self.0);
        Ok(records.keys().filter(|key| key.starts_with(prefix)).cloned().collect())
    }
}

/// Either end of the results' way in memory.
#[derive(Clone, Debug)]
pub struct LocalResults(Arc<Results>);

impl Outgoing for LocalResults {
    fn append(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error> {
        if body.len() > SEGMENT_ROOM {
            return Err(Error::TooLarge(body.len()));
        }
        let mut waiting = own(&self.0.waiting);
        if waiting.fresh.contains_key(id) || waiting.taken.contains_key(id) {
            return Ok(());
        }
        let kept: usize = waiting.fresh.values().chain(waiting.taken.values()).map(Vec::len).sum();
        if kept + body.len() > self.0.room {
            return Err(Error::Full);
        }
        waiting.fresh.insert(id.clone(), body.to_vec());
        self.0.came.notify_one();
        Ok(())
    }
}

impl Incoming for LocalResults {
    type Token = SegmentId;

    fn collect(&mut self, within: Nanos) -> Option<Delivery<SegmentId>> {
        let nothing = |waiting: &mut Waiting| waiting.fresh.is_empty();
        let waiting = own(&self.0.waiting);
        let waited = self.0.came.wait_timeout_while(waiting, within.to_std(), nothing);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        let (id, body) = waiting.fresh.pop_first()?;
        waiting.taken.insert(id.clone(), body.clone());
        Some(Delivery { token: id.clone(), id, body })
    }

    fn confirm(&mut self, token: SegmentId) -> Result<(), Error> {
        own(&self.0.waiting).taken.remove(&token);
        Ok(())
    }
}
