//! Says for each error of this crate which party is at fault.

use crate::device::Error;
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Kernel(error) => error.blame(),
            Self::Panicked(_) => Blame::Bug,
        }
    }
}
