//! The common parts of all programs of packetrig: their start and end, their output, and the sandbox that they enter.
//!
//! Each program parses its arguments and formats its results itself. Results go to standard output, remarks and
//! progress to standard error. Each kind of end has its exit code ([`exit`]). No code of single commands is here.
#![forbid(unsafe_code)]

mod allowed_users;
mod error;
pub mod event_log;
pub mod exit;
pub mod identity;
pub mod metrics;
pub mod numbers;
pub mod output;
mod panic;
pub mod quantities;
mod run;
mod safe_text;
pub mod sandbox;
pub mod table;
pub mod wrap;

pub use allowed_users::check_allowed_users;
pub use error::{Error, UnwrittenResult};
pub use run::{CommandError, ProgramName, run_program};
pub use safe_text::escape_unsafe_text;

/// Returns true if a signal has asked the command to end. Only signals after
/// [`packetrig_sys::signal::record_end_signals`] count.
pub fn is_interrupted() -> bool {
    packetrig_sys::signal::first_recorded_end_signal().is_some()
}
