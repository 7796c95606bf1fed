//! Several controllers on one fleet with certificates and seals: one controller changes nothing for the others.

use crate::fleet::{Fleet, fabric, node};
use crate::server::program;
use packetrig_fleet::fabric::{Endpoint, Error, Fabric, ResultReceiver, ResultSender, SegmentId};
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::{
    MessageBody, MessageEnvelope, MessageHead, NodeCommand, NodeName, NodeReply, Nonce, PlanHash, RunId,
};
use packetrig_nats::{NatsEndpoint, NatsFabric};
use packetrig_units::Nanos;
use std::collections::{BTreeMap, BTreeSet};

const SOON: Nanos = Nanos::from_millis(200);
const LONG: Nanos = Nanos::from_secs(20);

fn head(run: &str, epoch: u64) -> MessageHead {
    MessageHead { run: RunId(run.into()), attempt: 1, epoch, plan: PlanHash::from_document("p") }
}

fn controller(of: &NatsFabric, number: &str) -> NatsEndpoint {
    of.open_endpoint(NodeName::controller_of(number)).expect("it joins")
}

fn hello(answers: Option<u64>) -> MessageBody {
    MessageBody::Hello(Box::new(NodeHello { answers: answers.map(Nonce), ..NodeHello::default() }))
}

/// Collects messages until all of `wanted` have come, however slowly, and checks that no more do.
fn hear_all(at: &mut NatsEndpoint, wanted: &[MessageBody]) -> Vec<MessageBody> {
    let mut heard: Vec<MessageBody> = Vec::new();
    while let Some(missing) = wanted.iter().find(|body| !heard.contains(body)) {
        let letter =
            at.receive_message(LONG).unwrap_or_else(|| panic!("{missing:?} is missing in {heard:?}"));
        heard.push(letter.body);
    }
    heard.extend(std::iter::from_fn(|| at.receive_message(SOON)).map(|letter| letter.body));
    heard
}

fn hear(at: &mut NatsEndpoint, wanted: &MessageBody) {
    let heard = (0..100).any(|_| at.receive_message(LONG).is_some_and(|letter| letter.body == *wanted));
    assert!(heard, "{wanted:?} does not come");
}

/// Sends the node this command, which makes the controller its leader.
fn lead(controller: &mut NatsEndpoint, agent: &mut NatsEndpoint, head: &MessageHead) {
    controller.listen_to(&[agent.name().clone()]).expect("it may");
    controller
        .post_message(&agent.name().clone(), MessageBody::Command(head.clone(), NodeCommand::Query))
        .expect("it is there");
    hear(agent, &MessageBody::Command(head.clone(), NodeCommand::Query));
}

fn say(agent: &mut NatsEndpoint, bodies: &[MessageBody]) {
    for body in bodies {
        agent.post_message(&NodeName::controller(), body.clone()).expect("it may");
    }
}

#[test]
fn second_roll_call_does_not_redirect_leader_messages() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let own = [fleet.controller(), fleet.controller()];
    let mut first = controller(&own[0], "1f");
    let mut agent = fabric(&fleet.member("a")).open_endpoint(node("a")).expect("it joins");
    let of_run = head("r", 5);
    lead(&mut first, &mut agent, &of_run);
    let armed = MessageBody::Reply(of_run.clone(), NodeReply::Armed);
    say(&mut agent, std::slice::from_ref(&armed));
    hear(&mut first, &armed);
    let of_leader = [
        MessageBody::Reply(of_run.clone(), NodeReply::Started),
        MessageBody::Telemetry(of_run.clone(), Box::default()),
        MessageBody::Renew(of_run.clone(), Nonce(7)),
        hello(None),
    ];
    let mut second = controller(&own[1], "2e");
    second.post_to_all_nodes(MessageBody::RollCall(Nonce(42))).expect("it may");
    hear(&mut agent, &MessageBody::RollCall(Nonce(42)));
    say(&mut agent, &[&[hello(Some(42))], &of_leader[..]].concat());
    let answer = [hello(Some(42))];
    assert_eq!(hear_all(&mut second, &answer), answer, "the answer, and nothing that is for the leader");
    let heard = hear_all(&mut first, &of_leader);
    assert!(!heard.contains(&hello(Some(42))), "that was for the other one");
    assert_eq!(
        [first.refused_message_count(), second.refused_message_count()],
        [0, 0],
        "nothing was wrong with any of it"
    );
    // The node is not called again and again by a controller that does not lead it.
    assert_eq!(agent.receive_message(SOON), None);
    // A watermark of the second controller changes nothing either.
    let mark = packetrig_fleet::message::StoredWatermark { run: RunId("old".into()), attempt: 1, below: 3 };
    second.post_message(&node("a"), MessageBody::Stored(mark.clone())).expect("it may");
    hear(&mut agent, &MessageBody::Stored(mark));
    say(&mut agent, &of_leader[..1]);
    hear(&mut first, &of_leader[0]);
    // A higher epoch does: from then on the node answers the second controller.
    first.stop_listening_to(&[node("a")]);
    let of_next = head("next", 6);
    lead(&mut second, &mut agent, &of_next);
    let to_next = [MessageBody::Reply(of_next, NodeReply::Armed), hello(None)];
    say(&mut agent, &to_next);
    hear_all(&mut second, &to_next);
    assert_eq!(first.receive_message(SOON), None);
}

