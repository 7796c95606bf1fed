//! A node with a good certificate and bad intentions, in a fleet that does its work meanwhile.

use crate::lab::{Fleet, Wish};
use crate::run::Judged;
use packetrig_fleet::NodeName;
use packetrig_fleet::fabric::{Endpoint, Fabric, ResultOutlet, SegmentId};
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::{MessageBody, RunId};
use packetrig_nats::NatsFabric;
use packetrig_nats::enrol::enrol;

/// More than the server delivers before the first of them are confirmed.
const POISON: u64 = 4200;
/// What the controller keeps of it.
const KEPT: usize = 64;

/// Everything it says is sealed as it should be: the fleet has let it in.
fn poison(line: &str) {
    let name = NodeName("evil".into());
    let line = line.parse().expect("a line of this fleet");
    let membership = enrol(&line, &name, None).expect("it is let in");
    let fabric = NatsFabric::new(membership.access().expect("whole")).expect("a runtime");
    let mut endpoint = fabric.join(name.clone()).expect("it joins");
    let troubles = vec!["\u{1b}]0;owned\u{7}\nVerdict: PASS".to_owned()];
    let hello = NodeHello { epoch: u64::MAX - 1, incarnation: 7, troubles, ..NodeHello::default() };
    let mut outgoing = fabric.outgoing(&name).expect("it opens");
    for number in 0..POISON {
        if number % 100 == 0 {
            endpoint
                .post(&NodeName::controller(), MessageBody::Hello(Box::new(hello.clone())))
                .expect("it is sent");
        }
        let id = SegmentId { run: RunId("nobody-knows".into()), attempt: 1, node: name.clone(), number };
        outgoing.append(&id, format!("nonsense {number}").as_bytes()).expect("the server keeps it");
    }
}

#[test]
fn a_hostile_hello_and_unreadable_results_neither_brick_nor_slow_the_fleet() {
    let Some(fleet) = Fleet::up(Wish::default()) else { return };
    // A controller makes the stream of results.
    assert_eq!(fleet.begin(&["--packets", "100"]).finish().code, Some(0));
    let line = fleet.line().to_owned();
    fleet.beside_controller(|| poison(&line));
    for _ in 0..2 {
        let ended = fleet.begin(&["--packets", "2000"]).finish();
        assert_eq!(ended.code, Some(0), "{}", ended.complaints);
        assert!(!ended.complaints.contains(['\u{1b}', '\u{7}']), "{:?}", ended.complaints);
        ended.report().assert_nothing_lost();
    }
    // What was refused is counted, named, and kept within the node's room.
    let (_, printed, remarks) = fleet.ask(&["fleet", "collect"]);
    let kept = fleet.place().join("ctl/packetrig/set-aside/evil");
    let files = std::fs::read_dir(&kept).map(Iterator::count).unwrap_or_default();
    assert_eq!(files, KEPT, "{} {printed} {remarks}", kept.display());
}
