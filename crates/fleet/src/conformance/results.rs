//! Checks of records and results: records change by compare-and-set; no segment is lost or stored twice under one name;
//! a full store returns an error.

use super::{
    FabricTraits, NEVER_REACHED_TIMEOUT, NO_MESSAGE_WAIT, node_name, open_reader, segment_id, test_run,
};
use crate::fabric::{
    Error, Fabric, MAX_SEGMENT_BYTES, RecordStore, ResultReceiver, ResultSender, SegmentDelivery, SegmentId,
};
use crate::message::RunId;
use std::collections::BTreeSet;
use std::fmt::Debug;

fn expect_success<T, E: Debug>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error:?}"))
}

pub(super) fn check_records<F: Fabric>(make: impl Fn() -> F) {
    record_changes_by_compare_and_set(&make());
    keys_are_listed_in_order_until_removed(&make());
}

fn record_changes_by_compare_and_set<F: Fabric>(fabric: &F) {
    let mut one = expect_success("opening", fabric.open_records());
    let mut two = expect_success("opening again", fabric.open_records());
    assert_eq!(expect_success("reading", one.get_record("ctl.lock")), None);
    assert_eq!(one.replace_record("ctl.lock", 1, b"x"), Err(Error::Stale("ctl.lock".into())));
    let first = expect_success("making", one.create_record("ctl.lock", b"one"));
    assert_eq!(two.create_record("ctl.lock", b"two"), Err(Error::Exists("ctl.lock".into())));
    assert_eq!(
        two.create_record("ctl.lock", b"one"),
        Err(Error::Exists("ctl.lock".into())),
        "the same value is no claim"
    );
    let seen = expect_success("reading", two.get_record("ctl.lock")).unwrap_or_else(|| panic!("it was made"));
    assert_eq!((seen.value.as_slice(), seen.revision), (b"one".as_slice(), first));
    let second = expect_success("replacing", two.replace_record("ctl.lock", first, b"two"));
    assert!(second > first, "revisions rise");
    assert_eq!(one.replace_record("ctl.lock", first, b"one"), Err(Error::Stale("ctl.lock".into())));
    let seen = expect_success("reading", one.get_record("ctl.lock")).unwrap_or_else(|| panic!("it was made"));
    assert_eq!((seen.value.as_slice(), seen.revision), (b"two".as_slice(), second));
}

fn keys_are_listed_in_order_until_removed<F: Fabric>(fabric: &F) {
    let mut records = expect_success("opening", fabric.open_records());
    assert_eq!(expect_success("listing", records.list_keys("")), [""; 0]);
    for key in ["run.b", "run.a", "node.a", "runs"] {
        expect_success("making", records.create_record(key, b"x"));
    }
    assert_eq!(expect_success("listing", records.list_keys("run.")), ["run.a", "run.b"]);
    expect_success("removing", records.remove_record("run.a"));
    expect_success("removing a missing record", records.remove_record("run.a"));
    assert_eq!(expect_success("listing", records.list_keys("run.")), ["run.b"]);
    assert_eq!(expect_success("reading", records.get_record("run.a")), None);
    expect_success("making again", records.create_record("run.a", b"y"));
    assert_eq!(expect_success("listing", records.list_keys("")), ["node.a", "run.a", "run.b", "runs"]);
    let wanted = ["run.b", "nobody", "run.a"].map(str::to_owned);
    let values = expect_success("reading many", records.get_records(&wanted)).into_iter();
    let values: Vec<Option<Vec<u8>>> = values.map(|record| record.map(|record| record.value)).collect();
    assert_eq!(values, [Some(b"x".to_vec()), None, Some(b"y".to_vec())], "in the order they were asked for");
}

pub(super) fn check_results<F: Fabric>(traits: FabricTraits, make: impl Fn() -> F) {
    repeated_append_is_delivered_once(&make());
    unconfirmed_segments_are_delivered_again(&make());
    largest_segment_fits_and_larger_is_refused(&make());
    full_store_refuses_and_keeps_segments(traits, &make());
    runs_are_read_separately_and_unread_segments_stay(&make());
}

fn runs_are_read_separately_and_unread_segments_stay<F: Fabric>(fabric: &F) {
    let mut outgoing = expect_success("opening", fabric.open_result_outlet(&node_name("a")));
    let other = RunId("20261121-2".into());
    let late = RunId("20261121-3".into());
    let mut one = open_reader(fabric, "one", &[]);
    let mut two = expect_success("opening", fabric.open_result_inlet("two"));
    expect_success("reading another run", two.read_run(&other, &BTreeSet::new()));
    assert!(matches!(two.read_run(&test_run(), &BTreeSet::new()), Err(Error::Taken(_))), "one reader a run");
    for number in 0..3 {
        for run in [&test_run(), &other, &late] {
            let id = SegmentId { run: run.clone(), ..segment_id("a", number) };
            expect_success("appending", outgoing.append_segment(&id, id.to_string().as_bytes()));
        }
    }
    for (incoming, own) in [(&mut one, &test_run()), (&mut two, &other)] {
        let mut open: BTreeSet<u64> = (0..3).collect();
        while !open.is_empty() {
            let delivery = next_segment(incoming);
            assert_eq!(delivery.id.run, *own, "a segment of another run");
            assert!(open.remove(&delivery.id.number), "{} twice", delivery.id);
            expect_success("confirming", incoming.confirm_segment(delivery.token));
        }
        assert!(incoming.receive_segment(NO_MESSAGE_WAIT).is_none(), "nothing of another run comes");
    }
    // An empty run with a reader may be listed or not.
    let mut waiting = expect_success("listing", one.list_runs_with_waiting_segments());
    assert_eq!(waiting.remove(&late), Some(BTreeSet::new()), "nobody reads it");
    expect_success("reading it too", one.read_run(&late, &BTreeSet::new()));
    let waiting = expect_success("listing", two.list_runs_with_waiting_segments());
    assert_eq!(waiting.get(&late), Some(&BTreeSet::from(["one".to_owned()])));
    let unconfirmed = next_segment(&mut one);
    assert_eq!(unconfirmed.id.run, late);
    one.leave_run(&late);
    assert!(one.confirm_segment(unconfirmed.token).is_err(), "it has left");
    expect_success("reading the remaining segments", two.read_run(&late, &BTreeSet::new()));
    let came: BTreeSet<u64> = (0..3).map(|_| next_segment(&mut two).id.number).collect();
    assert_eq!(came, (0..3).collect(), "the next reader gets the segments that were not confirmed");
}

