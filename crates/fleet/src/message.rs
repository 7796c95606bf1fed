//! Messages between controller and agents.
//!
//! Every message of an attempt, except [`MessageBody::Stored`], carries a [`MessageHead`]; an agent refuses commands of
//! an older epoch or attempt. Commands and replies may be repeated, so a repetition must have no further effect.
//! Telemetry may be lost, because it is cumulative.

mod change;
mod sparse_places;

pub use change::{ChangeOrder, ChangeStep};
pub use packetrig_report::{NodeName, PlanHash, PortPlace, RunId};
pub use packetrig_stats::result::SentTotal;

use crate::hello::NodeHello;
use packetrig_plan::{SentDocument, StreamResumePoint};
use packetrig_report::outcome::NodeFault;
use packetrig_stats::clock::{ClockFit, ClockRecord};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_stats::terms::SharedRunOptions;
use packetrig_units::text::deserialize_line;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Identifies the run, attempt and epoch that a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MessageHead {
    pub run: RunId,
    /// Number of the attempt to start the run, from 1. A higher attempt begins with [`NodeCommand::Prepare`].
    pub attempt: u32,
    /// Fencing token: epoch of the controller that leads the nodes of the run. Agents refuse a lower epoch
    /// than they have seen.
    pub epoch: u64,
    /// Hash of the whole plan, equal on all nodes.
    pub plan: PlanHash,
}

/// Input of a node that prepares a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPreparation {
    /// The plan's document, or this node's part of it.
    pub document: SentDocument,
    /// Hash of the whole plan if the document is only a part of it; absent if the document is the whole plan.
    #[serde(default)]
    pub part_of: Option<PlanHash>,
    #[serde(flatten)]
    pub terms: SharedRunOptions,
    /// Id of the run. If frames of this run arrive in a later run, the node reports them with this id.
    #[serde(default)]
    pub run: String,
    /// Locations of interfaces that the user has confirmed, although they look like part of a real network.
    pub confirmed: Vec<String>,
    /// Directory for captures on this node.
    pub capture_dir: Option<String>,
    /// Node and interface of each port of the plan, by its index; empty if all ports are on this machine.
    #[serde(default, with = "sparse_places")]
    pub places: Vec<PortPlace>,
    /// Interval at which the node sends telemetry; 0: the node chooses the interval.
    #[serde(default)]
    pub say_every: Nanos,
    /// Interval at which a node renews its lease; absent in messages of earlier versions.
    #[serde(default)]
    pub renew_every: Option<Nanos>,
    /// Maximum time for which the node keeps its ports open after the run, because the controller wants to start
    /// another run on the same ports. 0: the node closes the ports at the end of the run.
    #[serde(default)]
    pub keep_ports_ns: Nanos,
    /// Server with which nodes compare their clocks.
    #[serde(default)]
    pub clock: Option<ClockServer>,
}

/// Address and key of the controller's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockServer {
    /// Addresses of the server; the node uses the one that answers fastest.
    pub at: Vec<SocketAddr>,
    /// Key that authenticates questions and answers. Each node has its own key.
    pub key: ClockKey,
    /// Number with which the node tells the controller which key it uses.
    #[serde(default)]
    pub key_number: u64,
    /// Identity of the controller's clock, as in [`crate::hello::ClockFacts::identity`].
    pub identity: String,
}

/// Key that authenticates the probes of clock comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockKey(pub [u8; 32]);

impl fmt::Debug for ClockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockKey(..)")
    }
}

/// Reason why the senders of a node stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    #[default]
    Done,
    Told,
    /// The lease ended, because it was not renewed.
    LeaseOver,
    /// No lease was valid at the start time, so nothing was sent.
    NoLease,
    /// The longest duration that the node's owner allows was reached.
    OwnersLimit,
}

