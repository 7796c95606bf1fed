//! A hostile node: it has a certificate of the fleet and speaks the server's own protocol, so no code of
//! ours holds it back.
//!
//! A witness that may receive everything sees the node's messages. Whatever the node tries, nothing may pass the server
//! on a subject that is not the node's own.

use crate::fleet::{Fleet, fabric, node};
use crate::server::{program, reader, say};
use crate::stranger::Stranger;
use async_nats::HeaderMap;
use packetrig_fleet::fabric::{Endpoint, Fabric, ResultReceiver, ResultSender, SegmentId};
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::{
    MessageBody, MessageEnvelope, MessageHead, NodeCommand, NodeName, NodeReply, Nonce, PlanHash, RunId,
};
use packetrig_nats::{NatsEndpoint, NatsFabric, ServerAccess};
use packetrig_units::Nanos;
use std::collections::BTreeSet;
use std::time::Duration;

const SOON: Nanos = Nanos::from_millis(200);
/// Time for a message of the node to pass the server, before the witness is asked.
const PASSING: Duration = Duration::from_millis(300);

/// Subjects of the controller, of other nodes and of the server that a node must not reach.
const FOREIGN: [&str; 27] = [
    "cmd.node.b",
    "cmd.all",
    "get.b",
    "cap.b",
    "rep.b",
    "lease.b",
    "hb.b",
    "tm.r.b",
    "join.b",
    "join.controller",
    "res.r.b",
    "_INBOX_b.x",
    "_INBOX_controller.x",
    "_INBOX.x",
    "$JS.API.INFO",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.CREATE.evil",
    "$JS.API.STREAM.DELETE.res",
    "$JS.API.STREAM.PURGE.res",
    "$JS.API.STREAM.PURGE.KV_fleet",
    "$JS.API.CONSUMER.CREATE.res",
    "$JS.ACK.res.c.1.1.1.1.1",
    "$KV.fleet.lead.b",
    "$KV.fleet.term.1f",
    "$SYS.REQ.SERVER.PING",
    "$O.cap_b.C.x",
    "evil",
];

/// All ways in which a node might have something published where it may not publish itself; returns
/// the number of messages.
fn try_everything(hostile: &Stranger) -> usize {
    let mut messages = 0;
    for at in FOREIGN {
        hostile.publish(at, None, HeaderMap::new(), "evil");
        for own in ["join.a", "rep.a", "lease.a", "hb.a", "cap.a", "tm.r.a", "res.r.a"] {
            for ask in ["", "name", "there", "here"] {
                let mut headers = HeaderMap::new();
                headers.insert("Packetrig-Ask", ask);
                headers.insert("Packetrig-Place", "00000000000000ff");
                hostile.publish(own, Some(at), headers, "evil");
            }
            let mut traced = HeaderMap::new();
            traced.insert("Nats-Trace-Dest", at);
            hostile.publish(own, None, traced, "evil");
        }
        // A receiver of a question with this reply subject may answer there, if the server allows responses.
        hostile.flush();
        std::thread::sleep(Duration::from_millis(20));
        hostile.publish(at, None, HeaderMap::new(), "evil");
        messages += 2 + 7 * 5;
    }
    hostile.flush();
    messages
}

