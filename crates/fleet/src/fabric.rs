//! Transport of messages, records and results between controller and agents.
//!
//! All calls are synchronous: post a message, wait for the next message until a deadline, change a record, append a
//! segment. The state machines of agent and controller contain retries, barriers and timeouts. Each endpoint, record
//! store, outlet and inlet is used by one thread. While that thread waits, threads with other ones are not blocked.
//!
//! * [`Endpoint`]: messages. Commands and replies arrive in order and are not lost while both ends live (a network may
//!   repeat them); telemetry may be dropped when the reader is slow.
//! * [`RecordStore`]: small values, such as the leader of a node or the state of a run, that change only by
//!   compare-and-set operations on their revision.
//! * [`ResultSender`], [`ResultReceiver`]: results. An appended segment stays until a controller confirms it; it may be
//!   delivered more than once, so the reader must recognise repetitions. Results of one run have one reader at a time.

use crate::message::{MessageBody, MessageEnvelope, NodeName, RunId};
use packetrig_units::Nanos;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Reason why an operation of the fabric failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No endpoint has this name.
    #[error("{0} is not connected to the message server")]
    Unknown(NodeName),
    /// The endpoint existed and is gone.
    #[error("{0} is no longer connected to the message server")]
    Gone(NodeName),
    /// The name is in use.
    #[error("the name {0} is already in use; give each node a name of its own")]
    Taken(NodeName),
    /// Another reader, whose name the fabric cannot tell, reads the results of this run.
    #[error("another controller already reads the results of run {0}")]
    RunTaken(String),
    /// A record with this key exists already.
    #[error("another controller has already created the record {0}")]
    Exists(String),
    /// Another process has changed the record.
    #[error("another controller has changed the record {0}; try again")]
    Stale(String),
    /// The store of the fabric is full; the segment was not stored.
    #[error("the message server has no space for more results")]
    Full,
    /// The content has too many bytes for one message or segment.
    #[error("a message or segment of {0} bytes is too large for the message server")]
    TooLarge(usize),
    /// No answer in time. The operation may or may not have happened, so the caller repeats it.
    #[error("no answer from the message server of the fleet: {0}")]
    Unanswered(String),
    /// The operation is not permitted for this endpoint; the text names the subject.
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// The connection is down; nothing can be sent now.
    #[error("cannot reach the message server of the fleet: {0}")]
    Down(String),
}

/// An endpoint of the fabric: it has a name, posts messages and receives them.
pub trait Endpoint: Send {
    fn name(&self) -> &NodeName;
    /// Sends a message to `to`, without waiting for its arrival. Returns [`Error::Unknown`] when the controller posts
    /// to a name for the first time and no endpoint has that name. Over a network, a message to a member that has left
    /// is often lost without an error.
    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error>;
    /// Sends a message to every node that has joined, but not to this endpoint. Only the controller may do this. Such
    /// messages keep their order among each other, but not relative to messages for single nodes. A fabric that signs
    /// messages accepts only [`MessageBody::RollCall`] here.
    fn post_to_all_nodes(&mut self, body: MessageBody) -> Result<(), Error>;
    /// Receives messages of these nodes from now on. One controller among several receives only hellos of all other
    /// nodes. A node receives the messages of its controller without this call.
    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error>;
    /// Receives only the hellos of these nodes from now on.
    fn stop_listening_to(&mut self, nodes: &[NodeName]);
    /// Returns the next message, commands and replies before telemetry; `None` if none arrives
    /// within the time `within`.
    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope>;
    /// Number of samples that were lost: before they were sent, on the network, or after they arrived. A loss on the
    /// network is counted only when the next sample of the sender arrives.
    fn dropped_telemetry(&self) -> u64;
    /// Returns and clears the errors that no call has returned: lost connections, refused subjects.
    fn take_problems(&mut self) -> Vec<Error> {
        Vec::new()
    }
}

/// A record with its revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRecord {
    pub value: Vec<u8>,
    /// Revision that the writer of the next value must name.
    pub revision: u64,
}

impl StoredRecord {
    /// Parses the value; `None` if it is not a valid `T`.
    pub fn decode_value<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.value).ok()
    }

    /// Serializes a value for a record; empty if `value` cannot be serialized.
    pub fn encode_value<T: Serialize>(value: &T) -> Vec<u8> {
        // Records contain only strings, numbers, lists and maps with string keys, which can always be serialized.
        serde_json::to_vec(value).unwrap_or_default()
    }
}

/// A write of one record by compare-and-set: it creates the record, or replaces a given revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWrite {
    pub key: String,
    /// Revision that is replaced; `None` creates the record.
    pub revision: Option<u64>,
    pub value: Vec<u8>,
}

