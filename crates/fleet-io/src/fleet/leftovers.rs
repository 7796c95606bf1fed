//! Ends runs that other controllers left unfinished: on single nodes, or as a whole.

use super::leading::{BlockedNodesPolicy, HeldNodes, HeldNodesDecision};
use super::{FleetExecutor, LedRun, RunStartingState};
use crate::control::RunUser;
use crate::error::Error;
use packetrig_fleet::controller::{ControllerMachine, RunLimits, RunRecord};
use packetrig_fleet::fabric::{self, Fabric, RecordStore as _, StoredRecord};
use packetrig_fleet::lead::OwnLead;
use packetrig_fleet::places::PortPlaceAssignment;
use packetrig_fleet::term::TermState;
use packetrig_report::outcome::RunState;
use packetrig_report::{NodeName, RunId};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of attempts to write the record of a run. After them, another controller has to end the run.
const MAX_MERGE_ATTEMPTS: u32 = 16;

/// A run that another controller has left unfinished on some of the nodes that this controller leads now.
#[derive(Clone, Debug)]
pub struct LeftoverRun {
    /// Record of the run. It has a final state if the end of the run is recorded already.
    pub record: RunRecord,
    pub nodes: BTreeSet<NodeName>,
}

impl LeftoverRun {
    /// Returns whether the end of the run is not recorded yet.
    pub const fn is_unfinished(&self) -> bool {
        self.record.is_unfinished()
    }

    /// Returns whether `nodes` has all nodes of the run, because no controller has released one of them before. Nodes
    /// without which the run started do not count.
    pub fn covers_whole_run(&self) -> bool {
        self.record.released.iter().all(|node| self.record.left_out.contains(node)) && self.has_last_nodes()
    }

    /// Returns whether `nodes` has all nodes that have not released the run yet.
    pub fn has_last_nodes(&self) -> bool {
        self.record.unreleased_nodes().is_subset(&self.nodes)
    }
}

/// Outcome of an attempt to lead the nodes of an unfinished run.
#[derive(Clone, Debug)]
pub enum UnfinishedRunLeading {
    /// The run's controller is running and leads these nodes.
    UnderWay(HeldNodes),
    /// This controller leads the free nodes of the run and may end the run. The listed nodes are those that
    /// it does not lead.
    Led(BTreeSet<NodeName>),
}

