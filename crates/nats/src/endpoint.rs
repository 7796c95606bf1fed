//! A place on the fabric: subscriptions that fill two queues, and messages out.
//!
//! One task reads each subscription and does nothing else, so the engine's own queue stays short: letters go into a
//! queue without bound, telemetry into one that drops and counts. Whoever receives decodes.
//!
//! Invariant: letters of one sender arrive in the order it posted them (what goes to all nodes has an order of its own);
//! before `join` returns the server has confirmed every subscription of the place by a round trip on one of them.

use crate::connection::{Access, Troubles, open};
use crate::runtime::Runtime;
use crate::seal::{Checker, Keys, Sealer};
use crate::subject;
use async_nats::{Client, HeaderMap, Message, RequestErrorKind, Subscriber};
use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};
use futures_util::{FutureExt, StreamExt};
use packetrig_fleet::fabric::{Endpoint, Error};
use packetrig_fleet::message::{Body, Envelope, NodeName};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

/// Telemetry that waits for a slow reader.
const TELEMETRY_ROOM: usize = 4096;
/// How long the server may take to confirm the subscriptions.
const PROOF: Duration = Duration::from_secs(5);
/// How long somebody of the same name may take to say so.
const CLAIM: Duration = Duration::from_millis(200);
/// How long a node may take to say that it is there.
const THERE: Duration = Duration::from_secs(1);
/// How long a letter may wait for room in the queue of the connection; telemetry waits less.
const ROOM: Duration = Duration::from_secs(1);
/// See [`ROOM`].
const ROOM_FOR_TELEMETRY: Duration = Duration::from_millis(100);

/// A question between endpoints; messages without it are letters and telemetry.
const ASK: &str = "Packetrig-Ask";
/// Is anybody called so? The one who asks wants the name.
const NAME: &str = "name";
/// Are you there?
const THERE_WORD: &str = "there";
/// I have joined.
const HERE: &str = "here";
/// Which life of the place speaks: a number drawn at `join`.
const PLACE: &str = "Packetrig-Place";

/// The seal of a letter of the controller, see [`crate::seal`].
const SEAL: &str = "Packetrig-Seal";

/// A place on the networked fabric; dropping it leaves.
#[derive(Debug)]
pub struct NatsEndpoint {
    own: Own,
    seals: Seals,
    refused: u64,
    runtime: Runtime,
    letters: Receiver<Message>,
    telemetry: Receiver<Message>,
    /// Held so that neither queue closes while a place lives that hears nothing on it.
    _feeds: Feeds,
    /// Held for what happens when it is dropped.
    _tasks: Tasks,
}

/// What this place does with seals.
enum Seals {
    None,
    Makes(Box<Sealer>),
    Checks(Box<Checker>),
}

impl std::fmt::Debug for Seals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Makes(_) => "Makes",
            Self::Checks(_) => "Checks",
        })
    }
}

impl Seals {
    fn new(keys: Option<Keys>, incarnation: u64) -> Result<Self, Error> {
        Ok(match keys {
            None => Self::None,
            Some(Keys::Controller { signing, grants }) => {
                Self::Makes(Box::new(Sealer::new(&signing, grants, incarnation)?))
            }
            Some(Keys::Node { controller, grants }) => {
                Self::Checks(Box::new(Checker::new(controller, &grants, incarnation)))
            }
        })
    }
}

/// The other ends of the two queues.
#[derive(Clone, Debug)]
struct Feeds {
    letters: Sender<Message>,
    telemetry: Sender<Message>,
}

/// What the tasks of an endpoint share with it.
#[derive(Clone, Debug)]
struct Own {
    name: NodeName,
    client: Client,
    /// Drawn at random; tells this life of the place from every other.
    incarnation: u64,
    settled: Arc<AtomicBool>,
    left: Arc<AtomicBool>,
    dropped: Arc<AtomicU64>,
    troubles: Troubles,
    /// Nodes that were heard, and which life of them.
    known: Arc<Mutex<BTreeMap<NodeName, u64>>>,
}

impl Own {
    fn is_controller(&self) -> bool {
        self.name == NodeName::controller()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<NodeName, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which life of a node has spoken.
    fn hear(&self, message: &Message) {
        if let (Some(from), Some(place)) = (subject::speaker(&message.subject), place_of(message)) {
            self.known().insert(from, place);
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(PLACE, format!("{:016x}", self.incarnation));
        headers
    }
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    Some(message.headers.as_ref()?.get(name)?.as_str())
}

fn place_of(message: &Message) -> Option<u64> {
    u64::from_str_radix(header(message, PLACE)?, 16).ok()
}

fn draw() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Down("no random numbers".to_owned()))?;
    Ok(u64::from_be_bytes(bytes))
}

