//! Rights that every thread is to give up: published by one thread, read in the handlers of all others.

use crate::area::SharedArea;
use crate::explore::check;
use crate::sync::{AtomicU32, AtomicU64};
use loom::sync::Arc;

#[path = "../../src/sandbox/request.rs"]
mod request;

use request::{NO_CHANGE, RightsRequest, WantedRights};

#[test]
fn late_handler_never_reads_user_without_its_group() {
    check(|| {
        let request = Arc::new(RightsRequest {
            kept: AtomicU64::new(u64::MAX),
            user: AtomicU32::new(NO_CHANGE),
            group: AtomicU32::new(NO_CHANGE),
            handlers: AtomicU64::new(0),
        });
        let handler = Arc::clone(&request);
        // A signal of an earlier request, which is handled only now.
        let thread = loom::thread::spawn(move || handler.read_rights());
        request.publish_rights(WantedRights { kept: 1, user: 5, group: 7 });
        let read = thread.join().expect("the handler ends");
        assert!(read.user != 5 || read.group == 7, "the user without the group: {read:?}");
        assert!(read.kept != 1 || read.user == 5, "the right to become the user is given up first: {read:?}");
    });
}

#[test]
fn handler_makes_no_call_after_handlers_close() {
    check(|| {
        let request = Arc::new(RightsRequest {
            kept: AtomicU64::new(0),
            user: AtomicU32::new(NO_CHANGE),
            group: AtomicU32::new(NO_CHANGE),
            handlers: AtomicU64::new(0),
        });
        let own = SharedArea::new(&[], &[], &[(8, 8)]);
        let (handler, mut calls) = (Arc::clone(&request), own.share());
        let thread = loom::thread::spawn(move || {
            // The same signal twice, as a slow thread gets it.
            for _ in 0..2 {
                if handler.enter_handler() {
                    calls.bytes_mut(8, 8).fill(1);
                }
                handler.leave_handler();
            }
        });
        request.open_handlers();
        request.close_handlers();
        if request.are_handlers_done() {
            // The filter is in force: a call beside this one is found as two accesses at once.
            own.bytes(8, 8);
        }
        thread.join().expect("the handlers end");
    });
}
