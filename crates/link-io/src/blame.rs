//! Maps each error of this crate to the party at fault.

use crate::{Error, log, merge};
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Engine(error) => error.blame(),
            Self::Kernel(error) => error.blame(),
            Self::Tap(_) => Blame::Usage,
            Self::Thread { .. } => Blame::World,
            Self::File { source, .. } => Blame::from_io(source),
            Self::Panicked(_) | Self::Bug(_) => Blame::Bug,
        }
    }
}

impl log::Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::InUse(_) => Blame::Busy,
            Self::File { source, .. } => Blame::from_io(source),
            Self::Damaged { .. } | Self::NoIndex(_) => Blame::Usage,
            Self::NoRoom { .. } => Blame::World,
        }
    }
}

impl merge::Error {
    pub fn blame(&self) -> Blame {
        match self {
            // The user has named the captures, so a missing one is a wrong name.
            Self::File { what: "read", source, .. } => Blame::from_named_file(source),
            Self::File { source, .. } => Blame::from_io(source),
            Self::Log(error) => error.blame(),
            Self::Count(_)
            | Self::NoCapture { .. }
            | Self::NoLog(_)
            | Self::NotAFile(_)
            | Self::IntoItself(_)
            | Self::NothingInCommon { .. } => Blame::Usage,
        }
    }
}
