//! Rights that every thread is to give up: told by one thread, read in the handlers of all others.

use crate::explore::check;
use crate::sync::{AtomicU32, AtomicU64};
use loom::sync::Arc;

#[path = "../../src/sandbox/request.rs"]
mod request;

use request::{RightsRequest, SAME, WantedRights};

#[test]
fn a_thread_that_follows_late_never_mixes_two_requests_in_a_way_that_keeps_a_group() {
    check(|| {
        let request = Arc::new(RightsRequest {
            kept: AtomicU64::new(u64::MAX),
            user: AtomicU32::new(SAME),
            group: AtomicU32::new(SAME),
        });
        let handler = Arc::clone(&request);
        // A signal of an earlier request, which is handled only now.
        let thread = loom::thread::spawn(move || handler.read());
        request.tell(WantedRights { kept: 1, user: 5, group: 7 });
        let read = thread.join().expect("the handler ends");
        assert!(read.user != 5 || read.group == 7, "the user without the group: {read:?}");
        assert!(read.kept != 1 || read.user == 5, "the right to become the user is given up first: {read:?}");
    });
}
