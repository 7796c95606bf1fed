//! What a user can ask for is what happens.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod af_xdp;
mod calibrate;
mod choice;
mod devices;
mod gate;
mod guard;
mod how_long;
mod how_much;
mod replay;
mod restore;
mod routers;

use packetrig_sys::clock;
use packetrig_sys::link::NamespaceLinks;
use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::document::Document;

fn document(lab: &Lab) -> Document {
    Document::new(&lab.ports().iter().map(LabPort::location).collect::<Vec<_>>())
}

/// Waits until the sending interface has sent something.
fn await_traffic(lab: &Lab) {
    let port = &lab.ports()[0];
    let mut links = NamespaceLinks::open_in(port.netns()).unwrap();
    let index = port.link.index;
    let before = links.read_counters(index).unwrap().tx_frames;
    let deadline = clock::monotonic_ns() + 60_000_000_000;
    while links.read_counters(index).unwrap().tx_frames < before + 100 {
        assert!(clock::monotonic_ns() < deadline, "nothing is sent");
        clock::sleep_until_ns(clock::monotonic_ns() + 5_000_000);
    }
}
