//! Records and results: compare-and-set; nothing is lost, nothing is kept twice under one name, a full store returns an error.

use super::{FabricTraits, LONG, SOON, node, reader, run, segment};
use crate::fabric::{
    Error, Fabric, RecordStore, ResultInlet, ResultOutlet, SEGMENT_ROOM, SegmentDelivery, SegmentId,
};
use crate::message::RunId;
use std::collections::BTreeSet;
use std::fmt::Debug;

fn done<T, E: Debug>(what: &str, result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{what}: {error:?}"))
}

pub(super) fn check_records<F: Fabric>(make: impl Fn() -> F) {
    a_record_is_made_once_and_changed_by_who_saw_it(&make());
    keys_come_in_order_and_go_when_removed(&make());
}

fn a_record_is_made_once_and_changed_by_who_saw_it<F: Fabric>(fabric: &F) {
    let mut one = done("opening", fabric.records());
    let mut two = done("opening again", fabric.records());
    assert_eq!(done("reading", one.get("ctl.lock")), None);
    assert_eq!(one.replace("ctl.lock", 1, b"x"), Err(Error::Stale("ctl.lock".into())));
    let first = done("making", one.create("ctl.lock", b"one"));
    assert_eq!(two.create("ctl.lock", b"two"), Err(Error::Exists("ctl.lock".into())));
    assert_eq!(
        two.create("ctl.lock", b"one"),
        Err(Error::Exists("ctl.lock".into())),
        "the same value is no claim"
    );
    let seen = done("reading", two.get("ctl.lock")).unwrap_or_else(|| panic!("it was made"));
    assert_eq!((seen.value.as_slice(), seen.revision), (b"one".as_slice(), first));
    let second = done("replacing", two.replace("ctl.lock", first, b"two"));
    assert!(second > first, "revisions rise");
    assert_eq!(one.replace("ctl.lock", first, b"one"), Err(Error::Stale("ctl.lock".into())));
    let seen = done("reading", one.get("ctl.lock")).unwrap_or_else(|| panic!("it was made"));
    assert_eq!((seen.value.as_slice(), seen.revision), (b"two".as_slice(), second));
}

fn keys_come_in_order_and_go_when_removed<F: Fabric>(fabric: &F) {
    let mut records = done("opening", fabric.records());
    assert_eq!(done("listing", records.keys("")), [""; 0]);
    for key in ["run.b", "run.a", "node.a", "runs"] {
        done("making", records.create(key, b"x"));
    }
    assert_eq!(done("listing", records.keys("run.")), ["run.a", "run.b"]);
    done("removing", records.remove("run.a"));
    done("removing what is not there", records.remove("run.a"));
    assert_eq!(done("listing", records.keys("run.")), ["run.b"]);
    assert_eq!(done("reading", records.get("run.a")), None);
    done("making again", records.create("run.a", b"y"));
    assert_eq!(done("listing", records.keys("")), ["node.a", "run.a", "run.b", "runs"]);
    let wanted = ["run.b", "nobody", "run.a"].map(str::to_owned);
    let values = done("reading many", records.get_many(&wanted)).into_iter();
    let values: Vec<Option<Vec<u8>>> = values.map(|record| record.map(|record| record.value)).collect();
    assert_eq!(values, [Some(b"x".to_vec()), None, Some(b"y".to_vec())], "in the order they were asked for");
}

pub(super) fn check_results<F: Fabric>(traits: FabricTraits, make: impl Fn() -> F) {
    what_is_appended_twice_comes_once(&make());
    the_unconfirmed_comes_again_when_opened_anew(&make());
    the_largest_fits_and_more_does_not(&make());
    a_full_store_refuses_and_keeps_what_it_has(traits, &make());
    runs_are_read_apart_and_what_nobody_reads_stays(&make());
}

fn runs_are_read_apart_and_what_nobody_reads_stays<F: Fabric>(fabric: &F) {
    let mut outgoing = done("opening", fabric.outgoing(&node("a")));
    let other = RunId("20261121-2".into());
    let late = RunId("20261121-3".into());
    let mut one = reader(fabric, "one", &[]);
    let mut two = done("opening", fabric.incoming("two"));
    done("reading another run", two.read_run(&other, &BTreeSet::new()));
    assert!(matches!(two.read_run(&run(), &BTreeSet::new()), Err(Error::Taken(_))), "one reader a run");
    for number in 0..3 {
        for run in [&run(), &other, &late] {
            let id = SegmentId { run: run.clone(), ..segment("a", number) };
            done("appending", outgoing.append(&id, id.to_string().as_bytes()));
        }
    }
    for (incoming, own) in [(&mut one, &run()), (&mut two, &other)] {
        let mut open: BTreeSet<u64> = (0..3).collect();
        while !open.is_empty() {
            let delivery = next(incoming);
            assert_eq!(delivery.id.run, *own, "a segment of another run");
            assert!(open.remove(&delivery.id.number), "{} twice", delivery.id);
            done("confirming", incoming.confirm(delivery.token));
        }
        assert!(incoming.collect(SOON).is_none(), "nothing of another run comes");
    }
    // An empty run with a reader may be listed or not.
    let mut waiting = done("listing", one.waiting_runs());
    assert_eq!(waiting.remove(&late), Some(BTreeSet::new()), "nobody reads it");
    done("reading it too", one.read_run(&late, &BTreeSet::new()));
    let waiting = done("listing", two.waiting_runs());
    assert_eq!(waiting.get(&late), Some(&BTreeSet::from(["one".to_owned()])));
    let unconfirmed = next(&mut one);
    assert_eq!(unconfirmed.id.run, late);
    one.leave_run(&late);
    assert!(one.confirm(unconfirmed.token).is_err(), "it has left");
    done("reading what was left", two.read_run(&late, &BTreeSet::new()));
    let came: BTreeSet<u64> = (0..3).map(|_| next(&mut two).id.number).collect();
    assert_eq!(came, (0..3).collect(), "what was not confirmed comes to the next one");
}

