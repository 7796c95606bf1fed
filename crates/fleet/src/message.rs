//! What controller and agents say to each other.
//!
//! Every message carries a [`MessageHead`]; an agent refuses what belongs to an older epoch or attempt. Commands and replies
//! may be repeated and must do no harm then; telemetry may be lost, because it is cumulative.

mod change;
mod names;
mod sparse_places;

pub use change::{ChangeOrder, ChangeStep};
pub use names::{NodeName, PlanHash, RunId};
pub use packetrig_stats::result::SentTotal;

use crate::hello::NodeHello;
use crate::outcome::NodeFault;
use packetrig_plan::{HeldStream, SentDocument};
use packetrig_stats::clock::{ClockFit, ClockRecord};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_stats::terms::RunTerms;
use packetrig_units::{MonoTime, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a message belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MessageHead {
    pub run: RunId,
    /// Which attempt to start it, from 1. A higher attempt begins with [`NodeCommand::Prepare`].
    pub attempt: u32,
    /// Number of the lead of its nodes. A lower one is refused.
    pub epoch: u64,
    /// The plan all must mean.
    pub plan: PlanHash,
}

/// What a node needs to prepare a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunPreparation {
    /// The plan's document, or this node's part of it.
    pub document: SentDocument,
    /// Whose part it is; absent if it is the whole.
    #[serde(default)]
    pub part_of: Option<PlanHash>,
    #[serde(flatten)]
    pub terms: RunTerms,
    /// Id of the run, by which nodes name its frames should they arrive in a later one.
    #[serde(default)]
    pub run: String,
    /// Interfaces the user confirmed although they look like part of a real network, as locations.
    pub confirmed: Vec<String>,
    /// Where this node writes captures.
    pub capture_dir: Option<String>,
    /// Where each port of the plan is, by its index; empty when all are here.
    #[serde(default, with = "sparse_places")]
    pub places: Vec<PortPlace>,
    /// How often the node says what it counts; 0 is as often as it likes.
    #[serde(default)]
    pub say_every: Nanos,
    /// How often a node asks for its lease; absent in messages of earlier versions.
    #[serde(default)]
    pub renew_every: Option<Nanos>,
    /// Right after this run the controller means to begin another one on the same ports: until then the node may keep them
    /// open, this long at most. 0: it closes them.
    #[serde(default)]
    pub keep_ports_ns: Nanos,
    /// With whom nodes compare their clocks.
    #[serde(default)]
    pub clock: Option<ClockServer>,
}

/// Where the controller's clock can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockServer {
    /// Its addresses; whichever answers fastest.
    pub at: Vec<SocketAddr>,
    /// Seals questions and answers. Each node has its own.
    pub key: ClockKey,
    /// By it the controller knows which node's key that is.
    #[serde(default)]
    pub key_number: u64,
    /// Names the clock itself, as [`crate::hello::ClockFacts::identity`] does.
    pub identity: String,
}

/// Seals the probes of clocks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClockKey(pub [u8; 32]);

impl fmt::Debug for ClockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClockKey(..)")
    }
}

/// Where a port is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortPlace {
    pub node: NodeName,
    /// The interface there, as a location of that machine.
    pub interface: String,
}

impl PortPlace {
    /// Stands for a place that does not concern the node that is told.
    pub const fn elsewhere() -> Self {
        Self { node: NodeName(String::new()), interface: String::new() }
    }

    /// Whether it is [`Self::elsewhere`].
    pub const fn is_elsewhere(&self) -> bool {
        self.node.0.is_empty()
    }
}

/// What ended the senders of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    #[default]
    Done,
    Told,
    /// Their lease was not renewed.
    LeaseOver,
    /// There was no lease at T: nothing was sent.
    NoLease,
    /// The longest duration that the node's owner allows.
    OwnersLimit,
}

/// From the controller to an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeCommand {
    /// Read the plan, open the ports.
    Prepare(Box<RunPreparation>),
    /// Receive from now on, and say so.
    Arm,
    /// Be ready to send at `start`. Refused later than `guard` before it.
    Commit {
        start: MonoTime,
        /// How long before T an acknowledgement is still worth something.
        guard: Nanos,
    },
    /// All are ready: the start that was committed holds.
    Confirm {
        /// The instant T once more.
        start: MonoTime,
    },
    /// How far are you?
    Query,
    /// Change something. Each number is done once.
    Steer(Box<ChangeOrder>),
    /// Take a step of a change. Each step of a number is done once.
    Step {
        /// Which change, from 1; the numbers are those of [`NodeCommand::Steer`].
        number: u64,
        step: Box<ChangeStep>,
    },
    /// Send nothing more; go on receiving.
    Stop,
    /// All senders are done and the path has drained: stop receiving, account, report.
    Finish {
        /// What every stream of the run sent, as far as it is known.
        sent: Arc<[SentTotal]>,
    },
    /// The result is safe with the controller; forget the run.
    Collected,
    /// Give the run up: stop, close the ports, forget it.
    Abort,
}

