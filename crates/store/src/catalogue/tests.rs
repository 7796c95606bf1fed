use super::*;
use crate::room::ReportSize;
use crate::sample::report;
use rusqlite::{Transaction, TransactionBehavior};
use std::sync::Barrier;

fn store() -> (tempfile::TempDir, RunCatalogue) {
    let place = tempfile::tempdir().unwrap();
    let catalogue = RunCatalogue::open_or_create(&place.path().join("new")).unwrap();
    (place, catalogue)
}

fn ids(catalogue: &RunCatalogue) -> Vec<String> {
    catalogue.list_runs(100).unwrap().into_iter().map(|summary| summary.run.0).collect()
}

#[test]
fn stored_run_is_listed_and_loaded_unchanged() {
    let (_place, catalogue) = store();
    let stored = report("20261121-080000-aaaaaa");
    let directory = catalogue.store_finished_run(&stored, "flows: []").unwrap();
    let (summary, shown) = catalogue.load_report("20261121").unwrap();
    assert_eq!(shown, stored);
    assert_eq!((summary.sent, summary.lost, summary.streams), (20, 2, 2));
    assert_eq!((summary.verdict.as_str(), summary.outcome.as_str()), ("FAIL", "complete"));
    assert_eq!(summary.directory, directory);
    assert_eq!(fs::read_to_string(directory.join("plan.yaml")).unwrap(), "flows: []");
}

#[test]
fn the_newest_run_comes_first() {
    let (_place, catalogue) = store();
    for (run, at) in [("a", 5), ("c", 9), ("b", 7)] {
        let mut report = report(run);
        report.started_wall_ns = at;
        catalogue.store_finished_run(&report, "").unwrap();
    }
    assert_eq!(ids(&catalogue), ["c", "b", "a"]);
    assert_eq!(catalogue.list_runs(1).unwrap().len(), 1);
}

#[test]
fn a_prefix_must_fit_one_run() {
    let (_place, catalogue) = store();
    for run in ["run-1", "run-12", "run_3"] {
        catalogue.store_finished_run(&report(run), "").unwrap();
    }
    assert_eq!(catalogue.find_run("run-12").unwrap().run.0, "run-12");
    assert_eq!(
        catalogue.find_run("run-1").unwrap().run.0,
        "run-1",
        "in full, although another begins with it"
    );
    assert!(matches!(catalogue.find_run("run"), Err(Error::Ambiguous { count: 3, .. })));
    assert!(matches!(catalogue.find_run("x"), Err(Error::Unknown(_))));
    assert!(matches!(catalogue.find_run("run%"), Err(Error::Unknown(_))), "no wildcards");
    assert!(matches!(catalogue.find_run("RUN-12"), Err(Error::Unknown(_))));
}

#[test]
fn run_id_is_unique_and_path_safe() {
    let (_place, catalogue) = store();
    catalogue.store_finished_run(&report("same"), "").unwrap();
    assert!(matches!(catalogue.store_finished_run(&report("same"), ""), Err(Error::Taken(_))));
    for bad in ["", "..", "a/b", "a.b", &"x".repeat(101)] {
        assert!(matches!(catalogue.store_finished_run(&report(bad), ""), Err(Error::BadId(_))), "{bad}");
    }
    assert_eq!(ids(&catalogue), ["same"]);
}

#[test]
fn captures_move_with_the_run() {
    let (_place, catalogue) = store();
    let draft = catalogue.begin_run(RunId("r".into()), ReportSize::default()).unwrap();
    let file = draft.create_capture_directory().unwrap().join("rx.pcapng");
    fs::write(&file, "frames").unwrap();
    let mut report = report("r");
    report.captures[0].file = file.to_string_lossy().into_owned();
    let directory = draft.commit_run(&catalogue, &mut report, "").unwrap();
    let stored = report;
    assert_eq!(stored.captures[0].file, directory.join("captures/rx.pcapng").to_string_lossy());
    assert_eq!(fs::read_to_string(&stored.captures[0].file).unwrap(), "frames");
    assert_eq!(catalogue.load_report("r").unwrap().1, stored);
}

#[test]
fn a_run_without_a_report_leaves_nothing() {
    let (place, catalogue) = store();
    let draft = catalogue.begin_run(RunId("r".into()), ReportSize::default()).unwrap();
    draft.create_capture_directory().unwrap();
    assert!(
        matches!(catalogue.begin_run(RunId("r".into()), ReportSize::default()), Err(Error::Taken(_))),
        "under way"
    );
    drop(draft);
    assert_eq!(fs::read_dir(place.path().join("new/runs")).unwrap().count(), 0);
    catalogue.store_finished_run(&report("r"), "").unwrap();
}

#[test]
fn crash_before_row_leaves_unlisted_directory() {
    let (place, catalogue) = store();
    catalogue.store_finished_run(&report("before"), "").unwrap();
    // The process dies while files are written, and just before the row is.
    fs::create_dir(place.path().join("new/runs/half.partial")).unwrap();
    fs::create_dir(place.path().join("new/runs/whole")).unwrap();
    crate::files::write_run_files(
        &place.path().join("new/runs/whole"),
        &report("whole"),
        "",
        crate::files::PageChoice::Write,
    )
    .unwrap();
    drop(catalogue);

    let again = RunCatalogue::open_or_create(&place.path().join("new")).unwrap();
    assert_eq!(ids(&again), ["before"]);
    assert!(matches!(again.find_run("half"), Err(Error::Unknown(_))));
    again.store_finished_run(&report("after"), "").unwrap();
    assert_eq!(ids(&again).len(), 2);
}

