//! Executes a plan on a fleet: this process becomes one of its controllers.

use super::{
    ExecutionRequest, FinishedRun, RunDisplay, explain_run_error, find_page_opener, open_catalogue,
    run_options, run_with_progress, show_event, show_result, warn_if_nothing_is_measured,
};
use crate::commands::kept::print_run_without_report;
use crate::commands::{fleet, plan};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, print_remark};
use crate::progress::RunProgressLine;
use crate::{fleet_place, speeds};
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::members::MemberRow;
use packetrig_fleet_io::fleet::{ControlledFleet, FleetExecutor, NodeRetention};
use packetrig_fleet_io::served::report_size;
use packetrig_fleet_io::{
    LateStartedRuns, OpenRun, RunEventCallback, RunOptions, is_late_start, run_document_to_end,
};
use packetrig_nats::NatsFabric;
use packetrig_plan::{Plan, PlanParseOptions};
use packetrig_report::RunReport;
use packetrig_report::event::RunEvent;
use packetrig_stats::limit::RigLimit;
use packetrig_store::files::PageChoice;
use packetrig_sys::{kernel, signal};
use packetrig_units::Nanos;
use std::path::{Path, PathBuf};

/// Runs the plan on a fleet, stores the result and shows it. During the run, this process leads the nodes of the plan:
/// no other controller may use them.
pub(super) fn execute_on_fleet(
    request: &ExecutionRequest,
    place: &fleet_place::FleetPlace,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let plan = read_fleet_plan(request)?;
    let taken =
        FleetUnderControl::become_fleet_controller(place, request.store.as_deref(), request.policies)?;
    taken.execute_plan(request, &plan, output)
}

/// Reads the plan and checks that it can run on a fleet.
fn read_fleet_plan(request: &ExecutionRequest) -> Result<Plan, Error> {
    let reading = PlanParseOptions { fleet: true, ..PlanParseOptions::default() };
    let plan = plan::read_plan_with(&request.document, reading)?;
    warn_if_nothing_is_measured(request, &plan);
    Ok(plan)
}

/// Longest pause between two trials in which nodes keep their ports open. After a longer pause, the time to
/// open ports does not matter.
const MAX_PORT_KEEPING_PAUSE: Nanos = Nanos::from_secs(2);

/// A fleet that makes the trials of a test method: one run after the other on the nodes of one plan.
pub(crate) struct TrialFleet {
    controlled: ControlledFleet<NatsFabric>,
    limits: Vec<RigLimit>,
    waits_for_nodes: bool,
}

impl TrialFleet {
    pub(crate) fn from_controlled_fleet(taken: FleetUnderControl, waits_for_nodes: bool) -> Self {
        let FleetUnderControl { mut controlled, limits } = taken;
        // Ports stay open between trials: to prepare and start each port anew took 0.28 s, and many trials
        // send for less time (docs/decisions/0033-ports-between-runs.md).
        controlled.fleet.set_retention(NodeRetention::Keep { ports: MAX_PORT_KEEPING_PAUSE });
        // The page of the method shows its trials; each trial needs no page of its own.
        controlled.store.set_page_choice(PageChoice::LeaveOut);
        Self { controlled, limits, waits_for_nodes }
    }

    /// Limits of this rig, from its calibrations.
    pub(crate) fn limits(&self) -> &[RigLimit] {
        &self.limits
    }

    /// Runs one trial and stores its report in the catalogue, like every run of a fleet.
    pub(crate) fn run_trial(
        &mut self,
        document: &str,
        options: RunOptions,
        (stop, on_event): (&dyn Fn() -> bool, RunEventCallback<'_>),
    ) -> Result<RunReport, Error> {
        let plan =
            Plan::from_text_with(document, PlanParseOptions { fleet: true, ..PlanParseOptions::default() })
                .map_err(packetrig_fleet_io::Error::Plan)?;
        // The nodes are requested before the run gets a record: if other controllers use them, the run leaves no trace.
        self.controlled.lead_run_nodes(&plan, &options.run, self.waits_for_nodes, on_event)?;
        let sending = speeds::sending_time(&plan);
        self.controlled.begin_new_run(&options, document, report_size(&plan, sending, document))?;
        match run_document_to_end(&mut self.controlled.fleet, document, options, (stop, on_event)) {
            Ok((mut report, open)) => {
                self.controlled.store.commit_report(&mut report, document, open.as_ref())?;
                self.controlled.operator.on_report(&report);
                Ok(report)
            }
            Err(error) => {
                print_run_without_report(self.controlled.store.abandon_run()?.as_ref());
                Err(error.into())
            }
        }
    }
}

/// A fleet of which this process is a controller.
pub(crate) struct FleetUnderControl {
    controlled: ControlledFleet<NatsFabric>,
    /// Limits of this rig, from its calibrations.
    limits: Vec<RigLimit>,
}

impl FleetUnderControl {
    /// Becomes a controller that leads no node yet.
    pub(crate) fn become_fleet_controller(
        place: &fleet_place::FleetPlace,
        store: Option<&Path>,
        policies: RunPolicies,
    ) -> Result<Self, Error> {
        let catalogue = open_catalogue(store)?;
        let limits = catalogue.read_rig_limits_of_kernel(&kernel::kernel_release_name())?;
        signal::record_end_signals()?;
        let controlled =
            fleet::become_controller(place, catalogue, policies, fleet::LateResults::OfKnownRuns)?;
        Ok(Self { controlled, limits })
    }

