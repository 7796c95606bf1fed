use super::*;
use crate::room::ReportSize;
use crate::sample::report;
use crate::{RunDraft, disk};
use packetrig_stats::result::CaptureResult;
use std::os::unix::fs::PermissionsExt as _;

fn store() -> (tempfile::TempDir, RunCatalogue) {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(place.path()).unwrap();
    (place, catalogue)
}

/// A run that has captured something.
fn captured(catalogue: &RunCatalogue) -> (RunDraft, PathBuf) {
    let draft = catalogue.begin_run(RunId("r".into()), ReportSize::default()).unwrap();
    let file = draft.create_capture_directory().unwrap().join("rx.pcapng");
    fs::write(&file, "frames").unwrap();
    (draft, file)
}

#[test]
fn captures_without_report_stay_until_discarded() {
    let (_place, catalogue) = store();
    let (draft, file) = captured(&catalogue);
    let kept = draft.end_without_report().unwrap();
    assert_eq!(kept.captures, [UnlistedCapture { file: file.clone(), bytes: 6 }]);
    let [shown] = &catalogue.list_unlisted_runs().unwrap()[..] else { panic!("one is kept") };
    assert_eq!((&shown.run.0[..], shown.process, shown.has_report), ("r", None, false));
    assert!(shown.begun_wall_ns > 1_700_000_000_000_000_000);
    assert_eq!(fs::read_to_string(&file).unwrap(), "frames");
    assert!(matches!(catalogue.discard_run("x"), Err(Error::Unknown(_))));
    assert_eq!(catalogue.discard_run("r").unwrap().captures, kept.captures);
    assert_eq!((catalogue.list_unlisted_runs().unwrap(), kept.directory.exists()), (vec![], false));
}

#[test]
fn a_panic_removes_no_capture_either() {
    let (_place, catalogue) = store();
    let (draft, file) = captured(&catalogue);
    drop(draft);
    assert!(file.exists());
}

#[test]
fn empty_files_are_no_captures() {
    let (place, catalogue) = store();
    let draft = catalogue.begin_run(RunId("r".into()), ReportSize::default()).unwrap();
    fs::write(draft.create_capture_directory().unwrap().join("rx.pcapng.part"), "").unwrap();
    assert_eq!(draft.end_without_report(), None);
    assert_eq!(fs::read_dir(place.path().join("runs")).unwrap().count(), 0);
}

#[test]
fn active_run_is_listed_and_cannot_be_discarded() {
    let (_place, catalogue) = store();
    let (draft, file) = captured(&catalogue);
    let [shown] = &catalogue.list_unlisted_runs().unwrap()[..] else { panic!("one is under way") };
    assert_eq!(shown.process, Some(process::current_process_id()));
    let error = catalogue.discard_run("r").unwrap_err();
    assert!(matches!(error, Error::UnderWay { .. }) && file.exists(), "{error}");
    let mut report = report("r");
    report.captures[0].file = file.to_string_lossy().into_owned();
    let directory = draft.commit_run(&catalogue, &mut report, "").unwrap();
    assert_eq!(catalogue.list_unlisted_runs().unwrap(), []);
    let names = list_entries(&directory).unwrap().into_iter().map(|entry| entry.file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains(RESERVED_FILE_PREFIX) && name != OWNER_FILE_NAME)
    );
}

#[test]
fn failed_commit_keeps_run_and_names_its_directory() {
    let (_place, catalogue) = store();
    let (draft, file) = captured(&catalogue);
    let mut report = report("r");
    report.captures[0].file = file.to_string_lossy().into_owned();
    catalogue.refuse_writes(true);
    let error = draft.commit_run(&catalogue, &mut report, "").unwrap_err();
    assert!(error.to_string().contains(&file.parent().unwrap().parent().unwrap().display().to_string()));
    assert_eq!(report.captures[0].file, file.to_string_lossy(), "named where it is");
    let [kept] = &catalogue.list_unlisted_runs().unwrap()[..] else { panic!("one is kept") };
    assert!(kept.has_report && kept.captures[0].file == file, "{kept:?}");
    catalogue.refuse_writes(false);
    catalogue.discard_run("r").unwrap();
}

#[test]
fn captures_are_synced_before_their_row() {
    let (_place, catalogue) = store();
    let (draft, file) = captured(&catalogue);
    let elsewhere = tempfile::tempdir().unwrap();
    let named = elsewhere.path().join("named.pcapng");
    fs::write(&named, "frames").unwrap();
    let mut report = report("r");
    report.captures.extend([file.clone(), named.clone()].map(|file| {
        let file = file.to_string_lossy().into_owned();
        CaptureResult { port: 0, file, written: 1, dropped: 0 }
    }));
    // Writing the row fails, so that every sync happened before it.
    catalogue.refuse_writes(true);
    let partial = draft.partial_directory().to_owned();
    disk::tests::synced();
    draft.commit_run(&catalogue, &mut report, "").unwrap_err();
    let synced = disk::tests::synced();
    let runs = partial.parent().unwrap();
    let wanted = [&file, &partial.join(CAPTURES_DIRECTORY), &named, elsewhere.path(), &partial, runs];
    for path in wanted {
        assert!(synced.iter().any(|synced| synced == path), "{} in {synced:?}", path.display());
    }
}

#[test]
fn a_report_that_cannot_be_written_leaves_everything() {
    let (_place, catalogue) = store();
    let (draft, file) = captured(&catalogue);
    // Nothing can be renamed to the name of a directory.
    fs::create_dir(draft.partial_directory().join("streams.csv")).unwrap();
    let error = draft.commit_run(&catalogue, &mut report("r"), "").unwrap_err();
    assert!(matches!(error, Error::NotStored { .. }) && file.exists(), "{error}");
    assert_eq!(catalogue.list_unlisted_runs().unwrap().len(), 1);
    assert!(matches!(catalogue.find_run("r"), Err(Error::Unknown(_))));
}

#[test]
fn crash_before_row_lists_run_as_kept() {
    let (place, catalogue) = store();
    let directory = place.path().join("runs/whole");
    fs::create_dir(&directory).unwrap();
    crate::files::write_run_files(&directory, &report("whole"), "", crate::files::PageChoice::Write).unwrap();
    let [kept] = &catalogue.list_unlisted_runs().unwrap()[..] else { panic!("one is kept") };
    assert!(kept.has_report && kept.directory == directory.canonicalize().unwrap(), "{kept:?}");
}

#[test]
fn everything_in_a_store_is_its_owners_alone() {
    let (place, catalogue) = store();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (draft, _) = captured(&catalogue);
    draft.commit_run(&catalogue, &mut report("r"), "").unwrap();
    let (_kept, _) = captured(&RunCatalogue::open_or_create(&place.path().join("deep/store")).unwrap());
    let mut waiting = vec![place.path().join("runs"), place.path().join("deep")];
    waiting.push(place.path().join("catalogue.sqlite"));
    waiting.push(place.path().join("catalogue.sqlite-wal"));
    while let Some(path) = waiting.pop() {
        let facts = fs::metadata(&path).unwrap();
        if !path.ends_with("rx.pcapng") {
            assert_eq!(facts.permissions().mode() & 0o077, 0, "{}", path.display());
        }
        if facts.is_dir() {
            waiting.extend(list_entries(&path).unwrap().iter().map(fs::DirEntry::path));
        }
    }
    disk::sync_file(&place.path().join("nowhere")).unwrap_err();
}
