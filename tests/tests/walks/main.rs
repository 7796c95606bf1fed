//! The walks of the book: pages that lead from nothing to a result. Each is done as its reader does it, in one shell.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod page;
mod walk;

use packetrig_testkit::Lab;
use packetrig_tests::skip;
use walk::Walk;

fn follow(name: &str, tools: &[&str]) {
    // The page makes its own networks. The lab tells whether that is allowed, and keeps tests out that need the whole machine.
    let Some(_lab) = skip::lab(Lab::cabled_pair) else { return };
    if tools.iter().all(|tool| skip::has_tool(tool)) {
        Walk::read_page(name).follow();
    }
}

#[test]
fn engineer_gets_a_verdict() {
    follow("walk-engineer", &["ip", "tc"]);
}

#[test]
fn researcher_repeats_an_experiment() {
    follow("walk-researcher", &["ip", "tshark"]);
}

#[test]
fn operator_loses_a_meter_and_no_packet() {
    follow("walk-operator", &["ip", "curl", "tshark"]);
}
