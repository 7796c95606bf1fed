//! The sink for a ClickHouse table, over the HTTP interface: creates the table if there is none, and inserts rows in batches.
//!
//! It uses plain HTTP, so the user's name and password are readable on the network. Each batch has a token. If a lost
//! answer causes a second insertion, the table recognises the batch by its token.
//!
//! Invariant: every batch is counted as stored after a positive answer, or as lost after the last attempt. A batch that
//! is counted as lost may be stored nevertheless, if only the answers were lost.

mod http;
mod rows;

use super::columns::ExporterRow;
use super::sink::sum_carried;
use super::{Error, RecordExporter, RecordSink, SinkRecordCounts};
use packetrig_flow::FlowRecord;
use packetrig_units::{MonoTime, Nanos};
use std::hash::{BuildHasher, RandomState};
use std::thread;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClickHouseOptions {
    /// `host` or `host:port`; the port is 8123 if none is named.
    pub address: String,
    /// Name of the database, which must exist.
    pub database: String,
    /// Name of the table, which is created if necessary.
    pub table: String,
    /// User name for the server; if empty, the server uses its default user.
    pub user: String,
    pub password: String,
    /// Number of rows per insertion. ClickHouse is fastest with few and large insertions.
    pub batch_rows: usize,
    /// Waiting rows are inserted after this time, even if the batch is not full. The time counts from the first
    /// [`on_tick`](RecordSink::on_tick) after they came.
    pub batch_age: Nanos,
    /// Number of attempts to insert a batch.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles with each further attempt.
    pub wait: Nanos,
    /// Timeout of each attempt to connect, and of each read and write.
    pub timeout: Nanos,
}

impl ClickHouseOptions {
    /// The defaults: batches of 50,000 rows or one second; five attempts of 30 seconds each; a pause of 200 ms after
    /// the first attempt, twice as long after each further one.
    pub fn new(address: String, database: String, table: String) -> Self {
        Self {
            address,
            database,
            table,
            user: String::new(),
            password: String::new(),
            batch_rows: 50_000,
            batch_age: Nanos::from_secs(1),
            attempts: 5,
            wait: Nanos::from_millis(200),
            timeout: Nanos::from_secs(30),
        }
    }
}

/// ClickHouse's name for the error that a user lacks a privilege.
const ACCESS_DENIED: &str = "ACCESS_DENIED";

/// What this sink knows about the columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClickHouseTableState {
    /// The table has to be created, or checked for missing columns, before the next insertion.
    Unknown,
    /// The table has all columns, with the types of the rows.
    Whole,
    /// The server refused to create or change the table, usually for lack of a privilege. The table may have the
    /// columns of an earlier version.
    Unchanged,
}

#[derive(Debug)]
pub struct ClickHouseSink {
    options: ClickHouseOptions,
    rows: Vec<ExporterRow>,
    kept: SinkRecordCounts,
    table: ClickHouseTableState,
    /// Random part of the tokens, so that they differ from the tokens of other sinks.
    name: u64,
    batches: u64,
    since: Option<MonoTime>,
    /// True after a batch was lost. Each batch then gets a single attempt, until one succeeds: an unreachable server
    /// then costs little time.
    is_down: bool,
}

