//! The calls of the API, without a transport: settled JSON in, JSON or a capture out.
//!
//! Everything here blocks and none of it knows who waits. What requests mean is in one file per kind of call.

mod calls;
mod control;
mod flow_rows;
mod metrics;
mod states;

pub(crate) use calls::{ApiCall, ApiReply, ApiRequest, answer};
