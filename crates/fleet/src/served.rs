//! Runs behind an API: what opens one, and what an open one can be asked.
//!
//! The API's room and the room that opens runs do not know each other; both know these traits.

use crate::event::RunEvent;
use crate::outcome::NodeFault;
use packetrig_plan::{Plan, PlanChange, PlanDocument, PlanProblems, ReadOptions};
use packetrig_units::MonoTime;
use std::sync::Arc;

/// Receives all events of a run.
pub type EventSink = Box<dyn FnMut(&RunEvent) + Send>;

/// Opens runs.
pub trait RunSource: Send + Sync + 'static {
    /// Opens the ports of `document` and begins to receive. It sends nothing before a change says so.
    fn open(&self, document: PlanDocument, sink: EventSink) -> Result<Box<dyn SteeredRun>, OpenFailure>;
    /// How documents are read.
    fn reading(&self) -> ReadOptions;
    /// Converts a time of a run's clock to wall-clock time, in ns since 1970.
    fn wall_clock(&self, at: MonoTime) -> u64;
    /// Returns when the results of all runs that were closed are kept.
    fn finish(&self) {}
    /// Called after a configuration was replaced or refused: memory that is free by now is given back to the system.
    fn release_memory(&self) {}
}

/// An open run.
pub trait SteeredRun: Send {
    /// Makes a change; returns when it is done, or could not be and nothing was changed.
    fn steer(&mut self, change: PlanChange<PlanDocument>) -> Result<(), NodeFault>;
    /// Its plan, with all streams that it ever had: those of removed flows keep their indices.
    fn plan(&self) -> Arc<Plan>;
    /// Stops everything and closes the ports. `keep`: it has sent frames, so its result is worth keeping.
    fn close(self: Box<Self>, keep: bool);
}

/// Why a run was not opened.
#[derive(Clone, Debug, PartialEq)]
pub enum OpenFailure {
    /// Problems that are found only when the ports are open or the nodes are known.
    Plan(PlanProblems),
    Fault(NodeFault),
}
