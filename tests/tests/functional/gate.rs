//! The gate of the examples for build servers, as such a server runs it.

use packetrig_testkit::Lab;
use packetrig_tests::program::{Finished, Running, binary};
use packetrig_tests::{hosts, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ci").join(name)
}

/// Runs the gate on a lab with these settings; its files are in `place`. On a machine that is too busy INCONCLUSIVE is the right answer:
/// it is run again.
fn run_gate(lab: &Lab, place: &Path, more: &[String], flags: &[&str]) -> Finished {
    const ATTEMPTS: u32 = 5;
    let mut runs = (0..ATTEMPTS).map(|_| run_gate_once(lab, place, more, flags));
    let known = runs.find(|finished| finished.code != Some(7));
    known.expect("a machine that can hold one of five tests")
}

fn run_gate_once(lab: &Lab, place: &Path, more: &[String], flags: &[&str]) -> Finished {
    let setting = |name: &str, value: &str| format!("{name}={value}");
    let path = |name: &str| place.join(name).display().to_string();
    let settings = [
        setting("PACKETRIG", &binary().display().to_string()),
        setting("TX", &lab.location(0)),
        setting("RX", &lab.location(1)),
        setting("BASELINE", &path("baseline.json")),
        setting("OUT", &path("results")),
    ];
    let script = script("gate.sh").display().to_string();
    let mut arguments: Vec<&str> = settings.iter().chain(more).map(String::as_str).collect();
    arguments.extend(["sh", &script]);
    arguments.extend(flags);
    Running::start_program("env", &arguments, "").finish()
}

/// Slows the device down on its way to the receiver.
fn slow_down(lab: &Lab) {
    // A short queue: frames in it are still the sender's, whose ring would fill up.
    let words = "qdisc add dev port1 root tbf rate 500kbit burst 2000 limit 3000";
    hosts::tool(lab.device_netns().unwrap(), "tc", words).unwrap();
}

#[test]
fn gate_passes_good_device_and_fails_slow_one() {
    let Some(lab) = skip::quiet_lab(|| Lab::with_bridge(2)) else { return };
    let place = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read_to_string(place.path().join("results").join(name)).unwrap();

    let usual = ["RATE=2000pps", "TIME=300ms"].map(str::to_owned);
    run_gate(&lab, place.path(), &usual, &[]).assert_refused(2, &["--write-baseline"]);
    // The same in frames instead of a time, within which a busy machine does not send all. It sends them in up to a second more.
    let [tx, rx] = [lab.location(0), lab.location(1)];
    let test = format!(
        "run --tx {tx} --rx {rx} --rate 2000pps --size 512 --packets 6000 --max-late 20s --max-loss 100%"
    );
    let settings = [format!("TEST={test}"), "MAX_WORSE=throughput=30%,loss=0.5".to_owned()];
    let gate = |flags: &[&str]| run_gate(&lab, place.path(), &settings, flags);
    let baseline = gate(&["--write-baseline"]);
    assert_eq!(baseline.code, Some(0), "{}\n{}", baseline.stdout, baseline.stderr);

    let good = gate(&[]);
    assert_eq!(good.code, Some(0), "{}\n{}", good.stdout, good.stderr);
    assert!(read("gate.md").starts_with("## PASS: run "), "{}", read("gate.md"));
    assert!(read("gate.xml").contains("failures=\"0\" errors=\"0\""), "{}", read("gate.xml"));

    slow_down(&lab);
    let slow = gate(&[]);
    assert_eq!(slow.code, Some(1), "{}\n{}", slow.stdout, slow.stderr);
    let markdown = read("gate.md");
    assert!(markdown.starts_with("## FAIL: run ") && markdown.contains("| throughput of "), "{markdown}");
    assert!(
        read("gate.xml").contains("failures=\"3\""),
        "throughput, loss and the whole: {}",
        read("gate.xml")
    );
}

#[test]
fn gate_judges_throughput_from_test_method() {
    let Some(lab) = skip::quiet_lab(|| Lab::with_bridge(2)) else { return };
    let place = tempfile::tempdir().unwrap();
    let [tx, rx] = [lab.location(0), lab.location(1)];
    let test =
        format!("test bisect --tx {tx} --rx {rx} --max-rate 2kpps --size 512 --time 500ms --resolution 2%");
    let settings =
        [format!("TEST={test}"), "RESULT=result.json".to_owned(), "MAX_WORSE=throughput=5%".to_owned()];
    let gate = |flags: &[&str]| run_gate(&lab, place.path(), &settings, flags);
    let baseline = gate(&["--write-baseline"]);
    assert_eq!(baseline.code, Some(0), "{}\n{}", baseline.stdout, baseline.stderr);
    let good = gate(&[]);
    assert_eq!(good.code, Some(0), "{}\n{}", good.stdout, good.stderr);
    slow_down(&lab);
    let slow = gate(&[]);
    assert_eq!(slow.code, Some(1), "{}\n{}", slow.stdout, slow.stderr);
}

/// Runs the gate with a program in place of packetrig that does nothing but end with this exit code.
fn run_gate_that_ends_with(code: i32, place: &Path) -> Finished {
    let program = place.join("packetrig");
    std::fs::write(&program, format!("#!/bin/sh\nexit {code}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let setting = |name: &str, value: &Path| format!("{name}={}", value.display());
    let settings = [
        setting("PACKETRIG", &program),
        setting("OUT", &place.join("results")),
        setting("BASELINE", &place.join("none.json")),
    ];
    let script = script("gate.sh").display().to_string();
    let mut arguments: Vec<&str> = settings.iter().map(String::as_str).collect();
    arguments.extend(["TX=a", "RX=b", "sh", &script]);
    Running::start_program("env", &arguments, "").finish()
}

#[test]
fn the_gate_writes_junit_whatever_the_exit_code() {
    for (code, said) in [(7, "INCONCLUSIVE"), (2, "exit code 2"), (4, "exit code 4"), (130, "exit code 130")]
    {
        let place = tempfile::tempdir().unwrap();
        let finished = run_gate_that_ends_with(code, place.path());
        assert_eq!(finished.code, Some(code), "{finished:?}");
        let read = |name: &str| std::fs::read_to_string(place.path().join("results").join(name)).unwrap();
        let junit = read("gate.xml");
        assert!(junit.contains("failures=\"0\" errors=\"1\"") && junit.contains(said), "{junit}");
        assert!(read("gate.md").contains(said));
    }
}
