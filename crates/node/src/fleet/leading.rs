//! Which nodes this controller leads: those of its run, taken together and given back together.
//!
//! Invariant: nothing is said about a run to a node whose lead this controller does not have; while it waits it has none.

use super::crew::FleetCrew;
use super::leftovers::Leftover;
use super::{FleetGround, HasAlready, LOOK, LedRun};
use crate::agent::now;
use crate::control::RunUser;
use crate::error::Error;
use packetrig_fleet::controller::{ControllerMachine, StartPolicy};
use packetrig_fleet::fabric::{self, Endpoint as _, Fabric};
use packetrig_fleet::lead::{
    ClaimProgress, DoubtfulLeads, HeldLead, LeadClaim, NodeLead, TakenLead, WantedNodes, held_leads,
};
use packetrig_fleet::members::NodePresence;
use packetrig_fleet::places::{self, PlaceSettlement};
use packetrig_fleet::{NodeName, RunId};
use packetrig_plan::{Plan, PlanProblems};
use packetrig_sys::{clock, process};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Failures of the records until a claim is given up.
const FAILURES: u32 = 3;
/// How long it is waited for nodes until the plan's ports are settled again: others may have joined.
const SETTLE_AGAIN: Nanos = Nanos::from_secs(3);
/// Looks for a refresh of the own record until nothing can be begun.
const REFRESH_LOOKS: u32 = 50;
/// Leads that are read at each look. More of them are read more rarely: the cost of a second stays the same.
const LEADS_PER_LOOK: usize = 100;

/// Nodes that other controllers lead, and who.
pub type HeldNodes = BTreeMap<NodeName, HeldLead>;

/// What is done about nodes that other controllers lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitChoice {
    /// They are waited for.
    Wait,
    /// They are not: the run begins without them if it may, and else not at all.
    GoWithout,
    /// It is not to begin any more.
    GiveUp,
}

/// Hears who has to be waited for, and says what to do.
pub type WhileBlocked<'a> = &'a mut dyn FnMut(&HeldNodes) -> WaitChoice;

/// The epoch, and the leads that were taken in it.
type ClaimedNodes = (u64, Vec<TakenLead>);

