//! Test methods, as a user calls them: through the reference device, whose truth is known.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod api;
mod lab;
mod others;
mod rfc2544;
mod session;
