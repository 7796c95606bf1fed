//! What happens during a run, as one stream. Progress bars, the catalogue and metrics are readers of it; there is no
//! second way to ask.

use crate::message::{NodeName, RunId};
use crate::outcome::{NodeFault, RunOutcome, RunState};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::CountSample;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// Something happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// In which run.
    pub run: RunId,
    /// When, on the controller's clock.
    pub at: MonoTime,
    /// What.
    pub kind: RunEventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEventKind {
    /// The run moved on.
    StateChanged(RunState),
    /// The start instant is decided (once per attempt).
    StartSet {
        /// The instant T.
        at: MonoTime,
    },
    /// A node opened its ports.
    Ports {
        /// Which node.
        node: NodeName,
        /// What they turned out to be.
        ports: Vec<PortInfo>,
    },
    /// Cumulative counts of a node; never older than the ones before.
    Counters {
        /// Which node.
        node: NodeName,
        /// Its counts.
        sample: Box<CountSample>,
    },
    /// A change the user asked for was made, or could not be.
    Steered {
        /// Which of the run's changes, from 1.
        number: u64,
        /// Why not.
        outcome: Result<(), NodeFault>,
    },
    /// Something worth a line: a node was silent, an attempt was repeated.
    Finding(String),
    /// The run is over; nothing follows.
    Ended(RunOutcome),
}
