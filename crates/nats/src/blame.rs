//! Attributes the errors of this crate to the user, the peer, the system or a bug.

use crate::{authority, broker, enrol};
use packetrig_units::Blame;

impl authority::Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::File { source, .. } => Blame::from_io(source),
            Self::Damaged(_) => Blame::World,
            Self::Name(_) | Self::Taken(_) | Self::Unknown(_) | Self::Labels { .. } | Self::Secret => {
                Blame::Usage
            }
            Self::Certificate(_) => Blame::Bug,
        }
    }
}

impl broker::Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing | Self::Version { .. } | Self::Name(_) => Blame::Usage,
            Self::World { source, .. } => Blame::from_io(source),
            Self::Authority(error) => error.blame(),
            Self::NotReady(_) => Blame::World,
        }
    }
}

impl enrol::Error {
    pub fn blame(&self) -> Blame {
        match self {
            // The authority refuses the join line, which the user gave.
            Self::Line | Self::Name(_) | Self::Refused(_) | Self::Removed(_) => Blame::Usage,
            Self::Stranger(_) | Self::Certificate { .. } | Self::Later(_) => Blame::Peer,
            Self::Network { source, .. } => Blame::from_io(source),
            Self::Here(_) => Blame::World,
            Self::Authority(error) => error.blame(),
        }
    }
}
