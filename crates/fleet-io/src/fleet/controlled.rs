//! A fleet together with the catalogue for its results. Before a run, the controller ends the runs that earlier
//! controllers left unfinished on the nodes that it needs (docs/decisions/0020-runs-side-by-side.md).

use super::ending::{RunEnding, RunEndingState, SIGNAL_CHECK_INTERVAL, controller_of, parse_ending_state};
use super::{ControllerConfig, FleetExecutor, LeftoverRun, RunResultStore, UnfinishedRunLeading};
use crate::control::{RunEventCallback, RunUser};
use crate::error::Error;
use crate::local::RunOptions;
use crate::operator::{SharedOperator, build_waiting_policy};
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::Fabric;
use packetrig_plan::Plan;
use packetrig_report::{RunId, RunReport};
use packetrig_store::{ReportSize, UnfinishedRun};
use packetrig_sys::clock;
use std::collections::BTreeSet;

/// A fleet that this process controls, with the store of its results.
pub struct ControlledFleet<F: Fabric> {
    pub fleet: FleetExecutor<F>,
    pub store: RunResultStore,
    pub operator: SharedOperator,
}

impl<F: Fabric> std::fmt::Debug for ControlledFleet<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ControlledFleet").field("fleet", &self.fleet).finish_non_exhaustive()
    }
}

/// Stores the beginning of a run of this controller, so that a later controller can find and end it.
pub fn begin_run(
    store: &RunResultStore,
    controller: &str,
    options: &RunOptions,
    document: &str,
    size: ReportSize,
) -> Result<(), Error> {
    let begun =
        RunEndingState { record: None, options: options.clone(), controller: Some(controller.to_owned()) };
    let unfinished = UnfinishedRun {
        run: options.run.clone(),
        attempt: 1,
        // The epoch is stored later, with the first record of the run.
        epoch: 0,
        record: serde_json::to_string(&begun).unwrap_or_default(),
        plan: document.to_owned(),
        directory: std::path::PathBuf::new(),
        begun_at: clock::wall_clock_ns(),
    };
    Ok(store.begin_run(&unfinished, size)?)
}

impl RunResultStore {
    /// Becomes a controller, with this store for its results.
    pub fn open_fleet<F: Fabric>(
        &self,
        fabric: &F,
        config: ControllerConfig,
    ) -> Result<FleetExecutor<F>, Error>
    where
        F::Records: 'static,
        F::Incoming: 'static,
    {
        let mut fleet = FleetExecutor::become_controller(fabric, config)?;
        // An earlier controller may have died between storing and confirming a result: its node would keep this result
        // for ever.
        fleet.tell_nodes_stored_segments(&|node, run, attempt| self.stored_watermark(node, run, attempt));
        Ok(fleet)
    }
}

