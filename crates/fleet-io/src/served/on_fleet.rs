//! Served runs on a fleet.

use super::{
    ServedTerms, ServiceClock, lock_unpoisoned, steered_report_size, to_machine_failure, to_open_failure,
};
use crate::earlier_starts::{LateStartedRuns, is_late_start};
use crate::error::Error;
use crate::fleet::{ControlledFleet, FleetExecutor, NodeRetention, RunEnding, RunResultStore, begin_run};
use crate::local::{RunExecutor, RunOptions};
use crate::operator::{SharedOperator, build_waiting_policy};
use crate::session::{RunKeeper, RunSession, SharedExecutor};
use packetrig_fleet::fabric::Fabric;
use packetrig_fleet::served::{EventSink, OpenFailure, RunSource, SteeredRun};
use packetrig_plan::{Plan, PlanDocument, PlanParseOptions};
use packetrig_report::outcome::NodeFault;
use packetrig_report::{RunId, RunReport};
use packetrig_units::MonoTime;
use std::sync::{Arc, Mutex};

/// Makes this process a controller of the fleet again, after its term was lost.
pub type ReopenFleet<F> = Box<dyn Fn() -> Result<FleetExecutor<F>, NodeFault> + Send + Sync>;

/// Opens served runs on a fleet that this process controls. It leads the nodes of a configuration as long as
/// that configuration is set.
pub struct FleetRuns<F: Fabric> {
    fleet: Arc<Mutex<FleetExecutor<F>>>,
    store: RunResultStore,
    reopen: ReopenFleet<F>,
    terms: ServedTerms,
    operator: SharedOperator,
    clock: ServiceClock,
}

impl<F: Fabric> std::fmt::Debug for FleetRuns<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FleetRuns").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl<F: Fabric> FleetRuns<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Creates the source of runs. `reopen` makes a new controller when the term of the current controller is lost.
    pub fn new(controlled: ControlledFleet<F>, reopen: ReopenFleet<F>, terms: ServedTerms) -> Self {
        let ControlledFleet { mut fleet, store, operator } = controlled;
        fleet.set_retention(NodeRetention::KeepAfterLateStart);
        let fleet = Arc::new(Mutex::new(fleet));
        Self { fleet, store, reopen, terms, operator, clock: ServiceClock::start_now() }
    }

    /// Takes the leads of the nodes of a configuration, and ends the runs that other controllers left unfinished on
    /// these nodes. Returns the name of this controller.
    fn lead_run_nodes(&self, plan: &Plan, run: &RunId) -> Result<String, OpenFailure> {
        let mut fleet = lock_unpoisoned(&self.fleet);
        let operator = self.operator.as_ref();
        let leftovers = match fleet.lead_run_nodes(plan, run, &mut build_waiting_policy(operator, false)) {
            // This process was stopped for so long that another controller has ended its term. It becomes a new
            // controller.
            Err(Error::LeadershipLost) => {
                *fleet = (self.reopen)().map_err(OpenFailure::Fault)?;
                // By default a new executor gives its nodes back after a run.
                fleet.set_retention(NodeRetention::KeepAfterLateStart);
                fleet.lead_run_nodes(plan, run, &mut build_waiting_policy(operator, false))
            }
            led => led,
        };
        let leftovers = leftovers.map_err(to_open_failure)?;
        let ended = RunEnding { fleet: &mut fleet, store: &self.store, operator }
            .end_leftover_runs(&leftovers, &mut |_| {});
        if let Err(error) = ended {
            // No other controller could use nodes that stay led without a run.
            fleet.release_all_node_leads();
            return Err(to_machine_failure(&error));
        }
        Ok(fleet.controller().to_owned())
    }
}

