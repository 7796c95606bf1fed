//! Why a run gave no report.

use packetrig_engine::Error as EngineError;
use packetrig_fleet::lead::NodeLead;
use packetrig_fleet::outcome::{FaultOwner, NodeFault};
use packetrig_fleet::term::Identity;
use packetrig_fleet::{NodeName, RunId, fabric};
use packetrig_plan::PlanProblems;
use packetrig_store::spool;
use packetrig_sys::Error as KernelError;
use std::collections::BTreeMap;

/// Each variant says whose fault it is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// User: the document is no plan.
    #[error(transparent)]
    Plan(#[from] PlanProblems),
    /// The data plane could not do it; the engine's error says whose fault it is.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The run could not start; the fault says whose it is.
    #[error("{}", fault.text)]
    Failed { fault: NodeFault },
    /// Bug: the fabric inside this process did not work.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// Bug: the agent's thread ended before the run did.
    #[error("the agent of node {0} ended before its run")]
    AgentDied(NodeName),
    /// World: a steered run ended before anything could be started.
    #[error("the run ended before it started")]
    NeverRan,
    /// World: other controllers lead nodes that the plan needs.
    #[error("{}", .0.iter().map(|(node, lead)| format!("node {node} {lead}")).collect::<Vec<_>>().join("; "))]
    NodesTaken(BTreeMap<NodeName, NodeLead>),
    /// World: this process could not refresh its record for so long that another controller has ended its term.
    #[error(
        "another controller has taken over the nodes of this one, because it heard nothing from this one for 15 s; start the run again"
    )]
    LeadershipLost,
    /// Bug: a run began whose nodes were not taken before.
    #[error("run {0} was begun without its nodes; this is a bug in packetrig")]
    NotLed(RunId),
    /// World: a controller leads the whole fleet.
    #[error(
        "an earlier version of packetrig leads the whole fleet: process {} on {}; end it first, or use the same version",
        .0.pid, .0.host
    )]
    OldController(Box<Identity>),
    /// User: the owner of the node does not allow the plan.
    #[error("not permitted by the owner of this node: {}", .0.join("; "))]
    NotPermitted(Vec<String>),
    /// World: the spool could not keep something.
    #[error(transparent)]
    Spool(#[from] spool::Error),
    /// Bug: a result without a run.
    #[error("a result cannot be kept, because no journal is open for its run; this is a bug in packetrig")]
    NoJournal,
    /// World: the deadline could not be written for the supervisor.
    #[error("cannot write the deadline that the supervisor watches: {0}")]
    Watch(std::io::Error),
    /// World: the epoch could not be written.
    #[error("cannot write the epoch file: {0}")]
    Epoch(std::io::Error),
    /// World: no socket for comparing clocks.
    #[error("cannot open a UDP socket to compare clocks: {0}")]
    ClockSocket(std::io::Error),
    /// World: no thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl Error {
    /// The error as it travels to the controller.
    pub fn fault(&self) -> NodeFault {
        let blame = match self {
            Self::Plan(_) | Self::NotPermitted(_) => FaultOwner::User,
            Self::Engine(error) => return fault_of(error),
            Self::Failed { fault } => return fault.clone(),
            Self::Fabric(_) | Self::AgentDied(_) | Self::NoJournal | Self::NotLed(_) => FaultOwner::Bug,
            Self::NeverRan
            | Self::NodesTaken(_)
            | Self::LeadershipLost
            | Self::OldController(_)
            | Self::Spool(_)
            | Self::Watch(_)
            | Self::Epoch(_)
            | Self::ClockSocket(_)
            | Self::Thread(_) => FaultOwner::World,
        };
        NodeFault { blame, text: self.to_string() }
    }
}

/// For a request that may fail without harm; a comment at the call says why.
pub(crate) fn best_effort<T, E>(_attempt: Result<T, E>) {}

/// An engine error as it travels to the controller.
pub(crate) fn fault_of(error: &EngineError) -> NodeFault {
    let blame = match error {
        EngineError::Kernel(KernelError::Missing { .. })
        | EngineError::Guard(_)
        | EngineError::NotPermitted(_)
        | EngineError::Plan(_)
        | EngineError::NoDevices { .. }
        | EngineError::Recording { .. }
        | EngineError::NotForBackEnd { .. }
        | EngineError::CannotSteer { .. }
        | EngineError::NoCaptureDirectory => FaultOwner::User,
        EngineError::Panicked(_) | EngineError::Bug(_) => FaultOwner::Bug,
        _ => FaultOwner::World,
    };
    NodeFault { blame, text: error.to_string() }
}
