//! A collector that is killed leaves the row groups that it has written, and whoever comes next makes files of them.

use packetrig_tests::exporters::{RECORDS, honest_message};
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

const MESSAGES: u32 = 500;
const PARTIAL: &str = "flows/date=2026-09-21/hour=10/.flows-000000.parquet.partial";

/// Kills a collector that has been sent 12 000 records, once some are on the disk.
fn kill_one(records: &Path) {
    let flags = ["collect", "--json", "--quiet", "--listen", "tcp://127.0.0.1:0", "--directory"];
    let mut collector = Running::start(&[&flags[..], &[&records.display().to_string()]].concat(), "");
    collector.await_remark("listening at ");
    collector.await_remark("\n");
    let said = collector.remarks();
    let address = said.split("tcp://").nth(1).unwrap().lines().next().unwrap().to_owned();
    let mut connection = TcpStream::connect(address).unwrap();
    for n in 0..MESSAGES {
        connection.write_all(&honest_message(7, n * RECORDS)).unwrap();
    }
    let partial = records.join(PARTIAL);
    let is_written = || std::fs::metadata(&partial).is_ok_and(|facts| facts.len() > 10_000);
    let has_come = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        is_written()
    });
    assert!(has_come, "no row group came to the disk");
    collector.signal(Signal::KILL);
    assert_eq!(collector.finish().code, None);
}

fn stored(records: &Path) -> u64 {
    let finished = Running::start(&["flows", "stats", "--json", &records.display().to_string()], "").finish();
    let stats: Value = serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr));
    // One exporter, records of one packet each: a record that comes back is whole.
    assert_eq!(stats["records"], stats["packets"], "{stats:#}");
    stats["records"].as_u64().unwrap()
}

#[test]
fn the_next_collector_stores_what_a_killed_one_has_written() {
    let directory = tempfile::tempdir().unwrap();
    kill_one(directory.path());
    let records = directory.path().display().to_string();
    let flags = ["collect", "--json", "--quiet", "--time", "100s", "--listen", "udp://127.0.0.1:0"];
    let mut next = Running::start(&[&flags[..], &["--directory", &records]].concat(), "");
    next.await_remark("listening at ");
    assert!(next.remarks().contains("an earlier process was killed"), "{}", next.remarks());
    next.signal(Signal::INT);
    let finished = next.finish();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let recovered = report["sinks"][0]["recovered"]["records"].as_u64().unwrap();
    assert!(recovered >= 4096, "{report:#}");
    assert_eq!(report["sinks"][0]["offered"]["records"], 0, "they are not this collector's: {report:#}");
    assert_eq!(stored(directory.path()), recovered);
    assert!(!directory.path().join(PARTIAL).exists());
}

#[test]
fn a_user_recovers_what_a_killed_collector_has_written() {
    let directory = tempfile::tempdir().unwrap();
    kill_one(directory.path());
    let records = directory.path().display().to_string();
    let recover = || Running::start(&["flows", "recover", "--json", &records], "").finish();
    let finished = recover();
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!((&report["files"], &report["failures"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(report["records"].as_u64(), Some(stored(directory.path())));
    let again: Value = serde_json::from_str(&recover().stdout).unwrap();
    assert_eq!((&again["files"], &again["records"]), (&0.into(), &0.into()));
    // A name that was typed wrong.
    let wrong = Running::start(&["flows", "recover", "recrods"], "").finish();
    assert_ne!(wrong.code, Some(0), "{}", wrong.stdout);
    assert!(wrong.stderr.contains("recrods"), "{}", wrong.stderr);
}
