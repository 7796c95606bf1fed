//! Performs the calls of the OTG API, independently of HTTP and gRPC: from normalised JSON to JSON, rows
//! or a capture file.
//!
//! Performing a call may block. There is one file for each kind of call.

mod calls;
mod control;
mod flow_rows;
mod metrics;
mod states;

pub(crate) use calls::{ApiCall, ApiReply, NormalisedRequest, RequestSource, perform_call};
