//! Reads one run from the server until its task is aborted.

use super::{CONFIRM_TIMEOUT, ReaderConnection, consumer_name, unanswered_error};
use crate::connection::ConnectionFailures;
use crate::results::{ATTEMPT_PAUSE, ATTEMPT_TIMEOUT};
use crate::subject;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{ConsumerError, Stream};
use futures_util::StreamExt;
use packetrig_fleet::fabric::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

/// Maximum number of deliveries of a run that are fetched in advance. Segments of 512 KiB make 16 MiB.
const MAX_PREFETCHED_DELIVERIES: usize = 32;
/// Maximum number of unconfirmed deliveries of a run. The server delivers no more until some are confirmed.
const MAX_UNCONFIRMED_DELIVERIES: i64 = 4096;
/// Time after which the server removes a consumer that is not used.
const UNUSED_CONSUMER_LIFETIME: Duration = Duration::from_hours(24);
/// Number of failures in a row at which a failure is reported.
const REPORTED_FAILURES_IN_A_ROW: u32 = 2;

impl ReaderConnection {
    pub(super) async fn open_run_consumer(
        &self,
        stream: &Stream,
        run: &str,
    ) -> Result<PullConsumer, ConsumerError> {
        let name = consumer_name(run, &self.reader);
        let config = pull::Config {
            // The consumer outlives its controller. The next reader removes it (`take_over_run`), or the
            // server does so after `UNUSED_CONSUMER_LIFETIME`.
            durable_name: Some(name.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: CONFIRM_TIMEOUT,
            max_ack_pending: MAX_UNCONFIRMED_DELIVERIES,
            filter_subject: subject::segment_subject(run, "*"),
            inactive_threshold: UNUSED_CONSUMER_LIFETIME,
            ..pull::Config::default()
        };
        stream.get_or_create_consumer(&name, config).await
    }

    async fn open_messages(&self, run: &str) -> Result<pull::Stream, Error> {
        let consumer = self
            .open_run_consumer(&self.get_or_create_stream().await?, run)
            .await
            .map_err(unanswered_error)?;
        // Missing heartbeats show that the server does not answer, long before the request expires.
        let ahead =
            consumer.stream().max_messages_per_batch(MAX_PREFETCHED_DELIVERIES).expires(CONFIRM_TIMEOUT);
        ahead.heartbeat(ATTEMPT_TIMEOUT).messages().await.map_err(unanswered_error)
    }

    /// Sends the segments of a run to `arrivals` until the receiver is dropped. After a failure it tries again; if the
    /// server has lost the stream, it creates the stream again.
    pub(super) async fn read_until_stopped(
        self: Arc<Self>,
        run: String,
        arrivals: Sender<Message>,
        troubles: ConnectionFailures,
    ) {
        let mut failures = 0;
        loop {
            match self.forward_messages(&run, &arrivals, &mut failures).await {
                Ok(RunReadEnd::ReaderGone) => return,
                Ok(RunReadEnd::StreamEnded) => {}
                Err(error) => {
                    failures += 1;
                    // The first failure may be only a restart of the server, and the third and later
                    // ones add nothing new.
                    if failures == REPORTED_FAILURES_IN_A_ROW {
                        troubles.add_failure(error);
                    }
                }
            }
            // The pause also follows a regular end: a stream that ends at once must not be reopened in a busy loop.
            tokio::time::sleep(ATTEMPT_PAUSE).await;
        }
    }

    /// Sends messages to `arrivals` until their stream ends or fails. Each message sets `failures` to zero.
    async fn forward_messages(
        &self,
        run: &str,
        arrivals: &Sender<Message>,
        failures: &mut u32,
    ) -> Result<RunReadEnd, Error> {
        let mut messages = self.open_messages(run).await?;
        while let Some(message) = messages.next().await {
            let message = message.map_err(unanswered_error)?;
            *failures = 0;
            if arrivals.send(message).await.is_err() {
                return Ok(RunReadEnd::ReaderGone);
            }
        }
        Ok(RunReadEnd::StreamEnded)
    }
}

/// Reasons why `forward_messages` has ended without an error.
enum RunReadEnd {
    /// The [`NatsIncoming`](super::NatsIncoming) was dropped.
    ReaderGone,
    StreamEnded,
}
