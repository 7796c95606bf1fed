//! What public readers and stores find in our records: DuckDB, polars, ClickHouse, Kafka.

use crate::judge::{self, Judge};
use crate::made::Made;
use crate::{SEEN, SOURCE, check_ours, check_sums, packetrig, store};
use packetrig_flow_store::StoreTarget;
use packetrig_tests::{program, recording, skip};
use serde_json::Value;
use std::process::Command;

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

/// It has the narrow flags of an earlier version, and the user may not change it.
#[test]
fn clickhouse_sink_writes_into_existing_narrow_table() {
    let Some(python) = skip::client("readers") else { return };
    let (mut first, port) = Judge::start(&python, "clickhouse.py", &[]);
    let made = Made::new(1000);
    send(&format!("clickhouse://127.0.0.1:{port}/flows"), &made);
    let create = &first.ask("SHOW CREATE TABLE default.flows")[0][0];
    let narrow =
        create.as_str().unwrap().replace("ControlBits` UInt16", "ControlBits` UInt8").replace('\n', " ");
    let (mut engine, port) = Judge::start(&python, "clickhouse.py", &["fixed".as_ref()]);
    engine.ask(&narrow);
    send(&format!("clickhouse://127.0.0.1:{port}/flows"), &made);
    let found = &engine.ask("SELECT count(), sum(packetDeltaCount + reversePacketDeltaCount), toTypeName(any(tcpControlBits)) FROM default.flows")[0];
    assert_eq!((number_of(&found[0]), number_of(&found[1])), (1000, made.packets));
    assert_eq!(found[2], "UInt8");
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

/// Meters a capture file of 500 packets in three flows into a store; returns the result of the meter.
fn meter_into(store: [&str; 2]) -> Value {
    let (directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let records = directory.path().join("records");
    let mut command = Command::new(program::binary());
    command.args(["meter", "--json", "--quiet"]).arg(&file).args(store).arg("--directory").arg(&records);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let outputs = result["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 2, "a directory and a store");
    for output in outputs {
        assert_eq!((&output["sent"]["records"], &output["sent"]["packets"]), (&3.into(), &500.into()));
    }
    result
}

#[test]
fn clickhouse_holds_what_was_metered() {
    let Some(python) = skip::client("readers") else { return };
    let (mut engine, port) = Judge::start(&python, "clickhouse.py", &[]);
    meter_into(["--clickhouse", &format!("127.0.0.1:{port}/metered")]);
    let row = &engine
        .ask("SELECT count(), sum(packetDeltaCount + reversePacketDeltaCount) FROM default.metered")[0];
    assert_eq!((number_of(&row[0]), number_of(&row[1])), (3, 500));
}

#[test]
fn a_kafka_topic_holds_what_was_metered() {
    let (Some(python), Some(jars)) = (skip::client("readers"), skip::client("kafka")) else { return };
    let (mut broker, address) = Judge::start(&python, "broker.py", &[jars.as_os_str()]);
    meter_into(["--kafka", &format!("{address}/flows")]);
    let found = broker.ask("3");
    assert_eq!((number_of(&found["records"]), number_of(&found["packets"])), (3, 500));
}

/// Nothing listens at this port: the records are lost by a stated cause, and the files have them all the same.
#[test]
fn meter_states_what_dead_store_lost() {
    let (directory, file) = recording::stored(&recording::mixture(600, 2_000));
    let records = directory.path().join("records");
    let mut command = Command::new(program::binary());
    command.args(["meter", "--json", "--quiet", "--clickhouse", "127.0.0.1:1/metered"]).arg(&file);
    let output = command.arg("--directory").arg(&records).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [kept, lost] = [0, 1].map(|index| &result["outputs"][index]);
    assert_eq!(kept["sent"]["packets"], 500);
    assert_eq!(
        (&lost["sent"]["packets"], lost["losses"].as_object().unwrap().len()),
        (&0.into(), 1),
        "{lost}"
    );
}

fn send(target: &str, made: &Made) {
    let mut sink = target.parse::<StoreTarget>().unwrap().open_sink().unwrap();
    for some in made.records.chunks(3333) {
        sink.write_records(some, SOURCE).unwrap();
    }
    let (kept, done) = sink.close_sink();
    done.unwrap();
    assert_eq!((kept.stored.records, kept.lost.records), (made.records.len() as u64, 0));
}

/// ClickHouse writes large numbers as text.
fn number_of(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{value} is no number"))
}
