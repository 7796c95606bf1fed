//! Maps each error of this crate to the party that can fix it.

use crate::Error;
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Kernel(error) => error.blame(),
            Self::Expression(error) => error.blame(),
            Self::File { source, .. } => Blame::from_io(source),
            Self::Filter { .. } => Blame::Usage,
            Self::Plan(_)
            | Self::NotForBackEnd { .. }
            | Self::CannotSteer { .. }
            | Self::NoLease { .. }
            | Self::NoEngine { .. }
            | Self::NoDevices { .. }
            | Self::Recording { .. }
            | Self::NoCaptureDirectory => Blame::Plan,
            Self::Guard(_) | Self::NotPermitted(_) => Blame::Unconfirmed,
            Self::Unresolved { .. } | Self::Engine { .. } | Self::Thread { .. } | Self::Injected { .. } => {
                Blame::World
            }
            Self::Panicked(_) | Self::Bug(_) => Blame::Bug,
        }
    }
}
