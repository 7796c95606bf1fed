//! Results as a JetStream work queue: what is appended stays until the controller has confirmed it.
//!
//! A full stream refuses (it never discards what it holds), and the same segment appended again within the window is
//! kept once. Delivery may repeat: after the time to confirm is over, and whenever the way in is opened anew.
//!
//! Invariant: `append` says Ok only when the server has written the segment; `confirm` only when it has forgotten it.

use crate::connection::{Access, Troubles, open};
use crate::runtime::Runtime;
use crate::seal::{Keys, MacKeys, is_segment_genuine, segment_name, segment_seal};
use crate::subject::{self, RESULTS};
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::message::{AckKind, Acker};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};
use async_nats::jetstream::{self, Message};
use async_nats::{Client, HeaderMap, RequestErrorKind};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use packetrig_fleet::fabric::{Delivery, Error, Incoming, Outgoing, SEGMENT_ROOM, SegmentId};
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Within it the same segment is kept once.
const WINDOW: Duration = Duration::from_mins(10);
/// What is not confirmed by then is delivered again.
const CONFIRMING: Duration = Duration::from_secs(30);
/// A segment whose key cannot be read is delivered again after this.
const KEY_AGAIN: Duration = Duration::from_secs(1);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Before the next one.
const PAUSE: Duration = Duration::from_millis(100);
/// Deliveries fetched ahead: 8 MiB of them at most.
const AHEAD: usize = 16;
/// Deliveries that may wait for their confirmation.
const UNCONFIRMED: i64 = 4096;
/// Which segment it is, as JSON.
const SEGMENT: &str = "Packetrig-Segment";
/// The seal of its node on it.
const SEAL: &str = "Packetrig-Seal";
/// By it the server knows a repetition.
const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The server's number for a stream that holds all it may.
const STREAM_FULL: u64 = 10_077;
/// The same, of the account or of the whole store.
const STORE_FULL: [u64; 3] = [10_002, 10_023, 10_047];

/// A node's end.
#[derive(Debug)]
pub struct NatsOutgoing {
    runtime: Runtime,
    client: Client,
    patience: Duration,
    troubles: Troubles,
    keys: Option<Keys>,
}

/// How one attempt ended.
enum Attempt {
    Kept,
    Again(String),
    Never(Error),
}

impl NatsOutgoing {
    pub(crate) fn open(runtime: Runtime, access: Access, node: &NodeName) -> Result<Self, Error> {
        let name = subject::word(node)?.to_owned();
        let (patience, troubles, keys) = (access.patience, Troubles::default(), access.keys.clone());
        let opening = open(access, name, troubles.clone());
        let silent = || Error::Down("the server does not answer".to_owned());
        let client = runtime.wait(patience, opening).unwrap_or_else(|| Err(silent()))?;
        Ok(Self { runtime, client, patience, troubles, keys })
    }
}

