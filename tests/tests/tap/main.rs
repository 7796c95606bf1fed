//! `packetrig tap`: frames pass unchanged, copies are as they were asked to be, and nothing that befalls a mirror or the
//! process changes what is forwarded. Both ways are held to the same.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod beside;
mod copies;
mod death;
mod failures;
mod forwarding;
mod kernels;
mod limits;
mod metrics;
mod ready;
mod testbed;
