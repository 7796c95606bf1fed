//! Messages: order, no loss of letters, counted loss of telemetry, names.

use super::{FabricTraits, LONG, SOON, command, controller, head, join, node, post, sample};
use crate::fabric::{Endpoint, Error, Fabric};
use crate::message::{MessageBody, NodeCommand, NodeName, NodeReply, Nonce};

/// Larger than any queue between sender and receiver.
const FLOOD: u64 = 100_000;

pub(super) fn check<F: Fabric>(traits: FabricTraits, make: impl Fn() -> F) {
    letters_arrive_in_order(&make());
    replies_arrive_in_order_and_say_from_whom(&make());
    what_is_for_all_reaches_all(&make());
    telemetry_is_dropped_and_letters_are_not(&make());
    nobody_is_answered_by_an_error(&make());
    who_left_is_answered_as_promised(traits, &make());
    waiting_ends_with_a_message_from_another_thread(&make());
    controllers_hear_the_nodes_that_they_listen_to(&make());
}

/// Two controllers each receive the letters of their own node, and the hellos of all nodes.
fn controllers_hear_the_nodes_that_they_listen_to<F: Fabric>(fabric: &F) {
    let names = ["1f", "2e"].map(NodeName::controller_of);
    let mut controllers = names.each_ref().map(|name| join(fabric, name));
    let nodes = ["a", "b"].map(node);
    let mut agents = nodes.each_ref().map(|name| join(fabric, name));
    for (controller, of) in controllers.iter_mut().zip(&nodes) {
        controller
            .listen_to(std::slice::from_ref(of))
            .unwrap_or_else(|error| panic!("listening to {of}: {error}"));
        post(controller, of, command(NodeCommand::Arm));
    }
    for agent in &mut agents {
        let got = agent.receive(LONG).map(|letter| (letter.from, letter.body));
        assert_eq!(got, Some((NodeName::controller(), command(NodeCommand::Arm))));
        post(agent, &NodeName::controller(), MessageBody::Reply(head(), NodeReply::Armed));
        post(agent, &NodeName::controller(), MessageBody::Hello(Box::default()));
    }
    for (controller, of) in controllers.iter_mut().zip(&nodes) {
        let mut letters = Vec::new();
        let mut hellos = std::collections::BTreeSet::new();
        while letters.is_empty() || hellos.len() < 2 {
            let Some(letter) = controller.receive(LONG) else { panic!("{letters:?} {hellos:?} came") };
            match letter.body {
                MessageBody::Hello(_) => {
                    hellos.insert(letter.from);
                }
                body => letters.push((letter.from, body)),
            }
        }
        assert_eq!(letters, [(of.clone(), MessageBody::Reply(head(), NodeReply::Armed))]);
        controller.stop_listening_to(std::slice::from_ref(of));
    }
    for agent in &mut agents {
        post(agent, &NodeName::controller(), MessageBody::Reply(head(), NodeReply::Armed));
    }
    for controller in &mut controllers {
        let mut more = std::iter::from_fn(|| controller.receive(SOON));
        assert!(!more.any(|letter| matches!(letter.body, MessageBody::Reply(..))), "it listens to nobody");
    }
}

fn many_commands() -> impl Iterator<Item = NodeCommand> {
    [NodeCommand::Arm, NodeCommand::Stop, NodeCommand::Query].into_iter().cycle().take(300)
}

fn letters_arrive_in_order<F: Fabric>(fabric: &F) {
    let mut from = controller(fabric);
    let mut a = join(fabric, &node("a"));
    let mut b = join(fabric, &node("b"));
    for letter in many_commands() {
        post(&mut from, &node("a"), command(letter));
    }
    for (number, letter) in many_commands().enumerate() {
        let got = a.receive(LONG).unwrap_or_else(|| panic!("letter {number} was lost"));
        assert_eq!((got.from, got.body), (NodeName::controller(), command(letter)), "letter {number}");
    }
    assert_eq!(a.receive(SOON), None);
    assert_eq!(b.receive(SOON), None, "what is not for it does not come");
}

fn replies_arrive_in_order_and_say_from_whom<F: Fabric>(fabric: &F) {
    let mut to = controller(fabric);
    let mut a = join(fabric, &node("a"));
    let mut b = join(fabric, &node("b"));
    for number in 0..100 {
        for from in [&mut a, &mut b] {
            post(
                from,
                &NodeName::controller(),
                MessageBody::Reply(head(), NodeReply::Refused(number.to_string())),
            );
        }
    }
    let mut next = [0, 0];
    for _ in 0..200 {
        let got = to.receive(LONG).unwrap_or_else(|| panic!("a reply was lost"));
        let next = &mut next[usize::from(got.from == node("b"))];
        assert_eq!(got.body, MessageBody::Reply(head(), NodeReply::Refused(next.to_string())));
        *next += 1;
    }
    assert_eq!(next, [100, 100]);
}

