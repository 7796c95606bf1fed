//! Listening to the hellos of nodes without taking part, for commands that only show them.
//!
//! It asks nothing and answers nothing, so it can stand beside a controller at work.
//!
//! Invariant: of each node one hello waits, the newest, whose length is bounded ([`HelloMailbox`]). A node that floods costs the receiving.

mod mailbox;

use crate::connection::{self, ConnectionTroubles, ServerAccess, down, open};
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

/// How long the server may take to be there.
const OPENING: Nanos = Nanos::from_secs(10);

/// A node that said it is there.
#[derive(Clone, Debug)]
pub struct HeardHello {
    pub node: NodeName,
    pub hello: NodeHello,
    /// When that came, however long it waited here.
    pub at: MonoTime,
}

/// The subscription to all hellos.
struct HelloSubscription {
    messages: Subscriber,
    /// As long as it is held, a lost connection is tried again.
    _client: Client,
}

async fn subscribe(access: ServerAccess) -> Result<HelloSubscription, Error> {
    // The controller's own certificate lets it hear everybody.
    let client = open(access, NodeName::controller().0, ConnectionTroubles::default()).await?;
    let messages = client.subscribe(subject::presence_of_all()).await.map_err(down)?;
    client.flush().await.map_err(down)?;
    Ok(HelloSubscription { messages, _client: client })
}

#[derive(Debug)]
pub struct FleetObserver {
    mailbox: HelloMailbox,
    listening: JoinHandle<()>,
    /// Held so that it goes on listening when the fabric is gone.
    _runtime: SharedRuntime,
    seals: Mutex<EndpointSeals>,
    gate: NodeLetterGate,
}

impl FleetObserver {
    pub(crate) fn open(runtime: SharedRuntime, access: ServerAccess) -> Result<Self, Error> {
        let seals = Mutex::new(EndpointSeals::new(access.keys.clone(), 0, None)?);
        // It asks nothing, so nodes seal for whatever controller they have heard.
        let gate = NodeLetterGate::new(access.keys.as_ref(), None);
        let opened = runtime.wait(OPENING.to_std(), subscribe(access));
        let subscription = opened.unwrap_or_else(|| Err(connection::silent()))?;
        let (mailbox, own_gate) = (HelloMailbox::default(), gate.clone());
        let filled = mailbox.clone();
        let listening = runtime.spawn(async move {
            let HelloSubscription { mut messages, _client } = subscription;
            while let Some(message) = messages.next().await {
                if own_gate.check_cost(&message).is_ok() {
                    filled.put(&message, MonoTime::from_nanos(monotonic_ns()));
                }
            }
        });
        let listening = listening.ok_or_else(connection::silent)?;
        Ok(Self { mailbox, listening, _runtime: runtime, seals, gate })
    }

    /// The next node that says it is there; `None` if none does within that time. Hellos without the seal of their node are ignored.
    pub fn next(&self, within: Nanos) -> Option<HeardHello> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
            let WaitingHello { at, message } = self.mailbox.take(left)?;
            if self.gate.check_seal(&message).is_err() {
                continue;
            }
            let mut seals = self.seals.lock().unwrap_or_else(PoisonError::into_inner);
            let believed = seals.believe(&NodeName::controller(), &message);
            if let Ok(MessageEnvelope { from: node, body: MessageBody::Hello(hello) }) = believed {
                return Some(HeardHello { node, hello: *hello, at });
            }
        }
    }

    /// Whether anything can come any more.
    pub fn is_open(&self) -> bool {
        !self.listening.is_finished()
    }
}

impl Drop for FleetObserver {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
