//! Controllers beside this one: those of an earlier version, the dead, and those of which nothing is clear yet.

use super::leading::{NOBODY, start_nodes};
use super::*;
use crate::fleet::FleetRoster;
use packetrig_fleet::fabric::{RecordStore, StoredRecord};
use packetrig_fleet::term::{ControllerTerm, OLD_LOCK, OldLock, TermRecord};
use std::collections::BTreeSet;

#[test]
fn a_fleet_that_an_earlier_version_leads_is_refused_as_long_as_that_is_at_work() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _nodes = start_nodes(&fabric, place.path(), false);
    let mut records = fabric.records().unwrap();
    let holder = charge("old", MemoryShelf::default()).identity;
    let lock = OldLock { holder, epoch: 3, since_wall_ns: 0, is_free: false };
    let mut revision = records.create(OLD_LOCK, &StoredRecord::written(&lock)).unwrap();
    let open = || FleetGround::open(&fabric, charge("new", MemoryShelf::default()));
    let Err(Error::OldController(found)) = open() else { panic!("it is at work") };
    assert_eq!((found.pid, found.host.as_str()), (lock.holder.pid, "here"));
    assert_eq!(fabric.records().unwrap().keys("term.").unwrap(), [""; 0], "it has not become one");
    let dead = Identity { pid: NOBODY, ..lock.holder.clone() };
    let elsewhere = Identity { boot_id: "another host".into(), ..lock.holder.clone() };
    for (holder, is_free) in [(dead, false), (lock.holder.clone(), true), (elsewhere, false)] {
        let lock = OldLock { holder, is_free, ..lock.clone() };
        revision = records.replace(OLD_LOCK, revision, &StoredRecord::written(&lock)).unwrap();
        let times = TermTimes { stale: Nanos::from_millis(500), ..TermTimes::default() };
        drop(
            FleetGround::open(&fabric, ControllerCharge { times, ..charge("new", MemoryShelf::default()) })
                .unwrap(),
        );
    }
    assert_eq!(records.get(OLD_LOCK).unwrap().unwrap().revision, revision, "it is not this one's to change");
}

#[test]
fn records_of_dead_controllers_are_removed_and_those_of_living_ones_are_not() {
    let fabric = LocalFabric::default();
    let mut records = fabric.records().unwrap();
    let own = charge("own", MemoryShelf::default()).identity;
    let mut write = |name: &str, pid: u32, boot_id: &str, is_over: bool| {
        let me = Identity { controller: name.into(), pid, boot_id: boot_id.into(), ..own.clone() };
        let record = TermRecord { is_over, ..ControllerTerm::record(me, 0) };
        records.create(&TermRecord::key(name), &StoredRecord::written(&record)).unwrap();
    };
    write("alive", own.pid, "boot", false);
    write("dead", NOBODY, "boot", false);
    write("over", NOBODY, "another host", true);
    write("unclear", NOBODY, "another host", false);
    let charge = ControllerCharge { roster: FleetRoster::default(), ..charge("own", MemoryShelf::default()) };
    let mut fleet = FleetGround::open(&fabric, charge).unwrap();
    let all: BTreeSet<String> = ["own", "alive", "dead", "over", "unclear", "never"].map(String::from).into();
    let at_work = fleet.at_work(&all, &|| false).unwrap();
    assert_eq!(at_work.into_iter().collect::<Vec<_>>(), ["alive", "own", "unclear"]);
    fleet.remove_dead_controllers().unwrap();
    assert_eq!(records.keys("term.").unwrap(), ["term.alive", "term.own", "term.unclear"]);
}

/// One look at a controller of another host tells nothing.
#[test]
fn a_controller_of_another_host_is_looked_at_until_it_is_clear_whether_it_is_at_work() {
    let fabric = LocalFabric::default();
    let mut records = fabric.records().unwrap();
    let me = Identity {
        controller: "far".into(),
        boot_id: "another host".into(),
        ..charge("", MemoryShelf::default()).identity
    };
    let record = StoredRecord::written(&ControllerTerm::record(me, 0));
    let mut revision = records.create("term.far", &record).unwrap();
    let times = TermTimes { stale: Nanos::from_millis(600), ..TermTimes::default() };
    let roster = FleetRoster::default();
    let mut fleet = FleetGround::open(
        &fabric,
        ControllerCharge { times, roster, ..charge("own", MemoryShelf::default()) },
    )
    .unwrap();
    let far: BTreeSet<String> = ["far".to_owned()].into();
    let records = std::cell::RefCell::new(records);
    let refreshing = std::cell::Cell::new(true);
    let refresh = || {
        if refreshing.get() {
            revision = records.borrow_mut().replace("term.far", revision, &record).unwrap();
        }
    };
    let refresh = std::cell::RefCell::new(refresh);
    let goes_on = || {
        (refresh.borrow_mut())();
        true
    };
    assert_eq!(fleet.at_work(&far, &goes_on).unwrap(), far);
    refreshing.set(false);
    assert_eq!(fleet.at_work(&far, &goes_on).unwrap(), [].into());
}
