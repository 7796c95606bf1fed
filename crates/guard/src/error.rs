//! Reasons why an interface may not send test traffic.

use crate::lab::GuardRefusal;
use packetrig_units::Blame;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel did not list the interfaces, so the guard cannot decide.
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
