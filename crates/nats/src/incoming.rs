//! Controller side of result delivery over a JetStream work queue: each run has its own consumer.
//!
//! The server requires that the subject filters of a work queue's consumers do not overlap; a filter for one run never
//! overlaps that of another. The name of a consumer contains the run and the reader, so that other readers can tell
//! whether the consumer is still needed. A segment is delivered again if it is not confirmed in time, or if another
//! reader takes over its run.
//!
//! Invariant: `confirm_segment` returns Ok only when the server has deleted the segment; one run has one reader.

mod keys;
mod listing;
mod reading;

use crate::connection::{ConnectionFailures, ServerAccess, open_client};
use crate::results::{ATTEMPT_TIMEOUT, build_stream_config};
use crate::runtime::SharedRuntime;
use crate::seal::SealKeys;
use crate::subject::{self, RESULTS_STREAM};
use async_nats::jetstream::message::AckKind;
use async_nats::jetstream::stream::{Config, ConsumerError, ConsumerErrorKind, Stream};
use async_nats::jetstream::{self, ErrorCode, Message};
use async_nats::{Client, Subject};
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use keys::{NodeKeys, SegmentRefusal};
use packetrig_fleet::fabric::{Error, ResultReceiver, SegmentDelivery};
use packetrig_fleet::message::{NodeName, RunId};
use packetrig_sys::clock::monotonic_ns;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;

/// Time within which a delivery must be confirmed; after it, the segment is delivered again.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a segment with an unreadable key is delivered again.
const UNREADABLE_KEY_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of received deliveries, of all runs together, that the caller has not taken yet.
const MAX_WAITING_DELIVERIES: usize = 32;
/// Maximum number of deliveries that one call skips or refuses before it returns `None`.
const MAX_REFUSALS_PER_CALL: usize = 256;

/// Controller side of result delivery. Dropping it stops reading all its runs.
#[derive(Debug)]
pub struct NatsIncoming {
    runtime: SharedRuntime,
    timeout: Duration,
    connection: Arc<ReaderConnection>,
    keys: NodeKeys,
    /// Task that reads each run. The key is the run's word in subjects.
    reading: BTreeMap<String, JoinHandle<()>>,
    arrivals: Sender<Message>,
    arrived: Arc<Mutex<Receiver<Message>>>,
    refused: BTreeMap<NodeName, u64>,
    unreadable_keys: BTreeMap<NodeName, String>,
    /// Failures of the tasks that read the runs.
    failures: ConnectionFailures,
    troubles_of_connection: ConnectionFailures,
    is_nearly_full: bool,
}

/// State that the tasks in the runtime need.
struct ReaderConnection {
    client: Client,
    context: jetstream::Context,
    config: Config,
    reader: String,
}

impl std::fmt::Debug for ReaderConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReaderConnection").field("reader", &self.reader).finish_non_exhaustive()
    }
}

/// Token that confirms a delivery: the reply subject on which the server expects the confirmation.
pub struct ConfirmToken(Subject);

impl std::fmt::Debug for ConfirmToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ConfirmToken").finish_non_exhaustive()
    }
}

/// Name of the consumer for a run and a reader.
fn consumer_name(run: &str, reader: &str) -> String {
    format!("{run}_{reader}")
}

/// Splits the name of a consumer into run and reader. The name of a reader has no `_`.
fn split_consumer_name(consumer: &str) -> Option<(&str, &str)> {
    consumer.rsplit_once('_')
}

