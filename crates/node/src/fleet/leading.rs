//! Which nodes this controller leads: those of its run, taken together and given back together.
//!
//! Invariant: nothing is said about a run to a node whose lead this controller does not have; while it waits it has none.

use super::crew::FleetCrew;
use super::{Fleet, HasAlready, LOOK, LedRun};
use crate::agent::now;
use crate::control::User;
use crate::error::Error;
use packetrig_fleet::controller::{Controller, Limits, RunRecord, Start};
use packetrig_fleet::fabric::{self, Endpoint as _, Fabric, Records as _};
use packetrig_fleet::lead::{
    ClaimProgress, HeldLead, LeadClaim, NodeLead, TakenLead, WantedNodes, held_leads,
};
use packetrig_fleet::outcome::RunState;
use packetrig_fleet::places::{self, Settlement};
use packetrig_fleet::reign::{ReignRecord, ReignState};
use packetrig_fleet::{NodeName, RunId};
use packetrig_plan::{Plan, PlanProblems};
use packetrig_sys::{clock, process};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Failures of the records in a row until a claim is given up.
const FAILURES: u32 = 3;
/// How often the records of one run are written until somebody else is let do it.
const MERGES: u32 = 16;

/// Nodes that other controllers lead, and who.
pub type HeldNodes = BTreeMap<NodeName, HeldLead>;

/// Hears who has to be waited for, and says whether to go on waiting.
pub type WhileBlocked<'a> = &'a mut dyn FnMut(&HeldNodes) -> bool;

/// What a controller that leads its nodes no more has left on some of those that this one leads now.
#[derive(Clone, Debug)]
pub struct Leftover {
    /// The run. If nobody has to write its end, with a final state.
    pub record: RunRecord,
    /// The nodes.
    pub nodes: BTreeSet<NodeName>,
}

impl Leftover {
    /// Whether its controller did not see its end.
    pub const fn is_unfinished(&self) -> bool {
        self.record.is_unfinished()
    }

    /// Whether this is all of the run: nobody has taken a node of it before. Nodes that it was started without do not count.
    pub fn is_whole(&self) -> bool {
        let is_left_out = |node: &NodeName| self.record.left_out.contains(node);
        self.record.released.iter().all(is_left_out) && self.is_last()
    }

    /// Whether no node of it is left to anybody else.
    pub fn is_last(&self) -> bool {
        self.record.unreleased().is_subset(&self.nodes)
    }
}

/// A run that its controller left, and what of it this one leads now.
#[derive(Clone, Debug)]
pub enum LeftRun {
    /// Its controller is at work.
    UnderWay(HeldNodes),
    /// It may be ended. Other runs have these nodes.
    Led(BTreeSet<NodeName>),
}

type Claimed = Result<(u64, Vec<TakenLead>), HeldNodes>;