impl<F> FleetRuns<F>
where
    F: Fabric + Send + 'static,
    F::Records: 'static,
    F::Incoming: 'static,
    FleetExecutor<F>: RunExecutor,
{
    /// Takes the leads of the nodes and opens a run. The inner error means that the run had begun and then failed; this
    /// controller may still lead the nodes.
    fn lead_nodes_and_open_run(
        &self,
        document: &PlanDocument,
        options: RunOptions,
        sink: &Arc<Mutex<EventSink>>,
    ) -> Result<Result<(RunSession, FleetResultKeeper), Error>, OpenFailure> {
        let controller = self.lead_run_nodes(document.plan(), &options.run)?;
        let begun =
            begin_run(&self.store, &controller, &options, document.text(), steered_report_size(document));
        if let Err(error) = begun {
            lock_unpoisoned(&self.fleet).release_all_node_leads();
            return Err(to_machine_failure(&error));
        }
        let executor = SharedExecutor(Arc::clone(&self.fleet));
        let sink = Arc::clone(sink);
        let opened = RunSession::open_session(executor, document.clone(), options, move |event| {
            (lock_unpoisoned(&sink))(event);
        });
        let keeper = FleetResultKeeper {
            store: self.store.clone(),
            document: document.text().to_owned(),
            operator: Arc::clone(&self.operator),
            earlier: LateStartedRuns::default(),
        };
        Ok(match opened {
            Ok(session) => Ok((session, keeper)),
            Err(error) => {
                keeper.drop_run_files();
                Err(error)
            }
        })
    }
}

impl<F> RunSource for FleetRuns<F>
where
    F: Fabric + Send + 'static,
    F::Records: 'static,
    F::Incoming: 'static,
    FleetExecutor<F>: RunExecutor,
{
    fn open_steered_run(
        &self,
        document: PlanDocument,
        sink: EventSink,
    ) -> Result<Box<dyn SteeredRun>, OpenFailure> {
        // The sink is shared, because each further start of the run needs it.
        let sink = Arc::new(Mutex::new(sink));
        let mut earlier = LateStartedRuns::default();
        loop {
            let options = (self.terms.options)();
            let run = options.run.clone();
            let (session, keeper) = match self.lead_nodes_and_open_run(&document, options, &sink)? {
                Ok(opened) => opened,
                Err(error) if is_late_start(&error) && earlier.may_retry_start(self.operator.as_ref()) => {
                    let why = "the start came too late for some nodes";
                    earlier.record_failed_start(run, why, self.operator.as_ref());
                    continue;
                }
                Err(error) => {
                    // A session that failed before its run began has not given its nodes back.
                    lock_unpoisoned(&self.fleet).release_all_node_leads();
                    return Err(to_open_failure(error));
                }
            };
            return Ok(Box::new(session.with_keeper(Box::new(FleetResultKeeper { earlier, ..keeper }))));
        }
    }

    fn plan_parse_options(&self) -> PlanParseOptions {
        PlanParseOptions { seed: self.terms.seed, fleet: true, ..PlanParseOptions::default() }
    }

    fn to_wall_clock_ns(&self, at: MonoTime) -> u64 {
        self.clock.to_wall_clock_ns(at)
    }

    fn release_memory(&self) {
        packetrig_sys::memory::release_freed_memory();
    }
}

/// Stores the result of a run when the run has ended.
struct FleetResultKeeper {
    store: RunResultStore,
    document: String,
    operator: SharedOperator,
    earlier: LateStartedRuns,
}

impl FleetResultKeeper {
    /// Ends the current run without a report and deletes its files. If it has captures or segments, these stay.
    fn drop_run_files(&self) {
        match self.store.abandon_run() {
            Ok(None) => {}
            Ok(Some(kept)) => self.operator.on_kept_files(&kept),
            Err(error) => self
                .operator
                .remark(format_args!("cannot delete the files of a run without a result: {error}")),
        }
    }
}

impl RunKeeper for FleetResultKeeper {
    fn on_run_ended(self: Box<Self>, ended: Result<RunReport, Error>, keep: bool) {
        match ended {
            Ok(mut report) if keep => {
                self.earlier.add_caveat_to(&mut report, None);
                if let Err(error) = self.store.commit_report(&mut report, &self.document, None) {
                    self.operator.remark(format_args!("cannot save the result of a run: {error}"));
                }
                self.operator.on_report(&report);
            }
            Ok(_) => self.drop_run_files(),
            Err(error) => {
                self.operator.remark(format_args!("a run of the service failed: {error}"));
                self.drop_run_files();
            }
        }
    }
}