/// Command of the controller to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeCommand {
    /// Read the plan, open the ports.
    Prepare(Box<RunPreparation>),
    /// Start the receivers, and reply when they run.
    Arm,
    /// Be ready to send at `start`. The node answers `Late` if less than `guard` is left before `start`, unless
    /// the run is steered.
    Commit {
        start: MonoTime,
        /// Acknowledgements must be sent this long before `start`.
        guard: Nanos,
    },
    /// All nodes have acknowledged the commit, so the start time is final.
    Confirm {
        /// The same start time again.
        start: MonoTime,
    },
    /// Report the progress of this node.
    Query,
    /// Make a change to the running streams. Commands with the same number make the change only once.
    Steer(Box<ChangeOrder>),
    /// Perform a step of a change. Each step of a change is performed only once.
    Step {
        /// Number of the change, from 1; the numbers are those of [`NodeCommand::Steer`].
        number: u64,
        step: Box<ChangeStep>,
    },
    /// Send no more frames, but continue to receive.
    Stop,
    /// All senders are done and no frame is in flight any more: stop receiving, compute the final counts, report.
    Finish {
        /// Numbers of sent frames of the streams, as far as their senders have reported them.
        sent: Arc<[SentTotal]>,
    },
    /// The controller has stored the result; forget the run.
    Collected,
    /// Give up the run: stop, close the ports, forget the run.
    Abort,
}

/// Longest text of a refusal, in characters.
const MAX_REFUSAL_CHARACTERS: usize = 4096;

/// Reply of an agent to the controller. It answers a command or reports progress. A repeated command gets it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeReply {
    Prepared {
        /// Properties of the open ports.
        ports: Vec<PortInfo>,
    },
    Armed,
    Committed,
    /// The commit or the confirmation came too late, or the start time passed without a confirmation: the node does
    /// not start in this attempt.
    Late,
    /// The node will start at the confirmed time.
    Confirmed,
    /// The start time has passed; the node sends, if it has streams to send.
    Started,
    /// Streams are held (paused) for a change, or holding failed and no stream was changed.
    Held {
        number: u64,
        /// Reason of the failure.
        fault: Option<NodeFault>,
        /// The held streams that this node sends.
        held: Vec<StreamResumePoint>,
    },
    /// The receivers know the new stream segments of a change, or the announcement failed.
    Announced {
        number: u64,
        /// Reason of a failure.
        fault: Option<NodeFault>,
    },
    /// A change was made or undone, or it failed and had no effect.
    Steered {
        number: u64,
        /// Reason of the failure.
        fault: Option<NodeFault>,
        /// The counts right after the change, if the node has just made it; otherwise empty.
        sample: Box<CountSample>,
    },
    /// Every sender of this node is done.
    SendersDone {
        sent: Vec<SentTotal>,
        #[serde(default)]
        why: StopReason,
    },
    /// The final counts of this node. The value is shared, because it is large and the controller may request it again.
    Result(Arc<NodeResult>),
    /// The final counts of this node are on its disk, and are delivered separately as segments.
    Spooled {
        /// Number of segments of the result.
        segments: u64,
    },
    /// The node has given up the run and forgotten it.
    Aborted,
    /// The command was refused; nothing was changed.
    Refused(#[serde(deserialize_with = "deserialize_line::<MAX_REFUSAL_CHARACTERS, _>")] String),
    /// The run failed on this node; the ports are closed.
    Failed(NodeFault),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageBody {
    Command(MessageHead, NodeCommand),
    Reply(MessageHead, NodeReply),
    /// Agent to controller: counts so far. May be lost.
    Telemetry(MessageHead, Box<CountSample>),
    /// Agent to controller: comparison of its clock with the controller's. Sent when it is armed.
    Clock(MessageHead, Box<ClockRecord>),
    /// Controller to agent: clock comparisons of the nodes that send frames to this node.
    /// Sent before every confirmation.
    Clocks(MessageHead, Vec<(NodeName, ClockFit)>),
    /// Agent to controller: question for a renewal of the lease. See [`crate::lease`].
    Renew(MessageHead, Nonce),
    /// Controller to agent: answer to [`MessageBody::Renew`].
    Granted(MessageHead, LeaseGrant),
    /// Controller to all nodes, or to one node: request for a hello that contains this nonce.
    RollCall(Nonce),
    /// Agent to controller: hello, on request and once a second. May be lost.
    Hello(Box<NodeHello>),
    /// Controller to agent: the controller has stored these segments.
    Stored(StoredWatermark),
}

/// Number of a question (renewal of a lease, or roll call). The asking program never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(pub u64);

/// Answer to a question for a renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    pub nonce: Nonce,
    /// If true, the node may continue to send; if false, it must stop sending now.
    pub go_on: bool,
}