fn next_segment<I: ResultReceiver>(incoming: &mut I) -> SegmentDelivery<I::Token> {
    incoming.receive_segment(NEVER_REACHED_TIMEOUT).unwrap_or_else(|| panic!("a segment was lost"))
}

fn repeated_append_is_delivered_once<F: Fabric>(fabric: &F) {
    let mut incoming = open_reader(fabric, "one", &[]);
    let mut outgoing = expect_success("opening", fabric.open_result_outlet(&node_name("a")));
    for number in [0, 1, 0, 2, 2] {
        let body = format!("segment {number}");
        expect_success("appending", outgoing.append_segment(&segment_id("a", number), body.as_bytes()));
    }
    let mut got = BTreeSet::new();
    for _ in 0..3 {
        let delivery = next_segment(&mut incoming);
        assert_eq!(delivery.body, format!("segment {}", delivery.id.number).into_bytes());
        got.insert(delivery.id.clone());
        expect_success("confirming", incoming.confirm_segment(delivery.token));
    }
    assert_eq!(got, BTreeSet::from([0, 1, 2].map(|number| segment_id("a", number))));
    assert!(incoming.receive_segment(NO_MESSAGE_WAIT).is_none(), "it comes once");
}

fn unconfirmed_segments_are_delivered_again<F: Fabric>(fabric: &F) {
    let mut incoming = open_reader(fabric, "one", &[]);
    let mut outgoing = expect_success("opening", fabric.open_result_outlet(&node_name("a")));
    for number in 0..4 {
        expect_success("appending", outgoing.append_segment(&segment_id("a", number), b"x"));
    }
    let mut open: BTreeSet<u64> = (0..4).collect();
    let confirmed = next_segment(&mut incoming);
    open.remove(&confirmed.id.number);
    expect_success("confirming", incoming.confirm_segment(confirmed.token));
    let unconfirmed = next_segment(&mut incoming);
    let mut again = open_reader(fabric, "two", &["one"]);
    assert!(incoming.confirm_segment(unconfirmed.token).is_err(), "it was replaced");
    while !open.is_empty() {
        let delivery = next_segment(&mut again);
        assert!(open.remove(&delivery.id.number), "{} was confirmed", delivery.id);
        expect_success("confirming", again.confirm_segment(delivery.token));
    }
    assert!(again.receive_segment(NO_MESSAGE_WAIT).is_none());
}

fn largest_segment_fits_and_larger_is_refused<F: Fabric>(fabric: &F) {
    let mut incoming = open_reader(fabric, "one", &[]);
    let mut outgoing = expect_success("opening", fabric.open_result_outlet(&node_name("a")));
    let body: Vec<u8> = (0..=MAX_SEGMENT_BYTES).map(|index| index.to_le_bytes()[0]).collect();
    assert_eq!(
        outgoing.append_segment(&segment_id("a", 0), &body),
        Err(Error::TooLarge(MAX_SEGMENT_BYTES + 1))
    );
    expect_success("appending", outgoing.append_segment(&segment_id("a", 1), &body[..MAX_SEGMENT_BYTES]));
    let delivery = next_segment(&mut incoming);
    assert_eq!(delivery.id.number, 1);
    assert!(delivery.body == body[..MAX_SEGMENT_BYTES], "its bytes are the same");
    expect_success("confirming", incoming.confirm_segment(delivery.token));
}

fn full_store_refuses_and_keeps_segments<F: Fabric>(traits: FabricTraits, fabric: &F) {
    let mut incoming = open_reader(fabric, "one", &[]);
    let mut outgoing = expect_success("opening", fabric.open_result_outlet(&node_name("a")));
    let body = vec![7; traits.results_room / 8];
    let mut kept = BTreeSet::new();
    let mut refused = 0;
    while let Ok(()) = outgoing.append_segment(&segment_id("a", refused), &body) {
        kept.insert(refused);
        refused += 1;
        assert!(refused < 20, "it was never full");
    }
    assert_eq!(outgoing.append_segment(&segment_id("a", refused), &body), Err(Error::Full));
    assert!(kept.len() >= 4, "{kept:?}");
    let mut tokens = Vec::new();
    for _ in 0..kept.len() {
        let delivery = next_segment(&mut incoming);
        assert!(kept.remove(&delivery.id.number), "{} twice", delivery.id);
        tokens.push(delivery.token);
    }
    for confirmed in incoming.confirm_segments(tokens) {
        expect_success("confirming together", confirmed);
    }
    expect_success(
        "appending where there is room again",
        outgoing.append_segment(&segment_id("a", refused), &body),
    );
    let delivery = next_segment(&mut incoming);
    assert_eq!(delivery.id.number, refused);
    expect_success("confirming", incoming.confirm_segment(delivery.token));
}
