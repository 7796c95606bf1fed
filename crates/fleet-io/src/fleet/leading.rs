//! Takes and gives back the leads of nodes: only the controller that has a node's lead may send it commands. The leads
//! of all nodes of a run are taken together.
//!
//! Invariant: this controller sends no command to a node that it does not lead. While it waits for nodes, it has no
//! lead, so two controllers cannot block each other.

use super::leftovers::LeftoverRun;
use super::record_writer::RecordWriter;
use super::run_services::FleetRunServices;
use super::{ControllerPresence, FREE_NODE_CHECK_INTERVAL, FleetExecutor, LedRun, RunStartingState};
use crate::agent::now;
use crate::control::{ControlledRun, RunUser, control_run};
use crate::error::{Error, ignore_failure};
use packetrig_fleet::controller::{ControllerMachine, StartPolicy};
use packetrig_fleet::fabric::{self, Endpoint as _, Fabric};
use packetrig_fleet::lead::{
    ClaimProgress, LeadClaim, LeadOfOtherController, NodeLead, OwnLead, UncertainLeads, WantedNodes,
    read_held_leads,
};
use packetrig_fleet::members::NodePresence;
use packetrig_fleet::message::MessageBody;
use packetrig_fleet::places::{self, PortPlaceAssignment};
use packetrig_plan::{Plan, PlanProblems};
use packetrig_report::{NodeName, RunId};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::thread;

/// Maximum number of unanswered accesses to the records that a claim tolerates.
const MAX_RECORD_FAILURES: u32 = 3;
/// Time to wait for nodes before places for the plan's ports are searched again, because other nodes may have joined.
const PLACE_SEARCH_RETRY_WAIT: Nanos = Nanos::from_secs(3);
/// Number of checks for a refresh of the own record before the attempt fails. The checks together take longer than one
/// unanswered refresh and the refresh after it.
const MAX_REFRESH_CHECKS: u32 = 100;
/// With more leads than this, the interval between checks grows in proportion, so that the reads per
/// second stay the same.
const LEADS_PER_CHECK: usize = 100;

/// Nodes that other controllers lead, with those controllers.
pub type HeldNodes = BTreeMap<NodeName, LeadOfOtherController>;

/// Decision about nodes that other controllers lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldNodesDecision {
    /// Wait until they are free.
    Wait,
    /// Do not wait: the run begins without these nodes if its policy allows that, otherwise it does not begin.
    GoWithout,
    /// Do not begin the run.
    GiveUp,
}

/// Decides what to do about nodes that other controllers lead.
pub type BlockedNodesPolicy<'a> = &'a mut dyn FnMut(&HeldNodes) -> HeldNodesDecision;

/// The leads that were taken, and their epoch.
pub(super) struct ClaimedNodes {
    pub(super) epoch: u64,
    pub(super) leads: Vec<OwnLead>,
}