impl Outgoing for NatsOutgoing {
    fn append(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error> {
        if body.len() > SEGMENT_ROOM {
            return Err(Error::TooLarge(body.len()));
        }
        let at = subject::segment(&id.run.0, subject::word(&id.node)?);
        let json = serde_json::to_string(id).map_err(|error| Error::NotPermitted(error.to_string()))?;
        let mut headers = HeaderMap::new();
        if let Some(Keys::Node { grants, .. }) = &self.keys {
            headers.insert(SEAL, segment_seal(grants, &at, &json, body));
        }
        headers.insert(SEGMENT, json);
        headers.insert(MESSAGE_ID, segment_name(&id.to_string(), self.keys.as_ref()));
        let body = Bytes::copy_from_slice(body);
        let (client, troubles) = (self.client.clone(), self.troubles.clone());
        let until =
            monotonic_ns().saturating_add(u64::try_from(self.patience.as_nanos()).unwrap_or(u64::MAX));
        let appending = async move {
            loop {
                let attempt = attempt(&client, &at, headers.clone(), body.clone()).await;
                if let Some(refused) = troubles.refused(&at) {
                    return Err(refused);
                }
                match attempt {
                    Attempt::Kept => return Ok(()),
                    Attempt::Never(error) => return Err(error),
                    Attempt::Again(why) if monotonic_ns() >= until => return Err(Error::Unanswered(why)),
                    // The outcome is unknown: the same again, under the same name.
                    Attempt::Again(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        let silent = || Error::Unanswered(id.to_string());
        self.runtime.wait(self.patience + 2 * ATTEMPT, appending).unwrap_or_else(|| Err(silent()))
    }
}

async fn attempt(client: &Client, at: &str, headers: HeaderMap, body: Bytes) -> Attempt {
    let request = async_nats::Request::new().headers(headers).payload(body).timeout(Some(ATTEMPT));
    // A connection that is down leaves the request in its queue: the same bound for that.
    let answer = tokio::time::timeout(2 * ATTEMPT, client.send_request(at.to_owned(), request)).await;
    let message = match answer {
        Ok(Ok(message)) => message,
        Ok(Err(error)) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
            return Attempt::Never(Error::TooLarge(SEGMENT_ROOM));
        }
        Ok(Err(error)) => return Attempt::Again(error.to_string()),
        Err(_) => return Attempt::Again("no connection".to_owned()),
    };
    match serde_json::from_slice(&message.payload) {
        Ok(Response::Ok(jetstream::publish::PublishAck { .. })) => Attempt::Kept,
        Ok(Response::Err { error }) => match error.error_code().0 {
            code if code == STREAM_FULL || STORE_FULL.contains(&code) => Attempt::Never(Error::Full),
            _ => Attempt::Again(error.to_string()),
        },
        Err(error) => Attempt::Again(error.to_string()),
    }
}

/// The controller's end.
#[derive(Debug)]
pub struct NatsIncoming {
    runtime: Runtime,
    way: Arc<Way>,
    keys: NodeKeys,
    refused: BTreeMap<NodeName, u64>,
    unreadable_keys: BTreeMap<NodeName, String>,
}

/// The keys of nodes; `None` believes anybody, which is for tests on one machine.
struct NodeKeys(Option<MacKeys>);

impl std::fmt::Debug for NodeKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKeys")
    }
}

/// What the runtime's tasks need of it.
struct Way {
    context: jetstream::Context,
    config: Config,
    /// A name of its own each time: who opened it before cannot confirm any more.
    consumer: String,
    messages: Mutex<Option<pull::Stream>>,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// Confirms a delivery.
pub struct Token(Acker);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Token").finish_non_exhaustive()
    }
}

impl NatsIncoming {
    pub(crate) fn open(runtime: Runtime, access: Access) -> Result<Self, Error> {
        let (patience, troubles) = (access.patience, Troubles::default());
        let seen = troubles.clone();
        let keys = match &access.keys {
            Some(Keys::Controller { grants, .. }) => NodeKeys(Some(Arc::clone(grants))),
            Some(Keys::Node { .. }) | None => NodeKeys(None),
        };
        let opening = async move {
            let config = stream_config(&access);
            let client = open(access, NodeName::controller().0, seen).await?;
            let consumer = format!("controller-{}", client.new_inbox().rsplit('.').next().unwrap_or("0"));
            let mut context = jetstream::new(client);
            context.set_timeout(patience);
            let way = Way { context, config, consumer, messages: Mutex::new(None) };
            way.take_over().await?;
            Ok(way)
        };
        let silent = || Error::Unanswered("the way for results cannot be opened".to_owned());
        let way = runtime.wait(patience, opening).unwrap_or_else(|| Err(silent()));
        let way = way.map_err(|error| troubles.refused_any().unwrap_or(error))?;
        Ok(Self {
            runtime,
            way: Arc::new(way),
            keys,
            refused: BTreeMap::new(),
            unreadable_keys: BTreeMap::new(),
        })
    }
}

fn stream_config(access: &Access) -> Config {
    Config {
        name: RESULTS.to_owned(),
        subjects: vec![format!("{RESULTS}.*.*")],
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_bytes: i64::try_from(access.results_room).unwrap_or(i64::MAX),
        storage: StorageType::File,
        num_replicas: access.replicas,
        duplicate_window: WINDOW,
        ..Config::default()
    }
}

fn unanswered(error: impl std::fmt::Display) -> Error {
    Error::Unanswered(error.to_string())
}

impl Way {
    /// Removes who read before: what it had not confirmed waits again, and comes at once.
    async fn take_over(&self) -> Result<(), Error> {
        let stream = self.stream().await?;
        let names: Vec<String> = stream.consumer_names().try_collect().await.map_err(unanswered)?;
        for name in names {
            stream.delete_consumer(&name).await.map_err(unanswered)?;
        }
        self.consumer(&stream).await.map(|_| ())
    }

    async fn stream(&self) -> Result<Stream, Error> {
        self.context.create_or_update_stream(self.config.clone()).await.map_err(unanswered)?;
        self.context.get_stream(RESULTS).await.map_err(unanswered)
    }

