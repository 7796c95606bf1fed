//! Runs of a service: each configuration is an ordinary steered run. Its result is kept when the next configuration replaces it.

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

/// Terms that are the same for all runs of a service.
pub struct ServedTerms {
    /// Makes the options of the next run, with its own id. Captures and limits are added where the run is opened.
    pub options: Box<dyn Fn() -> RunOptions + Send + Sync>,
    /// Seed for the values that configurations leave random.
    pub seed: u64,
}

impl std::fmt::Debug for ServedTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedTerms").field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// Turns times of runs into wall-clock times. The difference is taken once: times in answers must not jump when the wall clock is set.
#[derive(Debug)]
struct ServiceClock {
    wall_minus_monotonic: u64,
}

impl ServiceClock {
    fn start_now() -> Self {
        // Wrapping, as in `wall_clock`: after a wrong setting the wall clock may be the smaller one.
        Self { wall_minus_monotonic: clock::wall_clock_ns().wrapping_sub(clock::monotonic_ns()) }
    }

    const fn wall_clock(&self, at: MonoTime) -> u64 {
        at.as_nanos().wrapping_add(self.wall_minus_monotonic)
    }
}

/// Figures that decide the size of a plan's report. `sending` is the time for which the plan sends, if it ends.
pub fn report_size(plan: &Plan, sending: Option<Nanos>, document: &str) -> ReportSize {
    let streams = plan.streams.iter().map(|stream| stream.name.len());
    let names = streams.chain(plan.ports.iter().map(|port| port.name.len()));
    ReportSize {
        document_bytes: document.len() as u64,
        streams: plan.streams.len() as u64,
        ports: plan.ports.len() as u64,
        // The longest name is used for every row: the reserve must suffice whatever names the rows have.
        name_bytes: names.max().unwrap_or(0) as u64,
        seconds: sending.map(|time| time.as_u64() / 1_000_000_000),
    }
}

/// Size of the report of a steered run, which has no planned end.
fn steered_report_size(document: &PlanDocument) -> ReportSize {
    report_size(document.plan(), None, document.text())
}

fn open_failure(error: Error) -> OpenFailure {
    match error {
        // Problems that can be found only when the link speeds or the nodes are known.
        Error::Engine(packetrig_engine::Error::Plan(problems))
        | Error::Plan(problems)
        | Error::NotPlaced(problems) => OpenFailure::Plan(problems),
        error => OpenFailure::Fault(error.to_fault()),
    }
}

/// A failure of this machine, whatever the configuration says.
fn machine_failure(error: &(dyn std::error::Error + 'static)) -> OpenFailure {
    OpenFailure::Fault(NodeFault {
        blame: packetrig_units::Blame::World,
        text: packetrig_units::message_with_causes(error),
    })
}

/// Locks also after a panic: a request that panicked must not end the service, and the data under these locks is consistent at any time.
fn lock_unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
