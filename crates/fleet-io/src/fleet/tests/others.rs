//! Controllers beside this one: the dead, and those of which nothing is clear yet.

use super::*;
use crate::fleet::FleetRoster;
use packetrig_fleet::fabric::{RecordStore, StoredRecord};
use packetrig_fleet::term::{ControllerTerm, TermRecord};
use std::collections::BTreeSet;

#[test]
fn term_records_of_dead_controllers_are_removed() {
    let fabric = LocalFabric::default();
    let mut records = fabric.open_records().unwrap();
    let own = charge("own", MemoryShelf::default()).identity;
    let mut write = |name: &str, place: &str, is_over: bool| {
        let me = ControllerIdentity { controller: name.into(), place: place.into(), ..own.clone() };
        let record = TermRecord { is_over, ..ControllerTerm::first_record(me, 0) };
        records.create_record(&TermRecord::record_key(name), &StoredRecord::encode_value(&record)).unwrap();
    };
    let alive = charge("alive", MemoryShelf::default());
    write("alive", &own.place, false);
    // Its process number is that of one that runs.
    write("dead", &own.place, false);
    write("over", ELSEWHERE, true);
    write("unclear", ELSEWHERE, false);
    let charge = ControllerConfig { roster: FleetRoster::default(), ..charge("own", MemoryShelf::default()) };
    let mut fleet = FleetExecutor::become_controller(&fabric, charge).unwrap();
    let all: BTreeSet<String> = ["own", "alive", "dead", "over", "unclear", "never"].map(String::from).into();
    let at_work = fleet.select_running_controllers(&all, &|| false).unwrap();
    assert_eq!(at_work.into_iter().collect::<Vec<_>>(), ["alive", "own", "unclear"]);
    fleet.remove_dead_controllers().unwrap();
    assert_eq!(records.list_keys("term.").unwrap(), ["term.alive", "term.own", "term.unclear"]);
    drop(alive);
}

/// One look at a controller of another host proves nothing.
#[test]
fn remote_controller_is_polled_until_liveness_is_clear() {
    let fabric = LocalFabric::default();
    let mut records = fabric.open_records().unwrap();
    let me = ControllerIdentity {
        controller: "far".into(),
        place: ELSEWHERE.into(),
        ..charge("nobody", MemoryShelf::default()).identity
    };
    let record = StoredRecord::encode_value(&ControllerTerm::first_record(me, 0));
    let mut revision = records.create_record("term.far", &record).unwrap();
    let times = ControllerTermTimes { stale: Nanos::from_millis(600), ..ControllerTermTimes::default() };
    let roster = FleetRoster::default();
    let mut fleet = FleetExecutor::become_controller(
        &fabric,
        ControllerConfig { times, roster, ..charge("own", MemoryShelf::default()) },
    )
    .unwrap();
    let far: BTreeSet<String> = ["far".to_owned()].into();
    let records = std::cell::RefCell::new(records);
    let refreshing = std::cell::Cell::new(true);
    let refresh = || {
        if refreshing.get() {
            revision = records.borrow_mut().replace_record("term.far", revision, &record).unwrap();
        }
    };
    let refresh = std::cell::RefCell::new(refresh);
    let goes_on = || {
        (refresh.borrow_mut())();
        true
    };
    assert_eq!(fleet.select_running_controllers(&far, &goes_on).unwrap(), far);
    refreshing.set(false);
    assert_eq!(fleet.select_running_controllers(&far, &goes_on).unwrap(), [].into());
}
