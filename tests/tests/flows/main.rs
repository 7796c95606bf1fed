//! Flow records in files, Kafka and ClickHouse, as readers that are not ours find them there, and as `packetrig flows` says.
//!
//! Invariant: every expected sum is made here, from the numbers records are made of.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod disk;
mod judge;
mod made;

use judge::Judge;
use made::Made;
use packetrig_flow::Ledger;
use packetrig_store::flows::{Source, Target};
use packetrig_tests::{program, skip};
use packetrig_units::MonoTime;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const SOURCE: Source = Source { exporter: [0xfd; 16], domain: 7 };
const SEEN: u64 = u64::MAX - 5;

/// Stores records into a directory, some at a time, and a ledger.
fn store(directory: &Path, made: &Made) {
    let mut sink = directory.to_str().unwrap().parse::<Target>().unwrap().open().unwrap();
    for (second, some) in (1..).zip(made.records.chunks(1500)) {
        sink.write(some, SOURCE).unwrap();
        // Files of several minutes.
        sink.tick(MonoTime::from_nanos(second * 50_000_000_000)).unwrap();
    }
    let mut ledger = Ledger::default();
    ledger.packets.seen = SEEN;
    sink.ledger(&ledger, SOURCE, made.first_ns).unwrap();
    let (kept, done) = sink.close();
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

/// What a reader says is the same, and what it writes of our records is read as ours is.
fn check_reader(reader: &str) {
    let Some(python) = skip::client("readers") else { return };
    let directory = tempfile::tempdir().unwrap();
    let made = Made::new(20_000);
    store(directory.path(), &made);
    check_ours(&made, directory.path());
    let mut command = Command::new(python);
    command.arg(judge::script("readers.py")).arg(reader).arg(directory.path());
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/flow-store.md"));
    let copy = directory.path().join("copy.parquet");
    let output = command.arg(&copy).output().unwrap();
    assert!(output.status.success(), "{reader}: {}", String::from_utf8_lossy(&output.stderr));
    check_sums(&made, &copy);
    for question in [&["top", "--json"][..], &["show", "--json", "--port", "443"]] {
        let [ours, theirs] = [&directory.path().join("flows"), &copy].map(|place| packetrig(question, place));
        let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(sorted(&ours), sorted(&theirs), "{reader}: {question:?}");
    }
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, number) in made.sums() {
        assert_eq!(found[name].as_u64(), Some(number), "{reader}: {name}");
    }
    let protocols: Value = serde_json::json!(made.protocols);
    assert_eq!((&found["protocols"], found["misplaced"].as_u64()), (&protocols, Some(0)), "{reader}");
    assert_eq!(found["seen"].as_u64(), Some(SEEN), "{reader}");
    assert_eq!(found["source"], made.top_source.0, "{reader}");
    assert_eq!(found["source_bytes"].as_u64(), Some(made.top_source.1), "{reader}");
    let (time, address) = if reader == "duckdb" {
        ("TIMESTAMP_NS", "BLOB")
    } else {
        ("Datetime(time_unit='ns', time_zone=None)", "Binary")
    };
    let types = &found["types"];
    assert_eq!(
        (&types["flowStartNanoseconds"], &types["sourceIPv6Address"]),
        (&time.into(), &address.into())
    );
}

#[test]
fn duckdb_finds_what_was_stored() {
    check_reader("duckdb");
}

#[test]
fn polars_finds_what_was_stored() {
    check_reader("polars");
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
        (&groups[0]["group"], groups[0]["bytes"].as_u64()),
        (&Made::server().into(), Some(made.bytes_back))
    );
    assert_eq!(groups[1]["group"], address.as_str());
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

#[test]
fn clickhouse_holds_what_was_sent() {
    let Some(python) = skip::client("readers") else { return };
    let (mut engine, port) = Judge::start(&python, "clickhouse.py", &[]);
    let target = format!("clickhouse://127.0.0.1:{port}/flows");
    let made = Made::new(20_000);
    send(&target, &made);
    let sums = "SELECT count(), countIf(flowPart = 0), sum(packetDeltaCount + reversePacketDeltaCount), \
                sum(octetDeltaCount + reverseOctetDeltaCount), \
                sum(layer2OctetDeltaCount + reverseLayer2OctetDeltaCount), countIf(observedLoss), \
                toUnixTimestamp64Nano(min(flowStartNanoseconds)), toUnixTimestamp64Nano(max(flowEndNanoseconds)) \
                FROM default.flows";
    let row = &engine.ask(sums)[0];
    for (index, (name, number)) in made.sums().into_iter().enumerate() {
        assert_eq!(number_of(&row[index]), number, "{name}");
    }
    let source = "SELECT toString(sourceIPv6Address), sum(octetDeltaCount) AS bytes, any(toString(exporterIPv6Address)), \
                  any(observationDomainId), any(hex(sourceMacAddress)), any(tunnelKind) \
                  FROM default.flows GROUP BY 1 ORDER BY 2 DESC LIMIT 1";
    let row = &engine.ask(source)[0];
    assert_eq!(row[0], format!("::ffff:{}", made.top_source.0));
    assert_eq!(number_of(&row[1]), made.top_source.1);
    let exporter = std::net::Ipv6Addr::from(SOURCE.exporter).to_string();
    assert_eq!((&row[2], number_of(&row[3])), (&exporter.into(), u64::from(SOURCE.domain)));
    assert_eq!((&row[4], &row[5]), (&"020000000001".into(), &"vxlan".into()));
    // A second sink finds the table and adds to it.
    send(&target, &made);
    let count = engine.ask("SELECT count() FROM default.flows");
    assert_eq!(number_of(&count[0][0]), 2 * made.records.len() as u64);
}

#[test]
fn a_kafka_topic_holds_every_record_once() {
    let (Some(python), Some(jars)) = (skip::client("readers"), skip::client("kafka")) else { return };
    let (mut broker, address) = Judge::start(&python, "broker.py", &[jars.as_os_str()]);
    let made = Made::new(20_000);
    send(&format!("kafka://{address}/flows"), &made);
    let found = broker.ask(&made.records.len().to_string());
    let count = made.records.len() as u64;
    assert_eq!((number_of(&found["records"]), number_of(&found["different"])), (count, count));
    assert_eq!((number_of(&found["packets"]), number_of(&found["bytes"])), (made.packets, made.bytes));
    assert_eq!(number_of(&found["partitions"]), 3);
}

fn send(target: &str, made: &Made) {
    let mut sink = target.parse::<Target>().unwrap().open().unwrap();
    for some in made.records.chunks(3333) {
        sink.write(some, SOURCE).unwrap();
    }
    let (kept, done) = sink.close();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.lost.records), (made.records.len() as u64, 0));
}

/// ClickHouse writes large numbers as text.
fn number_of(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}