fn what_is_for_all_reaches_all<F: Fabric>(fabric: &F) {
    let mut from = controller(fabric);
    let mut a = join(fabric, &node("a"));
    let mut b = join(fabric, &node("b"));
    from.post_all(MessageBody::RollCall(Nonce(1))).unwrap_or_else(|error| panic!("a roll call: {error}"));
    for one in [&mut a, &mut b] {
        let got = one.receive(LONG).map(|letter| letter.body);
        assert_eq!(got, Some(MessageBody::RollCall(Nonce(1))), "{} was not called", one.name());
    }
    assert_eq!(from.receive(SOON), None, "nobody calls himself");
}

fn telemetry_is_dropped_and_letters_are_not<F: Fabric>(fabric: &F) {
    let mut to = controller(fabric);
    let mut from = join(fabric, &node("a"));
    let whom = NodeName::controller();
    for at in 0..FLOOD {
        post(&mut from, &whom, sample(at));
    }
    post(&mut from, &whom, MessageBody::Reply(head(), NodeReply::Armed));
    let mut posted = FLOOD;
    let mut arrived = 0;
    let mut last = None;
    let mut letters = 0;
    let mut quiet = 0;
    // Samples in flight still arrive: the loop ends when every sample is accounted for.
    while letters == 0 || arrived + to.dropped() + from.dropped() < posted {
        match to.receive(SOON).map(|got| got.body) {
            Some(MessageBody::Telemetry(_, sample)) => {
                assert!(last < Some(sample.at), "telemetry keeps its order");
                arrived += 1;
                last = Some(sample.at);
            }
            Some(body) => {
                assert_eq!(body, MessageBody::Reply(head(), NodeReply::Armed));
                letters += 1;
            }
            None => {
                quiet += 1;
                assert!(
                    quiet < 100,
                    "{arrived} came, {} and {} dropped of {posted}",
                    to.dropped(),
                    from.dropped()
                );
                // The loss of the last ones shows when the next one comes.
                post(&mut from, &whom, sample(posted));
                posted += 1;
            }
        }
    }
    assert!(arrived > 0);
    assert_eq!(arrived + to.dropped() + from.dropped(), posted, "what is dropped is counted");
    assert_eq!(letters, 1);
}

fn nobody_is_answered_by_an_error<F: Fabric>(fabric: &F) {
    let mut from = controller(fabric);
    let nobody = node("nobody");
    assert_eq!(from.post(&nobody, command(NodeCommand::Arm)), Err(Error::Unknown(nobody.clone())));
    let a = join(fabric, &node("a"));
    assert!(matches!(fabric.join(node("a")), Err(Error::Taken(name)) if name == node("a")));
    assert!(matches!(fabric.join(NodeName::controller()), Err(Error::Taken(_))));
    drop(a);
    join(fabric, &node("a"));
}

fn who_left_is_answered_as_promised<F: Fabric>(traits: FabricTraits, fabric: &F) {
    let mut from = controller(fabric);
    let mut a = join(fabric, &node("a"));
    post(&mut from, &node("a"), command(NodeCommand::Arm));
    assert!(a.receive(LONG).is_some());
    drop(a);
    let answer = from.post(&node("a"), command(NodeCommand::Stop));
    assert_eq!(answer.is_err(), traits.knows_who_left, "{answer:?}");
    let mut a = join(fabric, &node("a"));
    post(&mut from, &node("a"), command(NodeCommand::Query));
    let got = a.receive(LONG).map(|letter| letter.body);
    assert_eq!(got, Some(command(NodeCommand::Query)), "what was for the one before does not come");
}

fn waiting_ends_with_a_message_from_another_thread<F: Fabric>(fabric: &F) {
    let mut asks = controller(fabric);
    let mut answers = join(fabric, &node("a"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let letter = answers.receive(LONG).unwrap_or_else(|| panic!("the question was lost"));
            post(&mut answers, &letter.from, MessageBody::Reply(head(), NodeReply::Armed));
        });
        post(&mut asks, &node("a"), command(NodeCommand::Arm));
        let got = asks.receive(LONG).map(|letter| letter.body);
        assert_eq!(got, Some(MessageBody::Reply(head(), NodeReply::Armed)));
    });
}