    async fn consumer(&self, stream: &Stream) -> Result<PullConsumer, Error> {
        let config = pull::Config {
            durable_name: Some(self.consumer.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: CONFIRMING,
            max_ack_pending: UNCONFIRMED,
            ..pull::Config::default()
        };
        stream.get_or_create_consumer(&self.consumer, config).await.map_err(unanswered)
    }

    /// The next message, whatever happens to the server meanwhile; a store that was lost is set up again.
    async fn next(&self) -> Message {
        let mut open = self.messages.lock().await;
        loop {
            if let Some(messages) = open.as_mut()
                && let Some(Ok(message)) = messages.next().await
            {
                return message;
            }
            *open = self.messages().await.ok();
            if open.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn messages(&self) -> Result<pull::Stream, Error> {
        let consumer = self.consumer(&self.stream().await?).await?;
        let ahead = consumer.stream().max_messages_per_batch(AHEAD).expires(CONFIRMING);
        ahead.heartbeat(ATTEMPT).messages().await.map_err(unanswered)
    }
}

/// Why a delivery is not taken.
enum SegmentRefusal {
    /// Nobody can say what it is, or its node has not sealed it. It will never be taken.
    NotGenuine,
    /// The key of the node cannot be read now. The server delivers it again.
    Later(String),
}

impl NodeKeys {
    /// Which segment it is, if its node may send it there and has sealed it.
    fn segment_of(&self, message: &Message) -> Result<SegmentId, SegmentRefusal> {
        let (id, json) = named_segment(message).ok_or(SegmentRefusal::NotGenuine)?;
        let Some(keys) = &self.0 else { return Ok(id) };
        let key = keys(&id.node).map_err(SegmentRefusal::Later)?.ok_or(SegmentRefusal::NotGenuine)?;
        let headers = message.headers.as_ref();
        let seal = headers.and_then(|headers| headers.get(SEAL)).ok_or(SegmentRefusal::NotGenuine)?;
        if is_segment_genuine(&key, message.subject.as_str(), json, &message.payload, seal.as_str()) {
            Ok(id)
        } else {
            Err(SegmentRefusal::NotGenuine)
        }
    }
}

/// What it says it is, as JSON too, if it came on the subject of that.
fn named_segment(message: &Message) -> Option<(SegmentId, &str)> {
    let json = message.headers.as_ref()?.get(SEGMENT)?.as_str();
    let id: SegmentId = serde_json::from_str(json).ok()?;
    let is_at_home = subject::segment(&id.run.0, &id.node.0) == message.subject.as_str();
    is_at_home.then_some((id, json))
}

impl Incoming for NatsIncoming {
    type Token = Token;

    fn collect(&mut self, within: Nanos) -> Option<Delivery<Token>> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        loop {
            let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
            let way = Arc::clone(&self.way);
            let message = self.runtime.wait(left, async move { way.next().await })?;
            let id = self.keys.segment_of(&message);
            let from = subject::speaker(&message.subject);
            let (message, acker) = message.split();
            let answer = match id {
                Ok(id) => {
                    return Some(Delivery { id, body: message.payload.to_vec(), token: Token(acker) });
                }
                Err(SegmentRefusal::NotGenuine) => {
                    *self.refused.entry(from.unwrap_or_else(|| NodeName("?".to_owned()))).or_insert(0) += 1;
                    // It must not come for ever.
                    AckKind::Term
                }
                Err(SegmentRefusal::Later(why)) => {
                    self.unreadable_keys.insert(from.unwrap_or_else(|| NodeName("?".to_owned())), why);
                    AckKind::Nak(Some(KEY_AGAIN))
                }
            };
            let answering = async move { acker.ack_with(answer).await };
            drop(self.runtime.wait(ATTEMPT, answering));
        }
    }

    fn confirm(&mut self, token: Token) -> Result<(), Error> {
        let confirming = async move { token.0.double_ack().await };
        let done = self.runtime.wait(2 * ATTEMPT, confirming);
        done.ok_or_else(|| unanswered("a confirmation"))?.map_err(unanswered)
    }

    fn refused(&mut self) -> BTreeMap<NodeName, u64> {
        std::mem::take(&mut self.refused)
    }

    fn unreadable_keys(&mut self) -> BTreeMap<NodeName, String> {
        std::mem::take(&mut self.unreadable_keys)
    }
}
