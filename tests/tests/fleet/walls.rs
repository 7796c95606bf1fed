//! What the processes of a node may still do: the rows of `agent` in `docs/book/sandbox.md`.

use crate::lab::{Fleet, Wish};
use packetrig_sys::sandbox::{OfferedWalls, ProcessCapabilities, threads_of};
use packetrig_tests::walls::{Holding, RIG};

#[test]
fn node_confines_capabilities_from_network_threads() {
    let Some(fleet) = Fleet::up(Wish::default()) else { return };
    let node = crate::lab::SENDERS[0];
    let held = Holding::of("agent", fleet.worker(node), &fleet.said(node));
    held.assert_at_most(RIG);
    held.assert_confined("fabric");
    held.assert_confined("captures");
    // The supervisor reads nothing of others; it has what its worker starts with, and no right to enter namespaces.
    let never = ProcessCapabilities::SYS_ADMIN.bits();
    for thread in threads_of(fleet.supervisor(node)).expect("it runs") {
        let can = thread.effective | thread.permitted | thread.bounding;
        assert_eq!(can & never, 0, "{thread:?}");
        assert!(thread.no_new_privs, "{thread:?}");
    }
    // The message server and what starts it.
    let [middle, server] = fleet.broker();
    for process in [middle, server] {
        for thread in threads_of(process).expect("it runs") {
            let can = thread.effective | thread.permitted | thread.ambient | thread.bounding;
            assert!(can == 0 && thread.no_new_privs, "{process}: {thread:?}");
            let has_filter = process == server && OfferedWalls::probe_kernel().seccomp;
            assert_eq!(thread.is_filtered, has_filter, "{process}: {thread:?}");
        }
    }
}