impl<F: Fabric> FleetExecutor<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Finds a node and an interface for every port of the plan, and takes the leads of these nodes. Returns the
    /// earlier runs that must be ended on these nodes first. `while_blocked` decides what to do if other controllers
    /// lead nodes that the plan needs. Nodes that this controller already leads and that the plan needs do not become
    /// free for other controllers in between, unless this controller has to wait for other nodes.
    pub fn lead_run_nodes(
        &mut self,
        plan: &Plan,
        run: &RunId,
        while_blocked: BlockedNodesPolicy<'_>,
    ) -> Result<Vec<LeftoverRun>, Error> {
        let led = self.lead_nodes(plan, run, while_blocked);
        if led.is_err() {
            self.release_all_node_leads();
        }
        led
    }

    fn lead_nodes(
        &mut self,
        plan: &Plan,
        run: &RunId,
        while_blocked: BlockedNodesPolicy<'_>,
    ) -> Result<Vec<LeftoverRun>, Error> {
        loop {
            self.await_confirmed_term()?;
            self.ask_all_nodes()?;
            let known: Vec<NodeName> = self.members.iter().map(|(name, _)| name.clone()).collect();
            let held = self.read_nodes_held_by_others(&known)?;
            self.members.replace_leads(leads_of(&held));
            let settled = self.assign_plan_places(plan, run);
            let blocking: BTreeSet<NodeName> = match &settled {
                // The run could start without these nodes, but a user who waits wants all nodes that may become free.
                Ok(settlement) => {
                    let unavailable = settlement.unavailable.keys();
                    unavailable
                        .filter(|node| held.contains_key(*node) && self.is_node_present(node))
                        .cloned()
                        .collect()
                }
                Err(problems) => self
                    .find_blocking_nodes(plan, run, &held)
                    .ok_or_else(|| Error::NotPlaced(problems.clone()))?,
            };
            if !blocking.is_empty() || settled.is_err() {
                // Nodes that are still led since an earlier run are given back: a waiting controller leads no node.
                self.release_all_node_leads();
                let leads = leads_of(&select_nodes(&held, &blocking));
                match self.await_node_availability(held, &blocking, while_blocked)? {
                    HeldNodesDecision::Wait => continue,
                    HeldNodesDecision::GoWithout if settled.is_ok() => {}
                    HeldNodesDecision::GoWithout | HeldNodesDecision::GiveUp => {
                        return Err(Error::NodesTaken(leads));
                    }
                }
            }
            // If another controller was faster, the next iteration finds its leads.
            if let Some(leftovers) = self.take_nodes_of_places(run, settled.map_err(Error::NotPlaced)?)? {
                return Ok(leftovers);
            }
        }
    }

    /// Takes the leads of the nodes of these places, and returns the earlier runs that must be ended on them; `None` if
    /// another controller leads one of the nodes now.
    fn take_nodes_of_places(
        &mut self,
        run: &RunId,
        settlement: PortPlaceAssignment,
    ) -> Result<Option<Vec<LeftoverRun>>, Error> {
        let mut nodes: BTreeSet<NodeName> = places::nodes_of_places(&settlement.places).into_iter().collect();
        nodes.retain(|node| !settlement.unavailable.contains_key(node));
        let Some(claimed) = self.claim_nodes(run, nodes.clone())? else {
            self.release_all_node_leads();
            return Ok(None);
        };
        // Unneeded leads are given back after the claim, so that nodes which both runs need are never free in between.
        self.give_back_leads_except(&nodes);
        let leftovers = self.find_leftover_runs(run, &claimed.leads)?;
        self.led = Some(LedRun { run: run.clone(), epoch: claimed.epoch, settlement });
        Ok(Some(leftovers))
    }

    /// Fails if the term is lost, because the controller may then send no command to any node.
    pub(super) fn fail_if_leadership_lost(&self) -> Result<(), Error> {
        if self.leadership.is_lost() { Err(Error::LeadershipLost) } else { Ok(()) }
    }

    /// Waits until it is certain that this controller's term has not ended. After a pause of the process, only its next
    /// refresh shows whether another controller has ended the term. Fails if it has, or if no refresh succeeds.
    pub(super) fn await_confirmed_term(&self) -> Result<(), Error> {
        for _ in 0..MAX_REFRESH_CHECKS {
            self.fail_if_leadership_lost()?;
            if self.leadership.may_commit() {
                return Ok(());
            }
            clock::sleep_until_ns((now() + FREE_NODE_CHECK_INTERVAL).as_nanos());
        }
        Err(fabric::Error::Unanswered("this controller could not refresh its leadership record".to_owned())
            .into())
    }

    /// Finds the nodes that the plan lacks because other controllers lead them; `None` if the plan could not
    /// run even without other controllers. For ports by label, other nodes with the label may become free instead.
    fn find_blocking_nodes(
        &mut self,
        plan: &Plan,
        run: &RunId,
        held: &HeldNodes,
    ) -> Option<BTreeSet<NodeName>> {
        // Places are assigned as if no node were led. Then the real leads are restored.
        self.members.replace_leads(BTreeMap::new());
        let settled = self.assign_plan_places(plan, run);
        self.members.replace_leads(leads_of(held));
        let wanted = places::nodes_of_places(&settled.ok()?.places).into_iter();
        Some(wanted.filter(|node| held.contains_key(node) && self.is_node_present(node)).collect())
    }

    fn is_node_present(&self, node: &NodeName) -> bool {
        self.members.get(node).is_some_and(|member| member.presence_at(now()) != NodePresence::Lost)
    }

    /// Waits until one of the held nodes is given back or may be taken, or until other nodes may have joined; then
    /// returns `Wait`, so that the caller looks again. Ends at once if `while_blocked` decides not to wait; it gets
    /// only the nodes in `blocking`.
    pub(super) fn await_node_availability(
        &mut self,
        mut held: HeldNodes,
        blocking: &BTreeSet<NodeName>,
        while_blocked: BlockedNodesPolicy<'_>,
    ) -> Result<HeldNodesDecision, Error> {
        let until = now() + PLACE_SEARCH_RETRY_WAIT;
        loop {
            let choice = while_blocked(&select_nodes(&held, blocking));
            if choice != HeldNodesDecision::Wait || now() >= until {
                return Ok(choice);
            }
            // With more leads the checks are less frequent, so that the load of the record store does not grow with
            // the fleet.
            let looks = 1 + held.len() / LEADS_PER_CHECK;
            clock::sleep_until_ns(
                (now() + Nanos::new(FREE_NODE_CHECK_INTERVAL.as_u64() * looks as u64)).as_nanos(),
            );
            let nodes: Vec<NodeName> = held.keys().cloned().collect();
            let now_held = self.read_nodes_held_by_others(&nodes)?;
            let is_same = held.iter().all(|(node, before)| {
                now_held.get(node).is_some_and(|lead| lead.revision == before.revision)
            });
            if !is_same {
                return Ok(HeldNodesDecision::Wait);
            }
            held = now_held;
        }
    }

    /// Reads which of these nodes other controllers lead.
    pub(super) fn read_nodes_held_by_others(&mut self, nodes: &[NodeName]) -> Result<HeldNodes, Error> {
        let is_there = ControllerPresence::build_presence_lookup(self.presence.as_ref());
        let seen = (&self.me, &mut self.watch);
        Ok(read_held_leads(&mut self.records, nodes, seen, &is_there, now())?)
    }

    /// Takes the leads of these nodes and listens to the nodes; `None` if another controller leads one of them.
    pub(super) fn claim_nodes(
        &mut self,
        run: &RunId,
        nodes: BTreeSet<NodeName>,
    ) -> Result<Option<ClaimedNodes>, Error> {
        self.leadership.release_doubtful_leads(&mut self.records)?;
        let heard = self.members.highest_epoch(&nodes);
        let wanted = WantedNodes { run: run.clone(), nodes, heard, wall_ns: clock::wall_clock_ns() };
        let mut claim = LeadClaim::new(self.me.clone(), wanted, self.watch.clone());
        let claimed = self.finish_claim(&mut claim);
        if let Ok(Some(claimed)) = &claimed {
            self.leadership.add_own_leads(claimed.leads.clone());
        } else {
            // A write without an answer may have been done, so all leads that it may have written are given back.
            let nodes = claim.nodes_with_possible_lead().clone();
            self.leadership.queue_leads_for_release(UncertainLeads { run: run.clone(), nodes });
        }
        // The claim's observations of other controllers' terms are kept: a second observation may show that a
        // controller is dead.
        self.watch = claim.into_watch();
        let claimed = claimed?;
        if let Some(claimed) = &claimed {
            let nodes: Vec<NodeName> = claimed.leads.iter().map(|lead| lead.node.clone()).collect();
            // Before the claim, the messages of these nodes are addressed to another controller.
            self.endpoint.listen_to(&nodes)?;
        }
        Ok(claimed)
    }

    fn finish_claim(&mut self, claim: &mut LeadClaim) -> Result<Option<ClaimedNodes>, fabric::Error> {
        let is_there = ControllerPresence::build_presence_lookup(self.presence.as_ref());
        let mut failures = 0;
        loop {
            match claim.advance_claim(&mut self.records, &is_there, now()) {
                Ok(ClaimProgress::UnderWay) => {}
                Ok(ClaimProgress::Taken(epoch, leads)) => return Ok(Some(ClaimedNodes { epoch, leads })),
                Ok(ClaimProgress::Blocked(_)) => return Ok(None),
                Err(fabric::Error::Unanswered(_) | fabric::Error::Down(_))
                    if failures < MAX_RECORD_FAILURES =>
                {
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives back the leads of all nodes.
    pub fn release_all_node_leads(&mut self) {
        self.led = None;
        self.give_back_leads_except(&BTreeSet::new());
    }

    /// Gives back the leads of all nodes except `kept`.
    fn give_back_leads_except(&mut self, kept: &BTreeSet<NodeName>) {
        let leads = self.leadership.give_back_leads_except(&mut self.records, kept);
        let nodes: Vec<NodeName> = leads.into_iter().map(|lead| lead.node).collect();
        if !nodes.is_empty() {
            self.endpoint.stop_listening_to(&nodes);
        }
    }

    /// Assigns a place (node and interface) to every port of the plan. If the user allows a start without some nodes,
    /// ports may have places on unavailable nodes.
    fn assign_plan_places(&self, plan: &Plan, run: &RunId) -> Result<PortPlaceAssignment, PlanProblems> {
        let settled = places::assign_places(plan, &self.members, Some(run), now());
        let problems = match settled {
            Err(problems) if self.policies.start != StartPolicy::All => problems,
            settled => return settled,
        };
        let with_absent = places::assign_places_with_unavailable_nodes(plan, &self.members, Some(run), now());
        with_absent.ok().filter(|found| self.allows_run_start(found)).ok_or(problems)
    }

    /// Returns whether the user allows a start without the unavailable nodes.
    fn allows_run_start(&self, found: &PortPlaceAssignment) -> bool {
        let all = places::nodes_of_places(&found.places).len();
        self.policies.start.allows_run_start(all - found.unavailable.len(), all)
    }

    /// Epoch of the run for which this controller leads nodes; 0 without such a run.
    pub(super) fn led_epoch_or_zero(&self) -> u64 {
        self.led.as_ref().map_or(0, |led| led.epoch)
    }

    /// Runs the state machine of a controller until its run has ended.
    pub(super) fn control_fleet_run(
        &mut self,
        machine: ControllerMachine,
        has: RunStartingState,
        user: RunUser<'_>,
    ) -> Result<ControlledRun, Error> {
        self.fail_if_leadership_lost()?;
        let attempt = machine.head().attempt;
        let run = machine.head().run.clone();
        if has.reads_results {
            self.collector.read_run(&run);
        }
        let Self { records, members, collector, leadership, note, endpoint, .. } = self;
        // The writer borrows the records, so its thread ends with the run.
        let (ended, marks) = thread::scope(|scope| {
            let writer = RecordWriter::start_writing(scope, records, note);
            let mut services = FleetRunServices::new(run, writer, members, collector, leadership);
            services.set_writes_no_record(has.writes_no_record);
            services.add_stored_parts(attempt, has.on_hand);
            services.set_shares(has.shares);
            services.set_senders(has.senders);
            control_run(machine, endpoint, &mut services, user)
                .map(|ended| (ended, services.final_watermarks()))
        })?;
        // With these last watermarks, nodes may delete the segments that are stored.
        for (node, mark) in marks {
            // A node that misses this message gets it from the next controller.
            ignore_failure(self.endpoint.post_message(&node, MessageBody::Stored(mark)));
        }
        Ok(ended)
    }
}

fn leads_of(held: &HeldNodes) -> BTreeMap<NodeName, NodeLead> {
    held.iter().map(|(node, held)| (node.clone(), held.lead.clone())).collect()
}

fn select_nodes(held: &HeldNodes, nodes: &BTreeSet<NodeName>) -> HeldNodes {
    let held = held.iter().filter(|(node, _)| nodes.contains(*node));
    held.map(|(node, lead)| (node.clone(), lead.clone())).collect()
}
