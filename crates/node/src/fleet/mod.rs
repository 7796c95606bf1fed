//! A fleet, and this process in charge of it: runs on many nodes, through the same controller machine as on one.
//!
//! Taking a fleet means taking its lock; from then on this process answers leases, compares clocks, collects results and
//! gives out runs, until the [`Fleet`] is dropped.
//!
//! Invariant: nothing is said to a node in the name of an epoch that another controller has taken over.

mod collector;
mod crew;
mod fetch;
mod findings;
mod roll_call;
mod roster;
mod shares;
mod shelf;
#[cfg(test)]
mod tests;
mod throne;

pub use collector::{Shelf, ShelfError, Shelved};
pub use fetch::{FetchError, FetchProgress, FetchUser, fetch_capture};
pub use roster::{KnownNodes, Roster};
pub use shelf::RunShelf;

use crate::agent::now;
use crate::clock::Responder;
use crate::control::{User, control};
use crate::error::Error;
use crate::local::{Ended, Ground, RunOptions, facts, preparation};
use collector::{Collector, Told};
use crew::FleetCrew;
use packetrig_fleet::controller::{Controller, Limits, Policies, RunRecord, Start};
use packetrig_fleet::fabric::{self, Endpoint as _, Fabric, Records as _};
use packetrig_fleet::members::{MemberRow, Members};
use packetrig_fleet::message::{Body, ClockKey, Head, Preparation, Watermark};
use packetrig_fleet::places::{self, Settlement};
use packetrig_fleet::reign::{Identity, LOCK, Lock, ReignTerms};
use packetrig_fleet::report::{RunFacts, RunTimes};
use packetrig_fleet::{NodeName, PlanHash, RunId};
use packetrig_plan::{Plan, ReadOptions};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use roll_call::RoundTrips;
use shares::NodeShares;
use std::collections::BTreeSet;
use throne::Throne;

/// How long a higher epoch may take to be written.
const RAISING: Nanos = Nanos::from_secs(10);
/// How often a place that somebody else has is looked at.
const LOOK: Nanos = Nanos::from_millis(100);

/// Counts that a controller is told in a second, by all nodes together.
const COUNTS_PER_SECOND: u64 = 5000;

/// What a controller is told about itself.
pub struct Charge {
    /// Who it is.
    pub identity: Identity,
    /// Times of the lock.
    pub terms: ReignTerms,
    /// Names this machine's clock, as nodes name theirs.
    pub clock: String,
    /// Seals the probes of clocks.
    pub key: ClockKey,
    /// Where results are stored.
    pub shelf: Box<dyn Shelf>,
    /// Told how far a run is, before what that says is sent.
    pub note: Note,
    /// With how many nodes a run starts and goes on.
    pub policies: Policies,
    /// Who belongs to the fleet.
    pub roster: Roster,
}

/// Keeps the record of a run at home, too.
pub type Note = Box<dyn FnMut(&RunRecord) -> Result<(), String> + Send>;

impl std::fmt::Debug for Charge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Charge").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// See the module.
pub struct Fleet<F: Fabric> {
    endpoint: F::Endpoint,
    records: F::Records,
    members: Members,
    // In this order: nobody is answered any more when the lock is given back.
    responder: Responder,
    collector: Collector,
    throne: Throne,
    note: Note,
    policies: Policies,
    roster: Roster,
    round_trips: RoundTrips,
}

impl<F: Fabric> std::fmt::Debug for Fleet<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").field("members", &self.members).finish_non_exhaustive()
    }
}

