//! What carries messages, records and results between controller and agents.
//!
//! Synchronous: post a message, wait for the next with a deadline; change a record; append a segment. Retries, barriers
//! and timeouts live in the machines; a networked fabric keeps its runtime inside itself. Each part is used by one
//! thread, and a thread that waits for a part blocks no other.
//!
//! * [`Endpoint`]: messages. Commands and replies arrive in order and are not lost while both ends live (a network may
//!   repeat them); telemetry may be dropped when the reader is slow.
//! * [`RecordStore`]: small values that change by compare-and-set only: who leads a node, the state of a run.
//! * [`ResultOutlet`], [`ResultInlet`]: results. What was appended stays until a controller confirms it; it may be delivered
//!   more than once, so the reader must recognise repetitions. Results of one run have one reader at a time.

use crate::message::{MessageBody, MessageEnvelope, NodeName, RunId};
use packetrig_units::Nanos;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why a fabric did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such endpoint.
    #[error("{0} is not connected to the message server")]
    Unknown(NodeName),
    /// It was there and is gone.
    #[error("{0} is no longer connected to the message server")]
    Gone(NodeName),
    /// The name is in use.
    #[error("the name {0} is already in use; give each node a name of its own")]
    Taken(NodeName),
    /// The record is there already.
    #[error("another controller has already created {0}")]
    Exists(String),
    /// Another process has changed the record.
    #[error("another controller has changed {0}; try again")]
    Stale(String),
    /// The store of the fabric is full; nothing was kept.
    #[error("the store for results is full")]
    Full,
    /// Too long for one message or segment.
    #[error("{0} bytes are too many for one message")]
    TooLarge(usize),
    /// No answer in time. It may have happened or not: do the same again.
    #[error("no answer from the message server of the fleet: {0}")]
    Unanswered(String),
    /// This place may not do that; the subject says what.
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// The connection is down; nothing can be sent now.
    #[error("cannot reach the message server of the fleet: {0}")]
    Down(String),
}

/// A place on the fabric: it has a name, posts and receives.
pub trait Endpoint: Send {
    fn name(&self) -> &NodeName;
    /// Sends to `to`, without waiting for it to arrive. A name that nobody has is [`Error::Unknown`] when the controller
    /// posts to it the first time. A network often cannot know that a member has left; then the message is lost silently.
    fn post(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error>;
    /// Sends to every node that has joined, and not to itself. Only the controller may. It keeps its order among its
    /// like, not among what is posted to one node. A fabric that signs carries only [`MessageBody::RollCall`] this way.
    fn post_all(&mut self, body: MessageBody) -> Result<(), Error>;
    /// From now on what these nodes say comes here. A controller with a number of its own hears only hellos of all others; a node
    /// hears its controller without that.
    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error>;
    /// Nothing but their hellos comes from these nodes any more.
    fn stop_listening_to(&mut self, nodes: &[NodeName]);
    /// The next message, commands and replies before telemetry; `None` if there is none within that time.
    fn receive(&mut self, within: Nanos) -> Option<MessageEnvelope>;
    /// Telemetry that was dropped before it was sent or after it came. A loss between is known when the next sample comes.
    fn dropped(&self) -> u64;
    /// Takes the troubles that no call returned: lost connections, refused subjects.
    fn troubles(&mut self) -> Vec<Error> {
        Vec::new()
    }
}

/// A record and how often it was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    pub value: Vec<u8>,
    /// The writer of the next value has to name it.
    pub revision: u64,
}

impl StoredRecord {
    /// Its value, if it can be read as such.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.value).ok()
    }

    /// A value as it is written.
    pub fn written<T: Serialize>(value: &T) -> Vec<u8> {
        // Records are plain strings and numbers: they can always be written.
        serde_json::to_vec(value).unwrap_or_default()
    }
}

/// A change of one record, by compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWrite {
    pub key: String,
    /// Over which revision; `None` makes it.
    pub revision: Option<u64>,
    pub value: Vec<u8>,
}

