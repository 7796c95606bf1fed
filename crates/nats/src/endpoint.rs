//! A place on the fabric: subscriptions that fill two queues, and messages out.
//!
//! One task reads each subscription ([`listening`]), so the engine's own queue stays short: letters go into a queue
//! bounded for each node ([`quota`]), telemetry into one that drops and counts. Whoever receives decodes. [`place`] is who it is.
//!
//! Invariant: letters of one sender arrive in the order it posted them (what goes to all nodes has an order of its own);
//! before `join` returns the server has confirmed every subscription of the place by a round trip on one of them.

mod listening;
mod place;
mod quota;
mod trust;

use self::listening::{Feeds, Tasks};
use self::place::{ASK, NUMBER, Own, PROOF, THERE_WORD, draw};
use self::quota::NodeQuota;
pub(crate) use self::trust::Seals;
use crate::connection::{Access, Troubles, open};
use crate::letter;
use crate::runtime::Runtime;
use crate::subject;
use async_nats::{Message, RequestErrorKind};
use bytes::Bytes;
use crossbeam_channel::{Receiver, bounded, select, unbounded};
use futures_util::FutureExt;
use packetrig_fleet::fabric::{Endpoint, Error};
use packetrig_fleet::message::{Body, Envelope, NodeName};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Telemetry that waits for a slow reader.
const TELEMETRY_ROOM: usize = 4096;
/// How long a node may take to say that it is there.
const THERE: Duration = Duration::from_secs(1);
/// How long a letter may wait for room in the queue of the connection; telemetry waits less.
const ROOM: Duration = Duration::from_secs(1);
/// See [`ROOM`].
const ROOM_FOR_TELEMETRY: Duration = Duration::from_millis(100);

/// A place on the networked fabric; dropping it leaves.
#[derive(Debug)]
pub struct NatsEndpoint {
    own: Own,
    seals: Seals,
    refused: u64,
    posted: Posted,
    runtime: Runtime,
    letters: Receiver<Message>,
    quota: NodeQuota,
    telemetry_quota: NodeQuota,
    telemetry: Receiver<Message>,
    /// Held so that neither queue closes while a place lives that hears nothing on it.
    _feeds: Feeds,
    /// Held for what happens when it is dropped.
    _tasks: Tasks,
}

/// How many there were of what may be dropped; each carries its number, so the other side knows what did not come.
#[derive(Debug, Default)]
struct Posted {
    hellos: u64,
    samples: u64,
}

impl Posted {
    fn of(&mut self, body: &Body) -> &mut u64 {
        if matches!(body, Body::Hello(_)) { &mut self.hellos } else { &mut self.samples }
    }
}

impl NatsEndpoint {
    pub(crate) fn join(runtime: Runtime, access: Access, name: NodeName) -> Result<Self, Error> {
        subject::word(&name)?;
        let within = PROOF * 4;
        let troubles = Troubles::default();
        let incarnation = draw()?;
        let seals = Seals::new(access.keys.clone(), incarnation, access.epoch_proof.clone())?;
        let (letters_in, letters) = unbounded();
        let (telemetry_in, telemetry) = bounded(TELEMETRY_ROOM);
        let (quota, telemetry_quota) = (NodeQuota::for_letters(), NodeQuota::for_telemetry());
        let feeds = Feeds {
            letters: letters_in,
            quota: quota.clone(),
            telemetry: telemetry_in,
            telemetry_quota: telemetry_quota.clone(),
        };
        let joining = async move {
            let client = open(access, name.0.clone(), troubles.clone()).await?;
            let own = Own {
                name,
                client,
                incarnation,
                settled: Arc::default(),
                left: Arc::default(),
                dropped: Arc::default(),
                troubles,
                known: Arc::default(),
                known_changed: Arc::default(),
            };
            let tasks = Tasks::start(&own, &feeds).await?;
            Ok((own, feeds, tasks))
        };
        let silent = || Error::Down("the server does not answer".to_owned());
        let (own, feeds, tasks) = runtime.wait(within, joining).unwrap_or_else(|| Err(silent()))?;
        Ok(Self {
            own,
            seals,
            refused: 0,
            posted: Posted::default(),
            runtime,
            letters,
            quota,
            telemetry_quota,
            telemetry,
            _feeds: feeds,
            _tasks: tasks,
        })
    }

