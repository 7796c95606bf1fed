//! The disk with the catalogue of runs is full until its run has ended.

use crate::lab::{Fleet, FleetOptions};
use crate::run::Judged;
use packetrig_tests::small_disk::SmallDisk;

/// Room for a catalogue and what a run sets aside in it.
const SIZE: &std::ffi::CStr = c"size=160m";

/// What nodes delete must be in the report.
#[test]
fn results_after_full_store_reach_the_report() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let place = fleet.place().join("store");
    std::fs::create_dir(&place).expect("there is room for a directory");
    let Some(disk) = SmallDisk::mount_over(&place, SIZE) else { return };
    let store = place.display().to_string();
    let mut run = fleet.begin(&["--packets", "8000", "--store", &store]);
    run.await_frames();
    disk.fill();
    let ended = run.finish();
    let first = ended.report();
    first.assert_partial(&["its result did not arrive"]);
    assert_eq!(first.0["coverage"]["reported"], 0, "{}", first.0["coverage"]);
    let collect = ["fleet", "collect", "--store", &store];
    let (code, printed, said) = fleet.ask(&collect);
    assert_ne!(code, Some(0), "nothing can be stored: {printed}{said}");
    assert!(!printed.contains("Nothing was left unfinished"), "{printed}");
    disk.empty();
    let (code, printed, said) = fleet.ask(&collect);
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(printed.contains("covers 6 of 6 nodes"), "{printed}{said}");
    let run = first.0["run"].as_str().expect("a run has a name");
    let (_, shown, _) = fleet.ask(&["report", "show", run, "--store", &store]);
    assert!(shown.contains("6 of 6 nodes") && !shown.contains("did not arrive"), "{shown}");
    fleet.await_collected();
}
