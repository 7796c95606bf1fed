//! The server as its clients meet it: real sockets, a mock of a tester behind them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod grpc;
mod http;
mod life;
mod measured;
mod methods;
mod mock;
mod page;
mod tls;
