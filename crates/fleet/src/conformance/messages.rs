//! Checks of messages: commands and replies keep their order and are not lost, lost telemetry is counted, and names
//! of endpoints are unique.

use super::{
    FabricTraits, NEVER_REACHED_TIMEOUT, NO_MESSAGE_WAIT, command_body, join_fabric_as_controller,
    join_fabric_or_panic, node_name, post_or_panic, telemetry_body, test_head,
};
use crate::fabric::{Endpoint, Error, Fabric};
use crate::message::{MessageBody, NodeCommand, NodeName, NodeReply, Nonce};

/// Number of samples that is larger than any queue between sender and receiver.
const FLOOD_MESSAGES: u64 = 100_000;

pub(super) fn check_messages<F: Fabric>(traits: FabricTraits, make: impl Fn() -> F) {
    commands_arrive_in_order(&make());
    replies_arrive_in_order_with_sender(&make());
    message_for_all_reaches_every_node(&make());
    telemetry_is_dropped_but_commands_are_not(&make());
    unknown_and_taken_names_are_errors(&make());
    post_to_departed_node_follows_traits(traits, &make());
    message_from_another_thread_ends_waiting(&make());
    controllers_receive_only_from_chosen_nodes(&make());
}

/// Checks that each of two controllers receives only the replies of its own node, but the hellos of all nodes.
fn controllers_receive_only_from_chosen_nodes<F: Fabric>(fabric: &F) {
    let names = ["1f", "2e"].map(NodeName::controller_of);
    let mut controllers = names.each_ref().map(|name| join_fabric_or_panic(fabric, name));
    let nodes = ["a", "b"].map(node_name);
    let mut agents = nodes.each_ref().map(|name| join_fabric_or_panic(fabric, name));
    for (controller, of) in controllers.iter_mut().zip(&nodes) {
        controller
            .listen_to(std::slice::from_ref(of))
            .unwrap_or_else(|error| panic!("listening to {of}: {error}"));
        post_or_panic(controller, of, command_body(NodeCommand::Arm));
    }
    for agent in &mut agents {
        let got = agent.receive_message(NEVER_REACHED_TIMEOUT).map(|letter| (letter.from, letter.body));
        assert_eq!(got, Some((NodeName::controller(), command_body(NodeCommand::Arm))));
        post_or_panic(agent, &NodeName::controller(), MessageBody::Reply(test_head(), NodeReply::Armed));
        post_or_panic(agent, &NodeName::controller(), MessageBody::Hello(Box::default()));
    }
    for (controller, of) in controllers.iter_mut().zip(&nodes) {
        let mut letters = Vec::new();
        let mut hellos = std::collections::BTreeSet::new();
        while letters.is_empty() || hellos.len() < 2 {
            let Some(letter) = controller.receive_message(NEVER_REACHED_TIMEOUT) else {
                panic!("{letters:?} {hellos:?} came")
            };
            match letter.body {
                MessageBody::Hello(_) => {
                    hellos.insert(letter.from);
                }
                body => letters.push((letter.from, body)),
            }
        }
        assert_eq!(letters, [(of.clone(), MessageBody::Reply(test_head(), NodeReply::Armed))]);
        controller.stop_listening_to(std::slice::from_ref(of));
    }
    for agent in &mut agents {
        post_or_panic(agent, &NodeName::controller(), MessageBody::Reply(test_head(), NodeReply::Armed));
    }
    for controller in &mut controllers {
        let mut more = std::iter::from_fn(|| controller.receive_message(NO_MESSAGE_WAIT));
        assert!(
            !more.any(|letter| matches!(letter.body, MessageBody::Reply(..))),
            "a controller that listens to no node receives no reply"
        );
    }
}

fn example_commands() -> impl Iterator<Item = NodeCommand> {
    [NodeCommand::Arm, NodeCommand::Stop, NodeCommand::Query].into_iter().cycle().take(300)
}

fn commands_arrive_in_order<F: Fabric>(fabric: &F) {
    let mut from = join_fabric_as_controller(fabric);
    let mut a = join_fabric_or_panic(fabric, &node_name("a"));
    let mut b = join_fabric_or_panic(fabric, &node_name("b"));
    for letter in example_commands() {
        post_or_panic(&mut from, &node_name("a"), command_body(letter));
    }
    for (number, letter) in example_commands().enumerate() {
        let got =
            a.receive_message(NEVER_REACHED_TIMEOUT).unwrap_or_else(|| panic!("command {number} was lost"));
        assert_eq!((got.from, got.body), (NodeName::controller(), command_body(letter)), "command {number}");
    }
    assert_eq!(a.receive_message(NO_MESSAGE_WAIT), None);
    assert_eq!(
        b.receive_message(NO_MESSAGE_WAIT),
        None,
        "a node gets no message that is meant for another node"
    );
}

fn replies_arrive_in_order_with_sender<F: Fabric>(fabric: &F) {
    let mut to = join_fabric_as_controller(fabric);
    let mut a = join_fabric_or_panic(fabric, &node_name("a"));
    let mut b = join_fabric_or_panic(fabric, &node_name("b"));
    for number in 0..100 {
        for from in [&mut a, &mut b] {
            post_or_panic(
                from,
                &NodeName::controller(),
                MessageBody::Reply(test_head(), NodeReply::Refused(number.to_string())),
            );
        }
    }
    let mut next = [0, 0];
    for _ in 0..200 {
        let got = to.receive_message(NEVER_REACHED_TIMEOUT).unwrap_or_else(|| panic!("a reply was lost"));
        let next = &mut next[usize::from(got.from == node_name("b"))];
        assert_eq!(got.body, MessageBody::Reply(test_head(), NodeReply::Refused(next.to_string())));
        *next += 1;
    }
    assert_eq!(next, [100, 100]);
}