impl<F: Fabric> FleetGround<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Finds a place for every port of the plan and takes the leads of those nodes. Gives what has to be ended on them first. Where other
    /// controllers are in the way, `while_blocked` is asked.
    pub fn lead(
        &mut self,
        plan: &Plan,
        run: &RunId,
        while_blocked: WhileBlocked<'_>,
    ) -> Result<Vec<Leftover>, Error> {
        self.give_back();
        let led = self.lead_nodes(plan, run, while_blocked);
        if led.is_err() {
            self.give_back();
        }
        led
    }

    fn lead_nodes(
        &mut self,
        plan: &Plan,
        run: &RunId,
        while_blocked: WhileBlocked<'_>,
    ) -> Result<Vec<Leftover>, Error> {
        loop {
            self.await_leadership()?;
            self.call()?;
            let known: Vec<NodeName> = self.members.iter().map(|(name, _)| name.clone()).collect();
            let held = self.held(&known)?;
            self.members.assign_leads(leads_of(&held));
            let settled = self.settle(plan, run);
            let blocking: BTreeSet<NodeName> = match &settled {
                // It may begin without these. Whoever waits for nodes wants all that can be had.
                Ok(settlement) => {
                    let is_had = |node: &&NodeName| held.contains_key(node) && self.is_here(node);
                    settlement.absent.keys().filter(is_had).cloned().collect()
                }
                Err(problems) => self.blocking(plan, run, &held).ok_or_else(|| problems.clone())?,
            };
            if !blocking.is_empty() || settled.is_err() {
                let leads = leads_of(&of_these(&held, &blocking));
                match self.await_change(held, &blocking, while_blocked)? {
                    WaitChoice::Wait => continue,
                    WaitChoice::GoWithout if settled.is_ok() => {}
                    WaitChoice::GoWithout | WaitChoice::GiveUp => return Err(Error::NodesTaken(leads)),
                }
            }
            // Whoever was faster is found by the next look.
            if let Some(leftovers) = self.take(run, settled?)? {
                return Ok(leftovers);
            }
        }
    }

    /// Takes the nodes of these places; `None` if another controller has one now.
    fn take(&mut self, run: &RunId, settlement: PlaceSettlement) -> Result<Option<Vec<Leftover>>, Error> {
        let mut nodes: BTreeSet<NodeName> = places::nodes(&settlement.places).into_iter().collect();
        nodes.retain(|node| !settlement.absent.contains_key(node));
        let Some((epoch, leads)) = self.claim(run, nodes)? else { return Ok(None) };
        let leftovers = self.leftovers(run, &leads)?;
        self.led = Some(LedRun { run: run.clone(), epoch, settlement });
        Ok(Some(leftovers))
    }

    /// Nobody may be commanded any more in the name of this controller, and nothing is prepared in vain.
    pub(super) fn refuse_if_lost(&self) -> Result<(), Error> {
        if self.leadership.is_lost() { Err(Error::LeadershipLost) } else { Ok(()) }
    }

    /// The same. Whoever stood still finds out first whether it was ended meanwhile: by its next refresh.
    pub(super) fn await_leadership(&self) -> Result<(), Error> {
        for _ in 0..REFRESH_LOOKS {
            self.refuse_if_lost()?;
            if self.leadership.may_commit() {
                return Ok(());
            }
            clock::sleep_until_ns((now() + LOOK).as_nanos());
        }
        Err(fabric::Error::Unanswered("the record of this controller".to_owned()).into())
    }

    /// Those that are in the way, if the plan could run without other controllers. Others with the same labels would do as well.
    fn blocking(&mut self, plan: &Plan, run: &RunId, held: &HeldNodes) -> Option<BTreeSet<NodeName>> {
        self.members.assign_leads(BTreeMap::new());
        let settled = self.settle(plan, run);
        self.members.assign_leads(leads_of(held));
        let wanted = places::nodes(&settled.ok()?.places).into_iter();
        Some(wanted.filter(|node| held.contains_key(node) && self.is_here(node)).collect())
    }

    fn is_here(&self, node: &NodeName) -> bool {
        self.members.get(node).is_some_and(|member| member.presence(now()) != NodePresence::Lost)
    }

    /// Waits until one of the nodes that are held is given back or may be taken, or for so long that others may have joined. Only of
    /// those in the way it is told.
    pub(super) fn await_change(
        &mut self,
        mut held: HeldNodes,
        blocking: &BTreeSet<NodeName>,
        while_blocked: WhileBlocked<'_>,
    ) -> Result<WaitChoice, Error> {
        let until = now() + SETTLE_AGAIN;
        loop {
            let choice = while_blocked(&of_these(&held, blocking));
            if choice != WaitChoice::Wait || now() >= until {
                return Ok(choice);
            }
            let looks = 1 + held.len() / LEADS_PER_LOOK;
            clock::sleep_until_ns((now() + Nanos::new(LOOK.as_u64() * looks as u64)).as_nanos());
            let nodes: Vec<NodeName> = held.keys().cloned().collect();
            let now_held = self.held(&nodes)?;
            let is_same = |(node, before): (&NodeName, &HeldLead)| {
                now_held.get(node).is_some_and(|lead| lead.revision == before.revision)
            };
            if !held.iter().all(is_same) {
                return Ok(WaitChoice::Wait);
            }
            held = now_held;
        }
    }

    /// Of these nodes, those that other controllers lead.
    pub(super) fn held(&mut self, nodes: &[NodeName]) -> Result<HeldNodes, Error> {
        let seen = (&self.me, &mut self.watch);
        Ok(held_leads(&mut self.records, nodes, seen, &process::exists, now())?)
    }

    /// Takes the leads of these nodes and hears them; `None` if another controller has one.
    pub(super) fn claim(
        &mut self,
        run: &RunId,
        nodes: BTreeSet<NodeName>,
    ) -> Result<Option<ClaimedNodes>, Error> {
        self.leadership.settle_doubtful(&mut self.records)?;
        let epochs = nodes.iter().filter_map(|node| Some(self.members.get(node)?.hello().epoch));
        let heard = epochs.max().unwrap_or(0);
        let wanted = WantedNodes { run: run.clone(), nodes, heard, wall_ns: clock::wall_clock_ns() };
        let mut claim = LeadClaim::new(self.me.clone(), wanted, self.watch.clone());
        let claimed = self.finish_claim(&mut claim);
        if let Ok(Some((_, leads))) = &claimed {
            self.leadership.hold(leads.clone());
        } else {
            let nodes = claim.attempted().clone();
            self.leadership.give_back_later(DoubtfulLeads { run: run.clone(), nodes });
        }
        self.watch = claim.into_watch();
        let claimed = claimed?;
        if let Some((_, leads)) = &claimed {
            let nodes: Vec<NodeName> = leads.iter().map(|lead| lead.node.clone()).collect();
            self.endpoint.listen_to(&nodes)?;
        }
        Ok(claimed)
    }

    fn finish_claim(&mut self, claim: &mut LeadClaim) -> Result<Option<ClaimedNodes>, fabric::Error> {
        let mut failures = 0;
        loop {
            match claim.step(&mut self.records, &process::exists, now()) {
                Ok(ClaimProgress::UnderWay) => {}
                Ok(ClaimProgress::Taken(epoch, leads)) => return Ok(Some((epoch, leads))),
                Ok(ClaimProgress::Blocked(_)) => return Ok(None),
                Err(fabric::Error::Unanswered(_) | fabric::Error::Down(_)) if failures < FAILURES => {
                    failures += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Leads no node any more.
    pub fn give_back(&mut self) {
        self.led = None;
        let leads = self.leadership.give_back(&mut self.records);
        let nodes: Vec<NodeName> = leads.into_iter().map(|lead| lead.node).collect();
        self.endpoint.stop_listening_to(&nodes);
    }

    /// A place for every port. Nodes that are not there have places too, if the user starts without so many.
    fn settle(&self, plan: &Plan, run: &RunId) -> Result<PlaceSettlement, PlanProblems> {
        let settled = places::settle(plan, &self.members, Some(run), now());
        let problems = match settled {
            Err(problems) if self.policies.start != StartPolicy::All => problems,
            settled => return settled,
        };
        let with_absent = places::settle_with_absent(plan, &self.members, Some(run), now());
        let is_enough = |found: &PlaceSettlement| {
            let all = places::nodes(&found.places).len();
            self.policies.start.is_enough(all - found.absent.len(), all)
        };
        with_absent.ok().filter(is_enough).ok_or(problems)
    }

    /// Of what is led now.
    pub(super) fn epoch(&self) -> u64 {
        self.led.as_ref().map_or(0, |led| led.epoch)
    }

    /// Takes a machine to its end.
    pub(super) fn conduct(
        &mut self,
        machine: ControllerMachine,
        has: HasAlready,
        user: RunUser<'_>,
    ) -> Result<(ControllerMachine, packetrig_fleet::report::RunTimes), Error> {
        self.refuse_if_lost()?;
        let attempt = machine.head().attempt;
        let run = machine.head().run.clone();
        if has.reads_results {
            self.collector.read(&run);
        }
        let Self { records, members, collector, leadership, note, .. } = self;
        let mut crew = FleetCrew::new(run, records, note, members, (&*collector, &*leadership));
        crew.write_no_record(has.writes_no_record);
        crew.put_on_hand(attempt, has.on_hand);
        crew.give_out(has.shares);
        let course = crate::control::control(machine, &mut self.endpoint, &mut crew, user)?;
        // The last watermarks: what is stored may be deleted.
        let marks = crew.last_marks();
        for (node, mark) in marks {
            let stored = packetrig_fleet::message::MessageBody::Stored(mark);
            self.endpoint.post(&node, stored).unwrap_or(());
        }
        Ok(course)
    }
}

fn leads_of(held: &HeldNodes) -> BTreeMap<NodeName, NodeLead> {
    held.iter().map(|(node, held)| (node.clone(), held.lead.clone())).collect()
}

fn of_these(held: &HeldNodes, nodes: &BTreeSet<NodeName>) -> HeldNodes {
    let held = held.iter().filter(|(node, _)| nodes.contains(*node));
    held.map(|(node, lead)| (node.clone(), lead.clone())).collect()
}