#[test]
fn hostile_node_reaches_only_own_subjects() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, b, witness) = (fleet.member("a"), fleet.member("b"), fleet.member("witness"));
    let own = fleet.controller();
    let mut controller = own.open_endpoint(NodeName::controller()).expect("it joins");
    let _results = reader(&own, "1");
    let mut honest = fabric(&b).open_endpoint(node("b")).expect("it joins");
    let (hostile, witness) = (Stranger::new(&fleet, &a), Stranger::witness(&fleet, &witness));
    let _own_questions = hostile.listen("join.a");
    let seen = witness.listen(">");
    witness.publish("witness.ready", None, HeaderMap::new(), "");
    let messages = try_everything(&hostile);
    std::thread::sleep(PASSING);
    let is_own = |subject: &str| {
        subject.rsplit('.').next() == Some("a")
            || subject.starts_with("_INBOX_a.")
            // The server's own return path to the account that a message came from.
            || subject.starts_with("_R_.")
            || subject.starts_with("$JS.EVENT.")
            || subject.starts_with("_INBOX_witness.")
            // The controller's reader, which requests more.
            || subject == "$JS.API.CONSUMER.MSG.NEXT.res.r_1"
            || subject == "witness.ready"
    };
    let reached: BTreeSet<String> = seen.so_far().iter().map(|message| message.subject.to_string()).collect();
    assert!(reached.contains("witness.ready") && reached.contains("rep.a"), "the witness hears: {reached:?}");
    let stray: Vec<&String> = reached.iter().filter(|at| !is_own(at)).collect();
    say(&format!("{messages} messages to {} foreign subjects, {} reached", FOREIGN.len(), stray.len()));
    assert!(stray.is_empty(), "subjects beyond the node's own: {stray:?}");
    // The fleet works as before.
    acquaint(&mut honest, &mut controller);
    let head = head(1);
    honest
        .post_message(&NodeName::controller(), MessageBody::Reply(head.clone(), NodeReply::Armed))
        .expect("it works");
    let from_b = |letter: &MessageEnvelope| letter.from == node("b");
    let reply = (0..200).find_map(|_| controller.receive_message(SOON).filter(from_b));
    assert_eq!(reply.map(|letter| letter.body), Some(MessageBody::Reply(head, NodeReply::Armed)));
    let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node("b"), number: 0 };
    fabric(&b)
        .open_result_outlet(&node("b"))
        .expect("it opens")
        .append_segment(&id, b"whole")
        .expect("it is kept");
}

fn head(epoch: u64) -> MessageHead {
    MessageHead { run: RunId("r".into()), attempt: 1, epoch, plan: PlanHash::from_document("p") }
}

/// Introduces the controller to the node. A server that has just read its accounts again may lose a letter.
fn acquaint(agent: &mut NatsEndpoint, controller: &mut NatsEndpoint) {
    assert!((0..200).any(|_| {
        controller.post_message(agent.name(), MessageBody::RollCall(Nonce(1))).expect("it works");
        agent.receive_message(SOON).is_some()
    }));
    // Earlier answers are no answer to the next question.
    while agent.receive_message(SOON).is_some() {}
}

/// Sends a hello with this epoch, and returns the one that the controller believes.
fn believed(agent: &mut NatsEndpoint, controller: &mut NatsEndpoint, epoch: u64) -> u64 {
    agent
        .post_message(
            &NodeName::controller(),
            MessageBody::Hello(Box::new(NodeHello { epoch, ..NodeHello::default() })),
        )
        .expect("sent");
    let hello = (0..200).find_map(|_| match controller.receive_message(SOON)?.body {
        MessageBody::Hello(hello) => Some(hello),
        _ => None,
    });
    hello.expect("it comes").epoch
}

#[test]
fn epoch_counts_only_with_controller_signature() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let member = fleet.member("a");
    let place = tempfile::TempDir::new().expect("a place");
    let access = ServerAccess {
        epoch_proof: Some(place.path().join("proof")),
        ..member.server_access().expect("whole")
    };
    let join =
        || NatsFabric::new(access.clone()).expect("a runtime").open_endpoint(node("a")).expect("it joins");
    let own = fleet.controller();
    let mut controller = own.open_endpoint(NodeName::controller()).expect("it joins");
    let mut agent = join();
    acquaint(&mut agent, &mut controller);
    assert_eq!(believed(&mut agent, &mut controller, u64::MAX - 1), 0, "nobody ever said so");
    controller.post_message(&node("a"), MessageBody::Command(head(5), NodeCommand::Arm)).expect("it works");
    assert!((0..200).any(|_| agent.receive_message(SOON).is_some()));
    assert_eq!(believed(&mut agent, &mut controller, u64::MAX - 1), 5);
    assert_eq!(believed(&mut agent, &mut controller, 4), 4);
    drop(agent);
    let mut again = join();
    acquaint(&mut again, &mut controller);
    assert_eq!(believed(&mut again, &mut controller, 5), 5, "the proof outlives the node's process");
}

