//! Flow records at rest: sinks that keep them, and questions about those that are kept in files.
//!
//! ```text
//!  records, ledgers -> RecordSink: ParquetSink    DIR/flows/date=…/hour=…/*.parquet, DIR/meter_stats/…
//!                                  KafkaSink      a topic, one JSON line per record
//!                                  ClickHouseSink a table
//!  files -> Filter -> scan -> Top, Totals, rows
//! ```
//! Every sink has the columns of [`columns`], which are those of `flow::element::ELEMENTS` and where the record came from.
//! Nothing here knows how records are made, and nothing reads a clock: times are given.
//!
//! Invariant: a record that a sink was offered is stored, lost or waiting, and counted as one of the three ([`KeptCounts`]).

pub mod cells;
mod checksum;
pub mod clickhouse;
pub mod columns;
mod encode;
mod error;
mod files;
pub mod filter;
mod group_writer;
pub mod grouping;
pub mod json;
pub mod kafka;
mod key_hash;
pub mod ledgers;
mod network;
pub mod order;
pub mod parquet;
mod partial;
pub mod protocols;
mod queued;
pub mod recover;
mod retry_timer;
mod row_group;
#[cfg(test)]
mod sample;
pub mod scan;
mod sink;
mod target;
pub mod tcp_flags;
pub mod top;
pub mod totals;
mod walk;

pub use error::Error;
pub use parquet::{ParquetOptions, ParquetSink};
pub use queued::{QueuePolicy, QueuedSink};
pub use sink::{KeptCounts, RecordMaker, RecordSink};
pub use target::StoreTarget;
