//! Interfaces that look like part of a real network, and interfaces that are in use.

use super::{await_traffic, document};
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::INTERFACE;
use packetrig_tests::document::Flow;
use packetrig_tests::program::{Running, run};
use packetrig_tests::skip;
use std::net::IpAddr;

fn give_address(lab: &Lab, port: usize, address: &str, prefix: u8) {
    let port = &lab.ports()[port];
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    links.add_address(port.link.index, address.parse::<IpAddr>().unwrap(), prefix).unwrap();
}

#[test]
fn foreign_address_is_refused_until_confirmed() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    give_address(&lab, 0, "192.0.2.1", 24);
    let document = document(&lab).flow(Flow::new("f", 1));
    let (sender, receiver) = (lab.location(0), lab.location(1));
    run(&document).assert_refused(8, &[&sender, "192.0.2.1", "--confirm"]);
    // Confirming another interface does not help.
    Running::run(&document, &["--quiet", "--confirm", &receiver]).finish().assert_refused(8, &[&sender]);
    let confirmed = Running::run(&document, &["--quiet", "--confirm", &sender]).finish();
    assert_eq!(confirmed.code, Some(0), "{}", confirmed.stderr);
    confirmed.report().assert_clean();
}

#[test]
fn the_receiving_side_is_guarded_too() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    give_address(&lab, 1, "203.0.113.9", 24);
    run(&document(&lab).flow(Flow::new("f", 1))).assert_refused(8, &[&lab.location(1), "203.0.113.9"]);
}

#[test]
fn benchmark_addresses_are_welcome() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    give_address(&lab, 0, "198.18.0.1", 15);
    let finished = run(&document(&lab).flow(Flow::new("f", 1)));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

#[test]
fn second_run_on_busy_port_is_refused() {
    let Some(lab) = skip::lab(Lab::cabled_pair) else { return };
    let endless = serde_json::json!({"choice": "continuous"});
    let mut first =
        Running::run(&document(&lab).flow(Flow::new("first", 1).with("duration", endless)), &["--quiet"]);
    await_traffic(&lab);
    run(&document(&lab).flow(Flow::new("second", 1))).assert_refused(6, &[INTERFACE, "in use"]);
    first.signal(rustix::process::Signal::INT);
    let first = first.finish();
    // A busy machine may not send all that was planned; whatever was sent arrived.
    let report = first.report();
    let number = |path| report.number("first", path);
    assert!(number("/sent/frames") > 0, "{}", first.stderr);
    assert_eq!(number("/received/frames"), number("/sent/frames"), "{}", first.stderr);
    assert!(matches!(first.code, Some(0 | 7)), "{}", first.stderr);
}
