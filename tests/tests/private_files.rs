//! What a command leaves behind is its user's alone, even where the umask would let everybody read and write.

use packetrig_testkit::Lab;
use packetrig_tests::private_files::open_to_others;
use packetrig_tests::program::{Finished, Running, binary};
use packetrig_tests::recording::{mixture, write};
use packetrig_tests::skip;
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Starts a command with a umask that takes nothing away.
fn start(place: &Path, arguments: &str) -> Running {
    let arguments = arguments.replace("{place}", &place.display().to_string());
    let script = format!("umask 0; exec {} {arguments}", binary().display());
    Running::start_program("sh", &["-c", &script], "")
}

fn done(place: &Path, arguments: &str) -> Finished {
    let finished = start(place, arguments).finish();
    assert!(finished.code.is_some_and(|code| code != 2), "{arguments}: {}", finished.stderr);
    finished
}

/// Asserts that there is something in `place/NAME`, and that it is nobody else's business.
fn assert_private(place: &Path, names: &[&str]) {
    for name in names {
        assert!(place.join(name).exists(), "{name} was not made");
    }
    assert_eq!(open_to_others(place), Vec::<std::path::PathBuf>::new());
}

#[test]
fn runs_and_captures() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (from, to) = (lab.location(0), lab.location(1));
    let run = format!("run --tx {from} --rx {to} --packets 200 --capture --quiet --max-late 20s");
    done(place, &format!("{run} --store {{place}}/deep/store"));
    done(place, &format!("{run} --store {{place}}/deep/store --out {{place}}/out"));
    // A file that is there already and open to all is not written into as it is.
    std::fs::write(place.join("a.pcapng"), "old").unwrap();
    std::fs::set_permissions(place.join("a.pcapng"), std::fs::Permissions::from_mode(0o666)).unwrap();
    for flags in ["-w {place}/a.pcapng", "-w {place}/b.pcap.zst --ring-size 1MB", "-w {place}/c.pcap -s 64"] {
        done(place, &format!("capture {to} {flags} --time 100ms --quiet"));
    }
    done(place, &format!("log {to} --into {{place}}/log/here --time 100ms"));
    let made = ["deep/store/catalogue.sqlite", "deep/store/runs", "out/report.json", "out/captures"];
    assert_private(place, &made);
    assert_private(place, &["a.pcapng", "b-00001.pcap.zst", "c.pcap", "log/here/index.jsonl"]);
}

#[test]
fn taps() {
    let Some(lab) = skip::lab(|| Lab::with_unconnected_ports(2)) else { return };
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (a, b) = (lab.device_location(0), lab.device_location(1));
    let tap = format!("tap {a} {b} --back-end packet --capture {{place}}/tap.pcapng --time 300ms");
    done(place, &format!("{tap} --impair loss=10% --seed 1 --truth {{place}}/truth.jsonl"));
    let mut running = start(place, &format!("tap {a} {b} --back-end packet --capture {{place}}/more.pcapng"));
    running.await_remark("forward");
    running.signal(Signal::TERM);
    running.finish();
    assert_private(place, &["tap.pcapng", "truth.jsonl", "more.pcapng"]);
}

#[test]
fn flows() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let source = place.join("in.pcap");
    write(&source, &mixture(300, 1_000_000));
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o600)).unwrap();
    done(place, "meter {place}/in.pcap --directory {place}/flows/here --export file:{place}/out.ipfix -q");
    done(place, "collect {place}/out.ipfix --directory {place}/collected -q");
    assert_private(place, &["flows/here", "out.ipfix", "collected"]);
}
