//! Served runs on this machine's interfaces.

use super::keeping::BackgroundResultWriter;
use super::{
    ServedTerms, ServiceClock, lock_unpoisoned, steered_report_size, to_machine_failure, to_open_failure,
};
use crate::error::Error;
use crate::local::{LocalExecutor, RunOptions};
use crate::operator::SharedOperator;
use crate::plane::EnginePlaneSource;
use crate::session::{RunKeeper, RunSession};
use packetrig_fleet::served::{EventSink, OpenFailure, RunSource, SteeredRun};
use packetrig_plan::{Plan, PlanDocument, PlanParseOptions, PlanProblem, PlanProblems, PortLocation};
use packetrig_report::RunReport;
use packetrig_stats::terms::SharedRunOptions;
use packetrig_store::{RunCatalogue, RunDraft};
use packetrig_sys::kernel;
use packetrig_sys::link::NamespaceLinks;
use packetrig_sys::netns::NetNs;
use packetrig_sys::resident::ResidentThread;
use packetrig_units::MonoTime;
use std::sync::{Arc, Mutex};

/// Opens served runs on this machine.
pub struct MachineRuns {
    /// Thread that starts the threads of runs. They need privileges that the threads for requests do not have.
    thread: Arc<ResidentThread>,
    /// Stays open, because opening and closing a catalogue waits for the disk.
    catalogue: Mutex<RunCatalogue>,
    keeping: Arc<BackgroundResultWriter>,
    terms: ServedTerms,
    operator: SharedOperator,
    clock: ServiceClock,
}

impl std::fmt::Debug for MachineRuns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MachineRuns").field("terms", &self.terms).finish_non_exhaustive()
    }
}

impl MachineRuns {
    /// Creates the source of runs. Both catalogue values are connections to the same catalogue: the first one begins
    /// runs, the second one stores their results.
    pub fn new(
        thread: Arc<ResidentThread>,
        [catalogue, keeping]: [RunCatalogue; 2],
        terms: ServedTerms,
        operator: SharedOperator,
    ) -> Self {
        let catalogue = Mutex::new(catalogue);
        let keeping = Arc::new(BackgroundResultWriter::new(keeping, SharedOperator::clone(&operator)));
        Self { thread, catalogue, keeping, terms, operator, clock: ServiceClock::start_now() }
    }

    fn open_run(&self, document: PlanDocument, mut sink: EventSink) -> Result<RunSession, OpenFailure> {
        check_locations(document.plan())?;
        let options = (self.terms.options)();
        let begun = self.begin_run(options, &document).map_err(|error| to_machine_failure(&error))?;
        let text = document.text().to_owned();
        let executor = LocalExecutor::<EnginePlaneSource>::default();
        let session = RunSession::open_session(executor, document, begun.options, move |event| sink(event));
        let keeper = MachineResultKeeper {
            keeping: Arc::clone(&self.keeping),
            draft: begun.draft,
            document: text,
            operator: Arc::clone(&self.operator),
        };
        Ok(session.map_err(to_open_failure)?.with_keeper(Box::new(keeper)))
    }

    fn begin_run(
        &self,
        options: RunOptions,
        document: &PlanDocument,
    ) -> Result<CatalogueRun, packetrig_store::Error> {
        // Opening the ports takes long, and other requests need the catalogue meanwhile, so the catalogue is locked
        // only in this function.
        let catalogue = lock_unpoisoned(&self.catalogue);
        let draft = catalogue.begin_run(options.run.clone(), steered_report_size(document))?;
        let limits = catalogue.read_rig_limits_of_kernel(&kernel::kernel_release_name())?;
        let options = RunOptions {
            capture_dir: Some(draft.create_capture_directory()?),
            terms: SharedRunOptions { limits, ..options.terms },
            ..options
        };
        Ok(CatalogueRun { draft, options })
    }
}

/// Refuses a plan with interfaces that this machine does not have. The error names the path in the configuration.
fn check_locations(plan: &Plan) -> Result<(), OpenFailure> {
    let ports = plan.ports.iter().enumerate();
    let problems = ports.filter_map(|(index, port)| {
        let missing = check_link_exists(&port.location).err()?;
        Some(PlanProblem::error(format!("ports[{index}].location"), missing))
    });
    let problems: Vec<PlanProblem> = problems.collect();
    if problems.is_empty() { Ok(()) } else { Err(OpenFailure::Plan(PlanProblems(problems))) }
}

/// Fails if the interface is missing. Other errors are ignored here, because they occur again when the port is opened.
fn check_link_exists(location: &PortLocation) -> Result<(), String> {
    let netns = NetNs::open_named_or_current_namespace(location.namespace.as_deref());
    let link = netns
        .and_then(|netns| NamespaceLinks::open_in(&netns))
        .and_then(|mut links| links.find_link_by_name(&location.interface));
    match link {
        Err(missing @ packetrig_sys::Error::Missing { .. }) => Err(missing.to_string()),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A run that was begun in the catalogue, with its final options.
struct CatalogueRun {
    draft: RunDraft,
    options: RunOptions,
}

impl RunSource for MachineRuns {
    fn open_steered_run(
        &self,
        document: PlanDocument,
        sink: EventSink,
    ) -> Result<Box<dyn SteeredRun>, OpenFailure> {
        let opened = self
            .thread
            .run_job(|| self.open_run(document, sink))
            .map_err(|error| to_machine_failure(&error))?;
        Ok(Box::new(opened?))
    }

    fn plan_parse_options(&self) -> PlanParseOptions {
        PlanParseOptions { seed: self.terms.seed, ..PlanParseOptions::default() }
    }

    fn to_wall_clock_ns(&self, at: MonoTime) -> u64 {
        self.clock.to_wall_clock_ns(at)
    }

    fn release_memory(&self) {
        packetrig_sys::memory::release_freed_memory();
    }

    fn wait_for_results(&self) {
        self.keeping.wait_until_stored();
    }
}

/// Stores the result of a run in the catalogue when the run has ended.
struct MachineResultKeeper {
    keeping: Arc<BackgroundResultWriter>,
    draft: RunDraft,
    document: String,
    operator: SharedOperator,
}

impl RunKeeper for MachineResultKeeper {
    fn on_run_ended(self: Box<Self>, ended: Result<RunReport, Error>, keep: bool) {
        let Self { keeping, draft, document, operator } = *self;
        match ended {
            Ok(report) if keep => keeping.begin_storing(draft, report, document),
            Ok(_) => {}
            Err(error) => {
                operator.remark(format_args!("a run of the service failed: {error}"));
                if let Some(kept) = draft.end_without_report() {
                    operator.on_kept_files(&kept);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_location_is_problem_at_its_path() {
        let plan = |locations: [&str; 2]| {
            let [a, b] = locations;
            let text = format!("ports: [{{name: a, location: {a}}}, {{name: b, location: {b}}}]");
            Plan::from_text(&text).expect("it is a plan")
        };
        assert!(check_locations(&plan(["lo", "no-space/eth0"])).is_err_and(|failure| match failure {
            OpenFailure::Plan(problems) => problems.0.len() == 1 && problems.0[0].path == "ports[1].location",
            OpenFailure::Fault(_) => false,
        }));
    }
}
