//! Becomes a controller of a fleet, for `run`, `serve` and `fleet collect`.

use crate::commands::kept::RunEventReporter;
use crate::error::Error;
use crate::fleet_place::FleetPlace;
use crate::identity;
use crate::output::print_warning;
use packetrig_fleet::controller::RunPolicies;
use packetrig_fleet::message::ClockKey;
use packetrig_fleet::term::{ControllerIdentity, ControllerTermTimes};
use packetrig_fleet_io::fleet::{
    ControlledFleet, ControllerConfig, ControllerPresence, FleetExecutor, PresenceDirectory, RunResultStore,
};
use packetrig_fleet_io::served::{FleetRuns, ServedTerms};
use packetrig_nats::NatsFabric;
use packetrig_report::outcome::NodeFault;
use packetrig_store::RunCatalogue;
use packetrig_sys::clock::state;
use packetrig_sys::{kernel, process, sched};
use packetrig_units::Blame;
use std::sync::Arc;

/// Results that this process stores besides the results of its own runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LateResults {
    /// Results of runs whose record is in the catalogue.
    OfKnownRuns,
    /// Results of all runs without a controller.
    OfAllRuns,
}

/// Becomes a controller of the fleet, and stores results in `catalogue`. First requests the priority of senders.
pub(crate) fn become_controller(
    place: &FleetPlace,
    catalogue: RunCatalogue,
    policies: RunPolicies,
    late: LateResults,
) -> Result<ControlledFleet<NatsFabric>, Error> {
    request_sender_priority();
    open_controlled_fleet(place, catalogue, policies, late)
}

/// Gives this thread, and threads that it starts, the scheduling priority of senders. Otherwise the threads that renew
/// the leases of senders on this machine could wait behind the senders for longer than a lease lasts.
pub(crate) fn request_sender_priority() {
    // Without CAP_SYS_NICE this fails, but then senders have no higher priority either.
    drop(sched::raise_thread_priority());
}

fn open_controlled_fleet(
    place: &FleetPlace,
    catalogue: RunCatalogue,
    policies: RunPolicies,
    late: LateResults,
) -> Result<ControlledFleet<NatsFabric>, Error> {
    let store = RunResultStore::new(catalogue);
    // A fleet may be served for months, but the certificate of its controller expires earlier, so it is renewed.
    place.start_certificate_renewal(place.make_controller_fabric()?)?;
    let fleet = open_controller(place, &store, policies, late)?;
    Ok(ControlledFleet { fleet, store, operator: Arc::new(RunEventReporter::on_fleet(place)) })
}

/// Becomes a controller that leads the nodes of a configuration as long as the configuration is set.
pub(crate) fn open_served_runs(
    place: &FleetPlace,
    catalogue: RunCatalogue,
    terms: ServedTerms,
) -> Result<FleetRuns<NatsFabric>, Error> {
    // No priority is requested here: `serve` did so before its threads began, and the threads inherit it.
    let controlled =
        open_controlled_fleet(place, catalogue, RunPolicies::default(), LateResults::OfKnownRuns)?;
    let place = place.clone();
    let store = controlled.store.clone();
    let reopen = move || {
        let opened = open_controller(&place, &store, RunPolicies::default(), LateResults::OfKnownRuns);
        opened.map_err(|error| NodeFault { blame: Blame::World, text: error.full_message() })
    };
    Ok(FleetRuns::new(controlled, Box::new(reopen), terms))
}

fn open_controller(
    place: &FleetPlace,
    store: &RunResultStore,
    policies: RunPolicies,
    late: LateResults,
) -> Result<FleetExecutor<NatsFabric>, Error> {
    let noting = store.clone();
    let mut identity = new_controller_identity();
    let presence = announce_presence(place, &identity.controller);
    if let Some(presence) = &presence {
        presence.place().clone_into(&mut identity.place);
    }
    let config = ControllerConfig {
        identity,
        presence,
        times: ControllerTermTimes::default(),
        clock: state::read_clock_identity()?,
        key: ClockKey(random_key_bytes()),
        store: Box::new(store.clone()),
        note: Box::new(move |record| noting.store_run_state(record).map_err(|error| error.to_string())),
        policies,
        roster: place.read_roster()?,
        reads_all_runs: late == LateResults::OfAllRuns,
    };
    Ok(store.open_fleet(&place.make_controller_fabric()?, config)?)
}

/// Announces this controller to the other controllers of this machine, so that they notice at once when it ends. A
/// failure is only a warning: the others then watch the record of this controller, which takes longer.
fn announce_presence(place: &FleetPlace, controller: &str) -> Option<ControllerPresence> {
    let directory = PresenceDirectory::open_directory(&place.directory().join("controllers"));
    let presence = directory.and_then(|directory| directory.announce_controller(controller));
    if let Err(error) = &presence {
        print_warning(
            "fleet",
            format_args!(
                "cannot announce this command to other controllers: {error}; if this command is killed, controllers on this \
                machine wait up to 15 s for its nodes"
            ),
        );
    }
    presence.ok()
}

fn new_controller_identity() -> ControllerIdentity {
    ControllerIdentity {
        controller: format!("{:016x}", identity::random_number()),
        user: identity::read_user_name(),
        host: kernel::host_name(),
        // The value is set when the presence is announced. It stays empty if that fails.
        place: String::new(),
        pid: process::current_process_id(),
    }
}

fn random_key_bytes() -> [u8; 32] {
    let mut key = [0; 32];
    // 32 bytes are four numbers of 64 bits: the chunks leave no remainder.
    for piece in key.chunks_exact_mut(8) {
        piece.copy_from_slice(&identity::random_number().to_le_bytes());
    }
    key
}
