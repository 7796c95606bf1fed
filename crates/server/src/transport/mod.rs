//! The transports: connections, encryption, and the two ways to carry a call.
//!
//! HTTP and gRPC share the accept loop, the door ([`front`]) and the way to the tester; each has only its own framing. A
//! connection has a place ([`slots`]) and deadlines ([`watch`]), a request passes [`policy`], and what does not get further is
//! counted by cause ([`rejections`]).

pub(crate) mod access;
pub(crate) mod body;
mod desk;
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

pub(crate) use desk::CallDispatcher;
