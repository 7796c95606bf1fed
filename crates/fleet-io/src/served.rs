//! Runs of a service (a server with the OTG API). Each configuration becomes a steered run; the result of the run is
//! stored when the next configuration replaces it.

mod keeping;
mod machine;
mod on_fleet;

pub use machine::MachineRuns;
pub use on_fleet::{FleetRuns, ReopenFleet};

use crate::error::Error;
use crate::local::RunOptions;
use packetrig_fleet::served::OpenFailure;
use packetrig_plan::{Plan, PlanDocument};
use packetrig_report::outcome::NodeFault;
use packetrig_store::ReportSize;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Settings that are the same for all runs of a service.
pub struct ServedTerms {
    /// Makes the options of the next run, with a new run ID. Captures and limits are added when the run is opened.
    pub options: Box<dyn Fn() -> RunOptions + Send + Sync>,
    /// Seed for the values that configurations leave random.
    pub seed: u64,
}

impl std::fmt::Debug for ServedTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedTerms").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Converts times of runs to wall-clock times. The difference is measured only once, so that times in answers do not
/// jump when the wall clock is set.
#[derive(Debug)]
struct ServiceClock {
    wall_minus_monotonic: u64,
}

impl ServiceClock {
    fn start_now() -> Self {
        // The difference wraps, as in `to_wall_clock_ns`: a wrongly set wall clock may be below the monotonic clock.
        Self { wall_minus_monotonic: clock::wall_clock_ns().wrapping_sub(clock::monotonic_ns()) }
    }

    const fn to_wall_clock_ns(&self, at: MonoTime) -> u64 {
        at.as_nanos().wrapping_add(self.wall_minus_monotonic)
    }
}

/// Returns the figures that determine the size of a plan's report. `sending`: time for which the plan sends; `None` if
/// it has no planned end.
pub fn report_size(plan: &Plan, sending: Option<Nanos>, document: &str) -> ReportSize {
    let streams = plan.streams.iter().map(|stream| stream.name.len());
    let names = streams.chain(plan.ports.iter().map(|port| port.name.len()));
    ReportSize {
        document_bytes: document.len() as u64,
        streams: plan.streams.len() as u64,
        ports: plan.ports.len() as u64,
        // Every row counts with the longest name, so that the reserve suffices for all names.
        name_bytes: names.max().unwrap_or(0) as u64,
        seconds: sending.map(|time| time.as_u64() / 1_000_000_000),
    }
}

/// Size of the report of a steered run, which has no planned end.
fn steered_report_size(document: &PlanDocument) -> ReportSize {
    report_size(document.plan(), None, document.text())
}

fn to_open_failure(error: Error) -> OpenFailure {
    match error {
        // Problems that can be found only when the link speeds or the nodes are known.
        Error::Engine(packetrig_engine::Error::Plan(problems))
        | Error::Plan(problems)
        | Error::NotPlaced(problems) => OpenFailure::Plan(problems),
        error => OpenFailure::Fault(error.to_fault()),
    }
}

/// Converts an error that is not the fault of the configuration.
fn to_machine_failure(error: &(dyn std::error::Error + 'static)) -> OpenFailure {
    OpenFailure::Fault(NodeFault {
        blame: packetrig_units::Blame::World,
        text: packetrig_units::message_with_causes(error),
    })
}

/// Locks a mutex even if it is poisoned. A request that panicked must not end the service, and the data under these
/// locks is consistent at any time.
fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
