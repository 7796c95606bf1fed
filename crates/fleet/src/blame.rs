//! Assigns each error of this crate to the party at fault ([`Blame`]).

use crate::fabric::Error;
use packetrig_units::Blame;

impl Error {
    pub const fn blame(&self) -> Blame {
        match self {
            Self::Unknown(_) | Self::Gone(_) | Self::Exists(_) | Self::Stale(_) => Blame::Peer,
            Self::Taken(_) | Self::RunTaken(_) => Blame::Busy,
            // The plan, or the results that it asks for, are too large for one message.
            Self::TooLarge(_) => Blame::Plan,
            Self::NotPermitted(_) => Blame::Rights,
            Self::Full | Self::Unanswered(_) | Self::Down(_) => Blame::World,
        }
    }
}
