//! A collector that is slower than its sources: what can wait waits, and whatever is missing shows in the exit code.

use packetrig_tests::exporters::{RECORDS, honest_message};
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::small_disk::SmallDisk;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::path::Path;

/// More records than the queue of a sink holds, decoded faster than a sink stores them.
const MESSAGES: u32 = 30_000;

/// All messages of one exporter behind each other.
fn stream(messages: u32) -> Vec<u8> {
    (0..messages).flat_map(|n| honest_message(7, n * RECORDS)).collect()
}

fn report(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", finished.stdout, finished.stderr))
}

/// Every record that was sent is stored, and the collector says so.
fn assert_whole(finished: &Finished) {
    let report = report(finished);
    let wanted = MESSAGES * RECORDS;
    assert_eq!(report["total"]["records"], wanted, "{report:#}");
    assert_eq!(report["sinks"][0]["stored"]["records"], wanted, "{report:#}");
    assert_eq!((&report["missing"], finished.code), (&serde_json::json!([]), Some(0)), "{report:#}");
}

#[test]
fn file_input_waits_for_slow_sink() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.ipfix");
    std::fs::write(&file, stream(MESSAGES)).unwrap();
    let file = file.display().to_string();
    let finished =
        Running::start(&["collect", &file, "--json", "--quiet", "--directory", "records"], "").finish();
    assert_whole(&finished);
}

#[test]
fn tcp_connection_is_throttled_by_slow_sink() {
    let mut collector = super::Collector::start("tcp", &[]);
    let mut connection = TcpStream::connect(collector.address()).unwrap();
    connection.write_all(&stream(MESSAGES)).unwrap();
    connection.shutdown(Shutdown::Write).unwrap();
    // The collector closes it once it has read everything.
    assert_eq!(connection.read(&mut [0]).unwrap(), 0);
    collector.running.signal(rustix::process::Signal::INT);
    assert_whole(&collector.running.finish());
}

#[test]
fn missing_datagram_sets_exit_code() {
    let mut collector = super::Collector::start("udp", &[]);
    let exporter = UdpSocket::bind("127.0.0.1:0").unwrap();
    exporter.connect(collector.address()).unwrap();
    for number in [0, 1, 3] {
        exporter.send(&honest_message(7, number * RECORDS)).unwrap();
    }
    collector.running.signal(rustix::process::Signal::INT);
    let finished = collector.running.finish();
    let report = report(&finished);
    assert_eq!((&report["total"]["lost"], finished.code), (&RECORDS.into(), Some(7)), "{report:#}");
    assert_eq!(report["missing"][0]["amount"], RECORDS, "{report:#}");
}

/// Where the disk has no room for all, the row groups that fit are stored, and can be read.
#[test]
fn a_full_disk_keeps_what_was_whole() {
    let Some(disk) = SmallDisk::mount(c"size=1m") else { return };
    // Four row groups and a part of one, half of which fit.
    let messages = 12_000;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.ipfix");
    std::fs::write(&file, stream(messages)).unwrap();
    let [file, records] = [file, disk.path().join("records")].map(|path| path.display().to_string());
    let finished =
        Running::start(&["collect", &file, "--json", "--quiet", "--directory", &records], "").finish();
    assert_eq!(finished.code, Some(4), "{}", finished.stderr);
    let kept = &report(&finished)["sinks"][0];
    let number = |account: &str| kept[account]["records"].as_u64().unwrap();
    assert!(number("stored") > 0 && number("lost") > 0, "{kept:#}");
    assert_eq!(number("stored") + number("lost"), u64::from(messages * RECORDS), "{kept:#}");
    let stats: Value = serde_json::from_str(&super::flows("stats", Path::new(&records))).unwrap();
    assert_eq!(stats["records"], number("stored"), "{stats:#}");
}

/// A message as if it had been sent so many seconds earlier.
fn sent_earlier(mut message: Vec<u8>, seconds: u32) -> Vec<u8> {
    let sent_s = u32::from_be_bytes(message[4..8].try_into().unwrap()) - seconds;
    message[4..8].copy_from_slice(&sent_s.to_be_bytes());
    message
}

/// The first message that is heard is not the first that was sent.
#[test]
fn messages_sent_before_first_received_are_decoded() {
    let mut collector = super::Collector::start("udp", &[]);
    let exporter = UdpSocket::bind("127.0.0.1:0").unwrap();
    exporter.connect(collector.address()).unwrap();
    for (number, seconds) in [(10, 0), (3, 2), (2, 3), (0, 40), (11, 0)] {
        exporter.send(&sent_earlier(honest_message(7, number * RECORDS), seconds)).unwrap();
    }
    // Its template.
    exporter.send(&sent_earlier(honest_message(7, 0), 40)).unwrap();
    collector.running.signal(rustix::process::Signal::INT);
    let report = report(&collector.running.finish());
    let total = &report["total"];
    let found = ["records", "early", "old", "restarts", "duplicates", "pending_bytes"]
        .map(|what| total[what].as_u64());
    assert_eq!(found, [5 * RECORDS, 2, 1, 0, 1, 0].map(|n| Some(n.into())), "{report:#}");
    // Between the second and the eleventh message.
    assert_eq!(total["lost"], 6 * RECORDS, "{report:#}");
}
