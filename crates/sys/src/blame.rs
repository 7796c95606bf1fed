//! Classifies each error of this crate by its cause: missing rights, an object in use, wrong usage, or the machine.

use crate::pcap::PcapError;
use crate::{Error, UnsupportedFeature};
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            // EPERM and EACCES both mean missing rights, whatever kind the standard library gives them.
            Self::Call { .. } if self.is_permission_error() => Blame::Rights,
            Self::Call { source, .. } | Self::UnknownOwner { source } => Blame::from_io(source),
            Self::Busy { .. } => Blame::Busy,
            Self::Missing { .. } => Blame::World,
            Self::Unsupported(feature) => feature.blame(),
        }
    }
}

impl UnsupportedFeature {
    pub const fn blame(&self) -> Blame {
        Blame::World
    }
}

impl PcapError {
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Unsupported(feature) => feature.blame(),
            Self::Expression { .. } => Blame::Usage,
        }
    }
}
