//! Receives the hellos of nodes, for commands that only show nodes.
//!
//! The observer sends no messages, so it does not disturb a controller.
//!
//! Invariant: only the newest hello of each node is kept until it is read, and its length is bounded
//! ([`HelloMailbox`]). A node that floods is limited by the [`NodeLetterGate`], which drops further hellos.

mod mailbox;

use crate::connection::{self, ConnectionFailures, ServerAccess, open_client, to_down_error};
use crate::endpoint::{EndpointSeals, NodeLetterGate};
use crate::runtime::SharedRuntime;
use crate::subject;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt;
use mailbox::{HelloMailbox, WaitingHello};
use packetrig_fleet::fabric::Error;
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::{MessageBody, MessageEnvelope, NodeName};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::{MonoTime, Nanos};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Time within which the server must accept the connection.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(10);

/// A node that sent a hello.
#[derive(Clone, Debug)]
pub struct ReceivedHello {
    pub node: NodeName,
    pub hello: NodeHello,
    /// Time at which the hello arrived at this process. It may be read much later.
    pub at: MonoTime,
}

/// The subscription to all hellos.
struct HelloSubscription {
    messages: Subscriber,
    /// Held because the connection is opened again after a failure only as long as the client exists.
    _client: Client,
}

async fn subscribe_to_hellos(access: ServerAccess) -> Result<HelloSubscription, Error> {
    // The controller's certificate permits it to receive the hellos of all nodes.
    let client = open_client(access, NodeName::controller().0, ConnectionFailures::default()).await?;
    let messages = client.subscribe(subject::all_hello_subjects()).await.map_err(to_down_error)?;
    client.flush().await.map_err(to_down_error)?;
    Ok(HelloSubscription { messages, _client: client })
}

#[derive(Debug)]
pub struct FleetObserver {
    mailbox: HelloMailbox,
    listening: JoinHandle<()>,
    /// Held so that the observer continues to receive after the fabric was dropped.
    _runtime: SharedRuntime,
    seals: Mutex<EndpointSeals>,
    gate: NodeLetterGate,
}

impl FleetObserver {
    pub(crate) fn open_observer(runtime: SharedRuntime, access: ServerAccess) -> Result<Self, Error> {
        let seals = Mutex::new(EndpointSeals::new(access.keys.clone(), 0, None)?);
        // Nodes seal their hellos for some controller and not for the observer, so any session is accepted.
        let gate = NodeLetterGate::new(access.keys.as_ref(), None);
        let opened = runtime.run_with_timeout(CONNECT_TIMEOUT.to_std(), subscribe_to_hellos(access));
        let subscription = opened.unwrap_or_else(|| Err(connection::no_answer_error()))?;
        let (mailbox, own_gate) = (HelloMailbox::default(), gate.clone());
        let filled = mailbox.clone();
        let listening = runtime.spawn(async move {
            let HelloSubscription { mut messages, _client } = subscription;
            while let Some(message) = messages.next().await {
                // The seal is checked only when a hello is read, because many hellos
                // are replaced by the next one before that.
                if own_gate.check_hello_limits(&message).is_ok() {
                    filled.store_hello(&message, MonoTime::from_nanos(monotonic_ns()));
                }
            }
        });
        let listening = listening.ok_or_else(connection::no_answer_error)?;
        Ok(Self { mailbox, listening, _runtime: runtime, seals, gate })
    }

    /// Returns the next hello, and waits for it at most for the time `within`. Hellos without the seal of
    /// their node are ignored.
    pub fn next_hello(&self, within: Nanos) -> Option<ReceivedHello> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
            let WaitingHello { at, message } = self.mailbox.take_oldest_hello(left)?;
            // A forged hello is skipped, and the wait continues for the remaining time.
            if self.gate.check_seal(&message).is_err() {
                continue;
            }
            let mut seals = self.seals.lock().unwrap_or_else(PoisonError::into_inner);
            let believed = seals.check_and_decode_message(&NodeName::controller(), &message);
            if let Ok(MessageEnvelope { from: node, body: MessageBody::Hello(hello) }) = believed {
                return Some(ReceivedHello { node, hello: *hello, at });
            }
        }
    }

    /// True if more hellos can arrive. After the task that receives hellos has ended, none can.
    pub fn is_open(&self) -> bool {
        !self.listening.is_finished()
    }
}

impl Drop for FleetObserver {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
