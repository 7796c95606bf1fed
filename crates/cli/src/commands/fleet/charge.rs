//! A controller of a fleet, for `run`, `serve` and `fleet collect`. It first ends what earlier controllers left on the nodes that
//! it needs (docs/decisions/0020-runs-side-by-side.md).

use crate::commands::is_interrupted;
use crate::commands::kept::name_kept;
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::output::remark;
use packetrig_fleet::controller::{RunPolicies, RunRecord};
use packetrig_fleet::event::RunEvent;
use packetrig_fleet::message::ClockKey;
use packetrig_fleet::report::RunReport;
use packetrig_fleet::term::{Identity, TermState, TermTimes};
use packetrig_fleet::{NodeName, RunId};
use packetrig_fleet_io::fleet::{
    ControllerCharge, FleetGround, HeldNodes, LeftRun, Leftover, RunShelf, WaitChoice,
};
use packetrig_fleet_io::{RunOptions, RunUser};
use packetrig_nats::NatsFabric;
use packetrig_plan::{Plan, ReadOptions};
use packetrig_store::{ReportSize, RunCatalogue, UnfinishedRun};
use packetrig_sys::clock::{self, state};
use packetrig_sys::{kernel, process};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Longest time between two looks at signals while a run is being ended.
const TURN: Nanos = Nanos::from_millis(20);

/// A fleet that this process controls, and where its results go.
#[derive(Debug)]
pub(crate) struct ChargedFleet {
    pub(crate) fleet: FleetGround<NatsFabric>,
    pub(crate) shelf: RunShelf,
    pub(crate) place: FleetPlace,
}

/// What another process needs to end this run. It is stored with the run from its beginning.
#[derive(Debug, Serialize, Deserialize)]
struct BegunRun {
    record: Option<RunRecord>,
    options: RunOptions,
    /// The controller of the run: as long as it is at work, no other one ends the run.
    #[serde(default)]
    controller: Option<String>,
}

/// Which results are stored besides those of this process's own runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateResults {
    /// Those of runs that the catalogue knows.
    OfKnownRuns,
    /// Those of all runs without a controller.
    OfAllRuns,
}

/// Becomes a controller of the fleet. `catalogue` is a connection of its own.
pub(crate) fn take(
    place: &FleetPlace,
    catalogue: RunCatalogue,
    policies: RunPolicies,
    late: LateResults,
) -> Result<ChargedFleet, Error> {
    let shelf = RunShelf::new(catalogue);
    // A fleet that is served for months outlives the certificate of its controller.
    place.keep_certificate_valid(place.fabric()?)?;
    let fleet = open(place, &shelf, policies, late)?;
    Ok(ChargedFleet { fleet, shelf, place: place.clone() })
}

/// The same, in place of an earlier controller of this process that has lost its term.
pub(super) fn open(
    place: &FleetPlace,
    shelf: &RunShelf,
    policies: RunPolicies,
    late: LateResults,
) -> Result<FleetGround<NatsFabric>, Error> {
    let noting = shelf.clone();
    let charge = ControllerCharge {
        identity: own_identity()?,
        times: TermTimes::default(),
        clock: state::identity()?,
        key: ClockKey(key()),
        shelf: Box::new(shelf.clone()),
        note: Box::new(move |record| noting.note(record).map_err(|error| error.to_string())),
        policies,
        roster: place.roster()?,
        reads_all_runs: late == LateResults::OfAllRuns,
    };
    let mut fleet = FleetGround::open(&place.fabric()?, charge)?;
    // An earlier controller may have died between storing a result and confirming it: its node would keep the result for ever.
    fleet.confirm_stored(&|node, run, attempt| shelf.stored_below(node, run, attempt));
    Ok(fleet)
}

fn own_identity() -> Result<Identity, Error> {
    Ok(Identity {
        controller: format!("{:016x}", identity::entropy()),
        // Boot and process number tell a controller on the same host at once that this process is dead. Controllers elsewhere
        // have to watch its record until it has been stale for long enough.
        user: identity::user_name(),
        host: kernel::host_name(),
        boot_id: process::numbering()?,
        pid: process::own(),
    })
}

fn key() -> [u8; 32] {
    let mut key = [0; 32];
    for piece in key.chunks_exact_mut(8) {
        piece.copy_from_slice(&identity::entropy().to_le_bytes());
    }
    key
}

/// Begins a run of this controller that a later one can find.
pub(super) fn begin(
    shelf: &RunShelf,
    controller: &str,
    options: &RunOptions,
    document: &str,
    size: ReportSize,
) -> Result<(), Error> {
    let begun = BegunRun { record: None, options: options.clone(), controller: Some(controller.to_owned()) };
    let unfinished = UnfinishedRun {
        run: options.run.clone(),
        attempt: 1,
        epoch: 0,
        record: serde_json::to_string(&begun).unwrap_or_default(),
        plan: document.to_owned(),
        directory: std::path::PathBuf::new(),
        begun_at: clock::wall_clock_ns(),
    };
    Ok(shelf.begin(&unfinished, size)?)
}

