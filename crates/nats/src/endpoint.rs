//! A place on the fabric: subscriptions that fill two queues, and messages out.
//!
//! One task reads each subscription ([`listening`]), so the engine's own queue stays short: letters go into a queue
//! bounded for each node ([`quota`]), telemetry into one that drops and counts. The receiving thread decodes. [`place`] is its identity.
//! Renewals of leases and their answers have a connection and a queue of their own ([`renewals`]).
//!
//! Invariant: letters of one sender arrive in the order it posted them (what goes to all nodes has an order of its own, and so
//! have renewals and grants); before `join` returns the server has confirmed every subscription of the place by a round trip on one of them.

mod heard_nodes;
mod hello_allowance;
mod known_controllers;
mod listening;
mod place;
mod quota;
mod renewals;
mod trust;

use self::heard_nodes::{HeardNodes, NodeSubscriptions};
use self::listening::{EndpointListener, ListeningTasks, QueueFeeds, UnacquaintedNode};
pub(crate) use self::place::draw;
use self::place::{ASK, EndpointState, NUMBER, PROOF, THERE_WORD};
use self::quota::NodeQuota;
use self::renewals::{RenewalLine, RenewalQueue};
pub(crate) use self::trust::{EndpointSeals, NodeLetterGate};
use crate::connection::{self, ConnectionTroubles, ServerAccess, open};
use crate::letter;
use crate::runtime::SharedRuntime;
use crate::subject;
use async_nats::{Message, RequestErrorKind};
use bytes::Bytes;
use crossbeam_channel::{Receiver, bounded, select, unbounded};
use futures_util::FutureExt;
use packetrig_fleet::fabric::{Endpoint, Error};
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeName, Nonce};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a receiver looks for nodes that have not heard of this controller.
const LOOK: Nanos = Nanos::from_millis(100);
/// Telemetry that waits for a slow reader.
const TELEMETRY_ROOM: usize = 4096;
/// Nodes that wait to hear of this controller.
const UNACQUAINTED_ROOM: usize = 4096;
/// How often a node that seals for another controller is told of this one.
const ACQUAINT_EVERY: Nanos = Nanos::from_secs(1);
/// How long a node may take to say that it is there.
const THERE: Duration = Duration::from_secs(1);
/// How long a letter may wait for room in the queue of the connection; telemetry waits less.
const ROOM: Duration = Duration::from_secs(1);
/// See [`ROOM`].
const ROOM_FOR_TELEMETRY: Duration = Duration::from_millis(100);

/// A place on the networked fabric; dropping it leaves.
#[derive(Debug)]
pub struct NatsEndpoint {
    own: EndpointState,
    seals: EndpointSeals,
    posted: PostedCounts,
    runtime: SharedRuntime,
    renewals: Receiver<Message>,
    renewal_quota: NodeQuota,
    renewal_line: RenewalLine,
    /// Of one controller among several.
    node_subscriptions: NodeSubscriptions,
    unacquainted: Receiver<UnacquaintedNode>,
    /// When each node was told of this controller.
    acquainted_at: BTreeMap<NodeName, u64>,
    letters: Receiver<Message>,
    quota: NodeQuota,
    telemetry_quota: NodeQuota,
    telemetry: Receiver<Message>,
    /// Held so that neither queue closes, even if nothing subscribes to it.
    _feeds: QueueFeeds,
    /// Held for what happens when it is dropped.
    _tasks: ListeningTasks,
}

/// How many there were of what may be dropped; each carries its number, so the other side knows what did not come.
#[derive(Debug, Default)]
struct PostedCounts {
    hellos: u64,
    samples: u64,
}

impl PostedCounts {
    fn of(&mut self, body: &MessageBody) -> &mut u64 {
        if matches!(body, MessageBody::Hello(_)) { &mut self.hellos } else { &mut self.samples }
    }
}

/// What is there when a place has joined.
struct StartedListener {
    listener: EndpointListener,
    tasks: ListeningTasks,
}

/// Where a letter goes.
struct LetterDestination {
    subject: String,
    /// The instance of the node that it is for; 0 for the controller.
    incarnation: u64,
}

