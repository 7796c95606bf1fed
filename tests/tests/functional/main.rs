//! What a user can ask for is what happens.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod guard;
mod how_long;
mod how_much;
mod restore;

use packetrig_testkit::Lab;
use packetrig_testkit::lab::LabPort;
use packetrig_tests::document::Document;

fn document(lab: &Lab) -> Document {
    Document::new(&lab.ports().iter().map(LabPort::location).collect::<Vec<_>>())
}
