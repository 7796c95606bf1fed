//! A network endpoint of the fabric: receives messages from subscriptions through queues, and sends messages.
//!
//! One task reads each subscription ([`listening`]), so the queue of async-nats stays short. Letters (commands,
//! replies and all other messages that must arrive) go into a queue that is bounded for each node ([`quota`]).
//! Telemetry goes into a queue that drops and counts messages when it is full. The receiving thread decodes.
//! [`place`] has the name and instance number of an endpoint. Renewals of leases and their answers have their own
//! connection and queue ([`renewals`]).
//!
//! Invariant: letters of one sender arrive in the order in which it posted them; messages to all nodes have a
//! separate order, and so have renewals and grants. Before `join_fabric` returns, the server has confirmed
//! all subscriptions of the endpoint, by a round trip on one of them.

mod heard_nodes;
mod hello_allowance;
mod known_controllers;
mod listening;
mod place;
mod quota;
mod renewals;
mod sending;
mod trust;

use self::heard_nodes::{AcceptedNodes, NodeSubscriptions};
use self::listening::{ListeningTaskContext, ListeningTasks, MessageQueueSenders, NodeNeedingRollCall};
pub(crate) use self::place::random_u64;
use self::place::{EndpointState, SUBSCRIPTION_TIMEOUT};
use self::quota::NodeQuota;
use self::renewals::{RenewalQueue, RenewalSubscriptions};
use self::sending::{LetterDestination, PostedCounts, SEND_QUEUE_TIMEOUT};
pub(crate) use self::trust::{EndpointSeals, NodeLetterGate};
use crate::connection::{self, ConnectionFailures, ServerAccess, open_client};
use crate::runtime::SharedRuntime;
use crate::subject;
use async_nats::connection::State;
use async_nats::{Client, Message};
use crossbeam_channel::{Receiver, bounded, select, unbounded};
use packetrig_fleet::fabric::{Endpoint, Error};
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeName, Nonce};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest wait before a receiving controller checks which nodes need a roll call.
const RECEIVER_CHECK_INTERVAL: Nanos = Nanos::from_millis(100);
/// Maximum number of telemetry messages that wait for a slow reader.
const MAX_WAITING_TELEMETRY: usize = 4096;
/// Maximum number of waiting requests for a roll call to a node that seals for another controller.
const MAX_UNCALLED_NODES: usize = 4096;
/// Minimum interval between roll calls to a node that seals its messages for another controller.
const ROLL_CALL_INTERVAL: Nanos = Nanos::from_secs(1);

/// An endpoint of the networked fabric. Dropping it leaves the fabric.
#[derive(Debug)]
pub struct NatsEndpoint {
    own: EndpointState,
    seals: EndpointSeals,
    posted: PostedCounts,
    runtime: SharedRuntime,
    renewals: Receiver<Message>,
    renewal_quota: NodeQuota,
    renewal_line: RenewalSubscriptions,
    /// Subscriptions for single nodes, used by a controller that is one among several.
    node_subscriptions: NodeSubscriptions,
    nodes_to_call: Receiver<NodeNeedingRollCall>,
    /// Time of the last roll call to each node of `nodes_to_call`, in nanoseconds of the monotonic clock.
    called_at: BTreeMap<NodeName, u64>,
    letters: Receiver<Message>,
    quota: NodeQuota,
    telemetry_quota: NodeQuota,
    telemetry: Receiver<Message>,
    /// Held so that no queue closes, even if no task writes to it.
    _feeds: MessageQueueSenders,
    /// Held because dropping the value ends the tasks.
    _tasks: ListeningTasks,
}

/// Reads whether an endpoint is connected. This value keeps the connection open, so it should be
/// dropped with the endpoint.
#[derive(Clone, Debug)]
pub struct ConnectionWatch(Client);

impl ConnectionWatch {
    /// True if the connection is open. A dead server is noticed after two pings.
    pub fn is_connected(&self) -> bool {
        self.0.connection_state() == State::Connected
    }
}

