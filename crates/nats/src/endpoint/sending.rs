//! How a place sends: where a letter goes, its seal, and how long it waits for room.

use super::NatsEndpoint;
use super::place::{ASK, NUMBER, THERE_WORD};
use crate::letter;
use crate::subject;
use async_nats::RequestErrorKind;
use bytes::Bytes;
use futures_util::FutureExt;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeName};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a node may take to say that it is there.
const THERE: Duration = Duration::from_secs(1);
/// How long a letter may wait for room in the queue of the connection.
pub(super) const ROOM: Duration = Duration::from_secs(1);
/// The same for telemetry.
const ROOM_FOR_TELEMETRY: Duration = Duration::from_millis(100);

/// How many there were of what may be dropped; each carries its number, so the other side knows what did not come.
#[derive(Debug, Default)]
pub(super) struct PostedCounts {
    hellos: u64,
    samples: u64,
}

impl PostedCounts {
    fn of(&mut self, body: &MessageBody) -> &mut u64 {
        if matches!(body, MessageBody::Hello(_)) { &mut self.hellos } else { &mut self.samples }
    }
}

/// Where a letter goes.
pub(super) struct LetterDestination {
    pub(super) subject: String,
    /// The instance of the node that it is for; 0 for the controller.
    pub(super) incarnation: u64,
}

impl NatsEndpoint {
    /// Posts these bytes as a hello, sealed as the node's own are: for tests of what controllers make of them.
    pub fn post_as_hello(&mut self, bytes: Vec<u8>) -> Result<(), Error> {
        let body = MessageBody::Hello(Box::default());
        let subject = subject::to_controller(&self.own.name.0, &body);
        self.send_sealed(subject, None, &body, bytes)
    }

    pub(super) fn destination(
        &mut self,
        to: &NodeName,
        body: &MessageBody,
    ) -> Result<LetterDestination, Error> {
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
    pub(super) fn publish(
        &mut self,
        at: String,
        to: Option<(&NodeName, u64)>,
        body: &MessageBody,
    ) -> Result<(), Error> {
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
}

fn silent(node: &NodeName) -> Error {
    Error::Unanswered(format!("node {node} does not answer"))
}
