//! Measurements from arrivals: latency, loss, duplicates, reordering, jitter, rates, and the ledger that must balance.
//!
//! This crate receives numbers and times as arguments, and reads no clock. All accounts can be merged: over
//! receivers of a stream, streams of a port, ports of a node, nodes of a run. [`result`] holds the values
//! that travel from the data plane to the report.
//!
//! Invariant: merging is associative and loses no count; a count that is not known is absent, never zero.
#![forbid(unsafe_code)]

pub mod bounded;
pub mod caveat;
pub mod clock;
pub mod content;
pub mod counts;
pub mod exchange;
pub mod figure;
pub mod jitter;
pub mod latency;
pub mod ledger;
pub mod limit;
pub mod live_loss;
pub mod outage;
pub mod port;
pub mod port_event;
pub mod probe;
pub mod ranges;
pub mod result;
pub mod sequence;
pub mod series;
pub mod terms;