    /// A number drawn at `join`: it tells this life of the place from every other.
    pub fn incarnation(&self) -> u64 {
        self.own.incarnation
    }

    /// Letters that were dropped because they are forged, repeated, or for an earlier life of this place.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Where `body` goes, and which life of the node it is for.
    fn destination(&self, to: &NodeName, body: &Body) -> Result<(String, u64), Error> {
        let name = subject::word(to)?;
        if *to == NodeName::controller() {
            return Ok((subject::to_controller(&self.own.name.0, body), 0));
        }
        let place = if self.own.is_controller() { self.place(to)? } else { 0 };
        Ok((subject::to_node(name), place))
    }

    /// Which life of a node is there. One that was never heard is asked, on the very subject its letters go to, and
    /// answers on its own.
    fn place(&self, to: &NodeName) -> Result<u64, Error> {
        if let Some(place) = self.own.known().get(to) {
            return Ok(*place);
        }
        let (own, node) = (self.own.clone(), to.clone());
        let asking = async move {
            let mut headers = own.headers();
            headers.insert(ASK, THERE_WORD);
            let question = own.client.request_with_headers(subject::to_node(&node.0), headers, Bytes::new());
            tokio::select! {
                place = own.wait_for(&node) => Ok(place),
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

    /// Publishes it; `to` is one node and which life of it.
    fn publish(&mut self, at: String, to: Option<(&NodeName, u64)>, body: &Body) -> Result<(), Error> {
        let envelope = Envelope { from: self.own.name.clone(), body: body.clone() };
        let bytes = letter::encode(&envelope)?;
        let mut headers = self.own.headers();
        self.seals.seal(&mut headers, &at, to, body, &bytes)?;
        let droppable = body.may_be_dropped();
        if droppable {
            headers.insert(NUMBER, self.posted.of(body).to_string());
        }
        let client = self.own.client.clone();
        let sending = async move { client.publish_with_headers(at, headers, bytes.into()).await };
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
            None => Err(Error::Down("messages that wait for the server fill the queue".to_owned())),
        }
    }

    /// The next raw message, letters first.
    fn next(&self, within: Nanos) -> Option<Message> {
        if let Ok(letter) = self.letters.try_recv() {
            self.quota.give_back(&letter);
            return Some(letter);
        }
        select! {
            recv(self.letters) -> letter => letter.ok().inspect(|letter| self.quota.give_back(letter)),
            recv(self.telemetry) -> sample => {
                sample.ok().inspect(|sample| self.telemetry_quota.give_back(sample))
            }
            default(within.to_std()) => None,
        }
    }

    /// What it says, if it can be read and believed.
    fn read(&mut self, message: &Message) -> Option<Envelope> {
        match self.seals.believe(&self.own.name, message) {
            Ok(envelope) => {
                self.own.hear(message);
                Some(envelope)
            }
            Err(why) => {
                self.refused += 1;
                self.own.troubles.add(Error::NotPermitted(format!("{}: {why}", message.subject)));
                None
            }
        }
    }
}

fn silent(node: &NodeName) -> Error {
    Error::Unanswered(format!("{node} does not say that it is there"))
}

impl Endpoint for NatsEndpoint {
    fn name(&self) -> &NodeName {
        &self.own.name
    }

    fn post(&mut self, to: &NodeName, body: Body) -> Result<(), Error> {
        let (at, place) = self.destination(to, &body)?;
        self.publish(at, Some((to, place)), &body)
    }

    fn post_all(&mut self, body: Body) -> Result<(), Error> {
        self.publish(subject::TO_ALL.to_owned(), None, &body)
    }

    fn receive(&mut self, within: Nanos) -> Option<Envelope> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let left = until.saturating_sub(monotonic_ns());
            let message = self.next(Nanos::new(left))?;
            if let Some(envelope) = self.read(&message) {
                return Some(envelope);
            }
            // Whoever sends what nobody believes must not keep the caller here.
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
