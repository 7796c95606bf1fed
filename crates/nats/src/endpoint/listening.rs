//! The tasks of an endpoint: each task reads one subscription into a queue.
//!
//! Invariant: a genuine letter that the server delivered reaches the queue, unless the quota of its node is used up.
//! Lost telemetry is counted, even if it was lost on the network, because its sender numbers it.

use super::heard_nodes::AcceptedNodes;
use super::place::{
    EndpointState, NAME_CLAIM_WORD, NAME_IN_USE_WORD, QUESTION_HEADER, SEQUENCE_NUMBER_HEADER, header_value,
    sender_incarnation,
};
use super::quota::NodeQuota;
use super::trust::NodeLetterGate;
use crate::seal::LetterRefusal;
use crate::subject::{self, publishing_node};
use async_nats::{Message, Subscriber};
use crossbeam_channel::Sender;
use futures_util::StreamExt;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::NodeName;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

/// Sending ends of the queues for letters and telemetry, with their quotas.
#[derive(Clone, Debug)]
pub(super) struct MessageQueueSenders {
    pub(super) letters: Sender<Message>,
    pub(super) quota: NodeQuota,
    pub(super) telemetry: Sender<Message>,
    pub(super) telemetry_quota: NodeQuota,
}

/// A node that seals its letters for another controller, and its instance number.
pub(super) type NodeNeedingRollCall = (NodeName, u64);

/// State that a task needs in addition to its subscription and its queue.
#[derive(Clone, Debug)]
pub(super) struct ListeningTaskContext {
    pub(super) own: EndpointState,
    pub(super) gate: NodeLetterGate,
    pub(super) heard: AcceptedNodes,
    pub(super) nodes_to_call: Sender<NodeNeedingRollCall>,
}

impl ListeningTaskContext {
    /// Checks the seal of a message, and the limits for hellos. Returns true if the message may be queued. A refusal is
    /// counted and reported, unless the message is for another controller.
    pub(super) fn admits_message(&self, message: &Message) -> bool {
        match self.gate.check_message(message) {
            Ok(()) => return true,
            // The letter is correct, but sealed for another controller. If this controller listens to the node, it
            // sends a roll call, and the node sends the letter again. Other nodes belong to the other controller.
            Err(LetterRefusal::OtherController) => {
                if let (Some(node), Some(life)) =
                    (publishing_node(&message.subject), sender_incarnation(message))
                    && self.heard.contains(&node)
                {
                    // If the queue is full, the next letter of that node asks again.
                    drop(self.nodes_to_call.try_send((node, life)));
                }
            }
            Err(LetterRefusal::NotForThisOne) => {}
            Err(why) => self.own.refuse_message(message, &why.to_string()),
        }
        false
    }

    /// Counts and reports a letter for which the queue has no space.
    pub(super) fn count_dropped_letter(&self, message: &Message) {
        self.own.dropped.fetch_add(1, Ordering::Relaxed);
        self.own.report_fault(message, "too many messages of this node are waiting to be read");
    }
}

/// Tasks that read the subscriptions. They end when this value is dropped, even if the endpoint could not join.
#[derive(Debug)]
pub(super) struct ListeningTasks {
    running: Vec<JoinHandle<()>>,
    left: Arc<AtomicBool>,
}

impl Drop for ListeningTasks {
    fn drop(&mut self) {
        // From now on another endpoint may take the name.
        self.left.store(true, Ordering::Release);
        for task in &self.running {
            task.abort();
        }
    }
}

impl ListeningTasks {
    /// Subscribes, starts the tasks, and checks that the server has the subscriptions and that the name is free.
    pub(super) async fn start_listening(
        listener: &ListeningTaskContext,
        feeds: &MessageQueueSenders,
    ) -> Result<Self, Error> {
        let own = &listener.own;
        let name = own.name.0.as_str();
        let mut tasks = Self { running: Vec::new(), left: Arc::clone(&own.left) };
        if own.is_controller() {
            let telemetry = if listener.heard.includes_all_nodes() {
                let letters = own.subscribe_to(subject::CONTROLLER_LETTER_SUBJECT).await?;
                tasks.spawn(run_letter_task(listener.clone(), letters, feeds.clone()));
                subject::CONTROLLER_TELEMETRY_SUBJECTS.as_slice()
            } else {
                // Letters and samples arrive on the subscriptions for the nodes that
                // this controller leads, so only hellos are subscribed here.
                &[subject::all_hello_subjects()]
            };
            for at in telemetry {
                tasks.spawn(run_telemetry_task(listener.clone(), own.subscribe_to(at).await?, feeds.clone()));
            }
        } else {
            for at in [&*subject::command_subject(name), subject::ALL_NODES_SUBJECT] {
                tasks.spawn(run_letter_task(listener.clone(), own.subscribe_to(at).await?, feeds.clone()));
            }
        }
        let heard = if own.is_controller() { "*" } else { name };
        let presence = own.subscribe_to(&subject::presence_subject(heard)).await?;
        let (echo, proof) = tokio::sync::oneshot::channel();
        // The task is spawned before the claim, because it reads the claim when the server sends it back.
        tasks.spawn(run_presence_task(own.clone(), presence, echo));
        own.claim_endpoint_name(proof).await?;
        own.announce_presence().await?;
        Ok(tasks)
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.push(tokio::spawn(task));
    }
}

