//! Reads one run from the server until its task is aborted.

use super::{CONFIRMING, ReaderConnection, consumer_name, unanswered_error};
use crate::connection::ConnectionTroubles;
use crate::results::{ATTEMPT, PAUSE};
use crate::subject;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{ConsumerError, Stream};
use futures_util::StreamExt;
use packetrig_fleet::fabric::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// Deliveries of a run that are fetched ahead: 16 MiB at most.
const AHEAD: usize = 32;
/// Maximum number of deliveries that wait for their confirmation.
const UNCONFIRMED: i64 = 4096;
/// The server removes a consumer that was not used for this long.
const UNUSED: Duration = Duration::from_hours(24);
/// Failures in a row before they are reported.
const FAILURES_TO_TELL: u32 = 2;

impl ReaderConnection {
    pub(super) async fn open_run_consumer(
        &self,
        stream: &Stream,
        run: &str,
    ) -> Result<PullConsumer, ConsumerError> {
        let name = consumer_name(run, &self.reader);
        let config = pull::Config {
            // The consumer outlives its controller. The next reader removes it (`take_over`), or the
            // server does after `UNUSED`.
            durable_name: Some(name.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: CONFIRMING,
            max_ack_pending: UNCONFIRMED,
            filter_subject: subject::segment_subject(run, "*"),
            inactive_threshold: UNUSED,
            ..pull::Config::default()
        };
        stream.get_or_create_consumer(&name, config).await
    }

    async fn open_messages(&self, run: &str) -> Result<pull::Stream, Error> {
        let consumer = self
            .open_run_consumer(&self.get_or_create_stream().await?, run)
            .await
            .map_err(unanswered_error)?;
        // Missing heartbeats reveal a server that has gone, long before the request expires.
        let ahead = consumer.stream().max_messages_per_batch(AHEAD).expires(CONFIRMING);
        ahead.heartbeat(ATTEMPT).messages().await.map_err(unanswered_error)
    }

    /// Passes on the segments of a run, whatever happens to the server meanwhile; a lost store is created again.
    pub(super) async fn read_until_stopped(
        self: Arc<Self>,
        run: String,
        arrivals: Sender<Message>,
        troubles: ConnectionTroubles,
    ) {
        let mut failures = 0;
        loop {
            match self.forward_messages(&run, &arrivals, &mut failures).await {
                Ok(ReadEnd::ReaderGone) => return,
                Ok(ReadEnd::StreamEnded) => {}
                Err(error) => {
                    failures += 1;
                    // A single failure is a restarted server, and a third one adds nothing new.
                    if failures == FAILURES_TO_TELL {
                        troubles.add_trouble(error);
                    }
                }
            }
            // Waits also after a regular end: a stream that ends at once must not be reopened without a pause.
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Passes on messages until their stream ends or fails. A message ends a series of failures.
    async fn forward_messages(
        &self,
        run: &str,
        arrivals: &Sender<Message>,
        failures: &mut u32,
    ) -> Result<ReadEnd, Error> {
        let mut messages = self.open_messages(run).await?;
        while let Some(message) = messages.next().await {
            let message = message.map_err(unanswered_error)?;
            *failures = 0;
            if arrivals.send(message).await.is_err() {
                return Ok(ReadEnd::ReaderGone);
            }
        }
        Ok(ReadEnd::StreamEnded)
    }
}

/// Reasons why no more messages of a run come.
enum ReadEnd {
    /// The inlet was dropped.
    ReaderGone,
    StreamEnded,
}
