//! Other programs read what we sent and what we wrote.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod capture;
mod clients;
mod files;
mod flows;
mod headers;
mod patterns;
mod replay;

use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::document::{Document, Flow};
use packetrig_tests::program::{Finished, Running};
use packetrig_tests::skip;

/// Captures a flow's frames; `None` without rights or without tshark.
fn captured(flow: Flow, format: &str) -> Option<Finished> {
    captured_with(flow, format, &[])
}

/// The same, with more flags.
fn captured_with(flow: Flow, format: &str, more: &[&str]) -> Option<Finished> {
    if !skip::has_tool("tshark") {
        return None;
    }
    let lab = skip::lab(Lab::cabled_pair)?;
    let locations: Vec<String> = lab.ports().iter().map(LabPort::location).collect();
    let document = Document::new(&locations).flow(flow).capture(1, format);
    let finished = Running::run(&document, &[&["--quiet"], more].concat()).finish();
    assert!(finished.code == Some(0), "{}{}", finished.stdout, finished.stderr);
    Some(finished)
}
