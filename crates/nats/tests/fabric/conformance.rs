//! The suite that the local fabric passes, over the network.

use crate::server::{RESULTS_ROOM, Server, program};
use packetrig_fleet::conformance::{FabricTraits, conforms, faults_do_what_they_say};
use packetrig_nats::NatsFabric;
use std::cell::RefCell;
use std::path::Path;

const TRAITS: FabricTraits = FabricTraits { knows_who_left: false, results_room: RESULTS_ROOM };

/// An empty fabric each time; its server lives until the next one.
fn maker(program: &Path) -> impl Fn() -> NatsFabric {
    let last = RefCell::new(None);
    move || {
        let server = Server::open(program.to_owned());
        let fabric = server.fabric();
        last.replace(Some(server));
        fabric
    }
}

#[test]
fn the_networked_fabric_conforms() {
    if let Some(program) = program() {
        conforms(TRAITS, maker(&program));
    }
}

#[test]
fn faults_over_the_networked_fabric_do_what_they_say() {
    if let Some(program) = program() {
        faults_do_what_they_say(maker(&program));
    }
}
