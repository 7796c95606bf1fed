//! The fabric inside one process: channels between threads.

use crate::fabric::{Endpoint, Error, Fabric};
use crate::message::{Envelope, NodeName};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select, unbounded};
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Samples that wait for a slow reader; newer ones are dropped, and the next to get through makes up for them.
const TELEMETRY_ROOM: usize = 64;

/// See the module. Clones are the same fabric.
#[derive(Clone, Debug, Default)]
pub struct Local {
    places: Arc<Mutex<BTreeMap<NodeName, Mailbox>>>,
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

impl Local {
    fn places(&self) -> MutexGuard<'_, BTreeMap<NodeName, Mailbox>> {
        // The map is whole between any two operations on it.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fabric for Local {
    type Endpoint = LocalEndpoint;

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
}

impl Endpoint for LocalEndpoint {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn post(&mut self, to: &NodeName, envelope: Envelope) -> Result<(), Error> {
        let mailbox = self.fabric.places().get(to).cloned().ok_or_else(|| Error::Unknown(to.clone()))?;
        let gone = |_| Error::Gone(to.clone());
        if !envelope.body.may_be_dropped() {
            return mailbox.letters.send(envelope).map_err(gone);
        }
        match mailbox.telemetry.try_send(envelope) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                mailbox.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(TrySendError::Disconnected(_)) => Err(Error::Gone(to.clone())),
        }
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