impl ClickHouseSink {
    /// Creates a sink, which connects when it has rows to send. The names of database and table may contain only ASCII
    /// letters, digits and `_`.
    pub fn new(options: ClickHouseOptions) -> Result<Self, Error> {
        for name in [&options.database, &options.table] {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                let why = "the name of a database or table must consist of ASCII letters, digits and `_`";
                return Err(Error::Target { text: name.clone(), why });
            }
        }
        Ok(Self {
            options,
            rows: Vec::new(),
            kept: SinkRecordCounts::default(),
            table: ClickHouseTableState::Unknown,
            // `RandomState` has random keys, so this is a random number without another dependency.
            name: RandomState::new().hash_one("flows"),
            batches: 0,
            since: None,
            is_down: false,
        })
    }

    fn deliver_rows(&mut self) -> Result<(), Error> {
        self.since = None;
        let rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        let carried = sum_carried(rows.iter().map(|row| &row.record));
        self.batches += 1;
        // All attempts use one token: if the answer to the first was lost, the table drops the second as a duplicate.
        let token = format!("{:016x}-{}", self.name, self.batches);
        // Encoded once for all attempts, because the rows do not change.
        let body = rows::encode_rows(&rows);
        let done = self.insert_with_retries(&token, &body);
        self.is_down = done.is_err();
        if done.is_ok() {
            self.kept.count_stored_records(carried);
        } else {
            self.kept.count_lost(carried);
        }
        done
    }

    fn insert_with_retries(&mut self, token: &str, body: &[u8]) -> Result<(), Error> {
        let attempts = if self.is_down { 1 } else { self.options.attempts.max(1) };
        let mut wait = self.options.wait;
        let mut done = Ok(());
        for attempt in 0..attempts {
            if attempt > 0 {
                thread::sleep(wait.to_std());
                wait = Nanos::new(wait.as_u64().saturating_mul(2));
            }
            done = self.insert_batch(token, body);
            match &done {
                Ok(()) => break,
                // A server that refused a batch refuses it again, unless the table was missing or old. So the next
                // attempt prepares the table first.
                Err(Error::Refused { .. }) => self.table = ClickHouseTableState::Unknown,
                Err(_) => {}
            }
            // Each failed attempt counts, even if a later one succeeds.
            self.kept.failures += 1;
        }
        done
    }

    fn insert_batch(&mut self, token: &str, body: &[u8]) -> Result<(), Error> {
        if self.table == ClickHouseTableState::Unknown {
            self.table = self.prepare_table()?;
        }
        let ClickHouseOptions { database, table, .. } = &self.options;
        let statement = match self.table {
            ClickHouseTableState::Whole => rows::insert_statement(database, table),
            ClickHouseTableState::Unknown | ClickHouseTableState::Unchanged => {
                rows::typed_insert_statement(database, table)
            }
        };
        let parameters = [
            ("query", statement.as_str()),
            ("insert_deduplication_token", token),
            // The answer is sent after the insertion has finished, so that status 200 means that the rows are stored.
            ("wait_end_of_query", "1"),
        ];
        http::post_body(&self.options, &parameters, body)
    }

    /// Creates the table if there is none. In a table of an earlier version, adds missing columns
    /// and widens narrow ones.
    fn prepare_table(&self) -> Result<ClickHouseTableState, Error> {
        let ClickHouseOptions { database, table, .. } = &self.options;
        let create = rows::create_table_statement(database, table);
        match http::post_body(&self.options, &[("wait_end_of_query", "1")], create.as_bytes()) {
            // The user may not create tables, but the table may already exist. If it does not, the insertion fails.
            Err(Error::Refused { said, .. }) if said.contains(ACCESS_DENIED) => {
                return Ok(ClickHouseTableState::Unchanged);
            }
            created => created?,
        }
        let add = rows::alter_table_statement(database, table);
        match http::post_body(&self.options, &[("wait_end_of_query", "1")], add.as_bytes()) {
            Ok(()) => {}
            // Usually the user may not change tables. The table may have all columns nevertheless; if it does not, the
            // insertion fails.
            Err(Error::Refused { .. }) => return Ok(ClickHouseTableState::Unchanged),
            Err(error) => return Err(error),
        }
        Ok(ClickHouseTableState::Whole)
    }
}

impl RecordSink for ClickHouseSink {
    fn write_records(&mut self, records: &[FlowRecord], source: RecordExporter) -> Result<(), Error> {
        let mut done = Ok(());
        self.kept.count_offered(records);
        for record in records {
            self.rows.push(ExporterRow { record: record.clone(), source });
            if self.rows.len() >= self.options.batch_rows {
                done = self.deliver_rows().and(done);
            }
        }
        done
    }

    fn on_tick(&mut self, now: MonoTime) -> Result<(), Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        // Rows come without a time of arrival, so their age counts from the first tick that finds them.
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= self.options.batch_age { self.deliver_rows() } else { Ok(()) }
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        self.deliver_rows()
    }

    fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
        let done = self.deliver_rows();
        (self.kept, done)
    }

    fn kept_counts(&self) -> SinkRecordCounts {
        self.kept
    }
}

#[cfg(test)]
mod tests;
