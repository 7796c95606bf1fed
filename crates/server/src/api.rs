//! The calls of the API, without a transport: normalised JSON in, JSON or a capture out.
//!
//! All functions here may block. There is one file for each kind of call.

mod calls;
mod control;
mod flow_rows;
mod metrics;
mod states;

pub(crate) use calls::{ApiCall, ApiReply, NormalisedRequest, RequestSource, perform_call};
