//! Our own meter: from the capture file to the collector's directory, nothing is missing, and the ledger says so.

use super::{Collected, Collector, FLOWS, Sums, Way, known, recorded, total};
use packetrig_tests::program::Running;
use packetrig_tests::recording;
use packetrig_tests::scraping;
use serde_json::Value;
use std::path::Path;

/// Meters the file of known flows into a collector, and balances.
fn meter(collector: &Collector, target: &str, more: &[&str]) {
    let (_directory, file) = recording::stored(&recorded());
    let flags = ["meter", file.to_str().unwrap(), "--json", "--quiet", "--export", target];
    let finished = Running::start(&[&flags[..], more].concat(), "").finish();
    assert_eq!(
        finished.code,
        Some(0),
        "{}{}{}",
        finished.stdout,
        finished.stderr,
        collector.running.remarks()
    );
    let said: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(said["imbalances"], serde_json::json!([]), "{said}");
}

/// What [`known`] has, both directions as that of the first packet: SIM does not say which way a packet went.
fn known_together() -> Sums {
    let mut sums = Sums::new();
    for (way, (packets, bytes)) in known(|_| true) {
        let back = Way { source: way.destination, destination: way.source, ..way };
        let sum = sums.entry(if way.source.1 == 53 { back } else { way }).or_default();
        *sum = (sum.0 + packets, sum.1 + bytes);
    }
    sums
}

/// The collector has all, knows that it has, and so does who reads its files.
fn assert_all(collected: &Collected, wanted: &Sums) {
    let (packets, bytes) = total(wanted);
    collected.assert_in_order();
    collected.assert_stored(wanted);
    assert_eq!(collected.number("/balance/arrived"), packets);
    assert_eq!(collected.number("/balance/stored"), packets);
    assert_eq!(collected.report["balance"]["losses"], serde_json::json!([]));
    assert_eq!(collected.report["balance"]["fraction"], 1.0);
    assert_eq!(collected.kept(), *wanted);
    let stats: Value = serde_json::from_str(&collected.flows("stats")).unwrap();
    assert_eq!((&stats["packets"], &stats["bytes"]), (&packets.into(), &bytes.into()), "{stats}");
}

fn account(transport: &str, format: &str) -> Collected {
    let collector = Collector::start(transport, &[]);
    let target = collector.place.clone();
    meter(&collector, &target, &["--format", format]);
    collector.finish()
}

#[test]
fn own_meter_records_are_stored_with_ledger() {
    for transport in ["udp", "tcp"] {
        let collected = account(transport, "ipfix");
        assert_all(&collected, &known(|_| true));
        collected.assert_times(0, |_| true);
        let stats: Value = serde_json::from_str(&collected.flows("stats")).unwrap();
        let ledger = &stats["ledgers"][0]["ledger"];
        assert_eq!(ledger["capture"]["arrived"], recorded().len(), "{stats}");
    }
}

#[test]
fn packets_of_our_meter_become_the_same_records() {
    for transport in ["udp", "tcp"] {
        let collected = account(transport, "sim");
        assert_eq!(collected.number("/total/events"), recorded().len() as u64 + u64::from(FLOWS));
        assert_all(&collected, &known_together());
    }
}

/// The collector's certificate and key.
fn certify(directory: &Path) -> [String; 2] {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    [("cert.pem", made.cert.pem()), ("key.pem", made.signing_key.serialize_pem())].map(|(name, text)| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    })
}

#[test]
fn tls_brings_everything_too() {
    let directory = tempfile::tempdir().unwrap();
    let [certificate, key] = certify(directory.path());
    for (format, wanted) in [("ipfix", known(|_| true)), ("sim", known_together())] {
        let collector = Collector::start("tls", &["--cert", &certificate, "--key", &key]);
        let target = collector.place.clone();
        meter(&collector, &target, &["--format", format, "--tls-ca", &certificate]);
        assert_all(&collector.finish(), &wanted);
    }
}

#[test]
fn metrics_tell_what_arrived() {
    let mut collector = Collector::start("tcp", &["--metrics", "127.0.0.1:0"]);
    let address = scraping::await_metrics(&mut collector.running);
    let target = collector.place.clone();
    meter(&collector, &target, &[]);
    let wanted = known(|_| true);
    // What the meter says of itself comes last.
    scraping::await_line(&address, &format!("packetrig_collect_wire_packets_total {}", total(&wanted).0));
    assert!(!collector.running.has_ended());
    assert_all(&collector.finish(), &wanted);
}
