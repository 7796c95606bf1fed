//! Listening to nodes that say they are there, without being anybody: for who only wants to look.
//!
//! It asks nothing and answers nothing, so it can stand beside a controller at work.

use crate::connection::{Access, Troubles, open};
use crate::endpoint::{NodeLetterGate, Seals};
use crate::runtime::Runtime;
use crate::subject;
use async_nats::Subscriber;
use futures_util::StreamExt;
use packetrig_fleet::fabric::Error;
use packetrig_fleet::hello::Hello;
use packetrig_fleet::message::{Body, Envelope, NodeName};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Mutex;

/// How long the server may take to be there.
const OPENING: Nanos = Nanos::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct Observer {
    runtime: Runtime,
    heard: Arc<Mutex<Subscriber>>,
    seals: std::sync::Mutex<Seals>,
    gate: NodeLetterGate,
}

impl Observer {
    pub(crate) fn open(runtime: Runtime, access: Access) -> Result<Self, Error> {
        let seals = std::sync::Mutex::new(Seals::new(access.keys.clone(), 0, None)?);
        // It asks nothing, so nodes seal for whatever controller they have heard.
        let gate = NodeLetterGate::new(access.keys.as_ref(), None);
        let opening = async move {
            // The controller's own certificate lets it hear everybody.
            let client = open(access, NodeName::controller().0, Troubles::default()).await?;
            let down = |why: String| Error::Down(why);
            let heard =
                client.subscribe(subject::presence_of_all()).await.map_err(|e| down(e.to_string()))?;
            client.flush().await.map_err(|error| down(error.to_string()))?;
            Ok(heard)
        };
        let silent = || Error::Down("the server does not answer".to_owned());
        let heard = runtime.wait(OPENING.to_std(), opening).unwrap_or_else(|| Err(silent()))?;
        Ok(Self { runtime, heard: Arc::new(Mutex::new(heard)), seals, gate })
    }

    /// The next node that says it is there; `None` if none does within that time. What a node has not sealed is nobody's.
    pub fn next(&self, within: Nanos) -> Option<(NodeName, Hello)> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
            let heard = Arc::clone(&self.heard);
            let next = async move { heard.lock().await.next().await };
            let message = self.runtime.wait(left, next)??;
            if self.gate.check(&message).is_err() {
                continue;
            }
            let mut seals = self.seals.lock().unwrap_or_else(PoisonError::into_inner);
            let believed = seals.believe(&NodeName::controller(), &message);
            if let Ok(Envelope { from, body: Body::Hello(hello) }) = believed {
                return Some((from, *hello));
            }
        }
    }
}
