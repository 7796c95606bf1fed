use super::*;
use crate::catalogue::MethodState;
use crate::sample::report;
use crate::{MethodOutcome, NewMethod};
use packetrig_report::RunId;
use serde_json::Value;

fn store() -> (tempfile::TempDir, RunCatalogue) {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    (place, catalogue)
}

fn record(catalogue: &RunCatalogue, id: &str, name: &str, started_wall_ns: u64) {
    let mut report = report(id);
    report.name = name.into();
    report.started_wall_ns = started_wall_ns;
    catalogue.store_finished_run(&report, "flows: []").unwrap();
}

fn method(catalogue: &RunCatalogue, id: &str, name: &str, started_wall_ns: u64, state: MethodState) {
    let new = NewMethod { id, started_wall_ns, name, method: "bisect", head: &Value::Null };
    let draft = catalogue.begin_method(&new).unwrap();
    let files = [("result.json", "{\"options\": {}, \"figures\": []}")];
    draft.finish_method(catalogue, &MethodOutcome { state, verdict: "PASS", files: &files }).unwrap();
}

fn removed(outcome: &PruneOutcome) -> Vec<&str> {
    outcome.removed.iter().map(|pruned| pruned.id.as_str()).collect()
}

fn keep(keep: usize) -> PruneCriteria {
    PruneCriteria { keep: Some(keep), ..PruneCriteria::default() }
}

fn all() -> PruneCriteria {
    keep(0)
}

#[test]
fn the_newest_of_each_name_and_kind_stay() {
    let (place, catalogue) = store();
    for (id, name, started) in [("a1", "a", 1), ("a2", "a", 2), ("a3", "a", 3), ("b1", "b", 1)] {
        record(&catalogue, id, name, started);
    }
    method(&catalogue, "m1", "a", 4, MethodState::Complete);
    let planned = catalogue.plan_prune(&keep(1)).unwrap();
    assert_eq!(removed(&planned), ["a1", "a2"]);
    assert!(planned.removed.iter().all(|pruned| pruned.bytes > 1000), "{planned:?}");
    assert!(place.path().join("runs/a1/report.json").exists(), "a plan removes nothing");
    assert_eq!(catalogue.prune_results(&keep(1)).unwrap(), planned);
    assert!(!place.path().join("runs/a1").exists() && place.path().join("runs/a3").exists());
    let left: Vec<_> =
        catalogue.list_all_stored_results().unwrap().iter().map(|stored| stored.id().to_owned()).collect();
    assert_eq!(left, ["m1", "a3", "b1"]);
    assert_eq!(catalogue.list_unlisted_runs().unwrap(), []);
}

#[test]
fn all_criteria_that_are_given_must_match() {
    let (_place, catalogue) = store();
    for (id, name, started) in [("a1", "a", 1), ("a2", "a", 2), ("b1", "b", 1), ("b2", "b", 9)] {
        record(&catalogue, id, name, started);
    }
    let criteria = PruneCriteria { keep: Some(1), before_wall_ns: Some(5), name: Some("b".into()) };
    assert_eq!(removed(&catalogue.plan_prune(&criteria).unwrap()), ["b1"]);
    let criteria = PruneCriteria { before_wall_ns: Some(2), ..PruneCriteria::default() };
    assert_eq!(removed(&catalogue.plan_prune(&criteria).unwrap()), ["a1", "b1"]);
}

#[test]
fn pinned_and_incomplete_results_and_late_ones_stay() {
    let (place, catalogue) = store();
    for (id, started) in [("pinned", 1), ("open", 2), ("plain", 3), ("locked", 4)] {
        record(&catalogue, id, "", started);
    }
    assert!(catalogue.pin_result("pinned", 7).unwrap() && !catalogue.pin_result("pinned", 8).unwrap());
    fs::write(place.path().join("runs/open").join(OPEN_RUN_FILE), "results may come").unwrap();
    let _owner =
        crate::kept::DirectoryOwnership::try_take_ownership(&place.path().join("runs/locked")).unwrap();
    method(&catalogue, "stopped", "", 5, MethodState::Stopped);
    method(&catalogue, "complete", "", 5, MethodState::Complete);
    let draft = catalogue.begin_run(RunId("running".into()), crate::ReportSize::default()).unwrap();
    fs::create_dir_all(place.path().join("stray/x")).unwrap();
    let outcome = catalogue.prune_results(&all()).unwrap();
    assert_eq!(removed(&outcome), ["plain", "complete"]);
    assert_eq!(outcome.pinned, ["pinned"]);
    assert_eq!(outcome.incomplete, ["locked", "open"]);
    for stays in
        ["runs/pinned", "runs/open", "runs/locked", "runs/running.partial", "methods/stopped", "stray/x"]
    {
        assert!(place.path().join(stays).exists(), "{stays}");
    }
    drop(draft);
    assert!(catalogue.unpin_result("pinned").unwrap() && !catalogue.unpin_result("pinned").unwrap());
    assert_eq!(removed(&catalogue.prune_results(&all()).unwrap()), ["pinned"]);
}