#[test]
fn controllers_lead_disjoint_nodes_at_the_same_time() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let own = [fleet.controller(), fleet.controller()];
    let mut controllers = [controller(&own[0], "1f"), controller(&own[1], "2e")];
    let names = ["a", "b"];
    let mut agents =
        names.map(|name| fabric(&fleet.member(name)).open_endpoint(node(name)).expect("it joins"));
    // On disjoint nodes the same epoch is no conflict.
    let heads = [head("r1", 5), head("r2", 5)];
    for index in [0, 1] {
        lead(&mut controllers[index], &mut agents[index], &heads[index]);
    }
    for (agent, head) in agents.iter_mut().zip(&heads) {
        say(
            agent,
            &[MessageBody::Reply(head.clone(), NodeReply::Armed), MessageBody::Renew(head.clone(), Nonce(1))],
        );
    }
    for (index, controller) in controllers.iter_mut().enumerate() {
        let heard: Vec<MessageEnvelope> =
            std::iter::from_fn(|| controller.receive_message(LONG)).take(2).collect();
        assert_eq!((heard.len(), controller.receive_message(SOON)), (2, None), "{heard:?}");
        assert!(heard.iter().all(|letter| letter.from == node(names[index])), "{heard:?}");
    }
}

#[test]
fn run_consumers_read_disjoint_segments() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let own = [fleet.controller(), fleet.controller(), fleet.controller()];
    let runs = ["r1", "r2", "late"].map(|run| RunId(run.into()));
    let mut readers =
        [0, 1].map(|index: usize| own[index].open_result_inlet(&index.to_string()).expect("it opens"));
    for (reader, run) in readers.iter_mut().zip(&runs) {
        reader.read_run(run, &BTreeSet::new()).expect("nobody else reads it");
    }
    let refused = readers[1].read_run(&runs[0], &BTreeSet::new());
    assert_eq!(refused, Err(Error::Taken(NodeName("0".into()))), "it is told who reads it");
    let mut outgoing = fabric(&fleet.member("a")).open_result_outlet(&node("a")).expect("it opens");
    for number in 0..4 {
        for run in &runs {
            let id = SegmentId { run: run.clone(), attempt: 1, node: node("a"), number };
            outgoing.append_segment(&id, b"x").expect("it is kept");
        }
    }
    for (reader, run) in readers.iter_mut().zip(&runs) {
        for number in 0..4 {
            let delivery = reader.receive_segment(LONG).expect("it comes");
            assert_eq!((&delivery.id.run, delivery.id.number), (run, number));
            reader.confirm_segment(delivery.token).expect("it may");
        }
        assert!(reader.receive_segment(SOON).is_none(), "what is of another run does not come");
    }
    // Unread segments stay; the controller that reads them gets all of them.
    drop(readers);
    let mut collecting = own[2].open_result_inlet("collect").expect("it opens");
    let waiting = collecting.list_runs_with_waiting_segments().expect("it may");
    assert_eq!(waiting, BTreeMap::from([(runs[2].clone(), BTreeSet::new())]));
    collecting.read_run(&runs[2], &BTreeSet::new()).expect("nobody else reads it");
    let late: Vec<u64> =
        (0..4).map(|_| collecting.receive_segment(LONG).expect("it comes").id.number).collect();
    assert_eq!(late, [0, 1, 2, 3]);
}

/// A reader that was paused for long does not regain a run that another one took over.
#[test]
fn replaced_reader_confirms_and_reads_nothing() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let own = [fleet.controller(), fleet.controller()];
    let run = RunId("r".into());
    let mut frozen = own[0].open_result_inlet("frozen").expect("it opens");
    frozen.read_run(&run, &BTreeSet::new()).expect("nobody else reads it");
    let mut outgoing = fabric(&fleet.member("a")).open_result_outlet(&node("a")).expect("it opens");
    let id = |number| SegmentId { run: run.clone(), attempt: 1, node: node("a"), number };
    outgoing.append_segment(&id(0), b"x").expect("it is kept");
    let unconfirmed = frozen.receive_segment(LONG).expect("it comes");
    let mut next = own[1].open_result_inlet("next").expect("it opens");
    next.read_run(&run, &BTreeSet::from(["frozen".to_owned()])).expect("it takes over");
    let again = next.receive_segment(LONG).expect("what was not confirmed comes at once");
    assert_eq!(again.id, unconfirmed.id);
    assert!(frozen.confirm_segment(unconfirmed.token).is_err(), "it is not its own any more");
    outgoing.append_segment(&id(1), b"y").expect("it is kept");
    assert_eq!(next.receive_segment(LONG).map(|delivery| delivery.id), Some(id(1)));
    assert!(frozen.receive_segment(SOON).is_none());
    next.confirm_segment(again.token).expect("it may");
}