impl NatsEndpoint {
    pub(crate) fn join(runtime: Runtime, access: Access, name: NodeName) -> Result<Self, Error> {
        subject::word(&name)?;
        let within = PROOF * 4;
        let troubles = Troubles::default();
        let incarnation = draw()?;
        let seals = Seals::new(access.keys.clone(), incarnation)?;
        let (letters_in, letters) = unbounded();
        let (telemetry_in, telemetry) = bounded(TELEMETRY_ROOM);
        let feeds = Feeds { letters: letters_in, telemetry: telemetry_in };
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
            };
            let tasks = Tasks::start(&own, &feeds).await?;
            Ok((own, feeds, tasks))
        };
        let silent = || Error::Down("the server does not answer".to_owned());
        let (own, feeds, tasks) = runtime.wait(within, joining).unwrap_or_else(|| Err(silent()))?;
        Ok(Self { own, seals, refused: 0, runtime, letters, telemetry, _feeds: feeds, _tasks: tasks })
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

    /// Which life of a node is there. One that was never heard is asked, on the very subject its letters go to.
    fn place(&self, to: &NodeName) -> Result<u64, Error> {
        if let Some(place) = self.own.known().get(to) {
            return Ok(*place);
        }
        let (client, mut headers, at) =
            (self.own.client.clone(), self.own.headers(), subject::to_node(&to.0));
        headers.insert(ASK, THERE_WORD);
        let asking = async move { client.request_with_headers(at, headers, Bytes::new()).await };
        let silent = || Error::Unanswered(format!("{to} does not say that it is there"));
        let answer = self.runtime.wait(THERE, asking).ok_or_else(silent)?;
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => Error::Unknown(to.clone()),
            _ => silent(),
        })?;
        let place = place_of(&answer).ok_or_else(silent)?;
        self.own.known().insert(to.clone(), place);
        Ok(place)
    }

    /// Publishes it; `to` is one node and which life of it.
    fn publish(&mut self, at: String, to: Option<(&NodeName, u64)>, body: &Body) -> Result<(), Error> {
        let envelope = Envelope { from: self.own.name.clone(), body: body.clone() };
        let bytes = serde_json::to_vec(&envelope).map_err(|error| Error::NotPermitted(error.to_string()))?;
        let mut headers = self.own.headers();
        if let Seals::Makes(sealer) = &mut self.seals {
            headers.insert(SEAL, sealer.seal(&at, to, body, &bytes)?);
        }
        let client = self.own.client.clone();
        let sending = async move { client.publish_with_headers(at, headers, bytes.into()).await };
        let mut sending = Box::pin(sending);
        // Nearly always there is room in the queue of the connection, and no task is needed.
        let done = sending.as_mut().now_or_never();
        let droppable = body.may_be_dropped();
        let patience = if droppable { ROOM_FOR_TELEMETRY } else { ROOM };
        match done.or_else(|| self.runtime.wait(patience, sending)) {
            Some(Ok(())) => Ok(()),
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
            return Some(letter);
        }
        select! {
            recv(self.letters) -> letter => letter.ok(),
            recv(self.telemetry) -> sample => sample.ok(),
            default(within.to_std()) => None,
        }
    }

    /// What it says, if it can be read and believed. A node's name is taken from the subject, which the server vouches
    /// for; the controller's word is taken on its seal.
    fn read(&mut self, message: &Message) -> Option<Envelope> {
        match self.believed(message) {
            Ok(envelope) => Some(envelope),
            Err(why) => {
                self.refused += 1;
                self.own.troubles.add(Error::NotPermitted(format!("{}: {why}", message.subject)));
                None
            }
        }
    }

    fn believed(&mut self, message: &Message) -> Result<Envelope, String> {
        let bytes = &message.payload;
        let mut envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if let Seals::Checks(checker) = &mut self.seals {
            checker.check(&message.subject, header(message, SEAL), &envelope.body, bytes)?;
            envelope.from = NodeName::controller();
        }
        if self.own.is_controller() {
            envelope.from = subject::speaker(&message.subject).ok_or("a subject without a name")?;
        }
        Ok(envelope)
    }
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

/// The tasks that read the subscriptions; they end with it, be it that the place is left or that it was refused.
#[derive(Debug)]
struct Tasks {
    running: Vec<JoinHandle<()>>,
    left: Arc<AtomicBool>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        // From now on nobody is told that the name is in use.
        self.left.store(true, Ordering::Release);
        for task in &self.running {
            task.abort();
        }
    }
}

impl Tasks {
    /// Subscribes, and makes sure that the server knows of it and that the name is free.
    async fn start(own: &Own, feeds: &Feeds) -> Result<Self, Error> {
        let name = own.name.0.as_str();
        let mut tasks = Self { running: Vec::new(), left: Arc::clone(&own.left) };
        if own.is_controller() {
            for at in subject::CONTROLLER_LETTERS {
                tasks.spawn(letter_task(own.clone(), own.subscribe(at).await?, feeds.letters.clone()));
            }
            for at in subject::CONTROLLER_TELEMETRY {
                tasks.spawn(telemetry_task(own.clone(), own.subscribe(at).await?, feeds.telemetry.clone()));
            }
        } else {
            for at in [&*subject::to_node(name), subject::TO_ALL] {
                tasks.spawn(letter_task(own.clone(), own.subscribe(at).await?, feeds.letters.clone()));
            }
        }
        let heard = if own.is_controller() { "*" } else { name };
        let presence = own.subscribe(&subject::presence(heard)).await?;
        let (echo, proof) = tokio::sync::oneshot::channel();
        tasks.spawn(presence_task(own.clone(), presence, echo));
        own.claim(proof).await?;
        own.announce().await?;
        Ok(tasks)
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.push(tokio::spawn(task));
    }
}

