use super::*;
use packetrig_method::{Load, TrialLength, TrialPurpose, TrialRequest, TrialResult};
use packetrig_sys::process;
use packetrig_units::Nanos;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt as _;

fn store() -> (tempfile::TempDir, RunCatalogue) {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    (place, catalogue)
}

fn begin(catalogue: &RunCatalogue, id: &str, started_wall_ns: u64) -> MethodDraft {
    let head = json!({"method": "bisect", "tx": "eth1"});
    let new = NewMethod { id, started_wall_ns, name: "nightly", method: "bisect", head: &head };
    catalogue.begin_method(&new).unwrap()
}

fn entry(number: u32) -> MethodJournalEntry {
    let length = TrialLength::Time(Nanos::from_secs(1));
    let order = TrialRequest::with_constant_load(TrialPurpose::Search, None, Load::new(1000.5), length);
    MethodJournalEntry { number, started_wall_ns: 7, order, result: TrialResult::default() }
}

const COMPLETE: MethodOutcome<'_> = MethodOutcome {
    state: MethodState::Complete,
    verdict: "PASS",
    files: &[(RESULT_FILE_NAME, "{\"figures\": []}"), (RESULT_TEXT_FILE, "64 B: 1 000 frames/s\n")],
};

#[test]
fn method_is_listed_while_running_and_when_complete() {
    let (place, catalogue) = store();
    let mut draft = begin(&catalogue, "20261126-a", 5);
    draft.append_trial(&entry(1)).unwrap();
    let [listed] = &catalogue.list_methods(10).unwrap()[..] else { panic!("one is listed") };
    assert_eq!(
        (listed.state, listed.trials, &listed.verdict[..]),
        (MethodState::UnderWay, 1, "INCONCLUSIVE")
    );
    draft.append_trial(&entry(2)).unwrap();
    let directory = draft.finish_method(&catalogue, &COMPLETE).unwrap();
    let found = catalogue.find_method("2026").unwrap();
    assert_eq!((found.state, found.trials, &found.verdict[..]), (MethodState::Complete, 2, "PASS"));
    assert_eq!((&found.name[..], &found.method[..], &found.directory), ("nightly", "bisect", &directory));
    assert_eq!(fs::read_to_string(directory.join(RESULT_FILE_NAME)).unwrap(), "{\"figures\": []}");
    assert_eq!(catalogue.list_unfinished_methods().unwrap(), []);
    let mut names: Vec<_> = fs::read_dir(place.path().join("methods/20261126-a"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, [JOURNAL_FILE_NAME, RESULT_FILE_NAME, RESULT_TEXT_FILE], "no lock and no room stays");
}

#[test]
fn a_killed_method_is_resumed_where_it_was() {
    let (_place, catalogue) = store();
    let mut draft = begin(&catalogue, "a", 5);
    draft.append_trial(&entry(1)).unwrap();
    let journal = draft.directory().join(JOURNAL_FILE_NAME);
    drop(draft);
    // The process was killed while it wrote.
    let mut bytes = fs::read(&journal).unwrap();
    bytes.extend_from_slice(b"{\"number\":2,");
    fs::write(&journal, bytes).unwrap();
    let (mut draft, summary) = catalogue.resume_method("last").unwrap();
    assert_eq!((&summary.id[..], draft.trials()), ("a", 1));
    draft.append_trial(&entry(2)).unwrap();
    let journal = draft.read_journal::<Value>().unwrap();
    assert_eq!((journal.head["tx"].as_str(), journal.trials), (Some("eth1"), vec![entry(1), entry(2)]));
    draft.finish_method(&catalogue, &COMPLETE).unwrap();
    assert!(matches!(catalogue.resume_method("a"), Err(Error::MethodComplete(_))));
    assert!(matches!(catalogue.resume_method("last"), Err(Error::NoUnfinishedMethod)));
}

#[test]
fn stopped_method_has_result_and_can_resume() {
    let (_place, catalogue) = store();
    let draft = begin(&catalogue, "a", 5);
    let stopped = MethodOutcome { state: MethodState::Stopped, verdict: "INCONCLUSIVE", ..COMPLETE };
    let directory = draft.finish_method(&catalogue, &stopped).unwrap();
    assert!(directory.join(RESULT_FILE_NAME).exists());
    let (draft, summary) = catalogue.resume_method("a").unwrap();
    assert_eq!(summary.state, MethodState::Stopped);
    assert_eq!(catalogue.find_method("a").unwrap().state, MethodState::UnderWay);
    draft.finish_method(&catalogue, &COMPLETE).unwrap();
}

#[test]
fn two_processes_cannot_resume_one_method_at_once() {
    let (_place, catalogue) = store();
    begin(&catalogue, "a", 5).append_trial(&entry(1)).unwrap();
    let (_draft, _) = catalogue.resume_method("a").unwrap();
    let [unfinished] = &catalogue.list_unfinished_methods().unwrap()[..] else { panic!("one is under way") };
    assert_eq!(unfinished.process, Some(process::current_process_id()));
    for refused in [catalogue.resume_method("a").unwrap_err(), catalogue.discard_method("a").unwrap_err()] {
        assert!(matches!(refused, Error::MethodUnderWay { .. }), "{refused}");
        assert!(refused.to_string().contains(&process::current_process_id().to_string()), "{refused}");
    }
}

#[test]
fn the_last_unfinished_method_is_the_newest() {
    let (_place, catalogue) = store();
    for (id, started) in [("b", 7), ("c", 9), ("a", 5)] {
        drop(begin(&catalogue, id, started));
    }
    assert_eq!(catalogue.resume_method("last").unwrap().1.id, "c");
    let listed = catalogue.list_methods(2).unwrap();
    assert_eq!(listed.iter().map(|method| &method.id[..]).collect::<Vec<_>>(), ["c", "b"]);
}

#[test]
fn method_without_trials_leaves_no_trace() {
    let (place, catalogue) = store();
    assert!(!begin(&catalogue, "a", 5).end_without_result(&catalogue).unwrap());
    assert_eq!(fs::read_dir(place.path().join("methods")).unwrap().count(), 0);
    let mut draft = begin(&catalogue, "b", 5);
    draft.append_trial(&entry(1)).unwrap();
    assert!(draft.end_without_result(&catalogue).unwrap());
    assert_eq!(catalogue.discard_method("b").unwrap().trials, 1);
    assert_eq!(catalogue.list_methods(10).unwrap(), []);
    assert_eq!(fs::read_dir(place.path().join("methods")).unwrap().count(), 0);
}

#[test]
fn method_id_is_unique_and_path_safe() {
    let (place, catalogue) = store();
    let _draft = begin(&catalogue, "same", 5);
    let head = Value::Null;
    let error = |id| {
        let new = NewMethod { id, started_wall_ns: 1, name: "", method: "bisect", head: &head };
        catalogue.begin_method(&new).unwrap_err()
    };
    assert!(matches!(error("same"), Error::Taken(_)));
    for bad in ["", "..", "a/b", "a.b"] {
        assert!(matches!(error(bad), Error::BadId(_)), "{bad}");
    }
    assert_eq!(fs::read_dir(place.path().join("methods")).unwrap().count(), 1);
}

#[test]
fn failed_row_write_leaves_method_resumable() {
    let (place, catalogue) = store();
    let mut draft = begin(&catalogue, "a", 5);
    draft.append_trial(&entry(1)).unwrap();
    catalogue.refuse_writes(true);
    let head = Value::Null;
    let new = NewMethod { id: "b", started_wall_ns: 1, name: "", method: "bisect", head: &head };
    catalogue.begin_method(&new).unwrap_err();
    assert!(!place.path().join("methods/b").exists(), "no directory without a row");
    let error = draft.finish_method(&catalogue, &COMPLETE).unwrap_err();
    assert!(error.to_string().contains("can be resumed"), "{error}");
    catalogue.refuse_writes(false);
    let (draft, summary) = catalogue.resume_method("a").unwrap();
    assert_eq!(summary.trials, 1);
    draft.finish_method(&catalogue, &COMPLETE).unwrap();
}

#[test]
fn files_of_a_result_stay_in_its_directory() {
    let (_place, catalogue) = store();
    for (number, bad) in
        ["../x", "a/b", "", ".hidden", JOURNAL_FILE_NAME, OWNER_FILE_NAME].into_iter().enumerate()
    {
        let draft = begin(&catalogue, &format!("m{number}"), 5);
        let error =
            draft.finish_method(&catalogue, &MethodOutcome { files: &[(bad, "")], ..COMPLETE }).unwrap_err();
        assert!(error.to_string().contains("not a valid name"), "{error}");
    }
}

#[test]
fn method_files_are_private_and_synced() {
    let (place, catalogue) = store();
    disk::tests::synced();
    let mut draft = begin(&catalogue, "a", 5);
    draft.append_trial(&entry(1)).unwrap();
    let directory = draft.finish_method(&catalogue, &COMPLETE).unwrap();
    let synced = disk::tests::synced();
    assert!(synced.contains(&directory) && synced.iter().any(|path| path.ends_with("methods")), "{synced:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&place.path().join("methods")), mode(&directory)), (0o700, 0o700));
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn older_catalogue_gains_the_method_tables() {
    let (place, catalogue) = store();
    drop(catalogue);
    let path = place.path().join("catalogue.sqlite");
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection
        .execute_batch("DROP TABLE methods; DROP TABLE pins; DROP TABLE removals; PRAGMA user_version = 6")
        .unwrap();
    drop(connection);
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    assert_eq!(catalogue.list_methods(10).unwrap(), []);
    drop(begin(&catalogue, "a", 5));
    assert_eq!(catalogue.list_methods(10).unwrap().len(), 1);
}