/// Small values with compare-and-set. Keys are words joined by dots.
pub trait RecordStore: Send {
    /// Reads the record; `None` if it does not exist.
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, Error>;
    /// Reads each of `keys`, and returns the records in that order. The reads are not atomic: a record
    /// may change in between.
    fn get_records(&mut self, keys: &[String]) -> Result<Vec<Option<StoredRecord>>, Error> {
        // A networked fabric sends these requests together.
        keys.iter().map(|key| self.get_record(key)).collect()
    }
    /// Creates a record and returns its revision; [`Error::Exists`] if it exists already.
    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, Error>;
    /// Replaces the value that was read at `revision`, and returns the new revision; [`Error::Stale`] if
    /// it has changed since.
    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error>;
    /// Performs all writes, as [`RecordStore::replace_record`] or [`RecordStore::create_record`] would, in any order.
    /// Returns one answer for each write, in the order of `writes`.
    fn write_all_records(&mut self, writes: &[RecordWrite]) -> Vec<Result<u64, Error>> {
        // A networked fabric sends these requests together.
        let mut answers = Vec::with_capacity(writes.len());
        for write in writes {
            answers.push(match write.revision {
                Some(revision) => self.replace_record(&write.key, revision, &write.value),
                None => self.create_record(&write.key, &write.value),
            });
        }
        answers
    }
    /// Removes a record, whatever its value.
    fn remove_record(&mut self, key: &str) -> Result<(), Error>;
    /// Lists the keys with this prefix, sorted.
    fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, Error>;
}

pub const MAX_SEGMENT_BYTES: usize = 512 * 1024;

/// Name of a segment of a node's results. A name always stands for the same bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId {
    pub run: RunId,
    pub attempt: u32,
    /// Node that the segment is from.
    pub node: NodeName,
    /// Number of the segment, from 0 without gaps.
    pub number: u64,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}.{}", self.run, self.attempt, self.node, self.number)
    }
}

/// The node's side of result delivery: appends the segments of a node's results.
pub trait ResultSender: Send {
    /// Appends a segment; returns when the fabric has stored it. A repetition with the same name does no harm.
    fn append_segment(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error>;
}

/// A delivered segment, with the token that confirms it.
#[derive(Debug)]
pub struct SegmentDelivery<T> {
    /// Name of the segment. The fabric has authenticated the node in it.
    pub id: SegmentId,
    pub body: Vec<u8>,
    /// Token for [`ResultReceiver::confirm_segment`].
    pub token: T,
}

/// The controller's side of result delivery: receives segments and confirms them.
pub trait ResultReceiver: Send {
    /// Token that confirms a delivery.
    type Token: Send;
    /// Receives results of this run from now on. This reader replaces the readers in `instead_of`: these can
    /// confirm no segment of the run any more, and their unconfirmed segments are delivered again at once. Returns
    /// [`Error::Taken`] if another reader reads the run, [`Error::RunTaken`] if the name of that reader is unknown.
    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), Error>;
    /// Stops reading this run. Its remaining segments wait for the next reader.
    fn leave_run(&mut self, run: &RunId);
    /// Lists the runs with waiting segments, and the names of the readers of each run.
    fn list_runs_with_waiting_segments(&mut self) -> Result<BTreeMap<RunId, BTreeSet<String>>, Error>;
    /// Returns the next segment; `None` if none arrives within the time `within`. Unconfirmed
    /// segments are delivered again.
    fn receive_segment(&mut self, within: Nanos) -> Option<SegmentDelivery<Self::Token>>;
    /// Confirms that the caller has stored the segment permanently. Returns when the fabric has deleted the segment.
    /// Fails if another reader reads the run now.
    fn confirm_segment(&mut self, token: Self::Token) -> Result<(), Error>;
    /// Confirms several segments; one answer for each, in order.
    fn confirm_segments(&mut self, tokens: Vec<Self::Token>) -> Vec<Result<(), Error>> {
        tokens.into_iter().map(|token| self.confirm_segment(token)).collect()
    }
    /// True if the fabric may soon refuse segments, according to its state when the waiting runs were last listed.
    fn is_nearly_full(&self) -> bool {
        false
    }
    /// Discards the waiting segments of these runs to make space; the nodes still have them. Returns the
    /// number of discarded segments.
    fn discard_runs(&mut self, _: &BTreeSet<RunId>) -> Result<u64, Error> {
        Ok(0)
    }
    /// Returns the number of segments of each node that were dropped since the last call, because they had no valid ID
    /// or no valid seal of the node.
    fn take_refused_counts(&mut self) -> BTreeMap<NodeName, u64> {
        BTreeMap::new()
    }
    /// Returns the nodes with a key that could not be read since the last call, each with the reason. Their
    /// segments are delivered again.
    fn take_unreadable_keys(&mut self) -> BTreeMap<NodeName, String> {
        BTreeMap::new()
    }
    /// Returns and clears the errors since the last call that prevented the fabric from reading runs.
    /// The fabric tries again.
    fn take_problems(&mut self) -> Vec<Error> {
        Vec::new()
    }
}

pub trait Fabric {
    type Endpoint: Endpoint;
    type Records: RecordStore;
    type Outgoing: ResultSender;
    type Incoming: ResultReceiver;
    /// Joins under this name. From now on, messages to this name are queued until they are read. Returns
    /// [`Error::Taken`] if another endpoint has the name and answers. Over a network, an endpoint that is disconnected
    /// or stopped cannot answer, so its name is free.
    fn open_endpoint(&self, name: NodeName) -> Result<Self::Endpoint, Error>;
    /// Opens the records. Only the controller may do this.
    fn open_records(&self) -> Result<Self::Records, Error>;
    /// Opens the node's side of result delivery, for the results of `node`.
    fn open_result_outlet(&self, node: &NodeName) -> Result<Self::Outgoing, Error>;
    /// Opens the controller's side of result delivery. `reader` is the name of this reader (one word). Only a
    /// controller may do this.
    fn open_result_inlet(&self, reader: &str) -> Result<Self::Incoming, Error>;
}