impl NatsEndpoint {
    pub(crate) fn join(runtime: SharedRuntime, access: ServerAccess, name: NodeName) -> Result<Self, Error> {
        subject::word(&name)?;
        let incarnation = draw()?;
        let seals = EndpointSeals::new(access.keys.clone(), incarnation, access.epoch_proof.clone())?;
        let gate = NodeLetterGate::new(access.keys.as_ref(), Some(incarnation));
        let (letters_in, letters) = unbounded();
        let (telemetry_in, telemetry) = bounded(TELEMETRY_ROOM);
        let (renewals_in, renewals) = unbounded();
        let (unacquainted_in, unacquainted) = bounded(UNACQUAINTED_ROOM);
        let quota = NodeQuota::for_letters();
        let telemetry_quota = NodeQuota::for_telemetry();
        let renewal_quota = NodeQuota::for_renewals();
        let feeds = QueueFeeds {
            letters: letters_in,
            quota: quota.clone(),
            telemetry: telemetry_in,
            telemetry_quota: telemetry_quota.clone(),
        };
        let heard = HeardNodes::of(&name);
        let fed = feeds.clone();
        let joined = runtime.wait(PROOF * 4, async move {
            let own = enter(access, name, incarnation).await?;
            let listener = EndpointListener { own, gate, heard, unacquainted: unacquainted_in };
            let tasks = ListeningTasks::start(&listener, &fed).await?;
            Ok(StartedListener { listener, tasks })
        });
        let StartedListener { listener, tasks } = joined.unwrap_or_else(|| Err(connection::silent()))?;
        let own = listener.own.clone();
        let queue = RenewalQueue { renewals: renewals_in, quota: renewal_quota.clone() };
        Ok(Self {
            own,
            seals,
            posted: PostedCounts::default(),
            runtime,
            renewals,
            renewal_quota,
            node_subscriptions: NodeSubscriptions::new(listener.clone(), feeds.clone()),
            renewal_line: RenewalLine::new(listener, queue),
            unacquainted,
            acquainted_at: BTreeMap::new(),
            letters,
            quota,
            telemetry_quota,
            telemetry,
            _feeds: feeds,
            _tasks: tasks,
        })
    }

    /// A number drawn at `join`: it tells this instance of the place from every other.
    pub fn incarnation(&self) -> u64 {
        self.own.incarnation
    }

    /// Letters that were dropped because they are forged, repeated, or for an earlier instance of this place.
    pub fn refused(&self) -> u64 {
        self.own.refused.load(Ordering::Relaxed)
    }

    /// Posts these bytes as a hello, sealed as the node's own are: for tests of what controllers make of them.
    pub fn post_as_hello(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        let body = MessageBody::Hello(Box::default());
        let subject = subject::to_controller(&self.own.name.0, &body);
        self.send_sealed(subject, None, &body, bytes)
    }

    fn destination(&mut self, to: &NodeName, body: &MessageBody) -> Result<LetterDestination, Error> {
        let name = subject::word(to)?;
        if *to == NodeName::controller() {
            let subject = subject::to_controller(&self.own.name.0, body);
            return Ok(LetterDestination { subject, incarnation: 0 });
        }
        let mut incarnation = 0;
        if self.own.is_controller() {
            incarnation = self.incarnation_of(to)?;
            if self.node_subscriptions.are_of_everybody() {
                self.renewal_line.listen_to(to, &self.runtime);
            }
        }
        Ok(LetterDestination { subject: subject::to_node(name), incarnation })
    }

    /// Which instance of a node is there. One that was never heard is asked, on the very subject its letters go to, and
    /// answers on its own.
    fn incarnation_of(&self, to: &NodeName) -> Result<u64, Error> {
        if let Some(incarnation) = self.own.known().get(to) {
            return Ok(*incarnation);
        }
        let own = self.own.clone();
        let node = to.clone();
        let asking = async move {
            let mut headers = own.headers();
            headers.insert(ASK, THERE_WORD);
            let question = own.client.request_with_headers(subject::to_node(&node.0), headers, Bytes::new());
            tokio::select! {
                incarnation = own.wait_for(&node) => Ok(incarnation),
                // No node replies to the question itself; the server does if nobody listens.
                Err(error) = question => match error.kind() {
                    RequestErrorKind::NoResponders => Err(Error::Unknown(node)),
                    _ => Err(silent(&node)),
                },
                else => Err(silent(&node)),
            }
        };
        self.runtime.wait(THERE, asking).unwrap_or_else(|| Err(silent(to)))
    }

    /// Publishes it; `to` is one node and which instance of it.
    fn publish(&mut self, at: String, to: Option<(&NodeName, u64)>, body: &MessageBody) -> Result<(), Error> {
        // Nodes tell controllers apart by their seals, not by their names.
        let is_controller = self.own.is_controller();
        let from = if is_controller { NodeName::controller() } else { self.own.name.clone() };
        let envelope = MessageEnvelope { from, body: body.clone() };
        let bytes = letter::encode(&envelope)?;
        self.send_sealed(at, to, body, bytes)
    }

