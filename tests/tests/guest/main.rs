//! What the developers' kernel may lack: VLAN devices, netem, pktgen, fq, etf, cards with clocks, and a clock that may be set. Run inside `cargo run -p xtask -- vm`, by
//! `make test-vm`; elsewhere each test is ignored.
//!
//! Time inside means nothing, because the processor is emulated: what is asserted is function and bounds.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod failover;
mod netem;
mod numa;
mod pktgen;
mod probe;
mod vlan;

use packetrig_sys::netns::NetNs;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::document::Document;
use std::process::Command;

/// Runs a shell's command inside a namespace. Panics with its complaint if it fails.
fn inside(netns: &NetNs, command: &str) {
    let output = netns.run_in_namespace(|| Command::new("sh").args(["-c", command]).output()).unwrap();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

fn document(lab: &Lab) -> Document {
    Document::new(&lab.ports().iter().map(LabPort::location).collect::<Vec<_>>())
}
