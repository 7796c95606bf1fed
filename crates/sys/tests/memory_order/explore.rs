//! Runs a model in every order, then again with each of its orderings weakened.

use crate::sync::Ordering;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::Location;

/// Switches away from a thread that could go on, unless `MEMORY_ORDER_PREEMPTIONS` says otherwise.
const PREEMPTIONS: usize = 3;

/// A place in a source file where an ordering other than `Relaxed` is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Site {
    file: &'static str,
    line: u32,
    column: u32,
}

thread_local! {
    /// Loom runs all threads of a model on the thread that explores it.
    static REACHED: RefCell<BTreeSet<Site>> = const { RefCell::new(BTreeSet::new()) };
    static WEAKENED: Cell<Option<Site>> = const { Cell::new(None) };
}

loom::lazy_static! {
    static ref TURN: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
}

/// Makes every operation depend on every other. Loom remembers only the last access of a value: it would miss the orders in which
/// another thread's access comes before one that the same thread has made just before.
fn take_turn() {
    // Relaxed: nothing is ordered by it.
    TURN.fetch_add(1, Ordering::Relaxed);
}

/// The ordering that the caller's caller gets: what it asks for, unless it is the one that is weakened now.
#[track_caller]
pub(crate) fn effective(order: Ordering) -> Ordering {
    take_turn();
    if order == Ordering::Relaxed {
        return order;
    }
    let caller = Location::caller();
    let site = Site { file: caller.file(), line: caller.line(), column: caller.column() };
    REACHED.with_borrow_mut(|reached| reached.insert(site));
    if WEAKENED.get() == Some(site) { Ordering::Relaxed } else { order }
}

/// The protocol holds in every order, and does not without any one of its orderings.
pub(crate) fn check(model: fn()) {
    let needed = explore(model, None).unwrap_or_else(|why| panic!("the protocol does not hold: {why}"));
    assert!(!needed.is_empty(), "a protocol without any ordering is none");
    for site in needed {
        let weakened = explore(model, Some(site));
        assert!(weakened.is_err(), "nothing fails without the ordering at {site:?}");
    }
}

/// Says which orderings the model reached, or what went wrong.
fn explore(model: fn(), weakened: Option<Site>) -> Result<BTreeSet<Site>, String> {
    // A thread of its own: what a failed exploration leaves behind is gone with it.
    let explored = std::thread::spawn(move || {
        WEAKENED.set(weakened);
        let mut builder = loom::model::Builder::new();
        let stated = std::env::var("MEMORY_ORDER_PREEMPTIONS").ok();
        builder.preemption_bound = Some(stated.and_then(|most| most.parse().ok()).unwrap_or(PREEMPTIONS));
        builder.check(move || {
            // Before there is a second thread: what makes the value orders nothing then.
            take_turn();
            model();
        });
        REACHED.take()
    });
    explored.join().map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
    })
}

#[test]
#[should_panic(expected = "a store is seen")]
fn relaxed_accesses_are_explored_in_every_order() {
    check(|| {
        let memory = crate::area::SharedArea::new(&[0], &[], &[]);
        let other = memory.share();
        let thread = loom::thread::spawn(move || {
            other.atomic_u32(0).load(Ordering::Relaxed);
            other.atomic_u32(0).store(1, Ordering::Relaxed);
        });
        assert_eq!(memory.atomic_u32(0).load(Ordering::Relaxed), 0, "a store is seen");
        thread.join().expect("the thread ends");
    });
}

#[test]
#[should_panic(expected = "nothing fails without the ordering")]
fn an_ordering_that_nothing_needs_is_found() {
    check(|| crate::sync::AtomicU64::new(0).store(1, Ordering::Release));
}

#[test]
#[should_panic(expected = "the protocol does not hold")]
fn a_protocol_without_its_ordering_is_found() {
    check(|| {
        let memory = crate::area::SharedArea::new(&[0], &[], &[(8, 8)]);
        let mut writer = memory.share();
        let thread = loom::thread::spawn(move || {
            writer.bytes_mut(8, 8).fill(1);
            writer.atomic_u32(0).store(1, Ordering::Relaxed);
        });
        if memory.atomic_u32(0).load(Ordering::Acquire) == 1 {
            assert_eq!(memory.bytes(8, 8), [1; 8]);
        }
        thread.join().expect("the writer ends");
    });
}
