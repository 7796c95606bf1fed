//! The commands of `packetrig probe`: arguments as typed ([`args`]) become calls of the lower crates
//! (`commands`), and the results become text. Two programs have these commands: `packetrig`, and
//! `packetrig-probe`, which has no other commands (docs/decisions/0034-the-small-program.md).
//!
//! These commands use neither the store nor the data plane of test traffic. The program that runs a command
//! passes the functions that only it has as an argument: [`HostProgram`].
#![forbid(unsafe_code)]

pub mod args;
mod commands;
mod error;
mod needs;
mod record_files;
mod viewer;

pub use commands::bounds::read_owner_permit;
pub use commands::mechanism::{default_calibration_file, load_calibration as kept_calibration};
pub use commands::run_probe_command;
pub use error::Error;
pub use record_files::{ParquetEncoder, RecordFileError, RecordFiles};
pub use viewer::{SeriesViewer, ViewedSeries, ViewerOpener};

/// Functions that the two programs provide differently.
#[derive(Clone, Copy, Debug)]
pub struct HostProgram {
    pub files: RecordFiles,
    /// `None` if the program has no server for viewers.
    pub open_viewer: Option<ViewerOpener>,
}
