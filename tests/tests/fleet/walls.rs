//! What the processes of a node may still do: the rows of `agent` in `docs/book/sandbox.md`.

use crate::lab::{Fleet, FleetOptions};
use packetrig_sys::sandbox::{OfferedProtections, ProcessCapabilities, read_thread_statuses};
use packetrig_tests::walls::{Holding, RIG};
use std::os::unix::fs::MetadataExt as _;

#[test]
fn node_confines_capabilities_from_network_threads() {
    let Some(fleet) = Fleet::up(FleetOptions::default()) else { return };
    let node = crate::lab::SENDERS[0];
    let held = Holding::of("agent", fleet.worker(node), &fleet.said(node));
    held.assert_at_most(RIG);
    held.assert_confined("fabric");
    held.assert_confined("captures");
    // The supervisor reads nothing of others; it has what its worker starts with, and no right to enter namespaces.
    let never = ProcessCapabilities::SYS_ADMIN.bits();
    for thread in read_thread_statuses(fleet.supervisor(node)).expect("it runs") {
        let can = thread.effective | thread.permitted | thread.bounding;
        assert_eq!(can & never, 0, "{thread:?}");
        assert!(thread.no_new_privs, "{thread:?}");
    }
    // The message server and what starts it.
    let [middle, server] = fleet.broker();
    for process in [middle, server] {
        for thread in read_thread_statuses(process).expect("it runs") {
            let can = thread.effective | thread.permitted | thread.ambient | thread.bounding;
            assert!(can == 0 && thread.no_new_privs, "{process}: {thread:?}");
            let has_filter = process == server && OfferedProtections::read_offered_protections().seccomp;
            assert_eq!(thread.is_filtered, has_filter, "{process}: {thread:?}");
        }
    }
    assert_own_user(server, &fleet);
}

/// The server has the user that `fleet up` names, and its directory belongs to that user.
fn assert_own_user(server: u32, fleet: &Fleet) {
    let said = fleet.said("up");
    let Some((_, after)) = said.split_once("nats-server: uid ") else {
        // An ordinary user cannot give it one; `fabric::own_user` says that it was skipped.
        return assert!(said.contains("missing: a user of its own for nats-server: "), "{said}");
    };
    let user: u32 = after.split_whitespace().next().and_then(|uid| uid.parse().ok()).expect("a number");
    assert_ne!(user, packetrig_sys::owner::own_user());
    for thread in read_thread_statuses(server).expect("it runs") {
        assert!(thread.user == user && thread.groups.is_empty(), "{thread:?}");
    }
    let owner = |name: &str| std::fs::metadata(fleet.place().join(name)).expect("it is there").uid();
    assert_eq!(owner("fleet/broker"), user);
    assert_ne!(owner("fleet/authority"), user);
}
