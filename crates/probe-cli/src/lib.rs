//! The commands of `packetrig probe`: arguments as typed ([`args`]) become calls of the crates below (`commands`), and what they
//! return becomes text. Two programs have them: `packetrig`, and `packetrig-probe`, which has nothing else
//! (docs/decisions/0034-the-small-program.md).
//!
//! They use neither the store nor the data plane of frames. Functions that only the large program has come as an argument:
//! [`HostProgram`].
#![forbid(unsafe_code)]

pub mod args;
mod commands;
mod error;
mod needs;
mod record_files;
mod viewer;

pub use commands::bounds::read_owner_permit;
pub use commands::mechanism::{calibration_file, load_calibration as kept_calibration};
pub use commands::run_probe_command;
pub use error::Error;
pub use record_files::{ParquetEncoder, RecordFileError, RecordFiles};
pub use viewer::{SeriesViewer, ViewedSeries, ViewerOpener};

/// What the program that runs the commands can do.
#[derive(Clone, Copy, Debug)]
pub struct HostProgram {
    pub files: RecordFiles,
    /// `None` in a program without a server for viewers.
    pub open_viewer: Option<ViewerOpener>,
}
