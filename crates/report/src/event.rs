//! Events of a run, as one sequence. It is the only source for progress bars, the catalogue and metrics.

use crate::outcome::{NodeFault, RunOutcome, RunState};
use crate::{NodeName, RunId};
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::CountSample;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    pub run: RunId,
    /// Time of the event, on the controller's clock.
    pub at: MonoTime,
    pub kind: RunEventKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEventKind {
    /// The run entered this state.
    StateChanged(RunState),
    /// The start time is decided (once per attempt).
    StartSet { at: MonoTime },
    /// A node opened its ports.
    Ports {
        node: NodeName,
        /// Properties of the open ports.
        ports: Vec<PortInfo>,
    },
    /// Cumulative counts of a node, in the order of time.
    Counters { node: NodeName, sample: Box<CountSample> },
    /// A change that the user requested was made, or could not be made.
    Steered {
        /// Number of the change in this run, from 1.
        number: u64,
        outcome: Result<(), NodeFault>,
    },
    /// An observation for the log, for example that a node was silent or that an attempt was repeated.
    Finding(String),
    /// The run is over; nothing follows.
    Ended(RunOutcome),
}