#[test]
fn unsealed_node_messages_are_refused() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, b) = (fleet.member("a"), fleet.member("b"));
    let own = fleet.controller();
    let mut controller = own.open_endpoint(NodeName::controller()).expect("it joins");
    let mut incoming = reader(&own, "1");
    // The server lets it pass: the certificate is the node's own. The key is another node's, or nobody's.
    let keyless = ServerAccess { keys: None, ..a.server_access().expect("whole") };
    let other = ServerAccess { keys: b.server_access().expect("whole").keys, ..keyless.clone() };
    for (access, forgeries) in [keyless, other].into_iter().zip(1..) {
        let fabric = NatsFabric::new(access).expect("a runtime");
        let mut forger = fabric.open_endpoint(node("a")).expect("it joins");
        forger
            .post_message(&NodeName::controller(), MessageBody::Reply(head(1), NodeReply::Armed))
            .expect("it is sent");
        let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node("a"), number: 0 };
        fabric
            .open_result_outlet(&node("a"))
            .expect("it opens")
            .append_segment(&id, b"PASS")
            .expect("the server keeps it");
        let is_refused = (0..200).any(|_| {
            assert!(controller.receive_message(SOON).is_none());
            controller.refused_message_count() == forgeries
        });
        assert!(
            is_refused && controller.receive_message(SOON).is_none(),
            "it is refused, and nothing else comes"
        );
        let mut refused = 0;
        assert!((0..50).all(|_| {
            refused += incoming.take_refused_counts().values().sum::<u64>();
            refused > 0 || incoming.receive_segment(SOON).is_none()
        }));
        assert_eq!(refused, 1, "counted, and it does not come again");
    }
    assert_eq!(controller.refused_message_count(), 2);
}

/// A compromised server records the messages of nodes and replays them to the next controller.
#[test]
fn letter_replayed_to_next_controller_is_refused() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let (a, witness) = (fleet.member("a"), fleet.member("witness"));
    let own = fleet.controller();
    let mut controller = own.open_endpoint(NodeName::controller()).expect("it joins");
    let mut agent = fabric(&a).open_endpoint(node("a")).expect("it joins");
    acquaint(&mut agent, &mut controller);
    let witness = Stranger::witness(&fleet, &witness);
    let seen = witness.listen("rep.a");
    agent.post_message(&NodeName::controller(), MessageBody::Reply(head(1), NodeReply::Armed)).expect("sent");
    assert!((0..200).any(|_| controller.receive_message(SOON).is_some()), "its own controller believes it");
    drop((controller, agent));
    let mut next = fleet.controller().open_endpoint(NodeName::controller()).expect("it joins");
    witness.repeat(seen.first());
    // The recording reaches the next controller before any later message of the node.
    witness.prove();
    // A running node learns of the next controller by itself, and its messages count.
    let mut agent = fabric(&a).open_endpoint(node("a")).expect("it joins");
    let heard = (0..200).any(|_| {
        agent
            .post_message(&NodeName::controller(), MessageBody::Reply(head(2), NodeReply::Armed))
            .expect("sent");
        let heard = next.receive_message(SOON);
        agent.receive_message(SOON);
        heard
            .inspect(|letter| assert_eq!(letter.body, MessageBody::Reply(head(2), NodeReply::Armed)))
            .is_some()
    });
    assert!(heard);
}

#[test]
fn segment_waits_while_node_key_is_unreadable() {
    let Some(program) = program() else { return };
    let fleet = Fleet::new(program);
    let a = fleet.member("a");
    let mut incoming = reader(&fleet.controller(), "1");
    let id = SegmentId { run: RunId("r".into()), attempt: 1, node: node("a"), number: 0 };
    fabric(&a)
        .open_result_outlet(&node("a"))
        .expect("it opens")
        .append_segment(&id, b"whole")
        .expect("it is kept");
    // A directory in its place cannot be read as a file, not even by root.
    let file = fleet.place.path().join("authority/a.node");
    let aside = file.with_extension("aside");
    std::fs::rename(&file, &aside).expect("moved");
    std::fs::create_dir(&file).expect("made");
    let why = (0..50).find_map(|_| {
        assert!(incoming.receive_segment(SOON).is_none(), "nobody can say whose it is");
        incoming.take_unreadable_keys().remove(&node("a"))
    });
    assert!(why.is_some_and(|why| why.contains("a.node")), "the file is named");
    std::fs::remove_dir(&file).expect("removed");
    std::fs::rename(&aside, &file).expect("moved");
    let delivery = (0..50).find_map(|_| incoming.receive_segment(SOON)).expect("it comes again");
    assert_eq!((delivery.id, incoming.take_refused_counts().len()), (id, 0));
}
