//! The transports: connections, encryption, and the two ways to carry a call.
//!
//! HTTP and gRPC share the accept loop and the way to the tester; each has only its own framing.

pub(crate) mod access;
mod desk;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod listener;
mod refusal;
pub(crate) mod tls;

pub(crate) use desk::Desk;
