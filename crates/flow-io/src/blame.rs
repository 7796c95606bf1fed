//! Assigns each error of this crate to its cause: usage, the environment, or a bug.

use crate::group::GroupError;
use crate::{Error, collect, export, resend};
use packetrig_sys::private_files::SecretFileError;
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::File { source, .. } => Blame::from_named_file(source),
            Self::NoCapture { .. }
            | Self::EmptyCapture { .. }
            | Self::TooManyInputs { .. }
            | Self::OneWorker { .. } => Blame::Usage,
            Self::Kernel(error) => error.blame(),
            Self::Engine(error) => error.blame(),
            Self::IndexTooLarge { .. } | Self::Thread(_) => Blame::World,
            Self::Panicked(_) => Blame::Bug,
        }
    }
}

impl collect::Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Listen { source, .. } => Blame::from_io(source),
            Self::File { source, .. } => Blame::from_named_file(source),
            Self::NoIdentity(_) | Self::Tls { .. } | Self::RelayLoop(_) => Blame::Usage,
            Self::Kernel(error) => error.blame(),
            Self::Relay { .. } | Self::Thread(_) => Blame::World,
            Self::Panicked(_) => Blame::Bug,
        }
    }
}

impl export::Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::NotFramed { .. } | Self::NoAuthorities { .. } | Self::Tls(_) => Blame::Usage,
            Self::Target { .. } | Self::Thread(_) => Blame::World,
            Self::Group(error) => error.blame(),
        }
    }
}

impl resend::ResendError {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Tls(_) => Blame::Usage,
            Self::Target { .. } => Blame::World,
        }
    }
}

impl GroupError {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Options(_)
            | Self::NoName
            | Self::NoPeers(_)
            | Self::Family { .. }
            | Self::Key { .. }
            | Self::KeyFile {
                source:
                    SecretFileError::NotRegular
                    | SecretFileError::TooLong(_)
                    | SecretFileError::Exposed
                    | SecretFileError::Foreign(_),
                ..
            } => Blame::Usage,
            Self::KeyFile { source: SecretFileError::Io(source), .. } => Blame::from_named_file(source),
            Self::Kernel(error) => error.blame(),
            Self::Thread(_) => Blame::World,
        }
    }
}
