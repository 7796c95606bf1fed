//! The report page in a real browser: a headless Chromium opens it from disk, as its users do.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod look;
mod probes_over_time;
mod program;
mod sample;
mod use_of_page;
