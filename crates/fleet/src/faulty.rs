//! A fabric with faults, for tests: wraps any other fabric, and loses, repeats, delays, refuses or blocks its messages
//! and calls on demand.
//!
//! The test switches faults on and off: nothing is random and nothing depends on time.
//! Invariant: without a fault it behaves like the wrapped fabric, except that the optional calls of [`ResultReceiver`]
//! (discarding, problems, refused segments) do nothing.

use crate::fabric::{
    Endpoint, Error, Fabric, RecordStore, ResultReceiver, ResultSender, SegmentDelivery, SegmentId,
    StoredRecord,
};
use crate::message::{MessageBody, MessageEnvelope, NodeName, RunId};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Active faults; [`FaultyFabric::set_faults`] changes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "faults are independent switches")]
pub struct FabricFaults {
    /// If it is `n`, each `n`th message is lost.
    pub lose_each: Option<u64>,
    /// If it is `n`, each `n`th message arrives twice.
    pub repeat_each: Option<u64>,
    /// A message is delivered only after this many later messages were posted.
    pub hold_back: usize,
    /// The connection is cut: posts and calls fail with [`Error::Down`], and receivers get nothing. Endpoints, records,
    /// outlets and inlets can still be opened.
    pub cut: bool,
    /// Appends fail with [`Error::Full`].
    pub full: bool,
    /// Segments are appended, but the answer is lost: the caller gets [`Error::Unanswered`].
    pub unanswered: bool,
    /// Posts, appends and changes of records fail with [`Error::NotPermitted`].
    pub refuse: bool,
}

#[derive(Debug, Default)]
struct FaultyState {
    faults: FabricFaults,
    posts: u64,
}

/// Wraps a fabric. Clones share the faults.
#[derive(Clone, Debug)]
pub struct FaultyFabric<F> {
    inside: F,
    state: Arc<Mutex<FaultyState>>,
}

impl<F> FaultyFabric<F> {
    /// Wraps a fabric. No fault is active at first.
    pub fn new(inside: F) -> Self {
        Self { inside, state: Arc::default() }
    }

    /// Replaces the active faults.
    pub fn set_faults(&self, faults: FabricFaults) {
        lock_ignoring_poison(&self.state).faults = faults;
    }
}

fn lock_ignoring_poison(state: &Mutex<FaultyState>) -> std::sync::MutexGuard<'_, FaultyState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A wrapped part of the fabric: endpoint, records, result outlet or inlet.
#[derive(Debug)]
pub struct FaultyPart<P> {
    inside: P,
    state: Arc<Mutex<FaultyState>>,
    held: VecDeque<(Option<NodeName>, MessageBody)>,
}

impl<P> FaultyPart<P> {
    fn faults(&self) -> FabricFaults {
        lock_ignoring_poison(&self.state).faults
    }

    /// Returns the part, unless the fabric is cut.
    fn reachable_part_mut(&mut self) -> Result<&mut P, Error> {
        if self.faults().cut {
            return Err(Error::Down("the test cut the connection".to_owned()));
        }
        Ok(&mut self.inside)
    }

    /// Returns the part, unless changes are refused or the fabric is cut.
    fn changeable_part(&mut self, what: &str) -> Result<&mut P, Error> {
        if self.faults().refuse {
            return Err(Error::NotPermitted(what.to_owned()));
        }
        self.reachable_part_mut()
    }
}

impl<F: Fabric> FaultyFabric<F> {
    fn wrap_part<P>(&self, inside: P) -> FaultyPart<P> {
        FaultyPart { inside, state: Arc::clone(&self.state), held: VecDeque::new() }
    }
}

impl<F: Fabric> Fabric for FaultyFabric<F> {
    type Endpoint = FaultyPart<F::Endpoint>;
    type Records = FaultyPart<F::Records>;
    type Outgoing = FaultyPart<F::Outgoing>;
    type Incoming = FaultyPart<F::Incoming>;

    fn open_endpoint(&self, name: NodeName) -> Result<Self::Endpoint, Error> {
        Ok(self.wrap_part(self.inside.open_endpoint(name)?))
    }

    fn open_records(&self) -> Result<Self::Records, Error> {
        Ok(self.wrap_part(self.inside.open_records()?))
    }

    fn open_result_outlet(&self, node: &NodeName) -> Result<Self::Outgoing, Error> {
        Ok(self.wrap_part(self.inside.open_result_outlet(node)?))
    }

    fn open_result_inlet(&self, reader: &str) -> Result<Self::Incoming, Error> {
        Ok(self.wrap_part(self.inside.open_result_inlet(reader)?))
    }
}

