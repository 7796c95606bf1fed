//! Traits between an API server and the runs that it controls: the source that opens runs, and an open run.
//!
//! The crate of the API and the crate that opens runs do not depend on each other; both use these traits.

use packetrig_plan::{Plan, PlanChange, PlanDocument, PlanParseOptions, PlanProblems};
use packetrig_report::event::RunEvent;
use packetrig_report::outcome::NodeFault;
use packetrig_units::MonoTime;
use std::sync::Arc;

/// Receives all events of a run.
pub type EventSink = Box<dyn FnMut(&RunEvent) + Send>;

/// Opens the runs that an API server controls.
pub trait RunSource: Send + Sync + 'static {
    /// Opens the ports of `document` and begins to receive. The run sends nothing before a change requests it.
    fn open_steered_run(
        &self,
        document: PlanDocument,
        sink: EventSink,
    ) -> Result<Box<dyn SteeredRun>, OpenFailure>;
    /// Options with which the API server must parse the documents of its clients.
    fn plan_parse_options(&self) -> PlanParseOptions;
    /// Converts a time of a run's clock to wall-clock time, in ns since 1970.
    fn to_wall_clock_ns(&self, at: MonoTime) -> u64;
    /// Waits until the results of all closed runs are stored.
    fn wait_for_results(&self) {}
    /// Returns free memory to the system. Called after a configuration was replaced or refused.
    fn release_memory(&self) {}
}

/// An open run that the API server can change and close.
pub trait SteeredRun: Send {
    /// Makes a change; returns when the change is done, or when it failed and had no effect.
    fn make_change(&mut self, change: PlanChange<PlanDocument>) -> Result<(), NodeFault>;
    /// Plan of the run, with all streams that it ever had: removed flows keep their indices.
    fn plan(&self) -> Arc<Plan>;
    /// Stops the run and closes its ports. If `keep` is true, the result is stored, because the run has sent frames.
    fn close_run(self: Box<Self>, keep: bool);
}

/// Reason why a run was not opened.
#[derive(Clone, Debug, PartialEq)]
pub enum OpenFailure {
    /// Problems of the document that are found only when the ports are open or the nodes are known.
    Plan(PlanProblems),
    Fault(NodeFault),
}
