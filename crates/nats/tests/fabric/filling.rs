//! A node fills the stream of results: segments that nobody can ever take do not stay, and there is
//! space for other nodes.

use crate::fleet::{Fleet, fabric, node};
use crate::server::{RESULTS_ROOM, program};
use crate::stranger::Stranger;
use async_nats::HeaderMap;
use packetrig_fleet::fabric::{Error, Fabric, ResultReceiver, ResultSender, SegmentId};
use packetrig_fleet::message::RunId;
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

const LONG: Nanos = Nanos::from_secs(20);

fn id(run: &str, of: &str, number: u64) -> SegmentId {
    SegmentId { run: RunId(run.into()), attempt: 1, node: node(of), number }
}

/// Number of messages in the stream, as the server counts them.
fn kept(witness: &Stranger) -> u64 {
    let asking = witness.client.request("$JS.API.STREAM.INFO.res", "".into());
    let answer = witness.runtime.block_on(asking).expect("the server answers");
    let info: serde_json::Value = serde_json::from_slice(&answer.payload).expect("it is JSON");
    info["state"]["messages"].as_u64().expect("a count")
}

#[test]
fn segments_for_invalid_runs_are_removed_and_counted() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, b, witness) = (fleet.member("a"), fleet.member("b"), fleet.member("witness"));
    let mut incoming = fleet.controller().open_result_inlet("1").expect("it opens");
    fabric(&b)
        .open_result_outlet(&node("b"))
        .expect("it opens")
        .append_segment(&id("r", "b", 0), b"x")
        .expect("it is kept");
    let (hostile, witness) = (Stranger::new(&fleet, &a), Stranger::witness(&fleet, &witness));
    // The last two would match all runs if they were the filter of a consumer.
    let long = "x".repeat(300);
    let words = ["x:y", "a/b", "a*", long.as_str(), "*", ">"];
    for word in words {
        hostile.publish(&format!("res.{word}.a"), None, HeaderMap::new(), "evil");
    }
    hostile.flush();
    let sent = u64::try_from(words.len()).expect("few");
    assert!((0..1000).any(|_| kept(&witness) == sent + 1), "the server takes them");
    let waiting = incoming.list_runs_with_waiting_segments().expect("it may");
    assert_eq!(waiting, BTreeMap::from([(RunId("r".into()), BTreeSet::new())]));
    assert_eq!(incoming.take_refused_counts(), BTreeMap::from([(node("a"), sent)]));
    assert_eq!(kept(&witness), 1, "that of the honest node");
    incoming.read_run(&RunId("r".into()), &BTreeSet::new()).expect("nobody else reads it");
    assert_eq!(incoming.receive_segment(LONG).map(|delivery| delivery.id), Some(id("r", "b", 0)));
}

#[test]
fn node_exceeding_run_limit_loses_its_segments() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, b, witness) = (fleet.member("a"), fleet.member("b"), fleet.member("witness"));
    let mut incoming = fleet.controller().open_result_inlet("1").expect("it opens");
    fabric(&b)
        .open_result_outlet(&node("b"))
        .expect("it opens")
        .append_segment(&id("r0", "b", 0), b"x")
        .expect("it is kept");
    let (hostile, witness) = (Stranger::new(&fleet, &a), Stranger::witness(&fleet, &witness));
    for run in 0..1100 {
        hostile.publish(&format!("res.r{run}.a"), None, HeaderMap::new(), "evil");
    }
    hostile.flush();
    assert!((0..10_000).any(|_| kept(&witness) == 1101), "the server takes them");
    incoming.list_runs_with_waiting_segments().expect("it may");
    assert_eq!((incoming.take_refused_counts(), kept(&witness)), (BTreeMap::from([(node("a"), 1100)]), 1));
}

#[test]
fn discarding_old_run_frees_full_stream() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, b, c) = (fleet.member("a"), fleet.member("b"), fleet.member("c"));
    let mut incoming = fleet.controller().open_result_inlet("1").expect("it opens");
    let body = vec![7; RESULTS_ROOM / 8];
    let (of_a, of_b) = (fabric(&a), fabric(&b));
    let mut hostile = of_a.open_result_outlet(&node("a")).expect("it opens");
    let filled = (0..20).find_map(|number| hostile.append_segment(&id("old", "a", number), &body).err());
    assert_eq!(filled, Some(Error::Full));
    let mut honest = of_b.open_result_outlet(&node("b")).expect("it opens");
    assert_eq!(honest.append_segment(&id("r", "b", 0), &body), Err(Error::Full));
    assert!(!incoming.is_nearly_full(), "nothing was asked yet");
    let waiting = incoming.list_runs_with_waiting_segments().expect("it may");
    assert!(waiting.keys().eq([&RunId("old".into())]) && incoming.is_nearly_full());
    let removed = incoming.discard_runs(&BTreeSet::from([RunId("old".into())])).expect("it may");
    assert!((4..20).contains(&removed), "{removed}");
    honest.append_segment(&id("r", "b", 0), &body).expect("there is room again");
    let waiting = incoming.list_runs_with_waiting_segments().expect("it may");
    assert!(waiting.keys().eq([&RunId("r".into())]) && !incoming.is_nearly_full());
    // Its node still has these segments, and may send them again once the server has forgotten their ids. Segments of
    // other nodes are taken now.
    let mut other = fabric(&c).open_result_outlet(&node("c")).expect("it opens");
    other.append_segment(&id("old", "c", 0), &body).expect("the run is as good as any");
}
