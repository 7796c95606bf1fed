//! Stored flow records: sinks that store them, and queries over records in files. It also encodes probe records
//! as Parquet files ([`probe_records`]).
//!
//! ```text
//!  records, ledgers -> RecordSink: ParquetSink    DIR/flows/date=…/hour=…/*.parquet, DIR/meter_stats/…
//!                                  KafkaSink      a topic, one JSON line per record
//!                                  ClickHouseSink a table, filled by batches over HTTP
//!                                  AlertSink      nothing stored; events of alert rules
//!  files -> FlowFilter -> scan -> top, totals, rows
//! ```
//! Every store has the columns of [`columns`]: those of `flow::element::FLOW_ELEMENTS`, and the record's exporter. This
//! crate does not depend on how records are made. It reads the clock only for the partitions of live records, the age
//! of files and the windows of live alerts; other times are arguments.
//!
//! Invariant: a record that was offered to a sink is counted as stored, lost or waiting ([`SinkRecordCounts`]).
#![forbid(unsafe_code)]

pub mod alert;
pub mod cells;
mod checksum;
pub mod clickhouse;
pub mod columns;
pub mod compact;
mod constant_columns;
mod encode;
mod error;
mod files;
pub mod filter;
mod finished;
mod group_writer;
pub mod grouping;
mod http;
pub mod json;
pub mod kafka;
mod key_hash;
pub mod ledgers;
pub mod names;
mod network;
pub mod order;
pub mod parquet;
mod partial;

pub mod probe_records;
pub mod progress;
pub mod protocols;
mod queued;
pub mod recall;
pub mod recover;
mod replacement;
pub mod retention;
mod retry_timer;
mod row_group;
mod rows;
#[cfg(test)]
mod sample;
pub mod scan;
mod sink;
pub mod stored_records;
mod table_lock;
mod target;
pub mod tcp_flags;
pub mod top;
pub mod totals;
mod walk;

pub use error::Error;
pub use parquet::{ParquetOptions, ParquetSink};
pub use queued::{QueuePolicy, QueuedSink, StoredCallback};
pub use sink::{RecordExporter, RecordSink, SinkRecordCounts};
pub use target::StoreTarget;
pub use walk::find_linked_tables;
