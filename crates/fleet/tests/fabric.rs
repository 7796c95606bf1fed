//! The local fabric is held to what every fabric must do, with and without faults.

use packetrig_fleet::conformance::{FabricTraits, check_fabric, check_faults};
use packetrig_fleet::faulty::FaultyFabric;
use packetrig_fleet::local::LocalFabric;

/// A mebibyte: enough for the largest segment.
const TRAITS: FabricTraits = FabricTraits { knows_who_left: true, results_room: 1 << 20 };

fn local() -> LocalFabric {
    LocalFabric::with_result_capacity(TRAITS.results_room)
}

#[test]
fn the_local_fabric_conforms() {
    check_fabric(TRAITS, local);
}

#[test]
fn a_faulty_fabric_without_faults_conforms() {
    check_fabric(TRAITS, || FaultyFabric::new(local()));
}

#[test]
fn local_fabric_injects_configured_faults() {
    check_faults(local);
}
