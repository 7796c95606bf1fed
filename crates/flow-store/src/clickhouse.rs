//! The sink for a ClickHouse table, over the HTTP interface: creates the table if there is none, and inserts rows in batches.
//!
//! It uses plain HTTP, so the user's name and password are readable on the network. Each batch has a token. If a lost
//! answer causes a second insertion, the table recognises the batch by its token.
//!
//! Invariant: every batch is counted as stored after an answer, or as lost after the last attempt. A lost batch may be
//! stored, if only the answers were lost.

mod http;
mod rows;

use super::columns::ExporterRow;
use super::sink::sum_carried;
use super::{Error, KeptCounts, RecordMaker, RecordSink};
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
    /// The server's user; its default user if empty.
    pub user: String,
    pub password: String,
    /// Number of rows per insertion. ClickHouse is fastest with few and large insertions.
    pub batch_rows: usize,
    /// Age at which waiting rows are inserted, even if they are few. It counts from the first tick after they came.
    pub batch_age: Nanos,
    /// Number of attempts to insert a batch.
    pub attempts: u32,
    /// Wait before the second attempt; it doubles with each further one.
    pub wait: Nanos,
    /// Timeout of one answer.
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

/// What ClickHouse calls the error of a user who lacks a right.
const ACCESS_DENIED: &str = "ACCESS_DENIED";

/// State of the table's columns, as far as this sink has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableState {
    /// The table has to be created, or checked for missing columns, before the next insertion.
    Unknown,
    /// The table has all columns, with the types of the rows.
    Whole,
    /// The user may not change the table, so it may be of an earlier version.
    Unchanged,
}

#[derive(Debug)]
pub struct ClickHouseSink {
    options: ClickHouseOptions,
    rows: Vec<ExporterRow>,
    kept: KeptCounts,
    table: TableState,
    /// Random part of the tokens, so that they differ from those of any other sink.
    name: u64,
    batches: u64,
    since: Option<MonoTime>,
    /// After a batch was given up, each batch gets one attempt until one succeeds: a dead server then costs little time.
    is_down: bool,
}

impl ClickHouseSink {
    /// A sink that connects when it has something to send. The names of database and table may contain only ASCII
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
            kept: KeptCounts::default(),
            table: TableState::Unknown,
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
                Err(Error::Refused { .. }) => self.table = TableState::Unknown,
                Err(_) => {}
            }
            // Each failed attempt counts, even if a later one succeeds.
            self.kept.failures += 1;
        }
        done
    }

    fn insert_batch(&mut self, token: &str, body: &[u8]) -> Result<(), Error> {
        if self.table == TableState::Unknown {
            self.table = self.prepare_table()?;
        }
        let ClickHouseOptions { database, table, .. } = &self.options;
        let statement = match self.table {
            TableState::Whole => rows::insert_statement(database, table),
            TableState::Unknown | TableState::Unchanged => rows::typed_insert_statement(database, table),
        };
        let parameters = [
            ("query", statement.as_str()),
            ("insert_deduplication_token", token),
            // The answer is sent after the insertion has finished, so that status 200 means that the rows are stored.
            ("wait_end_of_query", "1"),
        ];
        http::post_body(&self.options, &parameters, body)
    }

    /// Creates the table, or adds missing columns to one of an earlier version and widens its narrower ones.
    fn prepare_table(&self) -> Result<TableState, Error> {
        let ClickHouseOptions { database, table, .. } = &self.options;
        let create = rows::create_table_statement(database, table);
        match http::post_body(&self.options, &[("wait_end_of_query", "1")], create.as_bytes()) {
            // A user who may only insert: the table may exist nevertheless. If it does not, the insertion fails.
            Err(Error::Refused { said, .. }) if said.contains(ACCESS_DENIED) => {
                return Ok(TableState::Unchanged);
            }
            created => created?,
        }
        let add = rows::alter_table_statement(database, table);
        match http::post_body(&self.options, &[("wait_end_of_query", "1")], add.as_bytes()) {
            Ok(()) => {}
            // Usually the user may not change tables. The table may have all columns nevertheless; if it does not, the
            // insertion fails.
            Err(Error::Refused { .. }) => return Ok(TableState::Unchanged),
            Err(error) => return Err(error),
        }
        Ok(TableState::Whole)
    }
}

impl RecordSink for ClickHouseSink {
    fn write_records(&mut self, records: &[FlowRecord], source: RecordMaker) -> Result<(), Error> {
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
        // Rows come without a time, so their age counts from the first tick that finds them.
        let since = *self.since.get_or_insert(now);
        if now.since(since) >= self.options.batch_age { self.deliver_rows() } else { Ok(()) }
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        self.deliver_rows()
    }

    fn close_sink(&mut self) -> (KeptCounts, Result<(), Error>) {
        let done = self.deliver_rows();
        (self.kept, done)
    }

    fn kept_counts(&self) -> KeptCounts {
        self.kept
    }
}

#[cfg(test)]
mod tests;
