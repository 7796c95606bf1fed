//! Two collectors of one group of meters. One of them is killed and started again: afterwards both have stored the same.

use super::group::{MeteredLink, differences};
use super::{flows, sums_of};
use packetrig_sys::clock;
use packetrig_testkit::Lab;
use packetrig_tests::listening::await_place;
use packetrig_tests::own_place::own_place;
use packetrig_tests::program::Running;
use packetrig_tests::skip;
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;

const SECOND_NS: u64 = 1_000_000_000;

/// Starts a collector that stores into this directory; returns where it listens.
fn start(listen: &str, records: &Path) -> (Running, String) {
    let records = records.display().to_string();
    let flags = ["collect", "--json", "--quiet", "--directory", &records, "--listen", listen];
    let mut running = Running::start(&flags, "");
    let place = await_place(&mut running);
    (running, place)
}

fn finish(mut collector: Running) -> Value {
    collector.signal(Signal::INT);
    serde_json::from_str(&collector.finish().stdout).unwrap()
}

/// One collector ends in order, and the meters send again what it has. Then it is killed: it loses what it had in memory, misses what
/// is sent meanwhile, and gets both when it is back.
#[test]
fn restarted_collector_catches_up_on_missed_records() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let directory = tempfile::tempdir().unwrap();
    let places = ["one", "two"].map(|name| directory.path().join(name));
    let (one, target) = start("tcp://127.0.0.1:0", &places[0]);
    // Of its own: until it is started again nobody listens there.
    let (mut two, other) = start(&format!("tcp://{}", own_place()), &places[1]);
    let mut link = MeteredLink::new(lab, target);
    let meters = ["1", "2"].map(|member| link.start_at(1, member, &["--export", &other]));
    for end in [Signal::INT, Signal::KILL] {
        link.send_for_a_while();
        two.signal(end);
        drop(two.finish());
        link.send_for_a_while();
        (two, _) = start(&other, &places[1]);
    }
    link.send(8);
    for mut meter in meters {
        meter.signal(Signal::TERM);
        assert_eq!(meter.finish().code, Some(0));
    }
    let reports = [one, two].map(finish);
    let stored = places
        .map(|place| sums_of(flows("show", &place).lines().map(|line| serde_json::from_str(line).unwrap())));
    assert_eq!(differences(&stored[0], &link.sent), [], "{:#}", reports[0]);
    assert_eq!(differences(&stored[1], &link.sent), [], "{:#}", reports[1]);
}

/// Without a directory nobody knows what was stored, so what comes again is passed over and counted.
#[test]
fn collector_without_directory_skips_messages_before_start() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let listen = |place: &str| {
        let mut running = Running::start(&["collect", "--json", "--quiet", "--listen", place], "");
        running.await_remark("listening at ");
        running
    };
    let target = format!("tcp://{}", own_place());
    let first = listen(&target);
    let mut link = MeteredLink::new(lab, target);
    let mut meter = link.start_at(1, "1", &[]);
    link.send_for_a_while();
    let first = finish(first);
    // The time of a message is in whole seconds: until the next one has begun.
    let now_ns = clock::wall_clock_ns();
    clock::sleep_until_ns(clock::monotonic_ns() + SECOND_NS - now_ns % SECOND_NS + 10_000_000);
    let second = listen(&link.target);
    link.send_for_a_while();
    meter.signal(Signal::TERM);
    assert_eq!(meter.finish().code, Some(0));
    let second = finish(second);
    let packets: u64 = link.sent.values().map(|sum| sum.0).sum();
    let taken = [&first, &second].map(|report| report["groups"][0]["packets"].as_u64().unwrap());
    assert!(taken[0] > 0 && taken[1] > 0, "{first:#}{second:#}");
    assert!(taken[0] + taken[1] <= packets, "{packets} were sent: {first:#}{second:#}");
    assert!(second["groups"][0]["repeated"].as_u64().unwrap() > 0, "{second:#}");
}

#[test]
fn a_collector_starts_also_beside_a_damaged_file() {
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("flows");
    std::fs::create_dir(&table).unwrap();
    std::fs::write(table.join("flows-1.parquet"), "no records").unwrap();
    let (mut collector, _) = start("tcp://127.0.0.1:0", directory.path());
    collector.await_remark("cannot be read");
    assert_eq!(finish(collector)["groups"], serde_json::json!([]));
}
