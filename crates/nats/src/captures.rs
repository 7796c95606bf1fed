//! Fetches captures that stay on nodes: signed questions to a node, sealed answers from it.
//!
//! The exchange has its own connections and subjects (`get.NODE`, `cap.NODE`). It does not use letters, leases or
//! results, and the fetching process need not be the fleet's controller.
//!
//! Invariant: a node answers a question only if the fleet's signing key has signed it for this node, and answers each
//! question once, as long as it remembers the asking process. An answer counts only with the seal of its node.

use crate::connection::{self, ConnectionFailures, ServerAccess, open_client, to_down_error};
use crate::runtime::SharedRuntime;
use crate::seal::{MacKeys, SealKeys, is_capture_genuine, is_question_genuine, seal_capture, seal_question};
use crate::subject;
use async_nats::{Client, HeaderMap, Message, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use packetrig_fleet::captures::{
    CaptureAnswer, CaptureAnswers, CaptureName, CaptureQuestion, CaptureQuestions, CaptureRequest,
};
use packetrig_fleet::fabric::Error;
use packetrig_fleet::hello::MAX_TEXT_CHARACTERS;
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use packetrig_units::text::one_line;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Header with the question or the answer, as JSON.
const CAPTURE_HEADER: &str = "Packetrig-Capture";
const SEAL_HEADER: &str = "Packetrig-Seal";
/// Maximum time to write a message to the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which the server must accept the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of asking processes whose last question number a node remembers. A replayed question of a forgotten
/// process only causes a useless answer.
const MAX_REMEMBERED_ASKERS: usize = 64;

/// Connection of the node or of the fetching process. Only the exchange of captures uses it.
struct CaptureConnection {
    runtime: SharedRuntime,
    client: Client,
    incoming: Arc<Mutex<Subscriber>>,
}

impl CaptureConnection {
    fn open_connection(
        runtime: SharedRuntime,
        access: ServerAccess,
        name: NodeName,
        subject_heard: String,
    ) -> Result<Self, Error> {
        let opened =
            runtime.run_with_timeout(CONNECT_TIMEOUT, connect_and_subscribe(access, name, subject_heard));
        let CaptureSubscription { client, incoming } =
            opened.unwrap_or_else(|| Err(connection::no_answer_error()))?;
        Ok(Self { runtime, client, incoming: Arc::new(Mutex::new(incoming)) })
    }

    fn next_message(&self, until: u64) -> Option<Message> {
        let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
        let incoming = Arc::clone(&self.incoming);
        self.runtime.run_with_timeout(left, async move { incoming.lock().await.next().await })?
    }

    /// Sends a message, and returns when it is written to the socket, so that no queue grows.
    fn send_message(
        &self,
        at: String,
        about: String,
        seal: Option<String>,
        bytes: Vec<u8>,
    ) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        headers.insert(CAPTURE_HEADER, about);
        if let Some(seal) = seal {
            headers.insert(SEAL_HEADER, seal);
        }
        let client = self.client.clone();
        let sent = self.runtime.run_with_timeout(SEND_TIMEOUT, async move {
            client.publish_with_headers(at, headers, Bytes::from(bytes)).await.map_err(to_down_error)?;
            // In async-nats, `publish` only queues the message; `flush` returns when it is written to the socket.
            client.flush().await.map_err(to_down_error)
        });
        sent.unwrap_or_else(|| {
            Err(Error::Unanswered("a message about a capture was not sent in time".to_owned()))
        })
    }
}

/// A connection to the server, and its only subscription.
struct CaptureSubscription {
    client: Client,
    incoming: Subscriber,
}

async fn connect_and_subscribe(
    access: ServerAccess,
    name: NodeName,
    subject: String,
) -> Result<CaptureSubscription, Error> {
    let client = open_client(access, name.0, ConnectionFailures::default()).await?;
    let incoming = client.subscribe(subject).await.map_err(to_down_error)?;
    // Sends the subscription before this function returns, so that no answer to a later question is missed.
    client.flush().await.map_err(to_down_error)?;
    Ok(CaptureSubscription { client, incoming })
}

fn header_value<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| Error::NotPermitted(error.to_string()))
}

pub struct NatsCaptureQuestions {
    connection: CaptureConnection,
    node: NodeName,
    keys: Option<SealKeys>,
    /// Random numbers of the asking processes, each with the number of the last question of that process.
    askers: VecDeque<(u64, u64)>,
}

impl std::fmt::Debug for NatsCaptureQuestions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsCaptureQuestions").field("node", &self.node).finish_non_exhaustive()
    }
}

impl NatsCaptureQuestions {
    pub(crate) fn open_for_node(
        runtime: SharedRuntime,
        access: ServerAccess,
        node: &NodeName,
    ) -> Result<Self, Error> {
        let subject_heard = subject::capture_question_subject(subject::node_subject_token(node)?);
        let keys = access.keys.clone();
        let connection = CaptureConnection::open_connection(runtime, access, node.clone(), subject_heard)?;
        Ok(Self { connection, node: node.clone(), keys, askers: VecDeque::new() })
    }

