//! One instance of an endpoint: its name, its instance number, and the messages with which endpoints find each other.
//!
//! A question is a message with a word in a header and no body.
//!
//! Invariant: if two endpoints claim the same name, at most one gets it, provided that both answer claims in time.

use crate::connection::ConnectionFailures;
use crate::seal::OVERTAKEN_MESSAGE_REASON;
use crate::subject;
use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::NodeName;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Time within which the server must send back a claim, which confirms the subscriptions.
pub(super) const SUBSCRIPTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Time within which another endpoint with the same name must answer a claim.
const NAME_CLAIM_TIMEOUT: Duration = Duration::from_millis(200);
/// Header of a question between endpoints; messages without it are letters and telemetry.
pub(super) const QUESTION_HEADER: &str = "Packetrig-Ask";
/// Question: the asking endpoint claims the name.
pub(super) const NAME_CLAIM_WORD: &str = "name";
/// Question: the controller asks a node for its instance.
pub(super) const INSTANCE_QUESTION_WORD: &str = "there";
/// Answer: the sender holds the name. It also announces the instance of the sender.
pub(super) const NAME_IN_USE_WORD: &str = "here";
/// Header with the instance of the sending endpoint, a random number from `join_fabric`.
const INSTANCE_HEADER: &str = "Packetrig-Place";
/// Header with the number of samples (in a hello: of hellos) that this instance of the endpoint
/// sent before this message.
pub(super) const SEQUENCE_NUMBER_HEADER: &str = "Packetrig-Number";

/// State that an endpoint shares with its tasks.
#[derive(Clone, Debug)]
pub(super) struct EndpointState {
    pub(super) name: NodeName,
    pub(super) client: Client,
    /// Connection for renewals and grants. A controller has a separate one; a node uses its only connection.
    pub(super) leases: Client,
    /// Random number that distinguishes this start of the endpoint from earlier ones, and from other processes
    /// with the same name.
    pub(super) incarnation: u64,
    /// True once the endpoint holds its name, and answers claims of other endpoints with [`NAME_IN_USE_WORD`].
    pub(super) settled: Arc<AtomicBool>,
    /// True once the endpoint has given up its name.
    pub(super) left: Arc<AtomicBool>,
    /// Number of messages that found no space in a queue, and of samples that were lost on the network.
    pub(super) dropped: Arc<AtomicU64>,
    /// Number of refused messages, see [`Self::refuse_message`].
    pub(super) refused: Arc<AtomicU64>,
    pub(super) troubles: ConnectionFailures,
    /// Number of faults of each node, see [`Self::report_fault`].
    pub(super) faults: Arc<Mutex<BTreeMap<NodeName, u64>>>,
    /// Nodes that sent a message or announced themselves, with their instance numbers.
    pub(super) known: Arc<Mutex<BTreeMap<NodeName, u64>>>,
    /// Notified whenever `known` changes.
    pub(super) known_changed: Arc<Notify>,
}

impl EndpointState {
    pub(super) fn is_controller(&self) -> bool {
        self.name.is_controller()
    }

    /// True for a controller with its own name (`controller-…`), which may be one among several controllers of a fleet.
    pub(super) fn is_one_of_several_controllers(&self) -> bool {
        self.is_controller() && self.name != NodeName::controller()
    }

    pub(super) fn lock_incarnations(&self) -> MutexGuard<'_, BTreeMap<NodeName, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts and reports a refused message. A message that a later one has overtaken is only counted,
    /// because it is genuine.
    pub(super) fn refuse_message(&self, message: &Message, why: &str) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if why != OVERTAKEN_MESSAGE_REASON {
            self.report_fault(message, why);
        }
    }

    /// Reports a message that was refused or dropped. A controller reports only the first, tenth, hundredth (and so on)
    /// such message of a node: there may be very many, and each report becomes a line in the output of the run.
    pub(super) fn report_fault(&self, message: &Message, why: &str) {
        let subject = &message.subject;
        if !self.is_controller() {
            return self.troubles.add_failure(Error::NotPermitted(format!("{subject}: {why}")));
        }
        let from = subject::publishing_node(subject).unwrap_or_else(|| NodeName("?".to_owned()));
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let count = faults.entry(from).or_insert(0_u64);
        *count = count.saturating_add(1);
        // True for 1, 10, 100 and so on. `count` is at least 1, so it has a logarithm.
        if 10_u64.checked_pow(count.ilog10()) == Some(*count) {
            let text = format!("{subject}: {why} (refused or dropped messages of that node so far: {count})");
            self.troubles.add_failure(Error::NotPermitted(text));
        }
    }

    /// Records the instance of the node that sent this message.
    pub(super) fn record_incarnation(&self, message: &Message) {
        if let (Some(from), Some(place)) =
            (subject::publishing_node(&message.subject), sender_incarnation(message))
        {
            self.lock_incarnations().insert(from, place);
            self.known_changed.notify_waiters();
        }
    }

    /// Returns the instance of a node. Waits for a message of the node if the instance is not known yet.
    pub(super) async fn wait_for_instance_of(&self, node: &NodeName) -> u64 {
        loop {
            let mut changed = pin!(self.known_changed.notified());
            // The notification is enabled before the check, so that a change between check and wait is not missed.
            changed.as_mut().enable();
            if let Some(place) = self.lock_incarnations().get(node) {
                return *place;
            }
            changed.await;
        }
    }

    pub(super) fn incarnation_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(INSTANCE_HEADER, format!("{:016x}", self.incarnation));
        headers
    }
}

pub(super) fn header_value<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

