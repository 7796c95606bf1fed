//! Transport of messages, records and results between controller and agents.
//!
//! All calls are synchronous: post a message, wait for the next one until a deadline, change a record, append a
//! segment. Retries, barriers and timeouts are in the machines; a networked fabric has its own runtime. Each part is
//! used by one thread, and a thread that waits for one part does not block the users of other parts.
//!
//! * [`Endpoint`]: messages. Commands and replies arrive in order and are not lost while both ends live (a network may
//!   repeat them); telemetry may be dropped when the reader is slow.
//! * [`RecordStore`]: small values that change by compare-and-set only: the leader of a node, the state of a run.
//! * [`ResultOutlet`], [`ResultInlet`]: results. An appended segment stays until a controller confirms it; it may be
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
    /// Another reader, with an unknown name, reads the results of this run.
    #[error("another controller already reads the results of run {0}")]
    RunTaken(String),
    /// A record with this key exists already.
    #[error("another controller has already created the record {0}")]
    Exists(String),
    /// Another process has changed the record.
    #[error("another controller has changed the record {0}; try again")]
    Stale(String),
    /// The store of the fabric is full; the item was not kept.
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
    /// Sends a message to `to`, without waiting for its arrival. An unknown name is [`Error::Unknown`] when the
    /// controller posts to it the first time. A network often cannot notice that a member has left; then the
    /// message is lost silently.
    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error>;
    /// Sends a message to every node that has joined, but not to this endpoint. Only the controller may do this. These
    /// messages keep their order among each other, but not relative to messages for one node. A fabric that signs
    /// carries only [`MessageBody::RollCall`] this way.
    fn post_to_all_nodes(&mut self, body: MessageBody) -> Result<(), Error>;
    /// Receives messages of these nodes from now on. A controller with its own number receives only hellos from all
    /// other nodes; a node receives the messages of its controller without this call.
    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error>;
    /// Receives only the hellos of these nodes from now on.
    fn stop_listening_to(&mut self, nodes: &[NodeName]);
    /// Returns the next message, commands and replies before telemetry; `None` if none arrives within that time.
    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope>;
    /// Number of samples that were dropped before they were sent or after they arrived. A loss in between is noticed
    /// when the next sample arrives.
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
    /// Parses the value; `None` if it has another form.
    pub fn decode_value<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.value).ok()
    }

    /// Serializes a value for a record.
    pub fn encode_value<T: Serialize>(value: &T) -> Vec<u8> {
        // Records are plain strings and numbers: they can always be written.
        serde_json::to_vec(value).unwrap_or_default()
    }
}

/// A change of one record, by compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWrite {
    pub key: String,
    /// Revision that is replaced; `None` creates the record.
    pub revision: Option<u64>,
    pub value: Vec<u8>,
}

/// Small values with compare-and-set. Keys are words joined by dots.
pub trait RecordStore: Send {
    /// Reads the record, if it exists.
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, Error>;
    /// Reads each of `keys`, at slightly different times.
    fn get_records(&mut self, keys: &[String]) -> Result<Vec<Option<StoredRecord>>, Error> {
        // A networked fabric sends these requests together.
        keys.iter().map(|key| self.get_record(key)).collect()
    }
    /// Creates a record and returns its revision; [`Error::Exists`] if it exists already.
    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, Error>;
    /// Replaces the value that was read at `revision`, and returns the new revision; [`Error::Stale`] if
    /// it has changed since.
    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error>;
    /// Calls [`RecordStore::replace_record`] or [`RecordStore::create_record`] for each write, in any order; returns
    /// one answer for each.
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
    /// Lists the keys with this prefix, in order.
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

/// The node's end of result delivery.
pub trait ResultOutlet: Send {
    /// Appends a segment; returns when the fabric has stored it. A repetition with the same name does no harm.
    fn append_segment(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error>;
}

/// A delivered segment, with the token that confirms it.
#[derive(Debug)]
pub struct SegmentDelivery<T> {
    /// Name of the segment. The fabric has authenticated the node in it.
    pub id: SegmentId,
    pub body: Vec<u8>,
    /// Token for [`ResultInlet::confirm_segment`].
    pub token: T,
}

/// The controller's end of result delivery.
pub trait ResultInlet: Send {
    /// Token that confirms a delivery.
    type Token: Send;
    /// Receives results of this run from now on. This reader replaces the readers in `instead_of`: these can
    /// confirm no segment of the run any more, and their unconfirmed segments are delivered again at once. Returns
    /// [`Error::Taken`] if another reader reads the run, [`Error::RunTaken`] if the name of that reader is unknown.
    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), Error>;
    /// Stops reading this run. Its remaining segments wait for the next reader.
    fn leave_run(&mut self, run: &RunId);
    /// Asks the fabric for the runs with waiting segments, and the readers of each.
    fn list_runs_with_waiting_segments(&mut self) -> Result<BTreeMap<RunId, BTreeSet<String>>, Error>;
    /// Returns the next segment; `None` if none arrives within that time. Unconfirmed segments are delivered again.
    fn receive_segment(&mut self, within: Nanos) -> Option<SegmentDelivery<Self::Token>>;
    /// Confirms that the segment is stored permanently, so that the fabric deletes it; returns when this is
    /// done. Returns an error if another reader reads the run now.
    fn confirm_segment(&mut self, token: Self::Token) -> Result<(), Error>;
    /// Confirms several segments; one answer for each, in order.
    fn confirm_segments(&mut self, tokens: Vec<Self::Token>) -> Vec<Result<(), Error>> {
        tokens.into_iter().map(|token| self.confirm_segment(token)).collect()
    }
    /// True if the fabric may soon refuse segments, by its state at the last listing of waiting runs.
    fn is_nearly_full(&self) -> bool {
        false
    }
    /// Discards the waiting segments of these runs to make room; their nodes still have them. Returns how
    /// many segments were discarded.
    fn discard_runs(&mut self, _: &BTreeSet<RunId>) -> Result<u64, Error> {
        Ok(0)
    }
    /// Returns the number of segments of each node that were dropped since the last call, because they could not be
    /// identified or were not sealed with the key of their node.
    fn take_refused_counts(&mut self) -> BTreeMap<NodeName, u64> {
        BTreeMap::new()
    }
    /// Returns the nodes with a key that could not be read since the last call, each with the reason. Their
    /// segments are delivered again.
    fn take_unreadable_keys(&mut self) -> BTreeMap<NodeName, String> {
        BTreeMap::new()
    }
    /// Returns and clears the errors that prevented reading runs since the last call. The fabric tries again.
    fn take_problems(&mut self) -> Vec<Error> {
        Vec::new()
    }
}

pub trait Fabric {
    type Endpoint: Endpoint;
    type Records: RecordStore;
    type Outgoing: ResultOutlet;
    type Incoming: ResultInlet;
    /// Joins under this name. From now on, messages to this name wait until they are read. Returns [`Error::Taken`] if
    /// an endpoint with this name answers. Over a network, an endpoint that is cut off or stopped cannot answer, so its
    /// name is free.
    fn open_endpoint(&self, name: NodeName) -> Result<Self::Endpoint, Error>;
    /// Opens the records. Only the controller may do this.
    fn open_records(&self) -> Result<Self::Records, Error>;
    /// Opens the outlet for the results of `node`.
    fn open_result_outlet(&self, node: &NodeName) -> Result<Self::Outgoing, Error>;
    /// Opens the inlet for results, under the name of this reader (one word). Only a controller may do this.
    fn open_result_inlet(&self, reader: &str) -> Result<Self::Incoming, Error>;
}