/// True if a fault that affects each `n`th post affects the post with this number.
fn is_nth_post(number: u64, each: Option<u64>) -> bool {
    each.is_some_and(|n| number.is_multiple_of(n.max(1)))
}

impl<E: Endpoint> FaultyPart<E> {
    /// Delivers a message at once, later, twice or not at all, as the active faults demand. Without `to` it
    /// goes to all nodes.
    fn deliver_with_faults(&mut self, to: Option<&NodeName>, body: MessageBody) -> Result<(), Error> {
        let subject = to.map_or_else(|| "all".to_owned(), ToString::to_string);
        self.changeable_part(&subject)?;
        let faults = self.faults();
        let mut state = lock_ignoring_poison(&self.state);
        state.posts += 1;
        let number = state.posts;
        // The lock is released before the post: the wrapped fabric may wait, and all parts of this
        // fabric share the lock.
        drop(state);
        let times = if is_nth_post(number, faults.lose_each) {
            0
        } else {
            1 + usize::from(is_nth_post(number, faults.repeat_each))
        };
        for _ in 0..times {
            // A repetition goes through the same queue, so that it arrives right after the message.
            self.held.push_back((to.cloned(), body.clone()));
        }
        // A queue delays messages and keeps their order.
        while self.held.len() > faults.hold_back {
            match self.held.pop_front() {
                Some((Some(to), body)) => self.inside.post_message(&to, body)?,
                Some((None, body)) => self.inside.post_to_all_nodes(body)?,
                None => break,
            }
        }
        Ok(())
    }
}

impl<E: Endpoint> Endpoint for FaultyPart<E> {
    fn name(&self) -> &NodeName {
        self.inside.name()
    }

    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error> {
        self.deliver_with_faults(Some(to), body)
    }

    fn post_to_all_nodes(&mut self, body: MessageBody) -> Result<(), Error> {
        self.deliver_with_faults(None, body)
    }

    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error> {
        self.reachable_part_mut()?.listen_to(nodes)
    }

    fn stop_listening_to(&mut self, nodes: &[NodeName]) {
        self.inside.stop_listening_to(nodes);
    }

    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        if self.faults().cut {
            // Messages that arrived before the cut and were not read are lost.
            while self.inside.receive_message(Nanos::ZERO).is_some() {}
            return None;
        }
        self.inside.receive_message(within)
    }

    fn dropped_telemetry(&self) -> u64 {
        self.inside.dropped_telemetry()
    }

    fn take_problems(&mut self) -> Vec<Error> {
        self.inside.take_problems()
    }
}

impl<R: RecordStore> RecordStore for FaultyPart<R> {
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, Error> {
        self.reachable_part_mut()?.get_record(key)
    }

    fn get_records(&mut self, keys: &[String]) -> Result<Vec<Option<StoredRecord>>, Error> {
        self.reachable_part_mut()?.get_records(keys)
    }

    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, Error> {
        self.changeable_part(key)?.create_record(key, value)
    }

    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error> {
        self.changeable_part(key)?.replace_record(key, revision, value)
    }

    fn remove_record(&mut self, key: &str) -> Result<(), Error> {
        self.changeable_part(key)?.remove_record(key)
    }

    fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, Error> {
        self.reachable_part_mut()?.list_keys(prefix)
    }
}

impl<O: ResultSender> ResultSender for FaultyPart<O> {
    fn append_segment(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error> {
        let faults = self.faults();
        if faults.full {
            return Err(Error::Full);
        }
        // The segment is appended although the answer is lost: so tests show whether the caller can repeat the append.
        self.changeable_part(&id.to_string())?.append_segment(id, body)?;
        if faults.unanswered { Err(Error::Unanswered(id.to_string())) } else { Ok(()) }
    }
}

impl<I: ResultReceiver> ResultReceiver for FaultyPart<I> {
    type Token = I::Token;

    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), Error> {
        self.reachable_part_mut()?.read_run(run, instead_of)
    }

    fn leave_run(&mut self, run: &RunId) {
        self.inside.leave_run(run);
    }

    fn list_runs_with_waiting_segments(&mut self) -> Result<BTreeMap<RunId, BTreeSet<String>>, Error> {
        self.reachable_part_mut()?.list_runs_with_waiting_segments()
    }

    fn receive_segment(&mut self, within: Nanos) -> Option<SegmentDelivery<I::Token>> {
        self.reachable_part_mut().ok()?.receive_segment(within)
    }

    fn confirm_segment(&mut self, token: I::Token) -> Result<(), Error> {
        self.reachable_part_mut()?.confirm_segment(token)
    }
}