pub(super) fn sender_incarnation(message: &Message) -> Option<u64> {
    u64::from_str_radix(header_value(message, INSTANCE_HEADER)?, 16).ok()
}

pub(crate) fn random_u64() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Down("the system returned no random numbers".to_owned()))?;
    Ok(u64::from_be_bytes(bytes))
}

impl EndpointState {
    pub(super) async fn subscribe_to(&self, at: &str) -> Result<Subscriber, Error> {
        self.client.subscribe(at.to_owned()).await.map_err(|error| Error::Down(error.to_string()))
    }

    async fn send_question(&self, at: String, ask: &'static str, reply: Option<String>) -> Result<(), Error> {
        let mut headers = self.incarnation_headers();
        headers.insert(QUESTION_HEADER, ask);
        let sent = match reply {
            Some(inbox) => self.client.publish_with_reply_and_headers(at, inbox, headers, Bytes::new()).await,
            None => self.client.publish_with_headers(at, headers, Bytes::new()).await,
        };
        sent.map_err(|error| Error::Down(error.to_string()))
    }

    /// Checks that the server has all subscriptions, and that no other endpoint has the name.
    pub(super) async fn claim_endpoint_name(
        &self,
        echo: tokio::sync::oneshot::Receiver<()>,
    ) -> Result<(), Error> {
        let inbox = self.client.new_inbox();
        // The inbox is subscribed before the question is sent: an answer may come at once.
        let mut answers = self.subscribe_to(&inbox).await?;
        // The claim comes back on this endpoint's own subscription. The server handles messages in order, so when the
        // claim comes back, the server has accepted or refused all subscriptions.
        self.send_question(subject::presence_subject(&self.name.0), NAME_CLAIM_WORD, Some(inbox)).await?;
        let proven = tokio::time::timeout(SUBSCRIPTION_TIMEOUT, self.await_claim_echo(echo)).await;
        proven.unwrap_or_else(|_| {
            Err(Error::Down("the server did not confirm the subscriptions".to_owned()))
        })?;
        if self.is_one_of_several_controllers() {
            return Ok(());
        }
        let taken = async {
            while let Some(answer) = answers.next().await {
                // If two endpoints claim the name at the same time, the one with the lower instance number gets it.
                let settled = header_value(&answer, QUESTION_HEADER) == Some(NAME_IN_USE_WORD);
                if settled || sender_incarnation(&answer).is_some_and(|other| other < self.incarnation) {
                    return;
                }
            }
            // A closed inbox is not an answer, so only the timeout below ends the wait.
            std::future::pending::<()>().await;
        };
        // No answer means that the name is free, or that its holder cannot reach
        // the server (see `Fabric::open_endpoint`).
        match tokio::time::timeout(NAME_CLAIM_TIMEOUT, taken).await {
            Ok(()) => Err(Error::Taken(self.name.clone())),
            Err(_) => Ok(()),
        }
    }

    /// Waits until the claim comes back on the endpoint's own subscription. Fails if the server refuses a subscription.
    async fn await_claim_echo(&self, mut echo: tokio::sync::oneshot::Receiver<()>) -> Result<(), Error> {
        loop {
            let came = tokio::time::timeout(Duration::from_millis(20), &mut echo).await;
            // A refused subscription is an event of the connection, not an error of `subscribe`.
            let refused =
                self.troubles.take_problems().into_iter().find(|it| matches!(it, Error::NotPermitted(_)));
            match (refused, came) {
                (Some(refused), _) => return Err(refused),
                (None, Ok(Ok(()))) => return Ok(()),
                (None, Ok(Err(_))) => return Err(Error::Down("the connection was closed".to_owned())),
                (None, Err(_)) => {}
            }
        }
    }

    /// Makes later claims of the name fail. A node, or a fleet's only controller, also announces its instance.
    pub(super) async fn announce_presence(&self) -> Result<(), Error> {
        // From now on a claim of this name is answered with `NAME_IN_USE_WORD`, and loses whatever its number is.
        self.settled.store(true, Ordering::Release);
        if !self.is_one_of_several_controllers() {
            self.send_question(subject::presence_subject(&self.name.0), NAME_IN_USE_WORD, None).await?;
        }
        self.client.flush().await.map_err(|error| Error::Down(error.to_string()))
    }

    /// Announces the endpoint again, because the controller requested it. Does nothing after the endpoint has left.
    pub(super) async fn repeat_announcement(&self) {
        if self.left.load(Ordering::Acquire) {
            return;
        }
        if let Err(error) =
            self.send_question(subject::presence_subject(&self.name.0), NAME_IN_USE_WORD, None).await
        {
            self.troubles.add_failure(error);
        }
    }

    /// Answers another endpoint that claims this name.
    pub(super) async fn answer_claim(&self, question: &Message) {
        // The answer goes only to an inbox of this name: the other endpoint can choose any reply subject, and this
        // endpoint may have more rights than the other one.
        let own_inbox = format!("{}.", subject::inbox_prefix(&self.name.0));
        let Some(reply) = question.reply.as_ref().filter(|reply| reply.starts_with(&own_inbox)) else {
            return;
        };
        // Another endpoint may take the name of an endpoint that leaves.
        if self.left.load(Ordering::Acquire) {
            return;
        }
        // `NAME_CLAIM_WORD` says that this endpoint claims the name at the same time, so the instance numbers decide.
        let word = if self.settled.load(Ordering::Acquire) { NAME_IN_USE_WORD } else { NAME_CLAIM_WORD };
        if let Err(error) = self.send_question(reply.to_string(), word, None).await {
            self.troubles.add_failure(error);
        }
    }
}
