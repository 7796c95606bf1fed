//! Several nodes' parts of one plan on real interfaces, and senders that nobody can reach any more.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and shows what it measured"
)]

mod halves;
mod lease;
mod probes;