/// Decides whether to wait for nodes that others hold: until a signal comes, but for a controller at work only if the user wants
/// to wait. The first call names those nodes.
pub(crate) fn patience(waits: bool) -> impl FnMut(&HeldNodes) -> WaitChoice {
    let mut is_reported = false;
    move |held| {
        // If no living controller is among them, it always waits: in a few seconds it is clear whether the others are dead.
        let is_at_work = held.values().any(|held| held.state == TermState::Alive);
        if is_at_work && !waits {
            return WaitChoice::GoWithout;
        }
        if !std::mem::replace(&mut is_reported, true) {
            for (node, held) in held {
                remark(format_args!("waiting: node {node} {}", held.lead));
            }
        }
        if is_interrupted() { WaitChoice::GiveUp } else { WaitChoice::Wait }
    }
}

type OnEvent<'a> = &'a mut dyn FnMut(&RunEvent);

impl ChargedFleet {
    /// See [`begin`].
    pub(crate) fn begin(&self, options: &RunOptions, document: &str, size: ReportSize) -> Result<(), Error> {
        begin(&self.shelf, self.fleet.controller(), options, document, size)
    }

    /// Takes the nodes of a run, and ends what earlier controllers left on them; gives the reports of those runs.
    pub(crate) fn lead(
        &mut self,
        plan: &Plan,
        run: &RunId,
        waits: bool,
        on_event: OnEvent<'_>,
    ) -> Result<Vec<RunReport>, Error> {
        let leftovers = self.fleet.lead(plan, run, &mut patience(waits))?;
        let reports = RunEnding::of(self).end_leftovers(&leftovers, on_event)?;
        self.name_what_is_left()?;
        Ok(reports)
    }

    /// Names the other unfinished runs: nothing ends them until their nodes are needed or the user asks for it.
    fn name_what_is_left(&mut self) -> Result<(), Error> {
        let unfinished = self.shelf.unfinished()?;
        // One look is enough here: it is only a remark, and a longer one would delay the run.
        let at_work = self.at_work(&unfinished, &|| false)?;
        for left in unfinished.iter().filter(|left| !at_work.contains(&left.run)) {
            remark(format_args!(
                "run {} was left unfinished by its controller; `packetrig fleet collect` ends it",
                left.run
            ));
        }
        Ok(())
    }

    /// Those of these runs without a report whose controller may still write it. See [`FleetGround::at_work`].
    fn at_work(
        &mut self,
        unfinished: &[UnfinishedRun],
        goes_on: &dyn Fn() -> bool,
    ) -> Result<BTreeSet<RunId>, Error> {
        let controllers = unfinished.iter().filter_map(controller_of).collect();
        let at_work = self.fleet.at_work(&controllers, goes_on)?;
        let theirs =
            unfinished.iter().filter(|left| controller_of(left).is_some_and(|name| at_work.contains(&name)));
        Ok(theirs.map(|left| left.run.clone()).collect())
    }

    /// Ends every run whose controller is dead; gives the reports of those in this catalogue.
    pub(crate) fn end_what_was_left(&mut self, on_event: OnEvent<'_>) -> Result<Vec<RunReport>, Error> {
        let mut reports = Vec::new();
        let unfinished = self.shelf.unfinished()?;
        let at_work = self.at_work(&unfinished, &|| !is_interrupted())?;
        for left in &unfinished {
            if at_work.contains(&left.run) {
                remark(format_args!("run {} is still in progress", left.run));
                continue;
            }
            match self.end_left(left, on_event) {
                Ok(report) => reports.extend(report),
                Err(error) => remark(format_args!("run {}: {}", left.run, error.chain())),
            }
        }
        for record in self.fleet.unfinished()? {
            // Only runs of other catalogues: those of this one keep their record until their report is written.
            if !unfinished.iter().any(|left| left.run == record.head.run) {
                self.release_left(&record, on_event)?;
            }
        }
        Ok(reports)
    }

    fn end_left(&mut self, left: &UnfinishedRun, on_event: OnEvent<'_>) -> Result<Option<RunReport>, Error> {
        // The record on the fleet is newer than the copy in the catalogue; without either, no node was ever told of the run.
        let found = self.fleet.unfinished_record(&left.run)?;
        let record = found.or(begun_of(left)?.record);
        let Some(record) = record else { return RunEnding::of(self).forget(left).map(|()| None) };
        let elsewhere = match self.fleet.lead_left(&record, &mut patience(true))? {
            Some(LeftRun::Led(elsewhere)) => elsewhere,
            Some(LeftRun::UnderWay(_)) | None => {
                remark(format_args!("run {} is still in progress", left.run));
                return Ok(None);
            }
        };
        remark(format_args!("run {} was left unfinished by its controller: ending it", left.run));
        let ended = RunEnding::of(self).end_one(left, record, elsewhere, on_event);
        self.fleet.give_back();
        ended
    }