    fn read_question(&mut self, message: &Message) -> Option<CaptureQuestion> {
        let about = header_value(message, CAPTURE_HEADER)?;
        if let Some(SealKeys::Node { controller, .. }) = &self.keys
            && !is_question_genuine(controller, &message.subject, about, header_value(message, SEAL_HEADER)?)
        {
            return None;
        }
        let question: CaptureQuestion = serde_json::from_str(about).ok()?;
        self.is_new_question(&question).then_some(question)
    }

    fn is_new_question(&mut self, question: &CaptureQuestion) -> bool {
        if let Some((_, last)) = self.askers.iter_mut().find(|(asker, _)| *asker == question.asker) {
            // A recorded question that is sent again has an old number, so it is refused.
            let is_new = question.number > *last;
            *last = question.number.max(*last);
            return is_new;
        }
        if self.askers.len() == MAX_REMEMBERED_ASKERS {
            self.askers.pop_front();
        }
        self.askers.push_back((question.asker, question.number));
        true
    }
}

impl CaptureQuestions for NatsCaptureQuestions {
    fn next_question(&mut self, within: Nanos) -> Option<CaptureQuestion> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let message = self.connection.next_message(until)?;
            if let Some(question) = self.read_question(&message) {
                return Some(question);
            }
        }
    }

    fn send_answer(&mut self, answer: &CaptureAnswer, bytes: Vec<u8>) -> Result<(), Error> {
        let at = subject::capture_answer_subject(&self.node.0);
        let about = to_json(answer)?;
        let seal = match &self.keys {
            Some(SealKeys::Node { grants, .. }) => Some(seal_capture(grants, &at, &about, &bytes)),
            _ => None,
        };
        self.connection.send_message(at, about, seal, bytes)
    }
}

/// Asks one node for captures and receives its answers. The questions are signed with the controller's key.
pub struct NatsCaptureAnswers {
    connection: CaptureConnection,
    node: NodeName,
    keys: Option<SealKeys>,
    asker: u64,
    number: u64,
}

impl std::fmt::Debug for NatsCaptureAnswers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsCaptureAnswers").field("node", &self.node).finish_non_exhaustive()
    }
}

impl NatsCaptureAnswers {
    pub(crate) fn open_for_node(
        runtime: SharedRuntime,
        access: ServerAccess,
        node: &NodeName,
    ) -> Result<Self, Error> {
        let subject_heard = subject::capture_answer_subject(subject::node_subject_token(node)?);
        let keys = access.keys.clone();
        // Random for each process, because a node refuses question numbers that the same asker has used before.
        let asker = crate::endpoint::random_u64()?;
        let connection =
            CaptureConnection::open_connection(runtime, access, NodeName::controller(), subject_heard)?;
        Ok(Self { connection, node: node.clone(), keys, asker, number: 0 })
    }

    fn read_answer(&self, message: &Message) -> Option<CaptureAnswer> {
        let about = header_value(message, CAPTURE_HEADER)?;
        if let Some(SealKeys::Controller { grants, .. }) = &self.keys {
            // Without a readable key of the node, none of its answers counts.
            let key = MacKeys::as_ref(grants)(&self.node).ok()??;
            let seal = header_value(message, SEAL_HEADER)?;
            if !is_capture_genuine(&key, &message.subject, about, &message.payload, seal) {
                return None;
            }
        }
        let mut answer: CaptureAnswer = serde_json::from_str(about).ok()?;
        // The text comes from the node and is shown in a terminal.
        answer.outcome = answer.outcome.map_err(|why| one_line(&why, MAX_TEXT_CHARACTERS));
        // Several processes may fetch from one node, and each of them receives the answers to all questions.
        (answer.asker == self.asker).then_some(answer)
    }
}

impl CaptureAnswers for NatsCaptureAnswers {
    fn send_question(&mut self, capture: &CaptureName, request: CaptureRequest) -> Result<u64, Error> {
        self.number += 1;
        let number = self.number;
        let about =
            to_json(&CaptureQuestion { asker: self.asker, number, capture: capture.clone(), request })?;
        let at = subject::capture_question_subject(&self.node.0);
        let seal = match &self.keys {
            Some(SealKeys::Controller { signing, .. }) => Some(seal_question(signing, &at, &about)?),
            _ => None,
        };
        self.connection.send_message(at, about, seal, Vec::new())?;
        Ok(number)
    }

    fn next_answer(&mut self, within: Nanos) -> Option<(CaptureAnswer, Vec<u8>)> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let message = self.connection.next_message(until)?;
            if let Some(answer) = self.read_answer(&message) {
                return Some((answer, message.payload.to_vec()));
            }
        }
    }
}
