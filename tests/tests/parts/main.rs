//! Several nodes' parts of one plan on real interfaces, and senders that nobody can reach any more.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod halves;
mod lease;
