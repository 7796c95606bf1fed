//! Alerts while records arrive, and of files.

use super::{Collector, recorded};
use packetrig_tests::program::Running;
use packetrig_tests::recording::{self, Recorded};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

fn events(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn run(arguments: &[&str]) -> packetrig_tests::program::Finished {
    Running::start(arguments, "").finish()
}

/// The capture has port 53 at every destination. The sums of an alert are those of a question about the stored records.
#[test]
fn alerts_of_a_file_have_the_sums_of_questions() {
    let (directory, file) = recording::stored(&recorded());
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let rules = "[[alert]]\nname = \"to port 53\"\nfilter = \"dst port 53\"\nby = \"dst-ip\"\nwindow = \"1h\"\n\
                 measure = \"bytes\"\nabove = 1\n";
    std::fs::write(place("rules.toml"), rules).unwrap();
    let metered = run(&["meter", file.to_str().unwrap(), "--quiet", "--directory", &place("records")]);
    assert_eq!(metered.code, Some(0), "{}", metered.stderr);
    let exported =
        run(&["meter", file.to_str().unwrap(), "--quiet", "--export", &format!("file:{}", place("a.ipfix"))]);
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let collected = run(&[
        "collect",
        &place("a.ipfix"),
        "--json",
        "--quiet",
        "--alerts",
        &place("rules.toml"),
        "--alert-to",
        &place("alerts"),
    ]);
    assert_eq!(collected.code, Some(0), "{}", collected.stderr);
    let report: Value = serde_json::from_str(&collected.stdout).unwrap();
    assert_eq!(report["alerts"][0]["raised"], 2, "{report}");
    assert_eq!(report["sinks"][0]["stores_records"], false);
    let top =
        run(&["flows", "top", &place("records"), "--filter", "dst port 53", "--by", "dst-ip", "--json"]);
    let wanted: Vec<Value> = top
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line.get("dst-ip").is_some())
        .map(|line| json!([{"dst-ip": line["dst-ip"]}, line["bytes"]]))
        .collect();
    assert_eq!(wanted.len(), 2, "{}", top.stdout);
    let found: Vec<Value> = events(Path::new(&place("alerts")))
        .iter()
        .map(|event| json!([event["group"], event["value"]]))
        .collect();
    assert_eq!(found, wanted);
}

/// A live collector raises an alert by the clock, posts it to a webhook that refuses it once, and clears it.
#[test]
fn live_alert_is_posted_until_accepted_and_cleared() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let rules = "delay = \"1s\"\n[[alert]]\nname = \"dns\"\nfilter = \"port 53\"\nwindow = \"1s\"\n\
                 measure = \"packets\"\nabove = 3\n";
    std::fs::write(place("rules.toml"), rules).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hook = format!("http://{}/hook", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        ["503 Busy", "200 OK", "200 OK"].map(|status| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut part = [0; 4096];
            while !request.ends_with(b"}") {
                let length = stream.read(&mut part).unwrap();
                assert_ne!(length, 0, "{}", String::from_utf8_lossy(&request));
                request.extend_from_slice(&part[..length]);
            }
            write!(stream, "HTTP/1.1 {status}\r\n\r\n").unwrap();
            let text = String::from_utf8(request).unwrap();
            serde_json::from_str::<Value>(text.split_once("\r\n\r\n").unwrap().1).unwrap()
        })
    });
    let collector = Collector::start("udp", &["--alerts", &place("rules.toml"), "--alert-to", &hook]);
    // The packets are of now, so that they lie in a window that the collector watches: after the next whole second.
    let began_ns = packetrig_sys::clock::wall_clock_ns() + 1_000_000_000;
    let now: Vec<_> = recorded()
        .into_iter()
        .map(|one| Recorded { at: began_ns + (one.at - super::BEGAN_NS) / 10, ..one })
        .collect();
    let (_kept, file) = recording::stored(&now);
    let meter = run(&["meter", file.to_str().unwrap(), "--quiet", "--export", &collector.place]);
    assert_eq!(meter.code, Some(0), "{}", meter.stderr);
    let posted = server.join().unwrap();
    let kinds = posted.each_ref().map(|event| event["event"].as_str().unwrap());
    assert_eq!(kinds, ["raised", "raised", "cleared"], "{posted:?}");
    assert_eq!(posted[0], posted[1], "the same event once more");
    assert!(posted[1]["value"].as_u64().unwrap() > 3);
    let finished = collector.finish();
    assert_eq!(
        finished.report["alerts"][0],
        json!({
            "alert": "dns", "raised": finished.report["alerts"][0]["raised"], "active": 0,
            "late_records": 0, "future_records": 0, "left_out": 0
        })
    );
}
