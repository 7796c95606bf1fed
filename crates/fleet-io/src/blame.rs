//! Assigns the errors of this crate to the plan, the machine or the program, and turns them into
//! faults for the controller.

use crate::Error;
use crate::fleet::FetchError;
use packetrig_report::outcome::NodeFault;
use packetrig_units::Blame;

impl Error {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Plan(_) => Blame::Plan,
            Self::Engine(error) => error.blame(),
            Self::Failed { fault } => fault.blame,
            Self::Fabric(error) => error.blame(),
            Self::Spool(error) => error.blame(),
            Self::Store(error) => error.blame(),
            Self::DamagedRecord { .. } => Blame::Usage,
            Self::NodesTaken(_) => Blame::Busy,
            Self::NotPermitted(_) => Blame::Unconfirmed,
            // A plan with a missing interface gets the same blame on one machine and on a fleet.
            Self::NotPlaced(_) | Self::NeverRan | Self::LeadershipLost => Blame::World,
            Self::Watch(source) | Self::Epoch(source) | Self::ClockSocket(source) | Self::Thread(source) => {
                Blame::from_io(source)
            }
            Self::AgentDied(_) | Self::NotLed(_) | Self::NoJournal | Self::WriterEnded => Blame::Bug,
        }
    }

    /// Converts the error to the fault that a node reports to its controller.
    pub fn to_fault(&self) -> NodeFault {
        NodeFault { blame: self.blame(), text: self.to_string() }
    }
}

/// Converts an error of the data plane to the fault that a node reports to its controller.
pub(crate) fn engine_error_to_fault(error: &packetrig_engine::Error) -> NodeFault {
    NodeFault { blame: error.blame(), text: error.to_string() }
}

impl FetchError {
    pub fn blame(&self) -> Blame {
        match self {
            Self::Refused(_) | Self::Silent | Self::Differs => Blame::Peer,
            // The user's signal ended the command, and nothing failed: the command ends with the exit code of a signal.
            Self::Interrupted => Blame::World,
            Self::Fabric(error) => error.blame(),
            Self::File { source, .. } => Blame::from_io(source),
        }
    }
}