/// State of an endpoint that has joined the fabric.
struct JoinedEndpoint {
    listener: ListeningTaskContext,
    tasks: ListeningTasks,
}

impl NatsEndpoint {
    pub(crate) fn join_fabric(
        runtime: SharedRuntime,
        access: ServerAccess,
        name: NodeName,
    ) -> Result<Self, Error> {
        subject::node_subject_token(&name)?;
        let incarnation = random_u64()?;
        let seals = EndpointSeals::new(access.keys.clone(), incarnation, access.epoch_proof.clone())?;
        let gate = NodeLetterGate::new(access.keys.as_ref(), Some(incarnation));
        // The quota of each node bounds this queue, so the channel itself needs no limit.
        let (letters_in, letters) = unbounded();
        let (telemetry_in, telemetry) = bounded(MAX_WAITING_TELEMETRY);
        let (renewals_in, renewals) = unbounded();
        let (nodes_to_call_in, nodes_to_call) = bounded(MAX_UNCALLED_NODES);
        let quota = NodeQuota::for_letters();
        let telemetry_quota = NodeQuota::for_telemetry();
        let renewal_quota = NodeQuota::for_renewals();
        let feeds = MessageQueueSenders {
            letters: letters_in,
            quota: quota.clone(),
            telemetry: telemetry_in,
            telemetry_quota: telemetry_quota.clone(),
        };
        let heard = AcceptedNodes::for_endpoint(&name);
        let fed = feeds.clone();
        let joined = runtime.run_with_timeout(SUBSCRIPTION_TIMEOUT * 4, async move {
            let own = open_connections(access, name, incarnation).await?;
            let listener = ListeningTaskContext { own, gate, heard, nodes_to_call: nodes_to_call_in };
            let tasks = ListeningTasks::start_listening(&listener, &fed).await?;
            Ok(JoinedEndpoint { listener, tasks })
        });
        let JoinedEndpoint { listener, tasks } =
            joined.unwrap_or_else(|| Err(connection::no_answer_error()))?;
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
            renewal_line: RenewalSubscriptions::new(listener, queue),
            nodes_to_call,
            called_at: BTreeMap::new(),
            letters,
            quota,
            telemetry_quota,
            telemetry,
            _feeds: feeds,
            _tasks: tasks,
        })
    }

    /// Returns a reader of the connection's state for other threads.
    pub fn connection_watch(&self) -> ConnectionWatch {
        ConnectionWatch(self.own.client.clone())
    }

    /// Random number from `join_fabric` that distinguishes this instance of the endpoint from every other one.
    pub fn incarnation(&self) -> u64 {
        self.own.incarnation
    }

    /// Number of messages that were refused: forged, repeated or overtaken ones, those for an earlier instance of this
    /// endpoint, and those that are too long, too frequent or not decodable.
    pub fn refused_message_count(&self) -> u64 {
        self.own.refused.load(Ordering::Relaxed)
    }

    /// Returns the next raw message: renewals first, then letters, then telemetry.
    fn next_message(&mut self, within: Nanos) -> Option<Message> {
        // A lease must not expire behind a long queue of letters.
        if let Ok(renewal) = self.renewals.try_recv() {
            self.renewal_quota.release_quota(&renewal);
            return Some(renewal);
        }
        // Letters come before telemetry, which may be dropped.
        if let Ok(letter) = self.letters.try_recv() {
            self.quota.release_quota(&letter);
            return Some(letter);
        }
        select! {
            recv(self.renewals) -> renewal => {
                renewal.ok().inspect(|renewal| self.renewal_quota.release_quota(renewal))
            }
            recv(self.letters) -> letter => letter.ok().inspect(|letter| self.quota.release_quota(letter)),
            recv(self.telemetry) -> sample => {
                sample.ok().inspect(|sample| self.telemetry_quota.release_quota(sample))
            }
            default(within.to_std()) => None,
        }
    }

    /// Sends a roll call to nodes that seal their messages for another controller. After it, they seal
    /// them for this one.
    fn send_roll_call_messages(&mut self) {
        while let Ok((node, life)) = self.nodes_to_call.try_recv() {
            let now = monotonic_ns();
            // Each call needs a signature. If a node keeps sealing for the other controller, there must not be a call
            // for each of its letters.
            let before = self.called_at.get(&node).copied();
            if before.is_some_and(|at| now < at.saturating_add(ROLL_CALL_INTERVAL.as_u64())) {
                continue;
            }
            self.called_at.insert(node.clone(), now);
            let at = subject::command_subject(&node.0);
            if let Err(error) =
                self.publish_message(at, Some((&node, life)), &MessageBody::RollCall(Nonce(now)))
            {
                self.own.troubles.add_failure(error);
            }
        }
    }

    /// Checks and decodes a message. Returns `None` if the message is refused, and counts the refusal.
    fn read_message(&mut self, message: &Message) -> Option<MessageEnvelope> {
        match self.seals.check_and_decode_message(&self.own.name, message) {
            Ok(envelope) => {
                // The instance is recorded only after the check: a forged message must not decide to which instance of
                // a node the next messages go.
                self.own.record_incarnation(message);
                Some(envelope)
            }
            Err(why) => {
                self.own.refuse_message(message, &why);
                None
            }
        }
    }
}

