//! Reasons for refusing an interface.

use crate::lab::GuardRefusal;
use packetrig_units::Blame;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel did not list the interfaces that are stacked with this one.
    #[error(transparent)]
    Kernel(#[from] packetrig_sys::Error),
    /// The interface looks like part of a network that people use.
    #[error(transparent)]
    Refused(#[from] GuardRefusal),
}

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Kernel(error) => error.blame(),
            Self::Refused(_) => Blame::Unconfirmed,
        }
    }
}