#[test]
fn interrupted_prune_is_finished_by_the_next() {
    let (place, catalogue) = store();
    record(&catalogue, "a", "", 1);
    method(&catalogue, "m", "", 2, MethodState::Complete);
    for pruned in catalogue.plan_prune(&all()).unwrap().removed {
        assert!(catalogue.replace_row_by_removal_note(&pruned).unwrap());
    }
    // The process died here. Nothing is listed, and the files are still there.
    drop(catalogue);
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    assert_eq!(
        (catalogue.list_all_stored_results().unwrap(), catalogue.list_unlisted_runs().unwrap()),
        (vec![], vec![])
    );
    assert!(matches!(catalogue.load_report("a"), Err(Error::Unknown(_))));
    assert!(place.path().join("runs/a/report.json").exists());
    assert_eq!(catalogue.plan_prune(&keep(9)).unwrap().finished, 2);
    assert_eq!(catalogue.prune_results(&keep(9)).unwrap().finished, 2);
    assert!(!place.path().join("runs/a").exists() && !place.path().join("methods/m").exists());
    assert_eq!(catalogue.plan_prune(&keep(9)).unwrap().finished, 0);
}

#[test]
fn a_crash_amid_the_files_is_finished_too() {
    let (place, catalogue) = store();
    record(&catalogue, "a", "", 1);
    let pruned = catalogue.plan_prune(&all()).unwrap().removed.remove(0);
    catalogue.replace_row_by_removal_note(&pruned).unwrap();
    fs::remove_file(place.path().join("runs/a/report.json")).unwrap();
    catalogue.prune_results(&keep(9)).unwrap();
    assert!(!place.path().join("runs/a").exists());
}

#[test]
fn failed_row_removal_keeps_files() {
    let (place, catalogue) = store();
    record(&catalogue, "a", "", 1);
    catalogue.refuse_writes(true);
    catalogue.prune_results(&all()).unwrap_err();
    assert!(place.path().join("runs/a/report.json").exists());
    catalogue.refuse_writes(false);
    assert_eq!(catalogue.load_report("a").unwrap().1.run.0, "a");
}

#[test]
fn pin_during_prune_prevents_removal() {
    let (place, catalogue) = store();
    record(&catalogue, "a", "", 1);
    let pruned = catalogue.plan_prune(&all()).unwrap().removed.remove(0);
    catalogue.pin_result("a", 7).unwrap();
    assert!(!catalogue.replace_row_by_removal_note(&pruned).unwrap());
    assert!(catalogue.list_pending_removals().unwrap().is_empty() && place.path().join("runs/a").exists());
}

#[test]
fn a_note_that_leads_elsewhere_removes_nothing() {
    let (place, catalogue) = store();
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    for noted in ["runs/../outside", "outside", "../outside", "elsewhere/outside", "runs/"] {
        catalogue.connection.execute("INSERT INTO removals (directory) VALUES (?1)", params![noted]).unwrap();
    }
    catalogue.prune_results(&keep(1)).unwrap();
    assert!(outside.exists() && place.path().join("runs").exists());
    assert_eq!(catalogue.list_pending_removals().unwrap(), [""; 0]);
}

#[test]
fn an_id_finds_a_run_or_a_method() {
    let (_place, catalogue) = store();
    record(&catalogue, "x-run", "n", 1);
    method(&catalogue, "x-method", "n", 2, MethodState::Complete);
    assert_eq!(catalogue.find_stored_result("x-r").unwrap().kind(), "run");
    let found = catalogue.find_stored_result("x-m").unwrap();
    assert_eq!((found.kind(), found.name(), found.verdict()), ("bisect", "n", "PASS"));
    assert!(matches!(catalogue.find_stored_result("x"), Err(Error::Ambiguous { count: 2, .. })));
    assert_eq!(catalogue.find_newest_stored_result().unwrap().unwrap().id(), "x-method");
}