impl<F: Fabric> ControlledFleet<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Stores the beginning of a run, as [`begin_run`] does.
    pub fn begin_new_run(&self, options: &RunOptions, document: &str, size: ReportSize) -> Result<(), Error> {
        begin_run(&self.store, self.fleet.controller(), options, document, size)
    }

    /// Takes the leads of a run's nodes, and ends the runs that earlier controllers left unfinished on these nodes;
    /// returns the reports of the ended runs. `waits`: whether to wait for nodes that a running controller leads.
    pub fn lead_run_nodes(
        &mut self,
        plan: &Plan,
        run: &RunId,
        waits: bool,
        on_event: RunEventCallback<'_>,
    ) -> Result<Vec<RunReport>, Error> {
        let leftovers =
            self.fleet.lead_run_nodes(plan, run, &mut build_waiting_policy(self.operator.as_ref(), waits))?;
        let reports = self.run_ending().end_leftover_runs(&leftovers, on_event)?;
        self.report_unfinished_runs()?;
        Ok(reports)
    }

    fn run_ending(&mut self) -> RunEnding<'_, F> {
        RunEnding { fleet: &mut self.fleet, store: &self.store, operator: self.operator.as_ref() }
    }

    /// Tells the user about other unfinished runs. They end only when their nodes are needed, or when
    /// the user requests it.
    fn report_unfinished_runs(&mut self) -> Result<(), Error> {
        let unfinished = self.store.unfinished_runs()?;
        // A single check is enough here: the result is only a remark, and repeated checks would delay the run.
        let at_work = self.select_runs_with_running_controller(&unfinished, &|| false)?;
        for left in unfinished.iter().filter(|left| !at_work.contains(&left.run)) {
            self.operator.remark(format_args!(
                "run {} was left unfinished by its controller; end it with `packetrig fleet collect`",
                left.run
            ));
        }
        Ok(())
    }

    /// Selects the runs whose controllers may still write their reports. A controller counts as running unless it is
    /// known to be dead.
    fn select_runs_with_running_controller(
        &mut self,
        unfinished: &[UnfinishedRun],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<BTreeSet<RunId>, Error> {
        let controllers = unfinished.iter().filter_map(controller_of).collect();
        let at_work = self.fleet.select_running_controllers(&controllers, goes_on)?;
        let theirs =
            unfinished.iter().filter(|left| controller_of(left).is_some_and(|name| at_work.contains(&name)));
        Ok(theirs.map(|left| left.run.clone()).collect())
    }

    /// Ends every unfinished run with a dead controller; returns the reports of the runs in this catalogue. The nodes
    /// of a run of another catalogue are only released.
    pub fn end_unfinished_runs(&mut self, on_event: RunEventCallback<'_>) -> Result<Vec<RunReport>, Error> {
        let mut reports = Vec::new();
        let unfinished = self.store.unfinished_runs()?;
        let operator = SharedOperator::clone(&self.operator);
        let at_work =
            self.select_runs_with_running_controller(&unfinished, &|| !operator.is_interrupted())?;
        for left in &unfinished {
            if at_work.contains(&left.run) {
                operator.remark(format_args!("run {} is still in progress", left.run));
                continue;
            }
            match self.end_unfinished_run(left, on_event) {
                Ok(report) => reports.extend(report),
                Err(error) => {
                    operator.remark(format_args!(
                        "run {}: {}",
                        left.run,
                        packetrig_units::message_with_causes(&error)
                    ));
                }
            }
        }
        for record in self.fleet.read_unfinished_records()? {
            // Only runs of other catalogues are listed: runs of this catalogue keep their record until their
            // report is written.
            if !unfinished.iter().any(|left| left.run == record.head.run) {
                self.release_nodes_of_unfinished_run(&record, on_event)?;
            }
        }
        Ok(reports)
    }

    fn end_unfinished_run(
        &mut self,
        left: &UnfinishedRun,
        on_event: RunEventCallback<'_>,
    ) -> Result<Option<RunReport>, Error> {
        // The record on the fleet is newer than the copy in the catalogue; without either, no node has received the
        // run.
        let found = self.fleet.read_unfinished_record(&left.run)?;
        let record = found.or(parse_ending_state(left)?.record);
        let Some(record) = record else { return self.run_ending().drop_unreceived_run(left).map(|()| None) };
        let elsewhere = match self
            .fleet
            .lead_unfinished_run(&record, &mut build_waiting_policy(self.operator.as_ref(), true))?
        {
            Some(UnfinishedRunLeading::Led(elsewhere)) => elsewhere,
            Some(UnfinishedRunLeading::UnderWay(_)) | None => {
                self.operator.remark(format_args!("run {} is still in progress", left.run));
                return Ok(None);
            }
        };
        self.operator
            .remark(format_args!("run {} was left unfinished by its controller: ending it", left.run));
        // The nodes are given back even if this fails.
        let ended = self.run_ending().end_and_report_run(left, record, elsewhere, on_event);
        self.fleet.release_all_node_leads();
        ended
    }

    /// Ends a run of another catalogue on its nodes. The results stay on the nodes, for the
    /// controller with that catalogue.
    fn release_nodes_of_unfinished_run(
        &mut self,
        record: &RunRecord,
        on_event: RunEventCallback<'_>,
    ) -> Result<(), Error> {
        let run = &record.head.run;
        let led = self
            .fleet
            .lead_unfinished_run(record, &mut build_waiting_policy(self.operator.as_ref(), true))?;
        let Some(UnfinishedRunLeading::Led(elsewhere)) = led else { return Ok(()) };
        self.operator.remark(format_args!(
            "run {run} was left unfinished by a controller with another catalogue: its nodes are released"
        ));
        // Nodes in `elsewhere` are skipped: the controllers that lead them now have released them from this run.
        let mut nodes: BTreeSet<_> = record.all_nodes().into_iter().collect();
        nodes.retain(|node| !elsewhere.contains(node));
        let leftover = LeftoverRun { record: record.clone(), nodes };
        let user = RunUser { requests: &mut || None, turn: SIGNAL_CHECK_INTERVAL, on_event };
        // The nodes are given back after a failure, too: otherwise an idle controller would keep them.
        let is_last = self.fleet.release_nodes(&leftover, user);
        self.fleet.release_all_node_leads();
        if is_last? {
            self.fleet.record_end_of_run(run)?;
        }
        Ok(())
    }
}
