//! Node side of result delivery over a JetStream work queue: the server keeps an appended segment until a
//! controller has confirmed it.
//!
//! A full stream refuses new segments, and never discards stored ones. If a node appends a segment again within ten
//! minutes (the duplicate window), the server stores it only once. The controller's side is [`crate::incoming`].
//!
//! Invariant: `append_segment` returns Ok only when the server has written the segment.

use crate::connection::{self, ConnectionFailures, ServerAccess, open_client};
use crate::runtime::{SharedRuntime, deadline_ns};
use crate::seal::{SealKeys, seal_segment, segment_message_id};
use crate::subject::{self, RESULTS_STREAM};
use async_nats::jetstream;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::{Client, HeaderMap, RequestErrorKind};
use bytes::Bytes;
use packetrig_fleet::fabric::{Error, MAX_SEGMENT_BYTES, ResultSender, SegmentId};
use packetrig_fleet::message::NodeName;
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::clamp_to_i64;
use std::time::Duration;

/// Time within which the server recognises a repeated segment.
const REPEATED_SEGMENT_WINDOW: Duration = Duration::from_mins(10);
/// Time within which the server must answer one request about results.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failed attempt, or after a stream of messages has ended.
pub(crate) const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// Header with the ID of the segment, as JSON.
pub(crate) const SEGMENT_HEADER: &str = "Packetrig-Segment";
/// Header with the seal of the node that appends the segment.
pub(crate) const SEAL_HEADER: &str = "Packetrig-Seal";
/// Header with the ID by which the server recognises a repeated message.
const MESSAGE_ID_HEADER: &str = "Nats-Msg-Id";
/// Error code of the server for a full stream.
const STREAM_FULL_CODE: u64 = 10_077;
/// Error codes for a full account or a full store.
const STORE_FULL_CODES: [u64; 3] = [10_002, 10_023, 10_047];

#[derive(Debug)]
pub struct NatsOutgoing {
    runtime: SharedRuntime,
    client: Client,
    timeout: Duration,
    troubles: ConnectionFailures,
    keys: Option<SealKeys>,
}

/// Outcome of one attempt to append a segment: stored, without a clear answer (with the reason, so it is repeated),
/// or refused for good.
enum AppendOutcome {
    Kept,
    Again(String),
    Never(Error),
}

impl NatsOutgoing {
    pub(crate) fn open_for_node(
        runtime: SharedRuntime,
        access: ServerAccess,
        node: &NodeName,
    ) -> Result<Self, Error> {
        let name = subject::node_subject_token(node)?.to_owned();
        let timeout = access.timeout;
        let keys = access.keys.clone();
        let troubles = ConnectionFailures::default();
        let opened = runtime.run_with_timeout(timeout, open_client(access, name, troubles.clone()));
        let client = opened.unwrap_or_else(|| Err(connection::no_answer_error()))?;
        Ok(Self { runtime, client, timeout, troubles, keys })
    }
}

impl ResultSender for NatsOutgoing {
    fn append_segment(&mut self, id: &SegmentId, body: &[u8]) -> Result<(), Error> {
        if body.len() > MAX_SEGMENT_BYTES {
            return Err(Error::TooLarge(body.len()));
        }
        let at = subject::segment_subject(&id.run.0, subject::node_subject_token(&id.node)?);
        let json = serde_json::to_string(id).map_err(|error| Error::NotPermitted(error.to_string()))?;
        let mut headers = HeaderMap::new();
        if let Some(SealKeys::Node { grants, .. }) = &self.keys {
            headers.insert(SEAL_HEADER, seal_segment(grants, &at, &json, body));
        }
        headers.insert(SEGMENT_HEADER, json);
        // The server stores one message for each id, so the same message may be sent again after a lost answer.
        headers.insert(MESSAGE_ID_HEADER, segment_message_id(&id.to_string(), self.keys.as_ref()));
        let body = Bytes::copy_from_slice(body);
        let client = self.client.clone();
        let troubles = self.troubles.clone();
        let until = deadline_ns(self.timeout);
        let appending = async move {
            loop {
                let attempt = attempt_append(&client, &at, headers.clone(), body.clone());
                let attempt = troubles.run_until_refusal(async { Ok(attempt.await) }).await?;
                // A refusal during the attempt is only an event of the connection: the attempt itself gets no answer.
                if let Some(refused) = troubles.take_refusal_of(&at) {
                    return Err(refused);
                }
                match attempt {
                    AppendOutcome::Kept => return Ok(()),
                    AppendOutcome::Never(error) => return Err(error),
                    AppendOutcome::Again(why) if monotonic_ns() >= until => {
                        return Err(Error::Unanswered(why));
                    }
                    // The outcome is unknown, so the same segment is sent again under the same id.
                    AppendOutcome::Again(_) => tokio::time::sleep(ATTEMPT_PAUSE).await,
                }
            }
        };
        // The last attempt may begin just before the deadline, so it gets its full time after the deadline.
        let appended = self.runtime.run_with_timeout(self.timeout + 2 * ATTEMPT_TIMEOUT, appending);
        appended.unwrap_or_else(|| Err(Error::Unanswered(id.to_string())))
    }
}

async fn attempt_append(client: &Client, at: &str, headers: HeaderMap, body: Bytes) -> AppendOutcome {
    let request = async_nats::Request::new().headers(headers).payload(body).timeout(Some(ATTEMPT_TIMEOUT));
    // While the connection is down, the request waits in a queue of async-nats without limit, so the
    // wait is limited here.
    let answer = tokio::time::timeout(2 * ATTEMPT_TIMEOUT, client.send_request(at.to_owned(), request)).await;
    let message = match answer {
        Ok(Ok(message)) => message,
        Ok(Err(error)) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
            return AppendOutcome::Never(Error::TooLarge(MAX_SEGMENT_BYTES));
        }
        Ok(Err(error)) => return AppendOutcome::Again(error.to_string()),
        Err(_) => return AppendOutcome::Again("there is no connection to the message server".to_owned()),
    };
    match serde_json::from_slice(&message.payload) {
        Ok(Response::Ok(jetstream::publish::PublishAck { .. })) => AppendOutcome::Kept,
        Ok(Response::Err { error }) => match error.error_code().0 {
            // Space becomes free only when a controller has confirmed segments,
            // so another attempt right now would fail, too.
            code if code == STREAM_FULL_CODE || STORE_FULL_CODES.contains(&code) => {
                AppendOutcome::Never(Error::Full)
            }
            _ => AppendOutcome::Again(error.to_string()),
        },
        Err(error) => AppendOutcome::Again(error.to_string()),
    }
}

pub(crate) fn build_stream_config(access: &ServerAccess) -> Config {
    Config {
        name: RESULTS_STREAM.to_owned(),
        subjects: vec![format!("{RESULTS_STREAM}.*.*")],
        // A confirmed segment is deleted, and a full stream refuses; by default the server discards the oldest.
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_bytes: clamp_to_i64(access.results_room),
        storage: StorageType::File,
        num_replicas: access.replicas,
        duplicate_window: REPEATED_SEGMENT_WINDOW,
        ..Config::default()
    }
}