impl Own {
    async fn subscribe(&self, at: &str) -> Result<Subscriber, Error> {
        self.client.subscribe(at.to_owned()).await.map_err(|error| Error::Down(error.to_string()))
    }

    async fn send(&self, at: String, ask: &'static str, reply: Option<String>) -> Result<(), Error> {
        let mut headers = self.headers();
        headers.insert(ASK, ask);
        let sent = match reply {
            Some(inbox) => self.client.publish_with_reply_and_headers(at, inbox, headers, Bytes::new()).await,
            None => self.client.publish_with_headers(at, headers, Bytes::new()).await,
        };
        sent.map_err(|error| Error::Down(error.to_string()))
    }

    /// Asks whether anybody has the name. One's own question comes back on one's own subscription: then the server has
    /// seen all of them, for it takes them in order, and has told of those it refuses.
    async fn claim(&self, echo: tokio::sync::oneshot::Receiver<()>) -> Result<(), Error> {
        let inbox = self.client.new_inbox();
        let mut answers = self.subscribe(&inbox).await?;
        self.send(subject::presence(&self.name.0), NAME, Some(inbox)).await?;
        let proven = tokio::time::timeout(PROOF, self.proof(echo)).await;
        proven.unwrap_or_else(|_| Err(Error::Down("no subscription was confirmed".to_owned())))?;
        let taken = async {
            while let Some(answer) = answers.next().await {
                // Of two who ask at the same time the lower number has it.
                let settled = header(&answer, ASK) == Some(HERE);
                if settled || place_of(&answer).is_some_and(|other| other < self.incarnation) {
                    return;
                }
            }
            std::future::pending::<()>().await;
        };
        match tokio::time::timeout(CLAIM, taken).await {
            Ok(()) => Err(Error::Taken(self.name.clone())),
            Err(_) => Ok(()),
        }
    }

    /// The echo, or what was refused instead of it.
    async fn proof(&self, mut echo: tokio::sync::oneshot::Receiver<()>) -> Result<(), Error> {
        loop {
            let came = tokio::time::timeout(Duration::from_millis(20), &mut echo).await;
            let refused = self.troubles.take().into_iter().find(|it| matches!(it, Error::NotPermitted(_)));
            match (refused, came) {
                (Some(refused), _) => return Err(refused),
                (None, Ok(Ok(()))) => return Ok(()),
                (None, Ok(Err(_))) => return Err(Error::Down("the connection was closed".to_owned())),
                (None, Err(_)) => {}
            }
        }
    }

    /// Says to the controller that this life of the place is there.
    async fn announce(&self) -> Result<(), Error> {
        self.settled.store(true, Ordering::Release);
        self.send(subject::presence(&self.name.0), HERE, None).await?;
        self.client.flush().await.map_err(|error| Error::Down(error.to_string()))
    }

    /// Answers a question of another endpoint.
    async fn answer(&self, question: &Message) {
        if let Some(reply) = &question.reply
            && !self.left.load(Ordering::Acquire)
        {
            let word = if self.settled.load(Ordering::Acquire) { HERE } else { NAME };
            if let Err(error) = self.send(reply.to_string(), word, None).await {
                self.troubles.add(error);
            }
        }
    }
}

async fn letter_task(own: Own, mut subscriber: Subscriber, letters: Sender<Message>) {
    while let Some(message) = subscriber.next().await {
        own.hear(&message);
        if header(&message, ASK).is_some() {
            own.answer(&message).await;
        } else if letters.send(message).is_err() {
            return;
        }
    }
}

async fn telemetry_task(own: Own, mut subscriber: Subscriber, telemetry: Sender<Message>) {
    while let Some(message) = subscriber.next().await {
        own.hear(&message);
        if telemetry.try_send(message).is_err() {
            own.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn presence_task(own: Own, mut subscriber: Subscriber, echo: tokio::sync::oneshot::Sender<()>) {
    let mut echo = Some(echo);
    while let Some(message) = subscriber.next().await {
        let is_own_name = subject::speaker(&message.subject).as_ref() == Some(&own.name);
        let is_echo = place_of(&message) == Some(own.incarnation);
        match header(&message, ASK) {
            Some(NAME) if is_own_name && is_echo => {
                if let Some(echo) = echo.take() {
                    // Whoever waits for it may have given up.
                    echo.send(()).unwrap_or(());
                }
            }
            Some(NAME) if is_own_name => own.answer(&message).await,
            Some(HERE) if !is_own_name => own.hear(&message),
            _ => {}
        }
    }
}