/// Small values with compare-and-set. Keys are words joined by dots.
pub trait RecordStore: Send {
    /// The record, if there is one.
    fn get(&mut self, key: &str) -> Result<Option<StoredRecord>, Error>;
    /// The same for each of `keys`. They are not of one instant.
    fn get_many(&mut self, keys: &[String]) -> Result<Vec<Option<StoredRecord>>, Error> {
        keys.iter().map(|key| self.get(key)).collect()
    }
    /// Makes it; [`Error::Exists`] if it is there. Gives its revision.
    fn create(&mut self, key: &str, value: &[u8]) -> Result<u64, Error>;
    /// Replaces what was seen as `revision`; [`Error::Stale`] if that has changed. Gives the new revision.
    fn replace(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error>;
    /// [`RecordStore::replace`] or [`RecordStore::create`] for each, in any order; an answer for each.
    fn write_many(&mut self, writes: &[RecordWrite]) -> Vec<Result<u64, Error>> {
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            answers.push(match write.revision {
                Some(revision) => self.replace(&write.key, revision, &write.value),
                None => self.create(&write.key, &write.value),
            });
        }
        answers
    }
    /// Takes it away, whatever it says.
    fn remove(&mut self, key: &str) -> Result<(), Error>;
    /// Keys that begin so, in order.
    fn keys(&mut self, prefix: &str) -> Result<Vec<String>, Error>;
}

pub const SEGMENT_ROOM: usize = 512 * 1024;

/// Names a piece of a node's results. The same name is the same bytes, for ever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    pub run: RunId,
    pub attempt: u32,
    /// The node it comes from.
    pub node: NodeName,
    /// Its number, from 0 without gaps.
    pub number: u64,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.run, self.attempt, self.node, self.number)
    }
}

/// The node's end of result delivery.
pub trait ResultOutlet: Send {
    /// Hands over a segment; returns when the fabric keeps it. Doing it again with the same name does no harm.
    fn append(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error>;
}

/// A segment that came in, and by what it is confirmed.
#[derive(Debug)]
pub struct SegmentDelivery<T> {
    /// Its name. The fabric vouches for the node in it.
    pub id: SegmentId,
    pub body: Vec<u8>,
    /// To be given back to [`ResultInlet::confirm`].
    pub token: T,
}

/// The controller's end of result delivery.
pub trait ResultInlet: Send {
    /// What confirms a delivery.
    type Token: Send;
    /// From now on results of this run come here. Readers in `instead_of` can confirm nothing of it any more, and what they had
    /// not confirmed comes again at once. [`Error::Taken`] if yet another one reads them.
    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), Error>;
    /// Stops reading this run. What is left of it waits for the next reader.
    fn leave_run(&mut self, run: &RunId);
    /// Runs of which segments wait, with the readers of each.
    fn waiting_runs(&mut self) -> Result<BTreeMap<RunId, BTreeSet<String>>, Error>;
    /// The next segment; `None` if there is none within that time. What is not confirmed comes again.
    fn collect(&mut self, within: Nanos) -> Option<SegmentDelivery<Self::Token>>;
    /// It is stored for good, so the fabric forgets it. Returns when that is done. An error if another reader has its run by now.
    fn confirm(&mut self, token: Self::Token) -> Result<(), Error>;
    /// The same for several; one answer for each, in order.
    fn confirm_all(&mut self, tokens: Vec<Self::Token>) -> Vec<Result<(), Error>> {
        tokens.into_iter().map(|token| self.confirm(token)).collect()
    }
    /// Whether the fabric was so full, when it was asked last what waits, that it may soon refuse more.
    fn is_nearly_full(&self) -> bool {
        false
    }
    /// Takes away what waits of these runs, to make room; their nodes still have it. How many segments that were.
    fn discard_runs(&mut self, _: &BTreeSet<RunId>) -> Result<u64, Error> {
        Ok(0)
    }
    /// Segments of each node, since the last call, that could not be identified or did not carry the seal of their node; they
    /// were dropped.
    fn refused(&mut self) -> BTreeMap<NodeName, u64> {
        BTreeMap::new()
    }
    /// Nodes whose key could not be read since the last call, and why. Their segments come again.
    fn unreadable_keys(&mut self) -> BTreeMap<NodeName, String> {
        BTreeMap::new()
    }
    /// Why runs could not be read since the last call. The fabric keeps trying.
    fn troubles(&mut self) -> Vec<Error> {
        Vec::new()
    }
}

pub trait Fabric {
    type Endpoint: Endpoint;
    type Records: RecordStore;
    type Outgoing: ResultOutlet;
    type Incoming: ResultInlet;
    /// Takes a place. Messages to it are kept from now on. [`Error::Taken`] if a place of that name answers; over a
    /// network one that is cut off or stopped cannot, so its name counts as free.
    fn join(&self, name: NodeName) -> Result<Self::Endpoint, Error>;
    /// Opens the records. Only the controller may.
    fn records(&self) -> Result<Self::Records, Error>;
    /// Opens the outlet for the results of `node`.
    fn outgoing(&self, node: &NodeName) -> Result<Self::Outgoing, Error>;
    /// Opens the inlet for results, under the name of this reader (one word). Only a controller may.
    fn incoming(&self, reader: &str) -> Result<Self::Incoming, Error>;
}