impl NatsIncoming {
    pub(crate) fn open_for_reader(
        runtime: SharedRuntime,
        access: ServerAccess,
        reader: &str,
    ) -> Result<Self, Error> {
        // `_` separates run and reader in the name of a consumer, so a reader must not contain it.
        if reader.is_empty() || !reader.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let why = format!("`{reader}` is not a valid name for a reader: use letters, digits and `-`");
            return Err(Error::NotPermitted(why));
        }
        let timeout = access.timeout;
        let troubles = ConnectionFailures::default();
        let seen = troubles.clone();
        let keys = match &access.keys {
            Some(SealKeys::Controller { grants, .. }) => NodeKeys(Some(Arc::clone(grants))),
            Some(SealKeys::Node { .. }) | None => NodeKeys(None),
        };
        let reader = reader.to_owned();
        let refusing = troubles.clone();
        let opening = async move {
            let config = build_stream_config(&access);
            let client = open_client(access, NodeName::controller_of(&reader).0, seen).await?;
            let mut context = jetstream::new(client.clone());
            context.set_timeout(timeout);
            let connection = ReaderConnection { client, context, config, reader };
            connection.create_stream().await?;
            Ok(connection)
        };
        let opened = runtime
            .run_with_timeout(timeout, async move { Box::pin(refusing.run_until_refusal(opening)).await });
        let opened =
            opened.unwrap_or_else(|| Err(unanswered_error("opening the store for results timed out")));
        let connection = opened.map_err(|error| troubles.take_first_refusal().unwrap_or(error))?;
        // The channel is bounded, so that the tasks stop fetching while the caller takes nothing.
        let (arrivals, arrived) = channel(MAX_WAITING_DELIVERIES);
        Ok(Self {
            runtime,
            timeout,
            connection: Arc::new(connection),
            keys,
            reading: BTreeMap::new(),
            arrivals,
            arrived: Arc::new(Mutex::new(arrived)),
            refused: BTreeMap::new(),
            unreadable_keys: BTreeMap::new(),
            troubles_of_connection: troubles,
            failures: ConnectionFailures::default(),
            is_nearly_full: false,
        })
    }

    /// Waits for the next message until `until`, in nanoseconds of the monotonic clock.
    fn next_message(&self, until: u64) -> Option<Message> {
        // A message that has arrived already is taken without entering the async runtime.
        if let Ok(mut arrived) = self.arrived.try_lock()
            && let Ok(message) = arrived.try_recv()
        {
            return Some(message);
        }
        let left = Duration::from_nanos(until.saturating_sub(monotonic_ns()));
        let arrived = Arc::clone(&self.arrived);
        self.runtime.run_with_timeout(left, async move { arrived.lock().await.recv().await })?
    }

    fn run_request<T: Send + 'static>(
        &self,
        what: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let troubles = self.troubles_of_connection.clone();
        let asking = async move { troubles.run_until_connection_lost(what).await };
        self.runtime
            .run_with_timeout(self.timeout, asking)
            .unwrap_or_else(|| Err(unanswered_error("a request about stored results timed out")))
    }
}

/// Placeholder for the sender of a message whose subject names no node.
fn placeholder_sender_name() -> NodeName {
    NodeName("(unnamed)".to_owned())
}

fn unanswered_error(error: impl std::fmt::Display) -> Error {
    Error::Unanswered(error.to_string())
}

async fn confirm_delivery(client: Client, token: ConfirmToken) -> Result<(), Error> {
    // The confirmation is sent as a request, so that it fails if another reader has removed the consumer. Then that
    // reader gets the segment again.
    let asked = client.request(token.0, Bytes::from_static(b"+ACK"));
    // async-nats queues a request while its connection is down, so the wait has a separate limit.
    let answer = tokio::time::timeout(2 * ATTEMPT_TIMEOUT, asked).await;
    answer
        .map_err(|_| unanswered_error("the confirmation of a segment timed out"))?
        .map_err(unanswered_error)
        .map(|_| ())
}

/// True if the server refused to create a consumer because the run already has one.
fn is_consumer_conflict(error: &ConsumerError) -> bool {
    // A work queue allows only one consumer for a subject, so the server itself refuses a second reader.
    matches!(error.kind(), ConsumerErrorKind::JetStream(error)
        if error.error_code() == ErrorCode::CONSUMER_WQ_CONSUMER_NOT_UNIQUE)
}

impl ReaderConnection {
    async fn create_stream(&self) -> Result<Stream, Error> {
        self.context.create_or_update_stream(self.config.clone()).await.map_err(unanswered_error)?;
        self.context.get_stream(RESULTS_STREAM).await.map_err(unanswered_error)
    }

    /// Returns the stream, and creates it again if it was lost.
    async fn get_or_create_stream(&self) -> Result<Stream, Error> {
        match self.context.get_stream(RESULTS_STREAM).await {
            Ok(stream) => Ok(stream),
            // A new stream is empty, but nothing is lost: the nodes still have the segments in their spools.
            Err(_) => self.create_stream().await,
        }
    }