/// Watermark: the controller has stored all segments below this number that a node has sent for an attempt of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWatermark {
    pub run: RunId,
    pub attempt: u32,
    /// Lowest segment number that the controller may not have stored yet.
    pub below: u64,
}

/// A message with its sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageEnvelope {
    pub from: NodeName,
    pub body: MessageBody,
}

impl MessageBody {
    /// True if the fabric may drop the message when its receiver is slow.
    pub const fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Telemetry(..) | Self::Hello(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_telemetry_and_hellos_may_be_dropped() {
        let head =
            MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("p") };
        let kept = [
            MessageBody::Command(head.clone(), NodeCommand::Stop),
            MessageBody::Reply(head.clone(), NodeReply::Armed),
            MessageBody::Clock(head.clone(), Box::new(ClockRecord::same_clock())),
            MessageBody::Clocks(head.clone(), Vec::new()),
            MessageBody::Renew(head.clone(), Nonce(1)),
            MessageBody::Granted(head.clone(), LeaseGrant { nonce: Nonce(1), go_on: true }),
            MessageBody::RollCall(Nonce(1)),
            MessageBody::Stored(StoredWatermark { run: head.run.clone(), attempt: 1, below: 1 }),
        ];
        let dropped = [MessageBody::Telemetry(head, Box::default()), MessageBody::Hello(Box::default())];
        for body in kept.iter().chain(&dropped) {
            // A new kind of message does not compile until it is in one of the lists above.
            let may_be_dropped = match body {
                MessageBody::Telemetry(..) | MessageBody::Hello(_) => true,
                MessageBody::Command(..)
                | MessageBody::Reply(..)
                | MessageBody::Clock(..)
                | MessageBody::Clocks(..)
                | MessageBody::Renew(..)
                | MessageBody::Granted(..)
                | MessageBody::RollCall(_)
                | MessageBody::Stored(_) => false,
            };
            assert_eq!(body.may_be_dropped(), may_be_dropped, "{body:?}");
        }
    }

    #[test]
    fn preparation_encodes_as_one_flat_object() {
        let terms =
            SharedRunOptions { tag_key: u64::MAX, seed: 2, steered: true, ..SharedRunOptions::default() };
        let preparation = RunPreparation { document: "p".into(), terms, ..RunPreparation::default() };
        let value = serde_json::to_value(&preparation).expect("encodes");
        let object = value.as_object().expect("an object");
        let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
        names.sort_unstable();
        let wanted = "back_end capture_all capture_dir clock confirmed document keep_ports_ns limits part_of places \
                      renew_every run say_every seed steered tag_key";
        assert_eq!(names.join(" "), wanted);
        assert_eq!((&value["document"], &value["tag_key"]), (&"p".into(), &u64::MAX.into()));
        assert_eq!(serde_json::from_value::<RunPreparation>(value).expect("decodes"), preparation);
        // A controller of an earlier version leaves some out.
        let short = r#"{"document": "p", "tag_key": 1, "seed": 2, "confirmed": [], "capture_all": true}"#;
        let read: RunPreparation = serde_json::from_str(short).expect("decodes");
        assert!(read.terms.capture_all && !read.terms.steered);
    }

    #[test]
    fn envelopes_survive_json() {
        let envelope = MessageEnvelope {
            from: NodeName::local(),
            body: MessageBody::Command(
                MessageHead {
                    run: RunId("r".into()),
                    attempt: 2,
                    epoch: 7,
                    plan: PlanHash::from_document("x"),
                },
                NodeCommand::Finish { sent: Arc::new([SentTotal { stream: 3, frames: 9 }]) },
            ),
        };
        let text = serde_json::to_string(&envelope).expect("encodes");
        assert_eq!(serde_json::from_str::<MessageEnvelope>(&text).expect("decodes"), envelope);
    }
}
