//! Taking charge of a fleet, for `run`, `serve` and `fleet collect`; ends first what an earlier controller left.

use crate::commands::kept::name_kept;
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::output::remark;
use packetrig_fleet::controller::{Policies, RunRecord};
use packetrig_fleet::message::ClockKey;
use packetrig_fleet::reign::{Identity, ReignTerms};
use packetrig_fleet::report::RunReport;
use packetrig_nats::NatsFabric;
use packetrig_node::fleet::{Charge, Fleet, RunShelf};
use packetrig_node::{RunOptions, User};
use packetrig_plan::{Plan, ReadOptions};
use packetrig_store::{Catalogue, ReportSize, Unfinished};
use packetrig_sys::clock::{self, state};
use packetrig_sys::{kernel, process, signal};
use packetrig_units::Nanos;
use serde::{Deserialize, Serialize};

/// Longest time between two looks at what the user wants.
const TURN: Nanos = Nanos::from_millis(20);

/// A fleet in charge of this process, and where its results go.
#[derive(Debug)]
pub(crate) struct Charged {
    pub(crate) fleet: Fleet<NatsFabric>,
    pub(crate) shelf: RunShelf,
    pub(crate) place: FleetPlace,
}

/// What has to be known of a run to end it in another process: kept with the run from its beginning.
#[derive(Debug, Serialize, Deserialize)]
struct Begun {
    record: Option<RunRecord>,
    options: RunOptions,
}

/// Takes charge, waiting for a controller that may be dead as long as it takes. `catalogue` is a connection of its own.
pub(crate) fn take(place: &FleetPlace, catalogue: Catalogue, policies: Policies) -> Result<Charged, Error> {
    let shelf = RunShelf::new(catalogue);
    let noting = shelf.clone();
    let charge = Charge {
        identity: own_identity()?,
        terms: ReignTerms::default(),
        clock: state::identity()?,
        key: ClockKey(key()),
        shelf: Box::new(shelf.clone()),
        note: Box::new(move |record| noting.note(record).map_err(|error| error.to_string())),
        policies,
        roster: place.roster()?,
    };
    let mut said = false;
    let mut wait = |holder: Option<&Identity>| {
        if !std::mem::replace(&mut said, true) {
            remark(match holder {
                Some(holder) => format!(
                    "waiting for the fleet: it is in charge of process {} on {}",
                    holder.pid, holder.host
                ),
                None => "waiting: nodes may know of an earlier controller".to_owned(),
            });
        }
        signal::received().is_none()
    };
    let fabric = place.fabric()?;
    place.keep_certificate_valid(fabric.clone())?;
    let mut fleet = Fleet::take(&fabric, charge, &mut wait)?;
    fleet.confirm_stored(&|node, run, attempt| shelf.stored_below(node, run, attempt));
    Ok(Charged { fleet, shelf, place: place.clone() })
}

fn own_identity() -> Result<Identity, Error> {
    Ok(Identity {
        controller: format!("{:016x}", identity::entropy()),
        host: kernel::host_name(),
        boot_id: state::boot_id()?,
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

/// Begins a run that a later controller can find.
pub(super) fn begin(
    shelf: &RunShelf,
    options: &RunOptions,
    document: &str,
    size: ReportSize,
) -> Result<(), Error> {
    let begun = Begun { record: None, options: options.clone() };
    let unfinished = Unfinished {
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

impl Charged {
    /// See [`begin`].
    pub(crate) fn begin(&self, options: &RunOptions, document: &str, size: ReportSize) -> Result<(), Error> {
        begin(&self.shelf, options, document, size)
    }

    /// Ends every run that an earlier controller of this catalogue left; gives their reports.
    pub(crate) fn end_what_was_left(
        &mut self,
        on_event: &mut dyn FnMut(&packetrig_fleet::event::RunEvent),
    ) -> Result<Vec<RunReport>, Error> {
        let mut reports = Vec::new();
        for left in self.shelf.unfinished()? {
            remark(format_args!("run {} was left unfinished by its controller: ending it", left.run));
            match self.end_one(&left, on_event) {
                Ok(report) => reports.extend(report),
                Err(error) => remark(format_args!("run {}: {}", left.run, error.chain())),
            }
        }
        self.release_what_others_left(on_event)?;
        Ok(reports)
    }

    /// Runs that another catalogue has, whose controller is gone: this one has the lock. Their nodes are needed.
    fn release_what_others_left(
        &mut self,
        on_event: &mut dyn FnMut(&packetrig_fleet::event::RunEvent),
    ) -> Result<(), Error> {
        for record in self.fleet.unfinished()? {
            remark(format_args!(
                "run {} was left unfinished by a controller with other results: its nodes are released",
                record.head.run
            ));
            let user = User { wishes: &mut || None, turn: TURN, on_event };
            self.fleet.release(record, user)?;
        }
        Ok(())
    }

    fn end_one(
        &mut self,
        left: &Unfinished,
        on_event: &mut dyn FnMut(&packetrig_fleet::event::RunEvent),
    ) -> Result<Option<RunReport>, Error> {
        let unfinished = self.shelf.resume(&left.run)?;
        let damaged =
            |error: serde_json::Error| Error::Usage(format!("run {} is damaged: {error}", left.run));
        let Begun { record, options } = serde_json::from_str(&unfinished.record).map_err(damaged)?;
        let found = self.fleet.unfinished()?.into_iter().find(|record| record.head.run == left.run);
        let Some(record) = found.or(record) else {
            // Nothing was said to any node.
            name_kept(self.shelf.give_up()?.as_ref());
            return Ok(None);
        };
        let mut wishes = || None;
        let user = User { wishes: &mut wishes, turn: TURN, on_event };
        let on_hand = self.shelf.on_hand(&record);
        let ended = self.fleet.inherit(record, &unfinished.plan, &options, (on_hand, user))?;
        let open = ended.open_run();
        let plan = Plan::read_with(
            &unfinished.plan,
            ReadOptions { seed: options.seed, fleet: true, ..ReadOptions::default() },
        )
        .map_err(packetrig_node::Error::from)?;
        let Ok(mut report) = ended.report(&plan) else {
            name_kept(self.shelf.give_up()?.as_ref());
            return Ok(None);
        };
        self.shelf.commit(&mut report, &unfinished.plan, open.as_ref())?;
        self.place.note_run(&report);
        Ok(Some(report))
    }
}
