//! Measurements from the arrivals of frames: latency, loss, duplicates, reordering, jitter and rates, and the
//! ledger that must balance.
//!
//! This crate gets numbers and times as arguments, and reads no clock. All counts can be merged: over the
//! receivers of a stream, the streams of a port, the ports of a node and the nodes of a run. [`result`]
//! contains the values that are passed from the data plane to the report.
//!
//! Invariant: merging is associative and loses no count. A count that is not known is absent, never zero.
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