impl<F: Fabric> Fleet<F>
where
    F::Records: 'static,
    F::Incoming: 'static,
{
    /// Takes charge. `told` hears who has to be waited for, and says whether to wait.
    pub fn take(
        fabric: &F,
        charge: Charge,
        told: &mut dyn FnMut(Option<&Identity>) -> bool,
    ) -> Result<Self, Error> {
        let mut endpoint = take_place(fabric, told)?;
        let mut members = Members::default();
        let (mut roster, mut round_trips) = (charge.roster, RoundTrips::default());
        round_trips.call(&mut endpoint, &mut members, &roster.enrolled)?;
        roster.note(&members);
        roster.recall(&mut members);
        let epoch = members.highest_epoch();
        let throne = Throne::take(fabric.records()?, charge.identity, charge.terms, epoch, told)?;
        Ok(Self {
            endpoint,
            records: fabric.records()?,
            members,
            responder: Responder::start(charge.key, charge.clock)?,
            collector: Collector::start(fabric.incoming()?, charge.shelf)?,
            throne,
            note: charge.note,
            policies: charge.policies,
            roster,
            round_trips,
        })
    }

    /// Who is there, as of now.
    pub fn members(&mut self) -> Result<Vec<MemberRow>, Error> {
        self.call()?;
        Ok(self.members.rows(now()))
    }

    /// Ports of the fleet with a label, those of nodes included that are not there now.
    pub fn labelled_ports(&self, label: &str) -> usize {
        places::labelled(label, &self.members)
    }

    /// Nodes that were let in and of which nothing is known: no controller has heard them.
    pub fn never_heard(&self) -> Vec<NodeName> {
        let of_whom_nothing = |node: &&NodeName| self.members.get(node).is_none();
        self.roster.enrolled.iter().filter(of_whom_nothing).cloned().collect()
    }

    /// Runs that an earlier controller began and did not end.
    pub fn unfinished(&mut self) -> Result<Vec<RunRecord>, Error> {
        let mut left = Vec::new();
        for key in self.records.keys("run.")? {
            let Some(found) = self.records.get(&key)? else { continue };
            let record = serde_json::from_slice::<RunRecord>(&found.value);
            left.extend(record.ok().filter(RunRecord::is_unfinished));
        }
        Ok(left)
    }

    /// Ends a run that an earlier controller left: stops what is still going on and collects what there is.
    pub fn inherit(
        &mut self,
        record: RunRecord,
        document: &str,
        options: &RunOptions,
        (on_hand, user): (Vec<(NodeName, Shelved)>, User<'_>),
    ) -> Result<Ended, Error> {
        self.call()?;
        let facts = facts(document, options, record.members());
        let limits = Limits::fleet(self.round_trips.longest(&record.nodes), options.drain);
        let machine = Controller::collecting(record, self.throne.epoch(), limits);
        let (controller, times) = self.conduct(machine, HasAlready { on_hand, shares: None }, user)?;
        Ok(Ended { controller, times, failure: None, facts })
    }

    /// Ends a run of which nothing is known here but its record: nodes stop and let go, and keep what they counted.
    pub fn release(&mut self, record: RunRecord, user: User<'_>) -> Result<(), Error> {
        self.call()?;
        let limits = Limits::fleet(self.round_trips.longest(&record.nodes), Nanos::ZERO);
        let machine = Controller::collecting(record, self.throne.epoch(), limits).leaving_results();
        self.conduct(machine, HasAlready::default(), user).map(drop)
    }

    /// Tells nodes what of the results that they keep is stored: whoever stored it may have ended before it could say so.
    /// `below` is up to where a node's part in an attempt of a run is.
    pub fn confirm_stored(&mut self, below: &dyn Fn(&NodeName, &RunId, u32) -> u64) {
        for (node, run, attempt, _) in self.members.uncollected() {
            let mark = Watermark { run: run.clone(), attempt, below: below(node, run, attempt) };
            if mark.below > 0 {
                // It is said again when the fleet is taken the next time.
                self.endpoint.post(node, Body::Stored(mark)).unwrap_or(());
            }
        }
    }

    /// Takes in what nodes still have of runs that have ended, until they have nothing, nothing comes for `patience`, or
    /// `goes_on` says no. Gives what is left: node, run, segments.
    pub fn gather(
        &mut self,
        patience: Nanos,
        goes_on: &dyn Fn() -> bool,
        told: &mut dyn FnMut(String),
    ) -> Result<Vec<(NodeName, RunId, u64)>, Error> {
        let mut until = now() + patience;
        loop {
            while let Some(news) = self.collector.news() {
                // What could not be stored comes again.
                let Told::Arrival(arrival) = news else { continue };
                if let Some(completed) = arrival.shelved.completed.clone() {
                    told(completed);
                }
                self.endpoint.post(&arrival.node, Body::Stored(arrival.mark)).unwrap_or(());
                until = now() + patience;
            }
            self.call()?;
            let left = self.members.uncollected();
            let left: Vec<_> = left.map(|(node, run, _, count)| (node.clone(), run.clone(), count)).collect();
            if left.is_empty() || now() >= until || !goes_on() {
                return Ok(left);
            }
        }
    }

    /// A place for every port. Nodes that are not there have places too, if the user starts without so many.
    fn settle(&self, plan: &Plan, run: &RunId) -> Result<Settlement, Error> {
        let settled = places::settle(plan, &self.members, Some(run), now());
        let problems = match settled {
            Err(problems) if self.policies.start != Start::All => problems,
            settled => return Ok(settled?),
        };
        let with_absent = places::settle_with_absent(plan, &self.members, Some(run), now());
        let is_enough = |found: &Settlement| {
            let all = places::nodes(&found.places).len();
            self.policies.start.is_enough(all - found.absent.len(), all)
        };
        with_absent.ok().filter(is_enough).ok_or_else(|| problems.into())
    }

    fn call(&mut self) -> Result<(), Error> {
        // Who was let in and is not there was waited for when the fleet was taken.
        self.round_trips.call(&mut self.endpoint, &mut self.members, &BTreeSet::new())?;
        self.roster.note(&self.members);
        self.throne.outrank(self.members.highest_epoch(), RAISING)
    }

    fn conduct(
        &mut self,
        machine: Controller,
        has: HasAlready,
        user: User<'_>,
    ) -> Result<(Controller, RunTimes), Error> {
        let attempt = machine.head().attempt;
        let run = machine.head().run.clone();
        let Self { records, members, collector, throne, note, .. } = self;
        let mut crew = FleetCrew::new(run, records, note, members, (&*collector, &*throne));
        crew.put_on_hand(attempt, has.on_hand);
        crew.give_out(has.shares);
        let course = control(machine, &mut self.endpoint, &mut crew, user)?;
        // The last watermarks: what is stored may be deleted.
        let marks = crew.last_marks();
        for (node, mark) in marks {
            self.endpoint.post(&node, Body::Stored(mark)).unwrap_or(());
        }
        Ok(course)
    }
}

impl<F: Fabric> Ground for Fleet<F>
where
    F: Send,
    F::Endpoint: Send,
    F::Records: 'static,
    F::Incoming: 'static,
{
    fn reading(&self, seed: u64) -> ReadOptions {
        ReadOptions { seed, fleet: true, ..ReadOptions::default() }
    }

    fn execute(
        &mut self,
        document: &str,
        plan: &Plan,
        options: RunOptions,
        user: User<'_>,
    ) -> Result<Ended, Error> {
        self.call()?;
        let Settlement { places, absent } = self.settle(plan, &options.run)?;
        let nodes = places::nodes(&places);
        let facts = RunFacts { places: places.clone(), ..facts(document, &options, nodes.clone()) };
        let limits = Limits::fleet(self.round_trips.longest(&nodes), options.drain);
        let head = Head {
            run: options.run.clone(),
            attempt: 1,
            epoch: self.throne.epoch(),
            plan: PlanHash::of(document),
        };
        let clock = Some(self.responder.server().clone());
        // What is added to a plan while it runs refers to all of it.
        let shares = (!options.steered).then(|| NodeShares::of(document, plan, &places));
        let say_every = say_every(nodes.len(), options.drain);
        let mut preparation = Preparation { places, say_every, clock, ..preparation(document, options) };
        if shares.as_ref().is_some_and(NodeShares::has_parts) {
            preparation.document = String::new();
            preparation.places = Vec::new();
        }
        let machine =
            Controller::new(head, preparation, &nodes, limits).with_policies(self.policies).without(absent);
        let (controller, times) = self.conduct(machine, HasAlready { shares, on_hand: Vec::new() }, user)?;
        Ok(Ended { controller, times, failure: None, facts })
    }
}

/// How often each of so many nodes says what it counts. In all they say no more than one processor takes in beside the leases;
/// twice within the drain time it has to be, because frames that still arrive prolong it.
fn say_every(nodes: usize, drain: Nanos) -> Nanos {
    let wanted = Nanos::new((nodes as u64).saturating_mul(1_000_000_000 / COUNTS_PER_SECOND));
    wanted.min(Nanos::new(drain.as_u64() / 2))
}

/// What a run has when it begins, or is taken up.
#[derive(Debug, Default)]
struct HasAlready {
    /// Results that are stored.
    on_hand: Vec<(NodeName, Shelved)>,
    shares: Option<NodeShares>,
}

/// The controller's place in the fabric, once whoever has it has left it.
fn take_place<F: Fabric>(
    fabric: &F,
    told: &mut dyn FnMut(Option<&Identity>) -> bool,
) -> Result<F::Endpoint, Error> {
    loop {
        match fabric.join(NodeName::controller()) {
            Err(fabric::Error::Taken(_)) => {
                let found = fabric.records()?.get(LOCK)?;
                let lock = found.and_then(|found| serde_json::from_slice::<Lock>(&found.value).ok());
                let holder = lock.filter(|lock| !lock.is_free).map(|lock| lock.holder);
                if !told(holder.as_ref()) {
                    return Err(Error::Taken(holder.map(|holder| holder.host)));
                }
                clock::sleep_until_ns((now() + LOOK).as_nanos());
            }
            joined => return Ok(joined?),
        }
    }
}
