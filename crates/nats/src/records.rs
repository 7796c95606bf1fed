//! Records in a JetStream key-value bucket: one value for each key, on the disk, changed only with its revision.
//!
//! Invariant: after an error of a single change other than [`Error::Unanswered`], the record was not changed.

use crate::connection::{ConnectionFailures, ServerAccess, open_client};
use crate::runtime::SharedRuntime;
use crate::subject::RECORDS_BUCKET;
use async_nats::jetstream::{self, kv};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use packetrig_fleet::fabric::{Error, RecordStore, RecordWrite, StoredRecord};
use packetrig_fleet::message::NodeName;
use std::future::Future;
use std::time::Duration;

/// Maximum number of attempts to open the bucket.
const MAX_ATTEMPTS: u32 = 10;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(200);

/// Maximum number of requests in flight when many records are read or written.
const MAX_REQUESTS_IN_FLIGHT: usize = 64;

/// Reads and writes the records over its own connection.
#[derive(Debug)]
pub struct NatsRecords {
    runtime: SharedRuntime,
    timeout: Duration,
    store: kv::Store,
    troubles: ConnectionFailures,
}

fn unanswered_error(error: impl std::fmt::Display) -> Error {
    Error::Unanswered(error.to_string())
}

impl NatsRecords {
    pub(crate) fn open_record_bucket(runtime: SharedRuntime, access: ServerAccess) -> Result<Self, Error> {
        let troubles = ConnectionFailures::default();
        let timeout = access.timeout;
        let seen = troubles.clone();
        let opening = async move {
            let replicas = access.replicas;
            let client = open_client(access, NodeName::controller().0, seen).await?;
            let mut context = jetstream::new(client);
            context.set_timeout(timeout);
            let config = kv::Config {
                bucket: RECORDS_BUCKET.to_owned(),
                // Earlier values are never read: a change names the revision that it replaces.
                history: 1,
                storage: jetstream::stream::StorageType::File,
                num_replicas: replicas,
                ..kv::Config::default()
            };
            let mut attempts = 0;
            loop {
                attempts += 1;
                match context.create_or_update_key_value(config.clone()).await {
                    // While a server loads its accounts again, it offers no store, so the request is repeated.
                    Err(_) if attempts < MAX_ATTEMPTS => tokio::time::sleep(ATTEMPT_PAUSE).await,
                    opened => return opened.map_err(unanswered_error),
                }
            }
        };
        let refusing = troubles.clone();
        let store = runtime
            .run_with_timeout(timeout, async move { Box::pin(refusing.run_until_refusal(opening)).await });
        let store = store.ok_or_else(|| unanswered_error("opening the records timed out")).flatten();
        let store = store.map_err(|error| troubles.take_first_refusal().unwrap_or(error))?;
        Ok(Self { runtime, timeout, store, troubles })
    }

    /// Runs a request. If the request gets no answer, and the server has reported a refusal, the refusal is the error.
    fn run_request<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let troubles = self.troubles.clone();
        // A refused request gets no answer, and neither does a request on a lost connection. Without these two
        // checks the caller would wait for the whole timeout.
        let asking =
            async move { troubles.run_until_refusal(troubles.run_until_connection_lost(work)).await };
        let done = self
            .runtime
            .run_with_timeout(self.timeout, asking)
            .ok_or_else(|| unanswered_error("a request about records timed out"));
        done.flatten().map_err(|error| match error {
            Error::Unanswered(_) => self.troubles.take_first_refusal().unwrap_or(error),
            other => other,
        })
    }
}

async fn read_record(store: kv::Store, key: String) -> Result<Option<StoredRecord>, Error> {
    let entry = store.entry(key).await.map_err(unanswered_error)?;
    // For a removed key, the server keeps a deletion marker as the last entry.
    let there = entry.filter(|entry| entry.operation == kv::Operation::Put);
    Ok(there.map(|entry| StoredRecord { value: entry.value.to_vec(), revision: entry.revision }))
}

async fn create_record(store: kv::Store, key: String, value: Bytes) -> Result<u64, Error> {
    store.create(&key, value).await.map_err(|error| match error.kind() {
        kv::CreateErrorKind::AlreadyExists => Error::Exists(key),
        _ => unanswered_error(error),
    })
}

async fn replace_record(store: kv::Store, key: String, revision: u64, value: Bytes) -> Result<u64, Error> {
    store.update(&key, value, revision).await.map_err(|error| match error.kind() {
        // The server compares the revisions itself, so no other change can come in between.
        kv::UpdateErrorKind::WrongLastRevision => Error::Stale(key),
        _ => unanswered_error(error),
    })
}

async fn write_record(store: kv::Store, write: RecordWrite) -> Result<u64, Error> {
    let RecordWrite { key, revision, value } = write;
    match revision {
        Some(revision) => replace_record(store, key, revision, value.into()).await,
        None => create_record(store, key, value.into()).await,
    }
}

impl RecordStore for NatsRecords {
    fn get_record(&mut self, key: &str) -> Result<Option<StoredRecord>, Error> {
        self.run_request(read_record(self.store.clone(), key.to_owned()))
    }

    fn get_records(&mut self, keys: &[String]) -> Result<Vec<Option<StoredRecord>>, Error> {
        let store = self.store.clone();
        let keys = keys.to_vec();
        self.run_request(async move {
            let reads = keys.into_iter().map(|key| read_record(store.clone(), key));
            futures_util::stream::iter(reads).buffered(MAX_REQUESTS_IN_FLIGHT).try_collect().await
        })
    }

    fn create_record(&mut self, key: &str, value: &[u8]) -> Result<u64, Error> {
        self.run_request(create_record(self.store.clone(), key.to_owned(), Bytes::copy_from_slice(value)))
    }

    fn replace_record(&mut self, key: &str, revision: u64, value: &[u8]) -> Result<u64, Error> {
        self.run_request(replace_record(
            self.store.clone(),
            key.to_owned(),
            revision,
            Bytes::copy_from_slice(value),
        ))
    }

    fn write_all_records(&mut self, writes: &[RecordWrite]) -> Vec<Result<u64, Error>> {
        let mut answers = Vec::with_capacity(writes.len());
        // Each batch of writes has the full timeout.
        for some in writes.chunks(MAX_REQUESTS_IN_FLIGHT) {
            let writing: Vec<_> =
                some.iter().map(|one| write_record(self.store.clone(), one.clone())).collect();
            let answered = self.run_request(async move { Ok(futures_util::future::join_all(writing).await) });
            // After an error some records of the batch may have been written, so the caller must read
            // all of them again.
            answers.extend(answered.unwrap_or_else(|error| vec![Err(error); some.len()]));
        }
        answers
    }

    fn remove_record(&mut self, key: &str) -> Result<(), Error> {
        let store = self.store.clone();
        let key = key.to_owned();
        self.run_request(async move { store.purge(key).await.map_err(unanswered_error) })
    }

    fn list_keys(&mut self, prefix: &str) -> Result<Vec<String>, Error> {
        let store = self.store.clone();
        let prefix = prefix.to_owned();
        self.run_request(async move {
            let keys = store.keys().await.map_err(unanswered_error)?;
            let mut keys: Vec<String> = keys.try_collect().await.map_err(unanswered_error)?;
            keys.retain(|key| key.starts_with(&prefix));
            keys.sort();
            // The server may list a key twice if the record changes during the listing.
            keys.dedup();
            Ok(keys)
        })
    }
}
