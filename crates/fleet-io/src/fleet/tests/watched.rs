//! A node writes the deadline of its senders for its supervisor, and 0 while it has none at work.

use super::*;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::local::LocalEndpoint;
use packetrig_fleet::message::{LeaseGrant, MessageBody, MessageHead, NodeCommand, NodeReply};
use packetrig_report::{PlanHash, PortPlace};

/// A controller that does only what the test says.
struct ByHand {
    endpoint: LocalEndpoint,
    head: MessageHead,
}

impl ByHand {
    fn say(&mut self, command: NodeCommand) {
        let body = MessageBody::Command(self.head.clone(), command);
        self.endpoint.post_message(&NodeName("north".into()), body).unwrap();
    }

    /// Renews every lease until the node gives the reply that is waited for.
    fn await_reply(&mut self, is_it: impl Fn(&NodeReply) -> bool) {
        for _ in 0..1000 {
            match self.endpoint.receive_message(Nanos::from_millis(10)).map(|letter| letter.body) {
                Some(MessageBody::Renew(head, nonce)) => {
                    let granted = MessageBody::Granted(head, LeaseGrant { nonce, go_on: true });
                    self.endpoint.post_message(&NodeName("north".into()), granted).unwrap();
                }
                Some(MessageBody::Reply(head, reply)) if head == self.head && is_it(&reply) => return,
                _ => {}
            }
        }
        panic!("no such reply");
    }

    fn prepare(&mut self) {
        let places = [("north", "a0"), ("south", "b0")];
        let place = |(node, interface): (&str, &str)| PortPlace {
            node: NodeName(node.into()),
            interface: interface.into(),
        };
        let places = places.map(place).to_vec();
        let wanted = RunPreparation { document: DOCUMENT.into(), places, ..RunPreparation::default() };
        self.say(NodeCommand::Prepare(Box::new(wanted)));
        self.await_reply(|reply| matches!(reply, NodeReply::Prepared { .. }));
    }

    fn arm(&mut self) {
        self.say(NodeCommand::Arm);
        self.await_reply(|reply| *reply == NodeReply::Armed);
    }
}

fn watched(place: &Path) -> u64 {
    let bytes = std::fs::read(place.join("north/watch")).unwrap();
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

#[test]
fn supervisor_watches_only_nodes_that_may_send() {
    let (fabric, place) = (LocalFabric::default(), tempfile::tempdir().unwrap());
    let _node = TestNode::start(&fabric, "north", place.path(), true, false);
    let endpoint = fabric.open_endpoint(NodeName::controller()).unwrap();
    let head = MessageHead {
        run: RunId("r1".into()),
        attempt: 1,
        epoch: 1,
        plan: PlanHash::from_document(DOCUMENT),
    };
    let mut controller = ByHand { endpoint, head };
    controller.prepare();
    controller.arm();
    assert_eq!(watched(place.path()), 0, "it only waits for its start");
    // The start came to nothing. However long the next one takes: a supervisor has nothing to stop here.
    controller.head.attempt = 2;
    controller.prepare();
    assert_eq!(watched(place.path()), 0, "the next attempt has no lease yet");
    controller.arm();
    let start = crate::agent::now() + Nanos::from_secs(2);
    controller.say(NodeCommand::Commit { start, guard: Nanos::from_millis(1) });
    controller.await_reply(|reply| *reply == NodeReply::Committed);
    assert_eq!(watched(place.path()), 0, "nothing is confirmed");
    controller.say(NodeCommand::Confirm { start });
    controller.await_reply(|reply| *reply == NodeReply::Started);
    assert!(watched(place.path()) > 0, "its senders are at work");
    controller.say(NodeCommand::Stop);
    controller.await_reply(|reply| matches!(reply, NodeReply::SendersDone { .. }));
    controller.say(NodeCommand::Abort);
    controller.await_reply(|reply| *reply == NodeReply::Aborted);
    assert_eq!(watched(place.path()), 0, "they have stopped");
}