    /// Publishes `bytes`, which say `body`, with their seal.
    fn send_sealed(
        &mut self,
        at: String,
        to: Option<(&NodeName, u64)>,
        body: &MessageBody,
        bytes: Vec<u8>,
    ) -> Result<(), Error> {
        let mut headers = self.own.headers();
        self.seals.seal(&mut headers, &at, to, body, &bytes)?;
        let droppable = body.may_be_dropped();
        if droppable {
            headers.insert(NUMBER, self.posted.of(body).to_string());
        }
        let is_grant = matches!(body, MessageBody::Granted(..));
        let client = if is_grant { self.own.leases.clone() } else { self.own.client.clone() };
        let sending = async move { client.publish_with_headers(at, headers, bytes.into()).await };
        // The wait below continues this very future, so that nothing is published twice.
        let mut sending = Box::pin(sending);
        // Nearly always there is room in the queue of the connection, and no task is needed.
        let done = sending.as_mut().now_or_never();
        let patience = if droppable { ROOM_FOR_TELEMETRY } else { ROOM };
        match done.or_else(|| self.runtime.wait(patience, sending)) {
            Some(Ok(())) => {
                if droppable {
                    *self.posted.of(body) += 1;
                }
                Ok(())
            }
            Some(Err(error)) => Err(Error::Down(error.to_string())),
            None if droppable => {
                self.own.dropped.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            None => Err(Error::Down("the queue of messages to the server is full".to_owned())),
        }
    }

    /// The next raw message: renewals first, then letters.
    fn next(&mut self, within: Nanos) -> Option<Message> {
        // A lease must not run out behind a long queue of letters.
        if let Ok(renewal) = self.renewals.try_recv() {
            self.renewal_quota.give_back(&renewal);
            return Some(renewal);
        }
        if let Ok(letter) = self.letters.try_recv() {
            self.quota.give_back(&letter);
            return Some(letter);
        }
        select! {
            recv(self.renewals) -> renewal => {
                renewal.ok().inspect(|renewal| self.renewal_quota.give_back(renewal))
            }
            recv(self.letters) -> letter => letter.ok().inspect(|letter| self.quota.give_back(letter)),
            recv(self.telemetry) -> sample => {
                sample.ok().inspect(|sample| self.telemetry_quota.give_back(sample))
            }
            default(within.to_std()) => None,
        }
    }

    /// Tells nodes that seal for another controller of this one: what they say counts from then on.
    fn acquaint(&mut self) {
        while let Ok((node, life)) = self.unacquainted.try_recv() {
            let now = monotonic_ns();
            // Each call is signed: a node that goes on sealing for the other controller must not cost a
            // signature a letter.
            let before = self.acquainted_at.get(&node).copied();
            if before.is_some_and(|at| now < at.saturating_add(ACQUAINT_EVERY.as_u64())) {
                continue;
            }
            self.acquainted_at.insert(node.clone(), now);
            let at = subject::to_node(&node.0);
            if let Err(error) = self.publish(at, Some((&node, life)), &MessageBody::RollCall(Nonce(now))) {
                self.own.troubles.add(error);
            }
        }
    }

    /// What it says, if it can be read and believed.
    fn read(&mut self, message: &Message) -> Option<MessageEnvelope> {
        match self.seals.believe(&self.own.name, message) {
            Ok(envelope) => {
                self.own.note_incarnation(message);
                Some(envelope)
            }
            Err(why) => {
                self.own.refuse(message, &why);
                None
            }
        }
    }
}

/// Opens the connections of a place.
async fn enter(access: ServerAccess, name: NodeName, incarnation: u64) -> Result<EndpointState, Error> {
    let troubles = ConnectionTroubles::default();
    let client = open(access.clone(), name.0.clone(), troubles.clone()).await?;
    let leases = if name.is_controller() {
        open(access, name.0.clone(), troubles.clone()).await?
    } else {
        client.clone()
    };
    Ok(EndpointState {
        name,
        client,
        leases,
        incarnation,
        settled: Arc::default(),
        left: Arc::default(),
        dropped: Arc::default(),
        refused: Arc::default(),
        faults: Arc::default(),
        troubles,
        known: Arc::default(),
        known_changed: Arc::default(),
    })
}

fn silent(node: &NodeName) -> Error {
    Error::Unanswered(format!("node {node} does not answer"))
}

impl Endpoint for NatsEndpoint {
    fn name(&self) -> &NodeName {
        &self.own.name
    }

    fn post(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error> {
        let LetterDestination { subject, incarnation } = self.destination(to, &body)?;
        self.publish(subject, Some((to, incarnation)), &body)
    }

    fn post_all(&mut self, body: MessageBody) -> Result<(), Error> {
        self.publish(subject::TO_ALL.to_owned(), None, &body)
    }

    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error> {
        if !self.own.is_controller() {
            return Err(Error::NotPermitted(format!("{} is not a controller", self.own.name)));
        }
        self.node_subscriptions.listen_to(nodes, &self.runtime)?;
        for node in nodes {
            self.renewal_line.listen_to(node, &self.runtime);
        }
        Ok(())
    }

    fn stop_listening_to(&mut self, nodes: &[NodeName]) {
        self.node_subscriptions.stop_listening_to(nodes);
        self.renewal_line.stop_listening_to(nodes);
    }

    fn receive(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            self.acquaint();
            let left = until.saturating_sub(monotonic_ns());
            let Some(message) = self.next(Nanos::new(left).min(LOOK)) else {
                if monotonic_ns() >= until {
                    return None;
                }
                continue;
            };
            if let Some(envelope) = self.read(&message) {
                return Some(envelope);
            }
            // Messages that are not believed must not keep the caller here beyond its deadline.
            if monotonic_ns() >= until {
                return None;
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.own.dropped.load(Ordering::Relaxed)
    }

    fn troubles(&mut self) -> Vec<Error> {
        self.own.troubles.take()
    }
}

impl Drop for NatsEndpoint {
    fn drop(&mut self) {
        self.own.left.store(true, Ordering::Release);
        let client = self.own.client.clone();
        // What was posted last should still go out; a server that is not there cannot take it.
        drop(self.runtime.wait(ROOM, async move { client.flush().await }));
    }
}
