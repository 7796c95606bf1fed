//! Checks that the faults of [`FaultyFabric`] work over a fabric of any kind.

use super::{
    NEVER_REACHED_TIMEOUT, NO_MESSAGE_WAIT, command_body, join_fabric_as_controller, join_fabric_or_panic,
    node_name, post_or_panic, segment_id,
};
use crate::fabric::{Endpoint, Error, Fabric, RecordStore, ResultReceiver, ResultSender};
use crate::faulty::{FabricFaults, FaultyFabric};
use crate::message::{MessageBody, NodeCommand, Nonce};

/// Checks that each fault has its effect, and that everything works as before once it is removed.
pub fn check_faults<F: Fabric>(make: impl Fn() -> F) {
    check_message_faults(&FaultyFabric::new(make()));
    check_call_faults(&FaultyFabric::new(make()));
}

/// Panics unless exactly these messages arrive, in this order.
fn expect_letters<E: Endpoint>(at: &mut E, wanted: &[MessageBody]) {
    let came: Vec<_> = wanted
        .iter()
        .map_while(|_| at.receive_message(NEVER_REACHED_TIMEOUT))
        .map(|letter| letter.body)
        .collect();
    assert_eq!(came, wanted);
    assert_eq!(at.receive_message(NO_MESSAGE_WAIT), None, "no further message arrives");
}

fn three_commands() -> [MessageBody; 3] {
    [NodeCommand::Arm, NodeCommand::Query, NodeCommand::Stop].map(command_body)
}

/// Posts three commands to node `a`, and panics unless exactly the messages `wanted` arrive there.
fn post_three_and_expect<E: Endpoint>(from: &mut E, a: &mut E, wanted: &[MessageBody]) {
    for letter in three_commands() {
        post_or_panic(from, &node_name("a"), letter);
    }
    expect_letters(a, wanted);
}

fn check_message_faults<F: Fabric>(fabric: &FaultyFabric<F>) {
    let mut from = join_fabric_as_controller(fabric);
    let mut a = join_fabric_or_panic(fabric, &node_name("a"));
    let [arm, query, stop] = three_commands();
    post_three_and_expect(&mut from, &mut a, &three_commands());
    fabric.set_faults(FabricFaults { lose_each: Some(3), ..FabricFaults::default() });
    post_three_and_expect(&mut from, &mut a, &[arm.clone(), query.clone()]);
    fabric.set_faults(FabricFaults { repeat_each: Some(3), ..FabricFaults::default() });
    post_three_and_expect(&mut from, &mut a, &[arm.clone(), query.clone(), stop.clone(), stop.clone()]);
    fabric.set_faults(FabricFaults { hold_back: 2, ..FabricFaults::default() });
    post_three_and_expect(&mut from, &mut a, std::slice::from_ref(&arm));
    fabric.set_faults(FabricFaults::default());
    // The delayed messages arrive first.
    post_three_and_expect(&mut from, &mut a, &[query.clone(), stop.clone(), arm, query, stop]);

    fabric.set_faults(FabricFaults { refuse: true, ..FabricFaults::default() });
    assert_eq!(
        from.post_message(&node_name("a"), MessageBody::RollCall(Nonce(1))),
        Err(Error::NotPermitted("a".into()))
    );
    fabric.set_faults(FabricFaults { cut: true, ..FabricFaults::default() });
    assert!(matches!(
        from.post_message(&node_name("a"), MessageBody::RollCall(Nonce(1))),
        Err(Error::Down(_))
    ));
    assert_eq!(a.receive_message(NEVER_REACHED_TIMEOUT), None);
    fabric.set_faults(FabricFaults::default());
    post_or_panic(&mut from, &node_name("a"), MessageBody::RollCall(Nonce(1)));
    expect_letters(&mut a, &[MessageBody::RollCall(Nonce(1))]);
}

fn check_call_faults<F: Fabric>(fabric: &FaultyFabric<F>) {
    let mut records = fabric.open_records().unwrap_or_else(|error| panic!("opening the records: {error}"));
    let mut incoming = super::open_reader(fabric, "one", &[]);
    let mut outgoing = fabric
        .open_result_outlet(&node_name("a"))
        .unwrap_or_else(|error| panic!("opening the outlet: {error}"));
    fabric.set_faults(FabricFaults { cut: true, ..FabricFaults::default() });
    assert!(matches!(records.get_record("k"), Err(Error::Down(_))));
    assert!(matches!(outgoing.append_segment(&segment_id("a", 0), b"x"), Err(Error::Down(_))));
    assert!(incoming.receive_segment(NEVER_REACHED_TIMEOUT).is_none());
    fabric.set_faults(FabricFaults { full: true, ..FabricFaults::default() });
    assert_eq!(outgoing.append_segment(&segment_id("a", 0), b"x"), Err(Error::Full));
    fabric.set_faults(FabricFaults { refuse: true, ..FabricFaults::default() });
    assert_eq!(records.create_record("k", b"x"), Err(Error::NotPermitted("k".into())));
    fabric.set_faults(FabricFaults { unanswered: true, ..FabricFaults::default() });
    assert!(matches!(outgoing.append_segment(&segment_id("a", 0), b"x"), Err(Error::Unanswered(_))));
    fabric.set_faults(FabricFaults::default());
    assert_eq!(outgoing.append_segment(&segment_id("a", 0), b"x"), Ok(()), "the same again");
    let delivery =
        incoming.receive_segment(NEVER_REACHED_TIMEOUT).unwrap_or_else(|| panic!("the segment was kept"));
    assert_eq!(incoming.confirm_segment(delivery.token), Ok(()));
    assert!(incoming.receive_segment(NO_MESSAGE_WAIT).is_none(), "the segment was kept once");
}