fn next<I: ResultInlet>(incoming: &mut I) -> SegmentDelivery<I::Token> {
    incoming.collect(LONG).unwrap_or_else(|| panic!("a segment was lost"))
}

fn what_is_appended_twice_comes_once<F: Fabric>(fabric: &F) {
    let mut incoming = reader(fabric, "one", &[]);
    let mut outgoing = done("opening", fabric.outgoing(&node("a")));
    for number in [0, 1, 0, 2, 2] {
        let body = format!("segment {number}");
        done("appending", outgoing.append(&segment("a", number), body.as_bytes()));
    }
    let mut got = BTreeSet::new();
    for _ in 0..3 {
        let delivery = next(&mut incoming);
        assert_eq!(delivery.body, format!("segment {}", delivery.id.number).into_bytes());
        got.insert(delivery.id.clone());
        done("confirming", incoming.confirm(delivery.token));
    }
    assert_eq!(got, BTreeSet::from([0, 1, 2].map(|number| segment("a", number))));
    assert!(incoming.collect(SOON).is_none(), "it comes once");
}

fn the_unconfirmed_comes_again_when_opened_anew<F: Fabric>(fabric: &F) {
    let mut incoming = reader(fabric, "one", &[]);
    let mut outgoing = done("opening", fabric.outgoing(&node("a")));
    for number in 0..4 {
        done("appending", outgoing.append(&segment("a", number), b"x"));
    }
    let mut open: BTreeSet<u64> = (0..4).collect();
    let confirmed = next(&mut incoming);
    open.remove(&confirmed.id.number);
    done("confirming", incoming.confirm(confirmed.token));
    let unconfirmed = next(&mut incoming);
    let mut again = reader(fabric, "two", &["one"]);
    assert!(incoming.confirm(unconfirmed.token).is_err(), "it was replaced");
    while !open.is_empty() {
        let delivery = next(&mut again);
        assert!(open.remove(&delivery.id.number), "{} was confirmed", delivery.id);
        done("confirming", again.confirm(delivery.token));
    }
    assert!(again.collect(SOON).is_none());
}

fn the_largest_fits_and_more_does_not<F: Fabric>(fabric: &F) {
    let mut incoming = reader(fabric, "one", &[]);
    let mut outgoing = done("opening", fabric.outgoing(&node("a")));
    let body: Vec<u8> = (0..=SEGMENT_ROOM).map(|index| index.to_le_bytes()[0]).collect();
    assert_eq!(outgoing.append(&segment("a", 0), &body), Err(Error::TooLarge(SEGMENT_ROOM + 1)));
    done("appending", outgoing.append(&segment("a", 1), &body[..SEGMENT_ROOM]));
    let delivery = next(&mut incoming);
    assert_eq!(delivery.id.number, 1);
    assert!(delivery.body == body[..SEGMENT_ROOM], "its bytes are the same");
    done("confirming", incoming.confirm(delivery.token));
}

fn a_full_store_refuses_and_keeps_what_it_has<F: Fabric>(traits: FabricTraits, fabric: &F) {
    let mut incoming = reader(fabric, "one", &[]);
    let mut outgoing = done("opening", fabric.outgoing(&node("a")));
    let body = vec![7; traits.results_room / 8];
    let mut kept = BTreeSet::new();
    let mut refused = 0;
    while let Ok(()) = outgoing.append(&segment("a", refused), &body) {
        kept.insert(refused);
        refused += 1;
        assert!(refused < 20, "it was never full");
    }
    assert_eq!(outgoing.append(&segment("a", refused), &body), Err(Error::Full));
    assert!(kept.len() >= 4, "{kept:?}");
    let mut tokens = Vec::new();
    for _ in 0..kept.len() {
        let delivery = next(&mut incoming);
        assert!(kept.remove(&delivery.id.number), "{} twice", delivery.id);
        tokens.push(delivery.token);
    }
    for confirmed in incoming.confirm_all(tokens) {
        done("confirming together", confirmed);
    }
    done("appending where there is room again", outgoing.append(&segment("a", refused), &body));
    let delivery = next(&mut incoming);
    assert_eq!(delivery.id.number, refused);
    done("confirming", incoming.confirm(delivery.token));
}