pub(super) async fn run_letter_task(
    listener: ListeningTaskContext,
    mut subscriber: Subscriber,
    feeds: MessageQueueSenders,
) {
    let own = &listener.own;
    while let Some(message) = subscriber.next().await {
        if header_value(&message, QUESTION_HEADER).is_some() {
            if !own.is_controller() {
                // The answer goes to the node's own subject and not to the reply subject, which the sender of the
                // question can choose freely.
                own.repeat_announcement().await;
            }
            continue;
        }
        if !listener.admits_message(&message) {
            continue;
        }
        if !feeds.quota.reserve_quota(&message) {
            listener.count_dropped_letter(&message);
        } else if feeds.letters.send(message).is_err() {
            return;
        }
    }
}

pub(super) async fn run_telemetry_task(
    listener: ListeningTaskContext,
    mut subscriber: Subscriber,
    feeds: MessageQueueSenders,
) {
    let mut numbers = NextSampleNumbers::default();
    while let Some(message) = subscriber.next().await {
        if !listener.admits_message(&message) {
            continue;
        }
        // Losses are counted after the seal was checked, because a forged number could feign a loss.
        let lost = numbers.count_lost_samples_before(&message);
        let is_queued = feeds.telemetry_quota.reserve_quota(&message) && queue_telemetry(&feeds, message);
        listener.own.dropped.fetch_add(lost + u64::from(!is_queued), Ordering::Relaxed);
    }
}

/// Queues a sample. Returns false if the queue, which all nodes share, is full; then the sample is dropped.
fn queue_telemetry(feeds: &MessageQueueSenders, sample: Message) -> bool {
    feeds
        .telemetry
        .try_send(sample)
        .map_err(|error| feeds.telemetry_quota.release_quota(&error.into_inner()))
        .is_ok()
}

/// Instance and next message number of each sender, by its name.
#[derive(Default)]
struct NextSampleNumbers(BTreeMap<String, NextSampleNumber>);

/// Next message number of a sender's instance.
struct NextSampleNumber {
    incarnation: u64,
    number: u64,
}

impl NextSampleNumbers {
    /// Counts the samples that were lost between the previous message of this sender and `message`, on the network or
    /// in a queue of async-nats.
    fn count_lost_samples_before(&mut self, message: &Message) -> u64 {
        let Some(sample) = SampleNumber::from_message(message) else { return 0 };
        let number = sample.number.saturating_add(1);
        match self.0.get_mut(sample.speaker) {
            Some(next) if next.incarnation == sample.incarnation => {
                sample.number.saturating_sub(std::mem::replace(&mut next.number, number))
            }
            // Messages that an instance sent before this endpoint listened do not count as lost.
            _ => {
                let next = NextSampleNumber { incarnation: sample.incarnation, number };
                self.0.insert(sample.speaker.to_owned(), next);
                0
            }
        }
    }
}

/// Sender, instance and number of a message that may be dropped.
struct SampleNumber<'a> {
    speaker: &'a str,
    incarnation: u64,
    number: u64,
}

impl<'a> SampleNumber<'a> {
    fn from_message(message: &'a Message) -> Option<Self> {
        Some(Self {
            speaker: message.subject.rsplit('.').next()?,
            incarnation: sender_incarnation(message)?,
            number: header_value(message, SEQUENCE_NUMBER_HEADER)?.parse().ok()?,
        })
    }
}

async fn run_presence_task(
    own: EndpointState,
    mut subscriber: Subscriber,
    echo: tokio::sync::oneshot::Sender<()>,
) {
    let mut echo = Some(echo);
    let own_presence = subject::presence_subject(&own.name.0);
    while let Some(message) = subscriber.next().await {
        let is_own_name = message.subject.as_str() == own_presence;
        let is_echo = sender_incarnation(&message) == Some(own.incarnation);
        match header_value(&message, QUESTION_HEADER) {
            Some(NAME_CLAIM_WORD) if is_own_name && is_echo => {
                if let Some(echo) = echo.take() {
                    // The send fails only if the endpoint has stopped waiting for its claim.
                    _ = echo.send(());
                }
            }
            // A controller that is one among several has a unique name, so it ignores claims.
            Some(NAME_CLAIM_WORD) if is_own_name && !own.is_one_of_several_controllers() => {
                own.answer_claim(&message).await;
            }
            Some(NAME_IN_USE_WORD) if !is_own_name => own.record_incarnation(&message),
            _ => {}
        }
    }
}