impl<F: Fabric> FleetExecutor<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Finds leftover runs, from the earlier leads of the nodes and from the runs that the nodes report.
    pub(super) fn find_leftover_runs(
        &mut self,
        run: &RunId,
        leads: &[OwnLead],
    ) -> Result<Vec<LeftoverRun>, Error> {
        let mut left: BTreeMap<RunId, BTreeSet<NodeName>> = BTreeMap::new();
        let mut busy = BTreeMap::new();
        for lead in leads {
            let of_node = self.members.get(&lead.node).and_then(|member| member.hello().busy.clone());
            let led_for = lead.before.as_ref().map(|before| before.run.clone());
            for other in of_node.iter().map(|head| head.run.clone()).chain(led_for) {
                if other != *run {
                    left.entry(other).or_default().insert(lead.node.clone());
                }
            }
            busy.extend(of_node.map(|head| (lead.node.clone(), head)));
        }
        let mut leftovers = Vec::new();
        for (other, nodes) in left {
            let found = self.records.get_record(&RunRecord::record_key(&other))?;
            let record = found.as_ref().and_then(StoredRecord::decode_value);
            if let Some(record) = record.filter(RunRecord::is_unfinished) {
                leftovers.push(LeftoverRun { record, nodes });
                continue;
            }
            // The run's end is recorded. A node that still takes part in the run has missed the command that ended it,
            // and gets the command again.
            for node in nodes {
                let Some(head) = busy.get(&node).filter(|head| head.run == other).cloned() else { continue };
                let record = RunRecord {
                    head,
                    state: RunState::Partial,
                    nodes: vec![node.clone()],
                    left_out: Vec::new(),
                    start: None,
                    released: BTreeSet::new(),
                };
                leftovers.push(LeftoverRun { record, nodes: BTreeSet::from([node]) });
            }
        }
        Ok(leftovers)
    }

    /// Makes the nodes of a leftover run stop and release it. The nodes keep their results. Returns whether all nodes
    /// of the run are released now.
    pub fn release_nodes(&mut self, leftover: &LeftoverRun, user: RunUser<'_>) -> Result<bool, Error> {
        let LeftoverRun { record, nodes } = leftover;
        let of_these = RunRecord {
            nodes: record.nodes.iter().filter(|node| nodes.contains(*node)).cloned().collect(),
            left_out: record.left_out.iter().filter(|node| nodes.contains(*node)).cloned().collect(),
            ..record.clone()
        };
        // This controller collects no results, so it need not wait for late frames.
        let limits = RunLimits::for_fleet(self.round_trips.longest_round_trip(nodes), Nanos::ZERO);
        let machine = ControllerMachine::from_record(of_these, self.led_epoch_or_zero(), limits)
            .without_collecting_results();
        // If the end of the run is recorded, its record stays as it is.
        let writes_record = leftover.is_unfinished() && leftover.covers_whole_run();
        let has = RunStartingState { writes_no_record: !writes_record, ..RunStartingState::default() };
        self.control_fleet_run(machine, has, user)?;
        // The machine has just ended the whole run. Only if several controllers end a run
        // in parts, its record lists the released nodes.
        if !leftover.is_unfinished() || leftover.covers_whole_run() {
            return Ok(true);
        }
        self.record_released_nodes(leftover)
    }

    /// Adds the nodes to the released nodes in the run's record. Several controllers may do so at the same time.
    /// Returns whether all nodes of the run are released now.
    fn record_released_nodes(&mut self, leftover: &LeftoverRun) -> Result<bool, Error> {
        let key = RunRecord::record_key(&leftover.record.head.run);
        for _ in 0..MAX_MERGE_ATTEMPTS {
            let Some(found) = self.records.get_record(&key)? else { return Ok(false) };
            let Some(mut record) = found.decode_value::<RunRecord>() else { return Ok(false) };
            if !record.is_unfinished() {
                return Ok(false);
            }
            // Controllers that end parts of the run at the same time each add their nodes: if the revision is
            // stale, the merge is made again.
            record.released.extend(leftover.nodes.iter().cloned());
            match self.records.replace_record(&key, found.revision, &StoredRecord::encode_value(&record)) {
                Ok(_) => return Ok(record.unreleased_nodes().is_empty()),
                Err(fabric::Error::Stale(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Records the end of a run of another catalogue, after all its nodes have released it.
    pub fn record_end_of_run(&mut self, run: &RunId) -> Result<(), Error> {
        let key = RunRecord::record_key(run);
        let Some(found) = self.records.get_record(&key)? else { return Ok(()) };
        let Some(mut record) = found.decode_value::<RunRecord>() else { return Ok(()) };
        record.state = RunState::Partial;
        match self.records.replace_record(&key, found.revision, &StoredRecord::encode_value(&record)) {
            // If the record has changed, another controller is ending the same run.
            Ok(_) | Err(fabric::Error::Stale(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the leads of the free nodes of an unfinished run, to end it. `while_unclear` decides whether to wait while
    /// it is unclear whether the run's controller is running. Returns `None` if it decides not to wait.
    pub fn lead_unfinished_run(
        &mut self,
        record: &RunRecord,
        while_unclear: BlockedNodesPolicy<'_>,
    ) -> Result<Option<UnfinishedRunLeading>, Error> {
        self.release_all_node_leads();
        let led = self.lead_nodes_of_unfinished_run(record, while_unclear);
        if led.is_err() {
            self.release_all_node_leads();
        }
        led
    }

    fn lead_nodes_of_unfinished_run(
        &mut self,
        record: &RunRecord,
        while_unclear: BlockedNodesPolicy<'_>,
    ) -> Result<Option<UnfinishedRunLeading>, Error> {
        let run = &record.head.run;
        let members: Vec<NodeName> = record.unreleased_nodes().into_iter().collect();
        loop {
            self.await_confirmed_term()?;
            let held = self.read_nodes_held_by_others(&members)?;
            let mut own = held.clone();
            // Nodes that other controllers have taken for their own runs are no obstacle: they have left this run.
            own.retain(|_, held| held.lead.run == *run);
            if own.is_empty() {
                let nodes: BTreeSet<NodeName> =
                    members.iter().filter(|node| !held.contains_key(*node)).cloned().collect();
                // Another controller has taken one of the nodes in the meantime, and the next round sees this.
                let Some(claimed) = self.claim_nodes(run, nodes.clone())? else { continue };
                let settlement = PortPlaceAssignment::default();
                self.led = Some(LedRun { run: run.clone(), epoch: claimed.epoch, settlement });
                let all = record.all_nodes().into_iter();
                return Ok(Some(UnfinishedRunLeading::Led(
                    all.filter(|node| !nodes.contains(node)).collect(),
                )));
            }
            let blocking: BTreeSet<NodeName> = own.keys().cloned().collect();
            let mut at_work = None;
            let choice = self.await_node_availability(own, &blocking, &mut |held| {
                if held.values().any(|held| held.state == TermState::Alive) {
                    at_work = Some(held.clone());
                    return HeldNodesDecision::GoWithout;
                }
                while_unclear(held)
            })?;
            if choice != HeldNodesDecision::Wait {
                // Either the run's controller is running, or the user does not want to wait.
                return Ok(at_work.map(UnfinishedRunLeading::UnderWay));
            }
        }
    }
}