    pub(crate) const fn fleet(&self) -> &FleetExecutor<NatsFabric> {
        &self.controlled.fleet
    }

    /// Reads the current members of the fleet.
    pub(crate) fn read_members(&mut self) -> Result<Vec<MemberRow>, Error> {
        Ok(self.controlled.fleet.refresh_member_rows()?)
    }

    /// Runs a plan that was made from the fleet's nodes, after this process became a controller.
    pub(crate) fn execute_new_plan(
        self,
        request: &ExecutionRequest,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let plan = read_fleet_plan(request)?;
        self.execute_plan(request, &plan, output)
    }

    fn execute_plan(
        mut self,
        request: &ExecutionRequest,
        plan: &Plan,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let opener = find_page_opener(request)?;
        self.controlled.store.set_page_choice(request.page.page_choice());
        self.controlled.fleet.set_retention(NodeRetention::KeepAfterLateStart);
        let mut earlier = LateStartedRuns::default();
        loop {
            let options = run_options(request, plan, self.limits.clone());
            let id = options.run.clone();
            let started = self.lead_nodes_and_run(request, plan, options);
            let operator = self.controlled.operator.as_ref();
            // This is checked after the run, because an interrupt may have come during the run.
            let may_retry_start = earlier.may_retry_start(operator);
            if !may_retry_start {
                // After the last attempt, nodes are free for other runs as soon as the run has ended, before
                // its report is written.
                self.controlled.fleet.release_all_node_leads();
            }
            match started {
                Ok(FinishedRun { report, open }) if report.outcome.is_split_start() && may_retry_start => {
                    // Frames were sent: this run stays in the catalogue.
                    self.store_report(request, report, open.as_ref()).1?;
                    earlier.record_failed_start(id, "the start came too late for some nodes", operator);
                }
                Ok(FinishedRun { mut report, mut open }) => {
                    earlier.add_caveat_to(&mut report, open.as_mut());
                    let (report, stored) = self.store_report(request, report, open.as_ref());
                    return show_result(request, &report, stored, opener.as_ref(), output);
                }
                // Nodes may hold results of the run: its record stays, so that `fleet collect` can fetch them.
                Err(error @ Error::Run(packetrig_fleet_io::Error::Fabric(_))) => {
                    print_remark(format_args!("run {id} is unfinished; `packetrig fleet collect` ends it"));
                    return Err(error);
                }
                Err(error) => {
                    // This process ends the run first: otherwise another controller could find a run that
                    // never started and try to end it.
                    print_run_without_report(self.controlled.store.abandon_run()?.as_ref());
                    let is_late = matches!(&error, Error::Run(error) if is_late_start(error));
                    if !is_late || !may_retry_start {
                        return Err(error);
                    }
                    earlier.record_failed_start(id, "no start time was accepted by all nodes", operator);
                }
            }
        }
    }

    /// Stores the report of a run that has ended.
    fn store_report(
        &self,
        request: &ExecutionRequest,
        mut report: RunReport,
        open: Option<&OpenRun>,
    ) -> (RunReport, Result<PathBuf, packetrig_store::Error>) {
        let stored = self.controlled.store.commit_report(&mut report, &request.document.text, open);
        self.controlled.operator.on_report(&report);
        (report, stored)
    }

    /// Becomes the leader of the plan's nodes, makes one run and waits for its end.
    fn lead_nodes_and_run(
        &mut self,
        request: &ExecutionRequest,
        plan: &Plan,
        options: RunOptions,
    ) -> Result<FinishedRun, Error> {
        let controlled = &mut self.controlled;
        let sending = speeds::sending_time(plan);
        // Runs that dead controllers left on these nodes end first; they have their own progress line.
        let mut ending = RunProgressLine::new(request.progress.is_quiet(), None);
        let led = controlled.lead_run_nodes(
            plan,
            &options.run,
            request.waits_for_nodes,
            &mut |event: &RunEvent| {
                show_event(&mut ending, event);
            },
        );
        // The progress line ends before `?` returns: an error must not be printed on that line.
        ending.clear_line();
        led.map_err(|error| explain_run_error(request, error))?;
        let shown = RunDisplay::begin(request, plan)?;
        // From here on, if this process dies, another one can find the run and end it.
        controlled.begin_new_run(
            &options,
            &request.document.text,
            report_size(plan, sending, &request.document.text),
        )?;
        run_with_progress(&mut controlled.fleet, request, options, shown)
    }
}
