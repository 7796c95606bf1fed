//! `packetrig probe`: probes leave when they were planned and to whom it is allowed, what is known of each is written down, and what is said of
//! a path is what was done to it, or what the kernel makes of it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod available;
mod capacity;
mod clients;
mod handed_over;
mod oneprobe;
mod ping;
mod send;
mod serve;
mod serve_users;
mod sessions;
mod shaped;
mod stations;
mod testbed;