impl<F: Fabric> Fleet<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Finds a place for every port of the plan and takes the leads of those nodes. Gives what has to be ended on them first. Where only other
    /// controllers are in the way, `while_blocked` is asked.
    pub fn lead(
        &mut self,
        plan: &Plan,
        run: &RunId,
        while_blocked: WhileBlocked<'_>,
    ) -> Result<Vec<Leftover>, Error> {
        self.give_back();
        loop {
            self.call()?;
            let known: Vec<NodeName> = self.members.iter().map(|(name, _)| name.clone()).collect();
            let held = self.held(&known)?;
            self.members.assign_leads(leads_of(&held));
            let settled = self.settle(plan, run);
            match settled {
                Ok(settlement) => {
                    let mut nodes: BTreeSet<NodeName> =
                        places::nodes(&settlement.places).into_iter().collect();
                    nodes.retain(|node| !settlement.absent.contains_key(node));
                    // Whoever was faster is found by the next look.
                    let Ok((epoch, leads)) = self.claim(run, nodes)? else { continue };
                    let leftovers = self.leftovers(run, &leads)?;
                    self.take_up(leads)?;
                    self.led = Some(LedRun { run: run.clone(), epoch, settlement });
                    return Ok(leftovers);
                }
                Err(problems) => {
                    let Some(blocking) = self.blocking(plan, run, held) else { return Err(problems.into()) };
                    let leads = leads_of(&blocking);
                    if !self.await_change(blocking, while_blocked)? {
                        return Err(Error::NodesTaken(leads));
                    }
                }
            }
        }
    }

    /// Those that are in the way, if the plan could run without other controllers.
    fn blocking(&mut self, plan: &Plan, run: &RunId, mut held: HeldNodes) -> Option<HeldNodes> {
        let leads = leads_of(&held);
        self.members.assign_leads(BTreeMap::new());
        let settled = self.settle(plan, run);
        self.members.assign_leads(leads);
        let wanted: BTreeSet<NodeName> = places::nodes(&settled.ok()?.places).into_iter().collect();
        held.retain(|node, _| wanted.contains(node));
        Some(held)
    }

    /// Waits until one of them is given back or may be taken; `false` if it is not to be waited for.
    fn await_change(&mut self, mut held: HeldNodes, while_blocked: WhileBlocked<'_>) -> Result<bool, Error> {
        loop {
            if !while_blocked(&held) {
                return Ok(false);
            }
            clock::sleep_until_ns((now() + LOOK).as_nanos());
            let nodes: Vec<NodeName> = held.keys().cloned().collect();
            let now_held = self.held(&nodes)?;
            let is_same = |(node, before): (&NodeName, &HeldLead)| {
                now_held.get(node).is_some_and(|lead| lead.revision == before.revision)
            };
            if held.is_empty() || !held.iter().all(is_same) {
                return Ok(true);
            }
            held = now_held;
        }
    }

    /// Of these nodes, those that other controllers lead.
    fn held(&mut self, nodes: &[NodeName]) -> Result<HeldNodes, Error> {
        let seen = (&self.me, &mut self.watch);
        Ok(held_leads(&mut self.records, nodes, seen, &process::exists, now())?)
    }

    /// Whether that controller is at work, as far as is known.
    pub fn is_at_work(&mut self, controller: &str) -> Result<bool, Error> {
        if controller == self.me.controller {
            return Ok(true);
        }
        let found = self.records.get(&ReignRecord::key(controller))?;
        let record = found.and_then(|found| {
            Some((serde_json::from_slice::<ReignRecord>(&found.value).ok()?, found.revision))
        });
        let seen = record.as_ref().map(|(record, revision)| (record, *revision));
        Ok(self.watch.look(controller, seen, &process::exists, now()).holds())
    }

    fn claim(&mut self, run: &RunId, nodes: BTreeSet<NodeName>) -> Result<Claimed, Error> {
        let epochs = nodes.iter().filter_map(|node| Some(self.members.get(node)?.hello().epoch));
        let heard = epochs.max().unwrap_or(0);
        let wanted = WantedNodes { run: run.clone(), nodes, heard, wall_ns: clock::wall_clock_ns() };
        let mut claim = LeadClaim::new(self.me.clone(), wanted, self.watch.clone());
        let mut failures = 0;
        let claimed = loop {
            match claim.step(&mut self.records, &process::exists, now()) {
                Ok(ClaimProgress::UnderWay) => failures = 0,
                Ok(ClaimProgress::Taken(epoch, leads)) => break Ok((epoch, leads)),
                Ok(ClaimProgress::Blocked(held)) => break Err(held),
                Err(fabric::Error::Unanswered(_) | fabric::Error::Down(_)) if failures < FAILURES => {
                    failures += 1;
                }
                Err(error) => return Err(error.into()),
            }
        };
        self.watch = claim.into_watch();
        Ok(claimed)
    }

    /// They are this controller's: it hears them, and gives them back in the end.
    fn take_up(&mut self, leads: Vec<TakenLead>) -> Result<(), Error> {
        let nodes: Vec<NodeName> = leads.iter().map(|lead| lead.node.clone()).collect();
        self.leadership.hold(leads);
        Ok(self.endpoint.listen_to(&nodes)?)
    }

    /// Leads no node any more.
    pub fn give_back(&mut self) {
        self.led = None;
        let leads = self.leadership.take_leads();
        let nodes: Vec<NodeName> = leads.iter().map(|lead| lead.node.clone()).collect();
        self.endpoint.stop_listening_to(&nodes);
        for lead in leads {
            // One that could not be given back may be taken when this controller has ended.
            lead.give_back(&mut self.records).unwrap_or(());
        }
    }

    /// A place for every port. Nodes that are not there have places too, if the user starts without so many.
    fn settle(&self, plan: &Plan, run: &RunId) -> Result<Settlement, PlanProblems> {
        let settled = places::settle(plan, &self.members, Some(run), now());
        let problems = match settled {
            Err(problems) if self.policies.start != Start::All => problems,
            settled => return settled,
        };
        let with_absent = places::settle_with_absent(plan, &self.members, Some(run), now());
        let is_enough = |found: &Settlement| {
            let all = places::nodes(&found.places).len();
            self.policies.start.is_enough(all - found.absent.len(), all)
        };
        with_absent.ok().filter(is_enough).ok_or(problems)
    }

    /// By what the leads said before, and by what the nodes say themselves.
    fn leftovers(&mut self, run: &RunId, leads: &[TakenLead]) -> Result<Vec<Leftover>, Error> {
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
            let found = self.records.get(&RunRecord::key(&other))?;
            let record = found.and_then(|found| serde_json::from_slice::<RunRecord>(&found.value).ok());
            if let Some(record) = record.filter(RunRecord::is_unfinished) {
                leftovers.push(Leftover { record, nodes });
                continue;
            }
            // Its end is written; what a node has not heard of that is told again.
            for node in nodes {
                let Some(head) = busy.get(&node).filter(|head| head.run == other).cloned() else { continue };
                let (state, nodes) = (RunState::Partial, vec![node.clone()]);
                let released = BTreeSet::new();
                let record = RunRecord { head, state, nodes, left_out: Vec::new(), start: None, released };
                leftovers.push(Leftover { record, nodes: BTreeSet::from([node]) });
            }
        }
        Ok(leftovers)
    }

    /// Has the nodes of a leftover stop and let go. They keep what they counted. Says whether that was the last of the run.
    pub fn release(&mut self, leftover: &Leftover, user: User<'_>) -> Result<bool, Error> {
        let Leftover { record, nodes } = leftover;
        let of_these = RunRecord {
            nodes: record.nodes.iter().filter(|node| nodes.contains(*node)).cloned().collect(),
            left_out: record.left_out.iter().filter(|node| nodes.contains(*node)).cloned().collect(),
            ..record.clone()
        };
        let limits = Limits::fleet(self.round_trips.longest(nodes), Nanos::ZERO);
        let machine = Controller::collecting(of_these, self.epoch(), limits).leaving_results();
        // The record of a run whose end is written stays as it is.
        let writes_record = leftover.is_unfinished() && leftover.is_whole();
        let has = HasAlready { writes_no_record: !writes_record, ..HasAlready::default() };
        self.conduct(machine, has, user)?;
        if !leftover.is_unfinished() || leftover.is_whole() {
            return Ok(true);
        }
        self.note_released(leftover)
    }

    /// Adds the nodes to those of which the run was released. Several controllers may do so at once.
    fn note_released(&mut self, leftover: &Leftover) -> Result<bool, Error> {
        let key = RunRecord::key(&leftover.record.head.run);
        for _ in 0..MERGES {
            let Some(found) = self.records.get(&key)? else { return Ok(false) };
            let Ok(mut record) = serde_json::from_slice::<RunRecord>(&found.value) else { return Ok(false) };
            if !record.is_unfinished() {
                return Ok(false);
            }
            record.released.extend(leftover.nodes.iter().cloned());
            let value = serde_json::to_vec(&record).unwrap_or_default();
            match self.records.replace(&key, found.revision, &value) {
                Ok(_) => return Ok(record.unreleased().is_empty()),
                Err(fabric::Error::Stale(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// Writes that a run has ended whose nodes have all let go, and whose results are somewhere else.
    pub fn close_record(&mut self, run: &RunId) -> Result<(), Error> {
        let key = RunRecord::key(run);
        let Some(found) = self.records.get(&key)? else { return Ok(()) };
        let Ok(mut record) = serde_json::from_slice::<RunRecord>(&found.value) else { return Ok(()) };
        record.state = RunState::Partial;
        match self.records.replace(&key, found.revision, &serde_json::to_vec(&record).unwrap_or_default()) {
            Ok(_) | Err(fabric::Error::Stale(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes what it can of a run that was left, to end it. `while_unclear` is asked while its controller may be at work.
    pub fn lead_left(
        &mut self,
        record: &RunRecord,
        while_unclear: WhileBlocked<'_>,
    ) -> Result<Option<LeftRun>, Error> {
        self.give_back();
        let run = &record.head.run;
        let members: Vec<NodeName> = record.unreleased().into_iter().collect();
        loop {
            let held = self.held(&members)?;
            let mut own = held.clone();
            own.retain(|_, held| held.lead.run == *run);
            if own.values().any(|held| held.state == ReignState::Alive) {
                return Ok(Some(LeftRun::UnderWay(own)));
            }
            if !own.is_empty() {
                if !self.await_change(own, &mut |held| {
                    !held.values().any(|held| held.state == ReignState::Alive) && while_unclear(held)
                })? {
                    // Either somebody is at work, or nobody wants to know any more.
                    let again = self.held(&members)?;
                    let alive = again.values().any(|held| held.state == ReignState::Alive);
                    return Ok(alive.then_some(LeftRun::UnderWay(again)));
                }
                continue;
            }
            let nodes: BTreeSet<NodeName> =
                members.iter().filter(|node| !held.contains_key(*node)).cloned().collect();
            let Ok((epoch, leads)) = self.claim(run, nodes.clone())? else { continue };
            self.take_up(leads)?;
            let settlement = Settlement::default();
            self.led = Some(LedRun { run: run.clone(), epoch, settlement });
            let all = record.members().into_iter();
            return Ok(Some(LeftRun::Led(all.filter(|node| !nodes.contains(node)).collect())));
        }
    }

    /// Of what is led now.
    pub(super) fn epoch(&self) -> u64 {
        self.led.as_ref().map_or(0, |led| led.epoch)
    }

    /// Takes a machine to its end.
    pub(super) fn conduct(
        &mut self,
        machine: Controller,
        has: HasAlready,
        user: User<'_>,
    ) -> Result<(Controller, packetrig_fleet::report::RunTimes), Error> {
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
            let stored = packetrig_fleet::message::Body::Stored(mark);
            self.endpoint.post(&node, stored).unwrap_or(());
        }
        Ok(course)
    }
}

fn leads_of(held: &HeldNodes) -> BTreeMap<NodeName, NodeLead> {
    held.iter().map(|(node, held)| (node.clone(), held.lead.clone())).collect()
}
