//! The errors of the commands, and the party at fault for each.

use crate::RecordFileError;
use packetrig_program::exit::CommandExit;
use packetrig_program::{CommandError, UnwrittenResult};
use packetrig_units::Blame;
use std::io;
use std::path::{Path, PathBuf};

/// Reason why a command failed. Variants without a comment wrap errors of other crates, which
/// decide their blame themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that the user named cannot be read.
    #[error("cannot read {name}")]
    ReadFile { name: String, source: io::Error },
    /// The arguments contradict each other or cannot be used, in a way that the argument parser cannot detect.
    #[error("{0}")]
    Usage(String),
    /// A file could not be written.
    #[error("cannot write {what}")]
    Write { what: String, source: io::Error },
    /// A permit file for probes is invalid.
    #[error("{}: {error}", file.display())]
    Permit { file: PathBuf, error: packetrig_probe::permit::FileError },
    /// Neither `$XDG_DATA_HOME` nor `$HOME` is set, so there is no directory for a calibration.
    #[error("there is no calibration directory: set XDG_DATA_HOME or HOME, or name a file with --write")]
    NoDataDirectory,
    /// The kernel refused a request, see [`packetrig_sys::Error`].
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    #[error(transparent)]
    Probe(#[from] packetrig_probe_io::Error),
    #[error(transparent)]
    Lab(#[from] packetrig_testkit::device::Error),
    #[error(transparent)]
    RecordFile(#[from] RecordFileError),
    #[error(transparent)]
    Output(#[from] UnwrittenResult),
    #[error(transparent)]
    Program(#[from] packetrig_program::Error),
}

impl Error {
    /// Returns the error for a file that cannot be read.
    pub(crate) fn unreadable_file(file: &Path, source: io::Error) -> Self {
        Self::ReadFile { name: file.display().to_string(), source }
    }

    pub(crate) fn unwritable_file(file: &Path, source: io::Error) -> Self {
        Self::Write { what: file.display().to_string(), source }
    }

    pub fn blame(&self) -> Blame {
        match self {
            Self::ReadFile { source, .. } => Blame::from_named_file(source),
            Self::Usage(_) | Self::Permit { .. } | Self::NoDataDirectory => Blame::Usage,
            Self::Write { source, .. } => Blame::from_io(source),
            Self::Kernel(error) => error.blame(),
            Self::Probe(error) => error.blame(),
            Self::Lab(error) => error.blame(),
            Self::RecordFile(error) => error.blame(),
            Self::Output(error) => error.blame(),
            Self::Program(error) => error.blame(),
        }
    }
}

impl RecordFileError {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Form(_) | Self::NoParquet(_) | Self::NoFrames(_) => Blame::Usage,
            Self::File { source, .. } => Blame::from_io(source),
            Self::Encode(_) | Self::Json(_) => Blame::Bug,
        }
    }
}

impl CommandError for Error {
    fn command_exit(&self) -> CommandExit {
        self.blame().into()
    }
}
