//! Sends the messages of an endpoint: chooses the subject, adds the seal, and waits for space in the send queue.

use super::NatsEndpoint;
use super::place::{INSTANCE_QUESTION_WORD, QUESTION_HEADER, SEQUENCE_NUMBER_HEADER};
use crate::letter;
use crate::subject;
use async_nats::RequestErrorKind;
use bytes::Bytes;
use futures_util::FutureExt;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeName};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time within which a node must answer when the controller asks for its instance.
const INSTANCE_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time for which a message waits for space in the send queue of the connection.
pub(super) const SEND_QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time for which telemetry waits for space in the send queue.
const TELEMETRY_SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// Numbers of hellos and samples that were sent. Each message carries its number, so the receiver can count losses.
#[derive(Debug, Default)]
pub(super) struct PostedCounts {
    hellos: u64,
    samples: u64,
}

impl PostedCounts {
    fn counter_of(&mut self, body: &MessageBody) -> &mut u64 {
        if matches!(body, MessageBody::Hello(_)) { &mut self.hellos } else { &mut self.samples }
    }
}

/// Destination of a letter.
pub(super) struct LetterDestination {
    pub(super) subject: String,
    /// Instance of the receiving node; 0 if the receiver is the controller.
    pub(super) incarnation: u64,
}

impl NatsEndpoint {
    /// Posts these bytes as a hello, with a genuine seal. It is for tests that send arbitrary bytes to a controller.
    pub fn post_as_hello(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        let body = MessageBody::Hello(Box::default());
        let subject = subject::subject_to_controller(&self.own.name.0, &body);
        self.send_sealed_message(subject, None, &body, bytes)
    }

    pub(super) fn resolve_destination(
        &mut self,
        to: &NodeName,
        body: &MessageBody,
    ) -> Result<LetterDestination, Error> {
        let name = subject::node_subject_token(to)?;
        if *to == NodeName::controller() {
            let subject = subject::subject_to_controller(&self.own.name.0, body);
            return Ok(LetterDestination { subject, incarnation: 0 });
        }
        let mut incarnation = 0;
        if self.own.is_controller() {
            incarnation = self.find_or_query_incarnation(to)?;
            // A fleet's only controller begins to listen for the renewals of a node when it
            // sends its first letter to the node.
            if self.node_subscriptions.covers_all_nodes() {
                self.renewal_line.listen_to(to, &self.runtime);
            }
        }
        Ok(LetterDestination { subject: subject::command_subject(name), incarnation })
    }

    /// Returns the instance of a node. If the node has sent no message yet, asks it on the subject of its letters; the
    /// node answers with an announcement on its own subject.
    fn find_or_query_incarnation(&self, to: &NodeName) -> Result<u64, Error> {
        if let Some(incarnation) = self.own.lock_incarnations().get(to) {
            return Ok(*incarnation);
        }
        let own = self.own.clone();
        let node = to.clone();
        let asking = async move {
            let mut headers = own.incarnation_headers();
            headers.insert(QUESTION_HEADER, INSTANCE_QUESTION_WORD);
            let question =
                own.client.request_with_headers(subject::command_subject(&node.0), headers, Bytes::new());
            tokio::select! {
                incarnation = own.wait_for_instance_of(&node) => Ok(incarnation),
                // No node uses the reply subject of the question. The server replies if nobody
                // subscribes to the subject.
                Err(error) = question => match error.kind() {
                    RequestErrorKind::NoResponders => Err(Error::Unknown(node)),
                    _ => Err(no_answer_error(&node)),
                },
                else => Err(no_answer_error(&node)),
            }
        };
        self.runtime
            .run_with_timeout(INSTANCE_ANSWER_TIMEOUT, asking)
            .unwrap_or_else(|| Err(no_answer_error(to)))
    }

    /// Publishes a message. `to`: the receiver with its instance (0 for the controller); `None` for all nodes.
    pub(super) fn publish_message(
        &mut self,
        at: String,
        to: Option<(&NodeName, u64)>,
        body: &MessageBody,
    ) -> Result<(), Error> {
        // Nodes distinguish controllers by their seals, not by their names.
        let is_controller = self.own.is_controller();
        let from = if is_controller { NodeName::controller() } else { self.own.name.clone() };
        let envelope = MessageEnvelope { from, body: body.clone() };
        let bytes = letter::encode_message(&envelope)?;
        self.send_sealed_message(at, to, body, bytes)
    }

    /// Publishes `bytes`, which encode `body`, with their seal.
    fn send_sealed_message(
        &mut self,
        at: String,
        to: Option<(&NodeName, u64)>,
        body: &MessageBody,
        bytes: Vec<u8>,
    ) -> Result<(), Error> {
        let mut headers = self.own.incarnation_headers();
        self.seals.add_seal(&mut headers, &at, to, body, &bytes)?;
        let droppable = body.may_be_dropped();
        if droppable {
            headers.insert(SEQUENCE_NUMBER_HEADER, self.posted.counter_of(body).to_string());
        }
        let is_grant = matches!(body, MessageBody::Granted(..));
        let client = if is_grant { self.own.leases.clone() } else { self.own.client.clone() };
        let sending = async move { client.publish_with_headers(at, headers, bytes.into()).await };
        // The wait below continues the same future, so the message is not published twice.
        let mut sending = Box::pin(sending);
        // The send queue nearly always has space; then no task is needed.
        let done = sending.as_mut().now_or_never();
        let timeout = if droppable { TELEMETRY_SEND_TIMEOUT } else { SEND_QUEUE_TIMEOUT };
        match done.or_else(|| self.runtime.run_with_timeout(timeout, sending)) {
            Some(Ok(())) => {
                // Only sent messages use up a number: this endpoint counts a message that it drops, so the receiver
                // must not count the message as a gap, too.
                if droppable {
                    *self.posted.counter_of(body) += 1;
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
}

fn no_answer_error(node: &NodeName) -> Error {
    Error::Unanswered(format!("node {node} does not answer"))
}
