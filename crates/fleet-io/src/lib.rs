//! Runs nodes and controllers: performs the actions that the state machines of the crate `fleet` request, on the data
//! plane, the fabric (message transport) and the disk. [`run_local`] runs a plan on one machine with one controller and
//! one agent over the local fabric.
//!
//! This crate makes no decisions about a run: `fleet` decides when to arm, start, stop or give up, and `engine` decides
//! how frames are sent and received.
//!
//! Invariant: when [`run_local`] returns or unwinds, the agent's thread is joined and its ports are closed.
#![forbid(unsafe_code)]

mod agent;
mod blame;
mod captures;
pub mod clock;
mod control;
mod earlier_starts;
pub mod epoch;
mod error;
mod event_log;
mod event_queue;
pub mod fleet;
mod local;
mod membership;
mod open_run;
mod operator;
mod plane;
mod probes;
mod pulse;
mod remote_streams;
pub mod served;
mod session;
mod spool_writer;
mod starvation;
pub mod supervisor;
#[cfg(test)]
mod tests;
pub mod trial;
mod uplink;

pub use agent::{serve_agent, serve_fleet_agent};
pub use captures::{CaptureConnectionOpener, CaptureServer, SharedCaptureAllowance};
pub use control::{RunEventCallback, RunUser};
pub use earlier_starts::{LateStartedRuns, is_late_start};
pub use error::Error;
pub use local::{
    EndedRun, LocalExecutor, RunExecutor, RunOptions, run_document, run_document_to_end, run_local,
};
pub use membership::{NodeMembership, NodeSite};
pub use open_run::OpenRun;
pub use operator::{RunOperator, SharedOperator};
pub use plane::{EnginePlaneSource, LentMachine, PlaneSource, PreparedPlane};
pub use probes::{DateReader, ProbePolicy};
pub use session::{RunSession, SharedExecutor};
pub use uplink::{ResultUplink, UplinkObserver, UplinkOpener, UplinkSource, UplinkStatus};
