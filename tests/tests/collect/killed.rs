//! A collector that is killed leaves the row groups that it has written, and whoever comes next makes files of them.

use packetrig_tests::exporters::{RECORDS, honest_message};
use packetrig_tests::listening::await_place;
use packetrig_tests::own_place::own_place;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

const MESSAGES: u32 = 500;
/// The records are older than those that get partitions of their own.
const PARTIAL: &str =
    "flows/date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__/.flows-000000.parquet.partial";

/// Kills a collector that has been sent 12 000 records, once some are on the disk.
fn kill_one(records: &Path) {
    let flags = ["collect", "--json", "--quiet", "--listen", "tcp://127.0.0.1:0", "--directory"];
    let mut collector = Running::start(&[&flags[..], &[&records.display().to_string()]].concat(), "");
    let place = await_place(&mut collector);
    let mut connection = TcpStream::connect(place.strip_prefix("tcp://").unwrap()).unwrap();
    for n in 0..MESSAGES {
        connection.write_all(&honest_message(7, n * RECORDS)).unwrap();
    }
    await_row_group(records);
    collector.signal(Signal::KILL);
    assert_eq!(collector.finish().code, None);
}

fn await_row_group(records: &Path) {
    let partial = records.join(PARTIAL);
    let has_come = (0..10_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        has_whole_block(&partial)
    });
    assert!(has_come, "no row group came to the disk");
}

/// Whether the first block of a growing file is all there: after four bytes its head begins, with the lengths of its pages and its footer
/// (`flow-store/src/row_group.rs`). The file grows while a block is written.
fn has_whole_block(file: &Path) -> bool {
    const BEGINS_AT: usize = 4;
    const HEAD: u64 = 24;
    let mut begin = [0; BEGINS_AT + 16];
    let opened = File::open(file).and_then(|mut file| file.read_exact(&mut begin).map(|()| file));
    let Ok(file) = opened else { return false };
    let length = |at: usize| u64::from_le_bytes(begin[at..at + 8].try_into().unwrap());
    let block = HEAD + length(BEGINS_AT) + length(BEGINS_AT + 8);
    file.metadata().unwrap().len() >= BEGINS_AT as u64 + block
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
fn next_collector_stores_records_of_killed_one() {
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

/// The exporter goes on, and its numbers say what neither of the two collectors has.
#[test]
fn next_collector_reports_losses_of_killed_one() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().display().to_string();
    let start = |place: &str| {
        let flags = ["collect", "--json", "--quiet", "--listen", place, "--directory", &records];
        let mut collector = Running::start(&flags, "");
        let place = await_place(&mut collector);
        (collector, place)
    };
    let (mut killed, place) = start(&format!("udp://{}", own_place()));
    let exporter = UdpSocket::bind("127.0.0.1:0").unwrap();
    exporter.connect(place.strip_prefix("udp://").unwrap()).unwrap();
    let send = |messages: Range<u32>| {
        for n in messages {
            exporter.send(&honest_message(7, n * RECORDS)).unwrap();
            // No faster than the collector reads.
            if n % 20 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    };
    send(0..MESSAGES);
    await_row_group(directory.path());
    // Too few for another row group.
    let sent = MESSAGES + 100;
    send(MESSAGES..sent);
    killed.signal(Signal::KILL);
    assert_eq!(killed.finish().code, None);
    let (mut next, _) = start(&place);
    // Read at the end of the collector at the latest.
    send(sent..sent + 1);
    next.signal(Signal::INT);
    let finished = next.finish();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let recovered = report["sinks"][0]["recovered"]["records"].as_u64().unwrap();
    let lost = u64::from(sent * RECORDS) - recovered;
    assert!(recovered >= 4096 && lost >= 2400, "{report:#}");
    let expected = serde_json::json!([{"exporter": "127.0.0.1", "domain": 7, "stored_records": recovered,
        "missing": lost, "unit": "records"}]);
    assert_eq!(report["earlier"], expected, "{report:#}");
    let missing = &report["missing"][0];
    assert_eq!((&missing["amount"], finished.code), (&lost.into(), Some(7)), "{report:#}");
    assert_eq!(stored(directory.path()), recovered + u64::from(RECORDS));
    // It ended in order, so nothing is said again.
    let (mut last, _) = start(&place);
    last.signal(Signal::INT);
    let report: Value = serde_json::from_str(&last.finish().stdout).unwrap();
    assert_eq!(report["earlier"], serde_json::json!([]));
}

#[test]
fn flows_recover_restores_records_of_killed_collector() {
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
