//! What the log of a collector says, for programs that read it.

use packetrig_tests::exporters::honest_message;
use packetrig_tests::listening::await_place;
use packetrig_tests::program::Running;
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::net::{Shutdown, TcpStream};

/// The lines of a log; each of them is an event.
fn events(log: &str) -> Vec<Value> {
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn find<'a>(events: &'a [Value], message: &str) -> &'a Value {
    events
        .iter()
        .find(|event| event["message"] == message)
        .unwrap_or_else(|| panic!("no {message}: {events:#?}"))
}

#[test]
fn collector_log_is_json_with_peers() {
    let flags = ["--log-level", "info", "--log-format", "json", "--listen", "tcp://127.0.0.1:0"];
    let mut collector = Running::start(&[&["collect"], &flags[..]].concat(), "");
    let place = await_place(&mut collector);
    let address = place.trim_start_matches("tcp://").split('"').next().unwrap();
    for end in [Shutdown::Write, Shutdown::Both] {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(&honest_message(7, 0)).unwrap();
        connection.shutdown(end).unwrap();
    }
    collector.await_remark("exporter disconnected");
    collector.signal(Signal::INT);
    let finished = collector.finish();
    let events = events(&finished.stderr);
    for event in &events {
        assert!(event["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{event}");
        assert!(["info", "warn", "error"].iter().any(|level| event["level"] == *level), "{event}");
    }
    let connected = find(&events, "exporter connected");
    assert_eq!((&connected["part"], &connected["peer"]), (&"flow_io".into(), &"127.0.0.1".into()));
    assert_eq!(find(&events, "exporter disconnected")["level"], "info");
}

#[test]
fn failure_is_an_error_in_the_log() {
    let finished =
        Running::start(&["collect", "missing.ipfix", "--log-level", "warn", "--log-format", "json"], "")
            .finish();
    let events = events(&finished.stderr);
    assert_eq!(events.last().map(|event| &event["level"]), Some(&"error".into()), "{}", finished.stderr);
    assert!(events.last().unwrap()["message"].as_str().unwrap().contains("missing.ipfix"));
}
