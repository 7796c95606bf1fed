//! Executes a plan on a fleet: this process becomes one of its controllers.

use super::{
    ExecutionRequest, FinishedRun, open_catalogue, options, page_opener, refused, run, show, show_result,
    warn_if_nothing_is_measured,
};
use crate::commands::kept::name_kept;
use crate::commands::{fleet, plan};
use crate::error::Error;
use crate::exit::CommandExit;
use crate::output::{CommandOutput, remark};
use crate::progress::RunProgressLine;
use crate::{fleet_place, speeds};
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::event::RunEvent;
use packetrig_fleet::members::MemberRow;
use packetrig_fleet::report::RunReport;
use packetrig_fleet_io::fleet::{ChargedFleet, FleetGround};
use packetrig_fleet_io::served::report_size;
use packetrig_fleet_io::{OnEvent, RunOptions, run_to_end};
use packetrig_nats::NatsFabric;
use packetrig_plan::{Plan, ReadOptions};
use packetrig_stats::limit::RigLimit;
use packetrig_store::files::PageChoice;
use packetrig_sys::{kernel, signal};
use std::path::Path;

/// The same on a fleet. This process leads the nodes of the plan for the time of the run.
pub(super) fn on_fleet(
    request: &ExecutionRequest,
    place: &fleet_place::FleetPlace,
    output: &mut CommandOutput,
) -> Result<CommandExit, Error> {
    let plan = read_for_fleet(request)?;
    let taken = TakenFleet::take(place, request.store.as_deref(), request.policies)?;
    taken.execute(request, &plan, output)
}

/// The plan, if it can run on a fleet.
fn read_for_fleet(request: &ExecutionRequest) -> Result<Plan, Error> {
    let reading = ReadOptions { fleet: true, ..ReadOptions::default() };
    let plan = plan::read_with(&request.document, reading)?;
    warn_if_nothing_is_measured(request, &plan);
    Ok(plan)
}

/// A fleet that makes the trials of a test method: one run after the other on the nodes of one plan.
pub(crate) struct TrialFleet {
    charged: ChargedFleet<NatsFabric>,
    limits: Vec<RigLimit>,
    waits_for_nodes: bool,
}

impl TrialFleet {
    pub(crate) fn of(taken: TakenFleet, waits_for_nodes: bool) -> Self {
        let TakenFleet { charged, limits } = taken;
        // The page of the method shows its trials; each trial needs no page of its own.
        charged.shelf.set_page(PageChoice::LeaveOut);
        Self { charged, limits, waits_for_nodes }
    }

    /// What this rig can do, as measured before.
    pub(crate) fn limits(&self) -> &[RigLimit] {
        &self.limits
    }

    /// Makes a trial. Its run is in the catalogue like every run of a fleet.
    pub(crate) fn run(
        &mut self,
        document: &str,
        options: RunOptions,
        (stop, on_event): (&dyn Fn() -> bool, OnEvent<'_>),
    ) -> Result<RunReport, Error> {
        let plan = Plan::read_with(document, ReadOptions { fleet: true, ..ReadOptions::default() })
            .map_err(packetrig_fleet_io::Error::Plan)?;
        self.charged.lead(&plan, &options.run, self.waits_for_nodes, on_event)?;
        let sending = speeds::sending_time(&plan);
        self.charged.begin(&options, document, report_size(&plan, sending, document))?;
        match run_to_end(&mut self.charged.fleet, document, options, (stop, on_event)) {
            Ok((mut report, open)) => {
                self.charged.shelf.commit(&mut report, document, open.as_ref())?;
                self.charged.operator.reported(&report);
                Ok(report)
            }
            Err(error) => {
                name_kept(self.charged.shelf.give_up()?.as_ref());
                Err(error.into())
            }
        }
    }
}

/// A fleet that this process controls.
pub(crate) struct TakenFleet {
    charged: ChargedFleet<NatsFabric>,
    /// What this rig can do, as measured before.
    limits: Vec<RigLimit>,
}

impl TakenFleet {
    /// Becomes a controller that leads no node yet.
    pub(crate) fn take(
        place: &fleet_place::FleetPlace,
        store: Option<&Path>,
        policies: RunPolicies,
    ) -> Result<Self, Error> {
        let catalogue = open_catalogue(store)?;
        let limits = catalogue.limits(&kernel::release())?;
        signal::latch()?;
        let charged = fleet::take(place, catalogue, policies, fleet::LateResults::OfKnownRuns)?;
        Ok(Self { charged, limits })
    }

    pub(crate) const fn fleet(&self) -> &FleetGround<NatsFabric> {
        &self.charged.fleet
    }

    /// The members of the fleet, as of now.
    pub(crate) fn members(&mut self) -> Result<Vec<MemberRow>, Error> {
        Ok(self.charged.fleet.members()?)
    }

    /// Runs a plan that was made after the fleet was taken, from what is known of its nodes.
    pub(crate) fn execute_new(
        self,
        request: &ExecutionRequest,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let plan = read_for_fleet(request)?;
        self.execute(request, &plan, output)
    }

    fn execute(
        self,
        request: &ExecutionRequest,
        plan: &Plan,
        output: &mut CommandOutput,
    ) -> Result<CommandExit, Error> {
        let Self { mut charged, limits } = self;
        let opener = page_opener(request)?;
        charged.shelf.set_page(request.page.choice());
        let options = options(request, plan, limits);
        let sending = speeds::sending_time(plan);
        // Runs that dead controllers left on these nodes are ended first; they have a progress line of their own.
        let mut ending = RunProgressLine::new(request.quiet, None);
        let led = charged.lead(plan, &options.run, request.waits_for_nodes, &mut |event: &RunEvent| {
            show(&mut ending, event);
        });
        ending.finish();
        led.map_err(|error| refused(request, error))?;
        let progress = RunProgressLine::new(request.quiet, sending);
        // From here on another process can find the run and end it, if this one dies.
        charged.begin(
            &options,
            &request.document.text,
            report_size(plan, sending, &request.document.text),
        )?;
        let id = options.run.clone();
        match run(&mut charged.fleet, request, options, progress) {
            Ok(FinishedRun { mut report, open }) => {
                let stored = charged.shelf.commit(&mut report, &request.document.text, open.as_ref());
                charged.operator.reported(&report);
                show_result(request, &report, stored, opener.as_ref(), output)
            }
            // Nodes may hold results of the run: its record stays, so that `fleet collect` can fetch them.
            Err(error @ Error::Run(packetrig_fleet_io::Error::Fabric(_))) => {
                remark(format_args!("run {id} is unfinished; `packetrig fleet collect` ends it"));
                Err(error)
            }
            Err(error) => {
                name_kept(charged.shelf.give_up()?.as_ref());
                Err(error)
            }
        }
    }
}
