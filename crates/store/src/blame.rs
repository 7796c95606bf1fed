//! The party at fault for each error of this crate.

use crate::{Error, spool};
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::NoPlace
            | Self::Unknown(_)
            | Self::Ambiguous { .. }
            | Self::NotUnfinished(_)
            | Self::MethodComplete(_)
            | Self::NoResult(_)
            | Self::NoUnfinishedMethod => Blame::Usage,
            Self::File { source, .. } => Blame::from_io(source),
            Self::Catalogue { .. }
            | Self::NoRoom { .. }
            | Self::NotStored { .. }
            | Self::MethodNotStored { .. }
            | Self::DamagedJournal { .. }
            | Self::TooNew { .. }
            | Self::Damaged { .. } => Blame::World,
            Self::UnderWay { .. } | Self::MethodUnderWay { .. } | Self::CatalogueBusy { .. } => Blame::Busy,
            Self::BadNode(_)
            | Self::BadSegment { .. }
            | Self::LateQuota { .. }
            | Self::RunQuota { .. }
            | Self::Differs(_) => Blame::Peer,
            Self::OfBatch(error) => error.blame(),
            // packetrig itself makes the ids of its runs and the names of files, and gives a draft only segments of its
            // own run.
            Self::Taken(_) | Self::BadId(_) | Self::BadFileName(_) | Self::Foreign(_) => Blame::Bug,
        }
    }
}

impl spool::Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::File { source, .. } => Blame::from_io(source),
            Self::Refused { .. }
            | Self::Full { .. }
            | Self::DiskFull(_)
            | Self::NoRoom(_)
            | Self::Broken { .. } => Blame::World,
            Self::InUse(_) => Blame::Busy,
            Self::Unknown { .. } | Self::BadId(_) => Blame::Peer,
            Self::Taken { .. } | Self::Ended { .. } | Self::Value(_) => Blame::Bug,
        }
    }
}