    /// Ends a run of another catalogue on its nodes. Its results stay on them, for the controller with that catalogue.
    fn release_left(&mut self, record: &RunRecord, on_event: OnEvent<'_>) -> Result<(), Error> {
        let run = &record.head.run;
        let Some(LeftRun::Led(elsewhere)) = self.fleet.lead_left(record, &mut patience(true))? else {
            return Ok(());
        };
        remark(format_args!(
            "run {run} was left unfinished by a controller with another catalogue: its nodes are released"
        ));
        // Nodes that other controllers lead by now were released by those.
        let mut nodes: BTreeSet<_> = record.members().into_iter().collect();
        nodes.retain(|node| !elsewhere.contains(node));
        let leftover = Leftover { record: record.clone(), nodes };
        let user = RunUser { wishes: &mut || None, turn: TURN, on_event };
        // Given back also if that failed: otherwise these nodes stay led by a controller that does nothing with them.
        let is_last = self.fleet.release(&leftover, user);
        self.fleet.give_back();
        if is_last? {
            self.fleet.close_record(run)?;
        }
        Ok(())
    }
}

fn begun_of(left: &UnfinishedRun) -> Result<BegunRun, Error> {
    serde_json::from_str(&left.record).map_err(|error| {
        Error::Usage(format!("the record of unfinished run {} is damaged: {error}", left.run))
    })
}

/// `None` also if the record is damaged or too old to name its controller: nothing can be at work for such a run.
fn controller_of(left: &UnfinishedRun) -> Option<String> {
    begun_of(left).ok()?.controller
}

/// Ends runs that other controllers left, on the nodes that are led now.
pub(super) struct RunEnding<'a> {
    pub(super) fleet: &'a mut FleetGround<NatsFabric>,
    pub(super) shelf: &'a RunShelf,
    pub(super) place: &'a FleetPlace,
}

impl<'a> RunEnding<'a> {
    const fn of(charged: &'a mut ChargedFleet) -> Self {
        Self { fleet: &mut charged.fleet, shelf: &charged.shelf, place: &charged.place }
    }

    /// Drops a run that no node was told of.
    fn forget(&self, left: &UnfinishedRun) -> Result<(), Error> {
        self.shelf.resume(&left.run)?;
        name_kept(self.shelf.give_up()?.as_ref());
        Ok(())
    }

    /// Makes the nodes stop and release their runs. A run is ended by the controller that takes the last of its nodes.
    pub(super) fn end_leftovers(
        &mut self,
        leftovers: &[Leftover],
        on_event: OnEvent<'_>,
    ) -> Result<Vec<RunReport>, Error> {
        let mut reports = Vec::new();
        for leftover in leftovers {
            let run = &leftover.record.head.run;
            let left = self.shelf.unfinished()?.into_iter().find(|left| left.run == *run);
            // Of another catalogue, or with its end written already: then only its nodes are to be released.
            let left = left.filter(|_| leftover.is_unfinished());
            if leftover.is_unfinished() {
                remark(format_args!("run {run} was left unfinished by its controller: ending it"));
            }
            if let Some(left) = left.as_ref().filter(|_| leftover.is_whole()) {
                reports.extend(self.end_one(left, leftover.record.clone(), BTreeSet::new(), on_event)?);
                continue;
            }
            let user = RunUser { wishes: &mut || None, turn: TURN, on_event };
            let is_last = self.fleet.release(leftover, user)?;
            if !is_last || !leftover.is_unfinished() || leftover.is_whole() {
                continue;
            }
            match &left {
                // Earlier controllers released the other nodes. What those counted comes from their spools without being asked for.
                Some(left) => {
                    let elsewhere = leftover.record.members().into_iter().collect();
                    reports.extend(self.end_one(left, leftover.record.clone(), elsewhere, on_event)?);
                }
                None => self.fleet.close_record(run)?,
            }
        }
        Ok(reports)
    }

    /// Ends a run on the nodes that are led, and writes its report. Nodes `elsewhere` get no message.
    fn end_one(
        &mut self,
        left: &UnfinishedRun,
        record: RunRecord,
        elsewhere: BTreeSet<NodeName>,
        on_event: OnEvent<'_>,
    ) -> Result<Option<RunReport>, Error> {
        let unfinished = self.shelf.resume(&left.run)?;
        let BegunRun { options, .. } = begun_of(&unfinished)?;
        let user = RunUser { wishes: &mut || None, turn: TURN, on_event };
        // Segments that an earlier controller stored are not asked for again.
        let on_hand = self.shelf.on_hand(&record);
        let ended = self.fleet.inherit((record, elsewhere), &unfinished.plan, &options, (on_hand, user))?;
        let open = ended.open_run();
        let plan = Plan::read_with(
            &unfinished.plan,
            ReadOptions { seed: options.terms.seed, fleet: true, ..ReadOptions::default() },
        )
        .map_err(packetrig_fleet_io::Error::from)?;
        // An error means that nothing ran, so there is nothing to report.
        let Ok(mut report) = ended.report(&plan) else {
            name_kept(self.shelf.give_up()?.as_ref());
            return Ok(None);
        };
        self.shelf.commit(&mut report, &unfinished.plan, open.as_ref())?;
        self.place.note_run(&report);
        Ok(Some(report))
    }
}
