//! The transports: connections, encryption, and two protocols that carry calls.
//!
//! HTTP and gRPC share the accept loop, the service that checks each request ([`front`]) and the dispatcher of calls;
//! only their framing differs. A connection has a slot ([`slots`]) and deadlines ([`watch`]), a request must pass
//! [`policy`], and refusals are counted by cause ([`rejections`]).

pub(crate) mod access;
pub(crate) mod body;
mod dispatcher;
pub(crate) mod front;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod in_memory;
pub(crate) mod listener;
pub(crate) mod policy;
mod refusal;
pub(crate) mod rejections;
pub(crate) mod slots;
pub(crate) mod tls;
mod watch;
mod watched_stream;

pub(crate) use dispatcher::CallDispatcher;
