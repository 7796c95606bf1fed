//! Runs the suite that the local fabric passes, over the network.

use crate::server::{RESULTS_ROOM, Server, program};
use packetrig_fleet::conformance::{FabricTraits, check_fabric, check_faults};
use packetrig_nats::NatsFabric;
use std::cell::RefCell;
use std::path::Path;
use std::sync::mpsc::sync_channel;

const TRAITS: FabricTraits = FabricTraits { knows_who_left: false, results_room: RESULTS_ROOM };

/// Gives the check an empty fabric each time; its server lives until the next one. Servers start and end while
/// others are in use.
fn check_with_servers(program: &Path, check: impl FnOnce(&dyn Fn() -> NatsFabric)) {
    std::thread::scope(|scope| {
        let (started, servers) = sync_channel(0);
        scope.spawn(move || while started.send(Server::open(program.to_owned())).is_ok() {});
        let last = RefCell::new(None);
        let make = move || {
            let server = servers.recv().expect("the server starts");
            let fabric = server.fabric();
            last.replace(Some(server)).map(|before| scope.spawn(|| drop(before)));
            fabric
        };
        check(&make);
    });
}

#[test]
fn the_networked_fabric_conforms() {
    if let Some(program) = program() {
        check_with_servers(&program, |make| check_fabric(TRAITS, make));
    }
}

#[test]
fn networked_fabric_injects_configured_faults() {
    if let Some(program) = program() {
        check_with_servers(&program, |make| check_faults(make));
    }
}