#[test]
fn two_writers_take_turns() {
    let (place, catalogue) = store();
    let write = &|who: &str| {
        let catalogue = RunCatalogue::open_or_create(&place.path().join("new")).unwrap();
        for number in 0..20 {
            catalogue.store_finished_run(&report(&format!("{who}-{number}")), "").unwrap();
        }
    };
    thread::scope(|scope| {
        let writers = ["a", "b"].map(|who| scope.spawn(move || write(who)));
        for writer in writers {
            writer.join().unwrap();
        }
    });
    assert_eq!(ids(&catalogue).len(), 40);
}

/// Locks of this process on a file, as the kernel lists them for each descriptor. In `/proc/locks`, which has the locks of all processes,
/// a line may be missing while another process locks or unlocks.
fn locks_on(path: &Path) -> usize {
    use std::os::unix::fs::MetadataExt;
    let file = format!(":{} ", fs::metadata(path).unwrap().ino());
    // A descriptor may be closed after it was listed, for example that of the list.
    let open = fs::read_dir("/proc/self/fdinfo")
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    open.map(|facts| facts.lines().filter(|line| line.starts_with("lock:") && line.contains(&file)).count())
        .sum()
}

/// A server keeps the catalogue open for those who look while its runs open it for themselves.
#[test]
fn second_connection_keeps_locks_of_first() {
    let (_directory, first) = store();
    assert_eq!(ids(&first), Vec::<String>::new());
    let path = first.place.join("catalogue.sqlite");
    let before = locks_on(&path);
    assert!(before > 0);
    drop(RunCatalogue::open_or_create(&first.place).unwrap());
    assert_eq!(locks_on(&path), before);
}

#[test]
fn writer_that_waits_in_vain_names_the_holder() {
    let (_directory, first) = store();
    let second = RunCatalogue::open_or_create(&first.place).unwrap();
    second.connection.busy_timeout(Duration::ZERO).unwrap();
    let held = Transaction::new_unchecked(&first.connection, TransactionBehavior::Immediate).unwrap();
    let refused = second.delete_unfinished_run(&RunId("a".to_owned())).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("process {} has locked it for too long", std::process::id())),
        "{refused}"
    );
    drop(held);
    second.delete_unfinished_run(&RunId("a".to_owned())).unwrap();
}

#[test]
fn many_open_a_new_catalogue_at_once() {
    // Many rounds: each new catalogue is made once, and only then can two meet.
    for _ in 0..30 {
        let place = tempfile::tempdir().unwrap();
        let together = Barrier::new(4);
        let open = || {
            together.wait();
            RunCatalogue::open_or_create(place.path()).map(drop)
        };
        thread::scope(|scope| {
            let openers: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            for opener in openers {
                opener.join().unwrap().unwrap();
            }
        });
    }
}

#[test]
fn newer_schema_version_is_refused() {
    let (place, catalogue) = store();
    let mut newer = report("r");
    newer.schema_version = SCHEMA_VERSION + 1;
    catalogue.store_finished_run(&newer, "").unwrap();
    assert!(matches!(catalogue.load_report("r"), Err(Error::TooNew { .. })));
    catalogue.connection.pragma_update(None, "user_version", 99).unwrap();
    drop(catalogue);
    let error = RunCatalogue::open_or_create(&place.path().join("new")).unwrap_err();
    assert!(matches!(error, Error::TooNew { found: 99, .. }), "{error}");
}

#[test]
fn damaged_report_error_names_the_file() {
    let (_place, catalogue) = store();
    let directory = catalogue.store_finished_run(&report("r"), "").unwrap();
    fs::write(directory.join(REPORT_FILE_NAME), "{").unwrap();
    let error = catalogue.load_report("r").unwrap_err();
    assert!(error.to_string().contains("report.json"), "{error}");
    fs::write(directory.join(REPORT_FILE_NAME), "{\"schema_version\": 1}").unwrap();
    assert!(matches!(catalogue.load_report("r"), Err(Error::Damaged { .. })));
}

#[test]
fn a_place_that_cannot_be_made_is_named() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let error = RunCatalogue::open_or_create(&file).unwrap_err();
    assert!(matches!(error, Error::File { .. }) && error.to_string().contains("file"), "{error}");
}

#[test]
fn wal_retries_wait_without_sqlite_busy_timeout() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("catalogue.sqlite");
    let holder = Connection::open(&path).unwrap();
    holder.execute_batch("BEGIN EXCLUSIVE; CREATE TABLE held (one)").unwrap();
    let connection = Connection::open(&path).unwrap();
    let waits_ms = || connection.query_row("PRAGMA busy_timeout", [], |row| row.get::<_, i64>(0)).unwrap();
    let timeout = 2 * ATTEMPT_PAUSE;
    assert!(is_busy_error(&enable_write_ahead_log(&connection, timeout).unwrap_err()));
    assert_eq!(waits_ms(), 0, "an attempt waits within itself, beside the wait between attempts");
    holder.execute_batch("COMMIT").unwrap();
    enable_write_ahead_log(&connection, timeout).unwrap();
    assert_eq!(waits_ms(), 10);
}

#[test]
fn attempts_end_at_timeout() {
    let busy = || rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None);
    let mut attempts = 0;
    let outcome: rusqlite::Result<()> = retry_while_busy(3 * ATTEMPT_PAUSE, || {
        attempts += 1;
        Err(busy())
    });
    assert!(is_busy_error(&outcome.unwrap_err()));
    assert_eq!(attempts, 4);
}