    /// Lists the readers of each run. The key is the run's word in subjects.
    async fn list_readers_by_run(
        &self,
        stream: &Stream,
    ) -> Result<BTreeMap<String, BTreeSet<String>>, Error> {
        let names: Vec<String> = stream.consumer_names().try_collect().await.map_err(unanswered_error)?;
        let mut readers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (run, reader) in names.iter().filter_map(|name| split_consumer_name(name)) {
            readers.entry(run.to_owned()).or_default().insert(reader.to_owned());
        }
        Ok(readers)
    }

    /// Becomes the reader of a run. Readers in `instead_of` lose the run, and segments that they have not confirmed are
    /// delivered again at once. Fails if any other reader has the run.
    async fn take_over_run(&self, run: &str, instead_of: &BTreeSet<String>) -> Result<(), Error> {
        let stream = self.get_or_create_stream().await?;
        let readers = self.list_readers_by_run(&stream).await?.remove(run).unwrap_or_default();
        for reader in readers.intersection(instead_of) {
            stream.delete_consumer(&consumer_name(run, reader)).await.map_err(unanswered_error)?;
        }
        match self.open_run_consumer(&stream, run).await {
            Ok(_) => Ok(()),
            Err(error) if is_consumer_conflict(&error) => {
                let other = readers.into_iter().find(|reader| *reader != self.reader).map(NodeName);
                Err(other.map_or_else(|| Error::RunTaken(run.to_owned()), Error::Taken))
            }
            Err(error) => Err(unanswered_error(error)),
        }
    }

    async fn delete_own_consumer(&self, run: &str) -> Result<(), Error> {
        let stream = self.context.get_stream(RESULTS_STREAM).await.map_err(unanswered_error)?;
        let name = consumer_name(run, &self.reader);
        stream.delete_consumer(&name).await.map_err(unanswered_error).map(|_| ())
    }
}

impl ResultReceiver for NatsIncoming {
    type Token = ConfirmToken;

    fn read_run(&mut self, run: &RunId, instead_of: &BTreeSet<String>) -> Result<(), Error> {
        let word = subject::to_subject_word(&run.0);
        if self.reading.contains_key(&word) {
            return Ok(());
        }
        let connection = Arc::clone(&self.connection);
        let run_word = word.clone();
        let others = instead_of.clone();
        // The consumer of an earlier reader is removed first: a work queue allows only one consumer for a subject.
        self.run_request(async move { connection.take_over_run(&run_word, &others).await })?;
        let task = Arc::clone(&self.connection).read_until_stopped(
            word.clone(),
            self.arrivals.clone(),
            self.failures.clone(),
        );
        if let Some(task) = self.runtime.spawn(task) {
            self.reading.insert(word, task);
        }
        Ok(())
    }

    fn leave_run(&mut self, run: &RunId) {
        let word = subject::to_subject_word(&run.0);
        let Some(task) = self.reading.remove(&word) else { return };
        // The task is ended before the consumer is deleted: otherwise the task would create the consumer again.
        task.abort();
        let connection = Arc::clone(&self.connection);
        // If the consumer cannot be removed, the next reader removes it.
        drop(
            self.runtime.run_with_timeout(ATTEMPT_TIMEOUT, async move {
                connection.delete_own_consumer(&word).await
            }),
        );
    }

    fn list_runs_with_waiting_segments(&mut self) -> Result<BTreeMap<RunId, BTreeSet<String>>, Error> {
        let connection = Arc::clone(&self.connection);
        let listing = self.run_request(async move { connection.list_waiting_segments().await })?;
        self.is_nearly_full = listing.is_nearly_full;
        for (node, count) in listing.removed {
            *self.refused.entry(node).or_insert(0) += count;
        }
        Ok(listing.runs)
    }

    fn is_nearly_full(&self) -> bool {
        self.is_nearly_full
    }

    fn discard_runs(&mut self, runs: &BTreeSet<RunId>) -> Result<u64, Error> {
        let connection = Arc::clone(&self.connection);
        let runs = runs.iter().map(|run| run.0.clone()).collect();
        self.run_request(async move { connection.remove_runs(runs).await })
    }