fn message_for_all_reaches_every_node<F: Fabric>(fabric: &F) {
    let mut from = join_fabric_as_controller(fabric);
    let mut a = join_fabric_or_panic(fabric, &node_name("a"));
    let mut b = join_fabric_or_panic(fabric, &node_name("b"));
    from.post_to_all_nodes(MessageBody::RollCall(Nonce(1)))
        .unwrap_or_else(|error| panic!("a roll call: {error}"));
    for one in [&mut a, &mut b] {
        let got = one.receive_message(NEVER_REACHED_TIMEOUT).map(|letter| letter.body);
        assert_eq!(got, Some(MessageBody::RollCall(Nonce(1))), "{} was not called", one.name());
    }
    assert_eq!(
        from.receive_message(NO_MESSAGE_WAIT),
        None,
        "the controller does not receive its own roll call"
    );
}

fn telemetry_is_dropped_but_commands_are_not<F: Fabric>(fabric: &F) {
    let mut to = join_fabric_as_controller(fabric);
    let mut from = join_fabric_or_panic(fabric, &node_name("a"));
    let whom = NodeName::controller();
    for at in 0..FLOOD_MESSAGES {
        post_or_panic(&mut from, &whom, telemetry_body(at));
    }
    post_or_panic(&mut from, &whom, MessageBody::Reply(test_head(), NodeReply::Armed));
    let mut posted = FLOOD_MESSAGES;
    let mut arrived = 0;
    let mut last = None;
    let mut letters = 0;
    let mut quiet = 0;
    // Samples in flight still arrive: the loop ends when every sample is accounted for.
    while letters == 0 || arrived + to.dropped_telemetry() + from.dropped_telemetry() < posted {
        match to.receive_message(NO_MESSAGE_WAIT).map(|got| got.body) {
            Some(MessageBody::Telemetry(_, sample)) => {
                assert!(last < Some(sample.at), "telemetry keeps its order");
                arrived += 1;
                last = Some(sample.at);
            }
            Some(body) => {
                assert_eq!(body, MessageBody::Reply(test_head(), NodeReply::Armed));
                letters += 1;
            }
            None => {
                quiet += 1;
                assert!(
                    quiet < 100,
                    "{arrived} came, {} and {} dropped of {posted}",
                    to.dropped_telemetry(),
                    from.dropped_telemetry()
                );
                // The receiver notices the loss of the last samples only when the next one arrives.
                post_or_panic(&mut from, &whom, telemetry_body(posted));
                posted += 1;
            }
        }
    }
    assert!(arrived > 0);
    assert_eq!(
        arrived + to.dropped_telemetry() + from.dropped_telemetry(),
        posted,
        "every dropped sample is counted"
    );
    assert_eq!(letters, 1);
}

fn unknown_and_taken_names_are_errors<F: Fabric>(fabric: &F) {
    let mut from = join_fabric_as_controller(fabric);
    let nobody = node_name("nobody");
    assert_eq!(
        from.post_message(&nobody, command_body(NodeCommand::Arm)),
        Err(Error::Unknown(nobody.clone()))
    );
    let a = join_fabric_or_panic(fabric, &node_name("a"));
    assert!(
        matches!(fabric.open_endpoint(node_name("a")), Err(Error::Taken(name)) if name == node_name("a"))
    );
    assert!(matches!(fabric.open_endpoint(NodeName::controller()), Err(Error::Taken(_))));
    drop(a);
    join_fabric_or_panic(fabric, &node_name("a"));
}

fn post_to_departed_node_follows_traits<F: Fabric>(traits: FabricTraits, fabric: &F) {
    let mut from = join_fabric_as_controller(fabric);
    let mut a = join_fabric_or_panic(fabric, &node_name("a"));
    post_or_panic(&mut from, &node_name("a"), command_body(NodeCommand::Arm));
    assert!(a.receive_message(NEVER_REACHED_TIMEOUT).is_some());
    drop(a);
    let answer = from.post_message(&node_name("a"), command_body(NodeCommand::Stop));
    assert_eq!(answer.is_err(), traits.knows_who_left, "{answer:?}");
    let mut a = join_fabric_or_panic(fabric, &node_name("a"));
    post_or_panic(&mut from, &node_name("a"), command_body(NodeCommand::Query));
    let got = a.receive_message(NEVER_REACHED_TIMEOUT).map(|letter| letter.body);
    assert_eq!(
        got,
        Some(command_body(NodeCommand::Query)),
        "messages to the earlier endpoint of this name do not arrive"
    );
}

fn message_from_another_thread_ends_waiting<F: Fabric>(fabric: &F) {
    let mut asks = join_fabric_as_controller(fabric);
    let mut answers = join_fabric_or_panic(fabric, &node_name("a"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let letter = answers
                .receive_message(NEVER_REACHED_TIMEOUT)
                .unwrap_or_else(|| panic!("the question was lost"));
            post_or_panic(&mut answers, &letter.from, MessageBody::Reply(test_head(), NodeReply::Armed));
        });
        post_or_panic(&mut asks, &node_name("a"), command_body(NodeCommand::Arm));
        let got = asks.receive_message(NEVER_REACHED_TIMEOUT).map(|letter| letter.body);
        assert_eq!(got, Some(MessageBody::Reply(test_head(), NodeReply::Armed)));
    });
}