/// From an agent to the controller. Each is the answer to a command, and is repeated when the command is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeReply {
    Prepared {
        /// What they turned out to be.
        ports: Vec<PortInfo>,
    },
    Armed,
    Committed,
    /// The commit came too late; it was not accepted.
    Late,
    /// Will start at T.
    Confirmed,
    /// T has passed; sending, if there is something to send.
    Started,
    /// Streams are held for a change, or it cannot be and nothing was changed.
    Held {
        number: u64,
        /// Why it cannot be.
        fault: Option<NodeFault>,
        /// Those that are sent here.
        held: Vec<HeldStream>,
    },
    /// Receivers know what a change brings.
    Announced {
        number: u64,
        /// Why they do not.
        fault: Option<NodeFault>,
    },
    /// A change is done or undone, or could not be and nothing was changed.
    Steered {
        number: u64,
        /// Why it could not be.
        fault: Option<NodeFault>,
        /// The counts right after it, so that they are known together with the change.
        sample: Box<CountSample>,
    },
    /// Every sender of this node is done.
    SendersDone {
        sent: Vec<SentTotal>,
        #[serde(default)]
        why: StopReason,
    },
    /// The accounts of this node. Shared: they are large, and may be asked for again.
    Result(Arc<NodeResult>),
    /// The accounts of this node are closed and safe on its disk, and go their own way to the controller.
    Spooled {
        /// In how many segments.
        segments: u64,
    },
    /// The run is given up and forgotten.
    Aborted,
    /// Not this command, not now; nothing was changed.
    Refused(String),
    /// It went wrong here; the ports are closed.
    Failed(NodeFault),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageBody {
    Command(MessageHead, NodeCommand),
    Reply(MessageHead, NodeReply),
    /// Agent to controller: counts so far. May be lost.
    Telemetry(MessageHead, Box<CountSample>),
    /// Agent to controller: how its clock compares with the controller's. Said when it is armed.
    Clock(MessageHead, Box<ClockRecord>),
    /// Controller to agent: how the clocks of those who send to it compare. Said before every confirmation.
    Clocks(MessageHead, Vec<(NodeName, ClockFit)>),
    /// Agent to controller: may I go on? See [`crate::lease`].
    Renew(MessageHead, Nonce),
    /// Controller to agent: the answer.
    Granted(MessageHead, LeaseGrant),
    /// Controller to everyone: who is there? Answered with a hello that names this call.
    RollCall(Nonce),
    /// Agent to controller: I am; also said once a second without being asked. May be lost.
    Hello(Box<NodeHello>),
    /// Controller to agent: these segments are safe.
    Stored(StoredWatermark),
}

/// Tells questions apart: renewals of a lease, roll calls. The asking side never uses one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(pub u64);

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGrant {
    pub nonce: Nonce,
    /// Go on, or stop sending now.
    pub go_on: bool,
}

/// All segments of a node's part in a run below this number are stored by the controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredWatermark {
    pub run: RunId,
    pub attempt: u32,
    /// The first number that is not known to be stored.
    pub below: u64,
}

/// A message under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageEnvelope {
    pub from: NodeName,
    pub body: MessageBody,
}

impl MessageBody {
    /// Whether the fabric may drop it when the other side is slow.
    pub const fn may_be_dropped(&self) -> bool {
        matches!(self, Self::Telemetry(..) | Self::Hello(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_telemetry_and_hellos_may_be_dropped() {
        let head = MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::of("p") };
        let kept = [
            MessageBody::Command(head.clone(), NodeCommand::Stop),
            MessageBody::Reply(head.clone(), NodeReply::Armed),
            MessageBody::Clock(head.clone(), Box::new(ClockRecord::same())),
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
    fn a_preparation_is_one_flat_object_as_nodes_of_earlier_versions_read_it() {
        let terms = RunTerms { tag_key: u64::MAX, seed: 2, steered: true, ..RunTerms::default() };
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
                MessageHead { run: RunId("r".into()), attempt: 2, epoch: 7, plan: PlanHash::of("x") },
                NodeCommand::Finish { sent: Arc::new([SentTotal { stream: 3, frames: 9 }]) },
            ),
        };
        let text = serde_json::to_string(&envelope).expect("encodes");
        assert_eq!(serde_json::from_str::<MessageEnvelope>(&text).expect("decodes"), envelope);
    }
}
