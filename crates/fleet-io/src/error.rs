//! Errors that leave a run without a report.

use packetrig_engine::Error as EngineError;
use packetrig_fleet::fabric;
use packetrig_fleet::lead::NodeLead;
use packetrig_plan::PlanProblems;
use packetrig_report::outcome::NodeFault;
use packetrig_report::{NodeName, RunId};
use packetrig_store::spool;
use std::collections::BTreeMap;

/// Error of a run or of a node's agent; [`Error::blame`] says who or what is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The document is not a valid plan.
    #[error(transparent)]
    Plan(#[from] PlanProblems),
    /// The fleet lacks nodes or ports that the plan names, or they cannot take part now.
    #[error(transparent)]
    NotPlaced(PlanProblems),
    /// The data plane failed; the engine's error names the party at fault.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The run could not start; the fault names the party at fault.
    #[error("{}", fault.text)]
    Failed { fault: NodeFault },
    /// The fabric inside this process did not work.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// The agent's thread ended before the run did.
    #[error("the agent of node {0} ended while its run was still going on")]
    AgentDied(NodeName),
    /// A steered run ended before anything could be started.
    #[error("the run ended before it started")]
    NeverRan,
    /// Other controllers lead nodes that the plan needs.
    #[error("{}", .0.iter().map(|(node, lead)| format!("node {node} {lead}")).collect::<Vec<_>>().join("; "))]
    NodesTaken(BTreeMap<NodeName, NodeLead>),
    /// This controller could not refresh its record for so long that another controller has ended its term.
    #[error(
        "another controller has taken over the nodes, because this controller did not refresh its record for \
         15 s; start the run again"
    )]
    LeadershipLost,
    /// A run began before this controller led its nodes.
    #[error("run {0} began before this controller led its nodes; this is a bug in packetrig")]
    NotLed(RunId),
    /// The owner of the node does not allow the plan.
    #[error("not permitted by the owner of this node: {}", .0.join("; "))]
    NotPermitted(Vec<String>),
    /// The spool could not store or read something.
    #[error(transparent)]
    Spool(#[from] spool::Error),
    /// The catalogue could not store or read something.
    #[error(transparent)]
    Store(#[from] packetrig_store::Error),
    /// The record that was stored at the beginning of a run cannot be read.
    #[error("the record of unfinished run {run} is damaged: {why}")]
    DamagedRecord { run: RunId, why: String },
    /// The node has a result, but no journal of its run was begun.
    #[error("this node has a result of a run that it never began; this is a bug in packetrig")]
    NoJournal,
    /// The deadline until which this node may send could not be written for the supervisor.
    #[error("cannot write the send deadline of this node (file `watch` in its directory): {0}")]
    Watch(std::io::Error),
    /// The epoch of the controller could not be written.
    #[error("cannot write the epoch file (fencing token) of this node: {0}")]
    Epoch(std::io::Error),
    /// A socket for comparing clocks could not be opened.
    #[error("cannot open a UDP socket to compare clocks: {0}")]
    ClockSocket(std::io::Error),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    #[error("the thread that writes results to the spool panicked: this is a bug in packetrig")]
    WriterEnded,
}

/// Drops the result of a request that may fail without harm; a comment at the call says why.
pub(crate) fn ignore_failure<T, E>(_attempt: Result<T, E>) {}