    fn receive_segment(&mut self, within: Nanos) -> Option<SegmentDelivery<ConfirmToken>> {
        let until = monotonic_ns().saturating_add(within.as_u64());
        // The loop is bounded: a node that fills the stream with segments that are refused must not block the caller.
        for _ in 0..MAX_REFUSALS_PER_CALL {
            let message = self.next_message(until)?;
            let run = message.subject.split('.').nth(1);
            if !run.is_some_and(|run| self.reading.contains_key(run)) {
                // The caller has stopped reading this run in the meantime.
                continue;
            }
            let id = self.keys.verify_segment(&message);
            let from = subject::publishing_node(&message.subject);
            let confirmed_at = message.reply.clone();
            let (message, acker) = message.split();
            let answer = match id {
                Ok(id) => {
                    // Every message of a consumer has a reply subject for the confirmation, so a message without one
                    // did not come from a consumer.
                    let Some(confirmed_at) = confirmed_at else {
                        *self.refused.entry(id.node).or_insert(0) += 1;
                        continue;
                    };
                    let token = ConfirmToken(confirmed_at);
                    return Some(SegmentDelivery { id, body: message.payload.to_vec(), token });
                }
                Err(SegmentRefusal::NotGenuine) => {
                    *self.refused.entry(from.unwrap_or_else(placeholder_sender_name)).or_insert(0) += 1;
                    // Without this answer, the server would deliver the segment again and again.
                    AckKind::Term
                }
                Err(SegmentRefusal::Later(why)) => {
                    self.unreadable_keys.insert(from.unwrap_or_else(placeholder_sender_name), why);
                    AckKind::Nak(Some(UNREADABLE_KEY_RETRY_PAUSE))
                }
            };
            let answering = async move { acker.ack_with(answer).await };
            drop(self.runtime.run_with_timeout(ATTEMPT_TIMEOUT, answering));
        }
        None
    }

    fn confirm_segment(&mut self, token: ConfirmToken) -> Result<(), Error> {
        let confirming = confirm_delivery(self.connection.client.clone(), token);
        // This timeout is longer than that of `confirm_delivery`, so that the error of `confirm_delivery` is returned.
        self.runtime
            .run_with_timeout(3 * ATTEMPT_TIMEOUT, confirming)
            .unwrap_or_else(|| Err(unanswered_error("the confirmation of a segment timed out")))
    }

    fn confirm_segments(&mut self, tokens: Vec<ConfirmToken>) -> Vec<Result<(), Error>> {
        let client = self.connection.client.clone();
        let count = tokens.len();
        let confirming =
            join_all(tokens.into_iter().map(move |token| confirm_delivery(client.clone(), token)));
        let confirmed = self.runtime.run_with_timeout(3 * ATTEMPT_TIMEOUT, confirming);
        confirmed
            .unwrap_or_else(|| vec![Err(unanswered_error("the confirmation of a segment timed out")); count])
    }

    fn take_refused_counts(&mut self) -> BTreeMap<NodeName, u64> {
        std::mem::take(&mut self.refused)
    }

    fn take_unreadable_keys(&mut self) -> BTreeMap<NodeName, String> {
        std::mem::take(&mut self.unreadable_keys)
    }

    fn take_problems(&mut self) -> Vec<Error> {
        self.failures.take_problems()
    }
}

impl Drop for NatsIncoming {
    fn drop(&mut self) {
        let reading = std::mem::take(&mut self.reading);
        for task in reading.values() {
            task.abort();
        }
        let connection = Arc::clone(&self.connection);
        let leaving =
            async move { join_all(reading.keys().map(|run| connection.delete_own_consumer(run))).await };
        // If a consumer cannot be removed, the next reader removes it.
        drop(self.runtime.run_with_timeout(ATTEMPT_TIMEOUT, leaving));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumer_name_encodes_run_and_reader() {
        let name = consumer_name("20261121-081407-3fa9c1", "00ff");
        assert_eq!(split_consumer_name(&name), Some(("20261121-081407-3fa9c1", "00ff")));
        assert_eq!(split_consumer_name(&consumer_name("a_b", "1")), Some(("a_b", "1")));
    }
}
