//! Interrupted, killed and resumed; forms of the result; the trial plan.

use crate::lab::{limited, limited_alone, result, start};
use packetrig_tests::program::Running;
use rustix::process::Signal;

const BISECT: [&str; 8] = ["--size", "128", "--max-rate", "20kpps", "--time", "300ms", "--resolution", "2%"];

#[test]
fn killed_test_resumes_to_the_same_result() {
    let Some(lab) = limited_alone(10_000, 128) else { return };
    let store = tempfile::tempdir().unwrap();
    let store = store.path().display().to_string();
    let [tx, rx] = [0, 1].map(|port| lab.ports()[port].location());
    let begin = ["test", "bisect", "--tx", &tx, "--rx", &rx];
    let mut killed = Running::start(&[&begin[..], &BISECT, &["--store", &store]].concat(), "");
    killed.await_remark("trial 3:");
    killed.signal(Signal::KILL);
    drop(killed.finish());
    let listed = Running::start(&["report", "unfinished", "--store", &store], "").finish();
    assert!(listed.stdout.contains("packetrig test resume"), "{listed:?}");
    let resumed = Running::start(&["test", "resume", "--store", &store, "--out", "{out}"], "").finish();
    // It goes on where it was: no trial is made twice.
    assert!(!resumed.stderr.contains("trial 1:") && !resumed.stderr.contains("trial 2:"), "{resumed:?}");
    let found = result(&resumed)["result"].take();
    if found["limited_by"] == "rig" {
        // A busy rig may not have held a trial: then the result is only "at least".
        assert_eq!(resumed.code, Some(7), "{resumed:?}");
        return;
    }
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let lower = found["lower_bound_frames_per_second"].as_f64().unwrap();
    assert!((9_600.0..=10_900.0).contains(&lower), "{lower}\n{resumed:?}");
}

#[test]
fn interrupted_test_can_be_resumed() {
    let Some(lab) = limited(10_000, 128) else { return };
    let mut running = start(&lab, "bisect", &BISECT);
    running.await_remark("trial 2:");
    running.signal(Signal::INT);
    let stopped = running.finish();
    assert_eq!(stopped.code, Some(130), "{stopped:?}");
    assert!(stopped.stderr.contains("packetrig test resume"), "{stopped:?}");
}

#[test]
fn every_form_of_a_result_is_written() {
    let Some(lab) = limited(1_000, 128) else { return };
    let coarse = ["--size", "128", "--max-rate", "3kpps", "--time", "300ms", "--resolution", "20%"];
    let finished = start(&lab, "bisect", &[&coarse[..], &["--name", "nightly"]].concat()).finish();
    // A busy machine may not hold its trials: the forms are the same.
    assert!(matches!(finished.code, Some(0 | 7)), "{finished:?}");
    let file = |name: &str| std::fs::read_to_string(finished.out().join(name)).unwrap_or_default();
    assert!(file("junit.xml").starts_with("<?xml"), "{finished:?}");
    assert!(file("result.md").contains("| ") && file("result.csv").contains(','), "{finished:?}");
    assert_eq!(result(&finished)["name"], "nightly");
    assert_eq!(result(&finished)["schema_version"], 1);
}

#[test]
fn dry_run_estimates_time_without_sending() {
    let planned = Running::start(
        &[
            "test",
            "rfc2544",
            "--tx",
            "nowhere/eth0",
            "--rx",
            "nowhere/eth1",
            "--link",
            "1Gbit/s",
            "--dry-run",
        ],
        "",
    );
    let planned = planned.finish();
    assert_eq!(planned.code, Some(0), "{planned:?}");
    assert!(planned.stdout.contains(" h ") && planned.stdout.contains("search"), "{planned:?}");
}

#[test]
fn ctrl_c_after_the_event_undoes_it() {
    let Some(lab) = limited(10_000, 128) else { return };
    let place = tempfile::tempdir().unwrap();
    let [caused, undone] = ["caused", "undone"].map(|name| place.path().join(name));
    let touch = |path: &std::path::Path| format!("touch {}", path.display());
    let (event, undo) = (touch(&caused), touch(&undone));
    let mut running = start(
        &lab,
        "convergence",
        &[
            "--size",
            "128",
            "--rate",
            "1kpps",
            "--time",
            "60s",
            "--event-at",
            "100ms",
            "--event",
            &event,
            "--undo",
            &undo,
        ],
    );
    while !caused.exists() {
        assert!(!running.has_ended());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    running.signal(Signal::INT);
    let stopped = running.finish();
    assert_eq!(stopped.code, Some(130), "{stopped:?}");
    assert!(undone.exists(), "{stopped:?}");
}
