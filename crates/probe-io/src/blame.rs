//! Maps each error of this crate to the party that can fix it.

use crate::Error;
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Kernel(error) => error.blame(),
            Self::Guard(error) => error.blame(),
            Self::Target(_) => Blame::Unconfirmed,
            Self::Train { .. } | Self::Limits(_) => Blame::Usage,
            Self::Mechanism { .. } | Self::NoRoute(..) | Self::NobodyThere(..) => Blame::World,
            Self::Gone => Blame::Bug,
        }
    }
}
