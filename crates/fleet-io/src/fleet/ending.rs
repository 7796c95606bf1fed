//! Ends runs that other controllers left unfinished, and writes their reports.

use super::{FleetExecutor, InheritedRun, LeftoverRun, RunResultStore};
use crate::control::{RunEventCallback, RunUser};
use crate::error::Error;
use crate::local::RunOptions;
use crate::operator::RunOperator;
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::Fabric;
use packetrig_plan::{PlanDocument, PlanParseOptions};
use packetrig_report::{NodeName, RunId, RunReport};
use packetrig_store::UnfinishedRun;
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Maximum time between two checks for signals while a run is being ended.
pub(super) const SIGNAL_CHECK_INTERVAL: Nanos = Nanos::from_millis(20);

/// State that another process needs to end a run. It is stored with the run from its beginning.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RunEndingState {
    pub(super) record: Option<RunRecord>,
    pub(super) options: RunOptions,
    /// The controller of the run. As long as it is running, no other controller ends the run.
    #[serde(default)]
    pub(super) controller: Option<String>,
}

pub(super) fn parse_ending_state(left: &UnfinishedRun) -> Result<RunEndingState, Error> {
    serde_json::from_str(&left.record)
        .map_err(|error| Error::DamagedRecord { run: left.run.clone(), why: error.to_string() })
}

/// Returns the controller that began a run; `None` if the record is damaged, or too old to name the controller. Such a
/// run counts as a run without a running controller.
pub(super) fn controller_of(left: &UnfinishedRun) -> Option<String> {
    parse_ending_state(left).ok()?.controller
}

/// Ends runs that other controllers left unfinished, on the nodes that this controller leads now.
pub(crate) struct RunEnding<'a, F: Fabric> {
    pub(crate) fleet: &'a mut FleetExecutor<F>,
    pub(crate) store: &'a RunResultStore,
    pub(crate) operator: &'a dyn RunOperator,
}

impl<F: Fabric> RunEnding<'_, F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Removes an unfinished run that no node has received, without a report.
    pub(super) fn drop_unreceived_run(&self, left: &UnfinishedRun) -> Result<(), Error> {
        // `abandon_run` acts on the current run of the store, so this run becomes the current one first.
        self.store.resume_run(&left.run)?;
        self.abandon_run()
    }

    /// Ends the resumed run without a report, and tells the operator about files that were kept.
    fn abandon_run(&self) -> Result<(), Error> {
        if let Some(kept) = self.store.abandon_run()? {
            self.operator.on_kept_files(&kept);
        }
        Ok(())
    }

    /// Stops the leftover runs on their nodes, and makes the nodes release them. The controller that leads the last
    /// node of a run also ends the run. Returns the reports of the runs that ended here.
    pub(crate) fn end_leftover_runs(
        &mut self,
        leftovers: &[LeftoverRun],
        on_event: RunEventCallback<'_>,
    ) -> Result<Vec<RunReport>, Error> {
        let mut reports = Vec::new();
        for leftover in leftovers {
            reports.extend(self.end_leftover_run(leftover, on_event)?);
        }
        Ok(reports)
    }

    fn end_leftover_run(
        &mut self,
        leftover: &LeftoverRun,
        on_event: RunEventCallback<'_>,
    ) -> Result<Option<RunReport>, Error> {
        let run = &leftover.record.head.run;
        let left = self.find_unfinished_run(run)?;
        // If the run belongs to another catalogue, or its end is recorded already, only its nodes are released.
        let left = left.filter(|_| leftover.is_unfinished());
        if leftover.is_unfinished() {
            self.operator.remark(format_args!("run {run} was left unfinished by its controller: ending it"));
        }
        // No other controller has taken a node of this run, so the whole run ends here, with its report.
        if let Some(left) = left.as_ref().filter(|_| leftover.covers_whole_run()) {
            return self.end_and_report_run(left, leftover.record.clone(), BTreeSet::new(), on_event);
        }
        let user = RunUser { requests: &mut || None, turn: SIGNAL_CHECK_INTERVAL, on_event };
        let is_last = self.fleet.release_nodes(leftover, user)?;
        if !is_last || !leftover.is_unfinished() || leftover.covers_whole_run() {
            return Ok(None);
        }
        // Earlier controllers released the other nodes. The counts of these nodes come from their spools
        // without a request.
        let Some(left) = &left else { return self.fleet.record_end_of_run(run).map(|()| None) };
        let elsewhere = leftover.record.all_nodes().into_iter().collect();
        self.end_and_report_run(left, leftover.record.clone(), elsewhere, on_event)
    }

    /// Returns the run from this catalogue, if it is there and has no report.
    fn find_unfinished_run(&self, run: &RunId) -> Result<Option<UnfinishedRun>, Error> {
        Ok(self.store.unfinished_runs()?.into_iter().find(|left| left.run == *run))
    }

    /// Ends a run on the nodes that this controller leads, and writes its report; `None` if the run never started.
    /// Nodes in `elsewhere` get no message.
    pub(super) fn end_and_report_run(
        &mut self,
        left: &UnfinishedRun,
        record: RunRecord,
        elsewhere: BTreeSet<NodeName>,
        on_event: RunEventCallback<'_>,
    ) -> Result<Option<RunReport>, Error> {
        let unfinished = self.store.resume_run(&left.run)?;
        let RunEndingState { options, .. } = parse_ending_state(&unfinished)?;
        let user = RunUser { requests: &mut || None, turn: SIGNAL_CHECK_INTERVAL, on_event };
        // Segments that an earlier controller stored are not requested again.
        let on_hand = self.store.read_stored_parts(&record);
        let inherited = InheritedRun { record, elsewhere, on_hand };
        let ended = self.fleet.end_inherited_run(inherited, &unfinished.plan, &options, user)?;
        let open = ended.open_run();
        let reading =
            PlanParseOptions { seed: options.terms.seed, fleet: true, ..PlanParseOptions::default() };
        let document = PlanDocument::read_text(unfinished.plan, reading)?;
        // An error means that the run never started, so there is nothing to report.
        let Ok(mut report) = ended.into_report(document.plan()) else {
            return self.abandon_run().map(|()| None);
        };
        self.store.commit_report(&mut report, document.text(), open.as_ref())?;
        self.operator.on_report(&report);
        Ok(Some(report))
    }
}
