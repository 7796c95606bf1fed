//! The ports of a fleet behind the OTG API: each configuration is an ordinary run on the fleet.

use super::charge::{RunEnding, open, patience};
use super::{ChargedFleet, LateResults, take};
use crate::commands::kept::{name_kept, report_size};
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::output::remark;
use packetrig_fleet::RunId;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::outcome::NodeFault;
use packetrig_fleet::report::AcceptanceCriteria;
use packetrig_fleet_io::fleet::{FleetGround, RunShelf};
use packetrig_fleet_io::{RunOptions, RunSession, SharedGround};
use packetrig_nats::NatsFabric;
use packetrig_plan::{Plan, PlanChange, PlanDocument, ReadOptions};
use packetrig_server::{ConsoleRun, EventSink, RunSource, TesterRefusal};
use packetrig_stats::port::BackEnd;
use packetrig_stats::terms::RunTerms;
use packetrig_store::RunCatalogue;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Time for late frames when a configuration is replaced.
const DRAIN: Nanos = Nanos::from_millis(100);

/// A fleet that this process controls while it serves. It leads the nodes of a configuration as long as the configuration is set.
pub(crate) struct FleetRigs {
    fleet: Arc<Mutex<FleetGround<NatsFabric>>>,
    shelf: RunShelf,
    place: FleetPlace,
    back_end: Option<BackEnd>,
    seed: u64,
    wall_minus_monotonic: u64,
}

impl FleetRigs {
    /// Becomes a controller of the fleet; it leads no node yet.
    pub(crate) fn take(
        place: &FleetPlace,
        catalogue: RunCatalogue,
        back_end: Option<BackEnd>,
        seed: u64,
    ) -> Result<Self, Error> {
        let ChargedFleet { fleet, shelf, place } =
            take(place, catalogue, RunPolicies::default(), LateResults::OfKnownRuns)?;
        // Once, at the start: times in answers of the API must not jump when the wall clock is set.
        let wall_minus_monotonic = clock::wall_clock_ns().wrapping_sub(clock::monotonic_ns());
        let fleet = Arc::new(Mutex::new(fleet));
        Ok(Self { fleet, shelf, place, back_end, seed, wall_minus_monotonic })
    }
}

impl FleetRigs {
    fn own_fleet(&self) -> MutexGuard<'_, FleetGround<NatsFabric>> {
        // A poisoned lock is harmless: a session that panicked left the fleet between two runs, or has lost its nodes.
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the nodes of a configuration, and ends what other controllers left on them. Gives the name of this controller.
    fn lead(&self, plan: &Plan, run: &RunId) -> Result<String, TesterRefusal> {
        let mut fleet = self.own_fleet();
        let leftovers = match fleet.lead(plan, run, &mut patience(false)) {
            // This process stood still for so long that another controller has ended its term. It becomes a new controller.
            Err(packetrig_fleet_io::Error::LeadershipLost) => {
                let reopened =
                    open(&self.place, &self.shelf, RunPolicies::default(), LateResults::OfKnownRuns);
                *fleet = reopened.map_err(|error| TesterRefusal::internal(error.chain()))?;
                fleet.lead(plan, run, &mut patience(false))
            }
            led => led,
        };
        let leftovers = leftovers.map_err(refusal)?;
        let mut ending = RunEnding { fleet: &mut fleet, shelf: &self.shelf, place: &self.place };
        let ended = ending.end_leftovers(&leftovers, &mut |_| {});
        if let Err(error) = ended {
            // Nodes that stay led without a run would be refused to everybody else.
            fleet.give_back();
            return Err(TesterRefusal::internal(error.chain()));
        }
        Ok(fleet.controller().to_owned())
    }
}

fn refusal(error: packetrig_fleet_io::Error) -> TesterRefusal {
    match error {
        // Problems that can be found only when the nodes are known.
        packetrig_fleet_io::Error::Plan(problems) | packetrig_fleet_io::Error::NotPlaced(problems) => {
            TesterRefusal::from(problems)
        }
        error => TesterRefusal::from(error.fault()),
    }
}

impl RunSource for FleetRigs {
    fn open(
        &self,
        document: PlanDocument,
        mut sink: EventSink,
    ) -> Result<Box<dyn ConsoleRun>, TesterRefusal> {
        let started = clock::wall_clock_ns();
        let options = RunOptions {
            run: RunId(identity::run_id(started, identity::entropy())),
            name: "serve".to_owned(),
            started_wall_ns: started,
            terms: RunTerms {
                tag_key: identity::entropy(),
                seed: self.seed,
                back_end: self.back_end,
                steered: true,
                ..RunTerms::default()
            },
            confirmed: Vec::new(),
            capture_dir: None,
            drain: DRAIN,
            criteria: AcceptanceCriteria::default(),
        };
        let shelf = self.shelf.clone();
        let controller = self.lead(document.plan(), &options.run)?;
        let begun = super::charge::begin(
            &shelf,
            &controller,
            &options,
            document.text(),
            report_size(document.plan(), None, document.text()),
        );
        if let Err(error) = begun {
            self.own_fleet().give_back();
            return Err(TesterRefusal::internal(error.chain()));
        }
        let ground = SharedGround(Arc::clone(&self.fleet));
        let opened = RunSession::open(ground, document.clone(), options, move |event| sink(event));
        let session = opened.map_err(|error| {
            // A session that failed before its run began has not given its nodes back.
            self.own_fleet().give_back();
            forget(&shelf);
            refusal(error)
        })?;
        Ok(Box::new(ServedRun {
            session,
            shelf,
            place: self.place.clone(),
            document: document.text().to_owned(),
        }))
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn reading(&self) -> ReadOptions {
        ReadOptions { seed: self.seed, fleet: true, ..ReadOptions::default() }
    }

    fn wall_clock(&self, at: MonoTime) -> u64 {
        at.as_nanos().wrapping_add(self.wall_minus_monotonic)
    }
}

fn forget(shelf: &RunShelf) {
    match shelf.give_up() {
        Ok(kept) => name_kept(kept.as_ref()),
        Err(error) => remark(format_args!("cannot delete the files of a run that did not start: {error}")),
    }
}

/// A configuration that runs on the fleet.
struct ServedRun {
    session: RunSession,
    shelf: RunShelf,
    place: FleetPlace,
    document: String,
}

impl ConsoleRun for ServedRun {
    fn steer(&mut self, change: PlanChange<PlanDocument>) -> Result<(), NodeFault> {
        self.session.steer(change)
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(self.session.plan())
    }

    fn close(self: Box<Self>, keep: bool) {
        let Self { session, shelf, place, document } = *self;
        match session.close() {
            Ok(mut report) if keep => {
                if let Err(error) = shelf.commit(&mut report, &document, None) {
                    remark(format_args!("cannot save the result of a run: {error}"));
                }
                place.note_run(&report);
            }
            Ok(_) => forget(&shelf),
            Err(error) => {
                remark(format_args!("a run failed: {error}"));
                forget(&shelf);
            }
        }
    }
}