/// Opens the connections of an endpoint.
async fn open_connections(
    access: ServerAccess,
    name: NodeName,
    incarnation: u64,
) -> Result<EndpointState, Error> {
    let troubles = ConnectionFailures::default();
    let client = open_client(access.clone(), name.0.clone(), troubles.clone()).await?;
    // A node has only its own lease to renew, so one connection is enough for it.
    let leases = if name.is_controller() {
        open_client(access, name.0.clone(), troubles.clone()).await?
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

impl Endpoint for NatsEndpoint {
    fn name(&self) -> &NodeName {
        &self.own.name
    }

    fn post_message(&mut self, to: &NodeName, body: MessageBody) -> Result<(), Error> {
        let LetterDestination { subject, incarnation } = self.resolve_destination(to, &body)?;
        self.publish_message(subject, Some((to, incarnation)), &body)
    }

    fn post_to_all_nodes(&mut self, body: MessageBody) -> Result<(), Error> {
        self.publish_message(subject::ALL_NODES_SUBJECT.to_owned(), None, &body)
    }

    fn listen_to(&mut self, nodes: &[NodeName]) -> Result<(), Error> {
        if !self.own.is_controller() {
            let name = &self.own.name;
            let why = format!("{name} cannot listen to nodes, because it is not a controller");
            return Err(Error::NotPermitted(why));
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

    fn receive_message(&mut self, within: Nanos) -> Option<MessageEnvelope> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            self.send_roll_call_messages();
            let left = until.saturating_sub(monotonic_ns());
            let Some(message) = self.next_message(Nanos::new(left).min(RECEIVER_CHECK_INTERVAL)) else {
                // The wait was cut to `RECEIVER_CHECK_INTERVAL`, so an empty queue alone does not end it.
                if monotonic_ns() >= until {
                    return None;
                }
                continue;
            };
            if let Some(envelope) = self.read_message(&message) {
                return Some(envelope);
            }
            // Refused messages must not keep the caller waiting beyond its deadline.
            if monotonic_ns() >= until {
                return None;
            }
        }
    }

    fn dropped_telemetry(&self) -> u64 {
        self.own.dropped.load(Ordering::Relaxed)
    }

    fn take_problems(&mut self) -> Vec<Error> {
        self.own.troubles.take_problems()
    }
}

impl Drop for NatsEndpoint {
    fn drop(&mut self) {
        // From now on this endpoint answers no claim of its name, so another endpoint can take the name.
        self.own.left.store(true, Ordering::Release);
        let client = self.own.client.clone();
        // Sends the messages that were posted last. If the server is down, they are lost.
        drop(self.runtime.run_with_timeout(SEND_QUEUE_TIMEOUT, async move { client.flush().await }));
    }
}
