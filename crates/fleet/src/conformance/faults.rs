//! The faults of [`FaultyFabric`], each observed over a fabric of any kind.

use super::{LONG, SOON, command, controller, join, node, post, segment};
use crate::fabric::{Endpoint, Error, Fabric, RecordStore, ResultInlet, ResultOutlet};
use crate::faulty::{FabricFaults, FaultyFabric};
use crate::message::{MessageBody, NodeCommand, Nonce};

/// Checks that each fault has its effect, and that everything works as before once it is removed.
pub fn faults_do_what_they_say<F: Fabric>(make: impl Fn() -> F) {
    messages(&FaultyFabric::new(make()));
    calls(&FaultyFabric::new(make()));
}

/// Expects these letters, however slowly they arrive, and nothing more.
fn expect_letters<E: Endpoint>(at: &mut E, wanted: &[MessageBody]) {
    let came: Vec<_> = wanted.iter().map_while(|_| at.receive(LONG)).map(|letter| letter.body).collect();
    assert_eq!(came, wanted);
    assert_eq!(at.receive(SOON), None, "nothing more comes");
}

fn three_commands() -> [MessageBody; 3] {
    [NodeCommand::Arm, NodeCommand::Query, NodeCommand::Stop].map(command)
}

/// Posts the three commands to node `a`, where the wanted letters arrive.
fn post_three<E: Endpoint>(from: &mut E, a: &mut E, wanted: &[MessageBody]) {
    for letter in three_commands() {
        post(from, &node("a"), letter);
    }
    expect_letters(a, wanted);
}

fn messages<F: Fabric>(fabric: &FaultyFabric<F>) {
    let mut from = controller(fabric);
    let mut a = join(fabric, &node("a"));
    let [arm, query, stop] = three_commands();
    post_three(&mut from, &mut a, &three_commands());
    fabric.set(FabricFaults { lose_each: Some(3), ..FabricFaults::default() });
    post_three(&mut from, &mut a, &[arm.clone(), query.clone()]);
    fabric.set(FabricFaults { repeat_each: Some(3), ..FabricFaults::default() });
    post_three(&mut from, &mut a, &[arm.clone(), query.clone(), stop.clone(), stop.clone()]);
    fabric.set(FabricFaults { hold_back: 2, ..FabricFaults::default() });
    post_three(&mut from, &mut a, std::slice::from_ref(&arm));
    fabric.set(FabricFaults::default());
    // Letters that were held back arrive first.
    post_three(&mut from, &mut a, &[query.clone(), stop.clone(), arm, query, stop]);

    fabric.set(FabricFaults { refuse: true, ..FabricFaults::default() });
    assert_eq!(from.post(&node("a"), MessageBody::RollCall(Nonce(1))), Err(Error::NotPermitted("a".into())));
    fabric.set(FabricFaults { cut: true, ..FabricFaults::default() });
    assert!(matches!(from.post(&node("a"), MessageBody::RollCall(Nonce(1))), Err(Error::Down(_))));
    assert_eq!(a.receive(LONG), None);
    fabric.set(FabricFaults::default());
    post(&mut from, &node("a"), MessageBody::RollCall(Nonce(1)));
    expect_letters(&mut a, &[MessageBody::RollCall(Nonce(1))]);
}

fn calls<F: Fabric>(fabric: &FaultyFabric<F>) {
    let mut records = fabric.records().unwrap_or_else(|error| panic!("opening the records: {error}"));
    let mut incoming = super::reader(fabric, "one", &[]);
    let mut outgoing =
        fabric.outgoing(&node("a")).unwrap_or_else(|error| panic!("opening the outlet: {error}"));
    fabric.set(FabricFaults { cut: true, ..FabricFaults::default() });
    assert!(matches!(records.get("k"), Err(Error::Down(_))));
    assert!(matches!(outgoing.append(&segment("a", 0), b"x"), Err(Error::Down(_))));
    assert!(incoming.collect(LONG).is_none());
    fabric.set(FabricFaults { full: true, ..FabricFaults::default() });
    assert_eq!(outgoing.append(&segment("a", 0), b"x"), Err(Error::Full));
    fabric.set(FabricFaults { refuse: true, ..FabricFaults::default() });
    assert_eq!(records.create("k", b"x"), Err(Error::NotPermitted("k".into())));
    fabric.set(FabricFaults { unanswered: true, ..FabricFaults::default() });
    assert!(matches!(outgoing.append(&segment("a", 0), b"x"), Err(Error::Unanswered(_))));
    fabric.set(FabricFaults::default());
    assert_eq!(outgoing.append(&segment("a", 0), b"x"), Ok(()), "the same again");
    let delivery = incoming.collect(LONG).unwrap_or_else(|| panic!("it was kept"));
    assert_eq!(incoming.confirm(delivery.token), Ok(()));
    assert!(incoming.collect(SOON).is_none(), "it was kept once");
}
