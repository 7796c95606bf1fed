//! Flow records in files, Kafka and ClickHouse, as readers that are not ours find them there, and as `packetrig flows` says.
//!
//! Invariant: every expected sum is made here, from the numbers records are made of.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod changes;
mod clients;
mod disk;
mod judge;
mod keep;
mod made;
mod names;
mod questions;
mod replay;

use made::Made;
use packetrig_flow::MeterLedger;
use packetrig_flow_store::{ParquetOptions, ParquetSink, RecordExporter, RecordSink};
use packetrig_tests::program;
use packetrig_units::MonoTime;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const SOURCE: RecordExporter = RecordExporter { exporter: [0xfd; 16], domain: 7 };
const SEEN: u64 = u64::MAX - 5;

/// Stores records into a directory, some at a time, and a ledger.
fn store(directory: &Path, made: &Made) {
    let mut options = ParquetOptions::new(directory);
    // Of several row groups each, as a long minute makes them.
    options.group_rows = 700;
    let mut sink = ParquetSink::new(options).unwrap();
    for (second, some) in (1..).zip(made.records.chunks(1500)) {
        sink.write_records(some, SOURCE).unwrap();
        // Files of several minutes.
        sink.on_tick(MonoTime::from_nanos(second * 50_000_000_000)).unwrap();
    }
    let mut ledger = MeterLedger::default();
    ledger.packets.seen = SEEN;
    sink.write_ledger(&ledger, SOURCE, made.first_ns).unwrap();
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.lost.records), (made.records.len() as u64, 0));
}

fn packetrig(arguments: &[&str], directory: &Path) -> String {
    let output =
        Command::new(program::binary()).arg("flows").args(arguments).arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The sums that we find in a directory or a file are those that records were made of.
fn check_sums(made: &Made, place: &Path) -> Value {
    let stats: Value = serde_json::from_str(&packetrig(&["stats", "--json"], place)).unwrap();
    for (name, number) in made.sums() {
        assert_eq!(stats[name].as_u64(), Some(number), "{name}");
    }
    for (number, records) in &made.protocols {
        assert_eq!(stats["protocols"][number]["records"].as_u64(), Some(*records), "{number}");
    }
    stats
}

/// What we say is what records were made of.
fn check_ours(made: &Made, directory: &Path) {
    let stats = check_sums(made, directory);
    assert_eq!(stats["ledgers"][0]["ledger"]["packets"]["seen"].as_u64(), Some(SEEN));
    let buckets = stats["timeline"].as_object().unwrap().values();
    assert_eq!(buckets.map(|row| row["packets"].as_u64().unwrap()).sum::<u64>(), made.packets);
}

#[test]
fn the_largest_are_named_and_records_are_shown() {
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(20_000);
    store(directory.path(), &made);
    let (address, _) = &made.top_source;
    // The other end answers: what it sent is the whole way back.
    let top = packetrig(&["top", "--json", "--by", "source", "-n", "2"], directory.path());
    let groups: Vec<Value> = top.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&groups[0]["src-ip"], groups[0]["bytes"].as_u64()),
        (&Made::server().into(), Some(made.bytes_back))
    );
    assert_eq!(groups[1]["src-ip"], address.as_str());
    let shown = packetrig(&["show", "--json", "--address", address], directory.path());
    let records: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), made.of_top_source);
    let mapped = format!("::ffff:{address}");
    assert!(records.iter().all(|record| record["sourceIPv6Address"] == mapped));
    let csv = packetrig(&["show", "--csv", "--protocol", "udp"], directory.path());
    assert_eq!(csv.lines().count() as u64, 1 + made.protocols["17"]);
    let table = packetrig(&["show", "-n", "3", "--port", "443"], directory.path());
    assert_eq!(table.lines().count(), 4, "{table}");
}
