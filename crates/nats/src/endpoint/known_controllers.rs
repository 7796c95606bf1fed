//! Selects the instance of a controller for which a node seals a letter, if several controllers send to the node.
//!
//! A letter about a run is for the controller that commanded the run. The answer to a roll call is for the
//! controller that sent the roll call. All other hellos are for the controller that leads the node. If the node has
//! heard of no such controller, the letter is for the controller that sent the last message. A session is the
//! instance number of a controller.
//!
//! Invariant: a roll call does not change the leader.

use packetrig_fleet::message::{MessageBody, Nonce, RunId};
use std::collections::VecDeque;

/// Maximum number of runs, and of roll calls, with a remembered controller.
const MAX_REMEMBERED_RUNS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct KnownControllers {
    /// The session of the latest message, whatever its kind.
    last: u64,
    /// The highest epoch in a command so far, and the session of its sender.
    leader: Option<(u64, u64)>,
    by_run: VecDeque<((RunId, u64), u64)>,
    by_call: VecDeque<(Nonce, u64)>,
}

fn remember_session<K: PartialEq>(list: &mut VecDeque<(K, u64)>, key: K, session: u64) {
    // Each key has one entry: repeated messages of one run must not displace other runs.
    list.retain(|(known, _)| *known != key);
    if list.len() == MAX_REMEMBERED_RUNS {
        list.pop_front();
    }
    list.push_back((key, session));
}

fn find_session_number<K: PartialEq>(list: &VecDeque<(K, u64)>, key: &K) -> Option<u64> {
    list.iter().rev().find(|(known, _)| known == key).map(|(_, session)| *session)
}

impl KnownControllers {
    /// Records that the controller with this instance number sent the message `body`.
    pub(super) fn on_message(&mut self, session: u64, body: &MessageBody) {
        self.last = session;
        match body {
            MessageBody::Command(head, _) => {
                remember_session(&mut self.by_run, (head.run.clone(), head.epoch), session);
                // A controller of a lower epoch does not lead the node any more, even if its command comes last.
                if self.leader.is_none_or(|(epoch, _)| head.epoch >= epoch) {
                    self.leader = Some((head.epoch, session));
                }
            }
            MessageBody::RollCall(call) => remember_session(&mut self.by_call, *call, session),
            _ => {}
        }
    }

    /// Returns the session of the controller that should receive this message.
    pub(super) fn addressee_session(&self, body: &MessageBody) -> u64 {
        let found = match body {
            MessageBody::Reply(head, _)
            | MessageBody::Telemetry(head, _)
            | MessageBody::Clock(head, _)
            | MessageBody::Renew(head, _)
            | MessageBody::Command(head, _)
            | MessageBody::Clocks(head, _)
            | MessageBody::Granted(head, _) => {
                find_session_number(&self.by_run, &(head.run.clone(), head.epoch))
            }
            MessageBody::Hello(hello) => match hello.answers {
                Some(call) => find_session_number(&self.by_call, &call),
                None => self.leader.map(|(_, session)| session),
            },
            MessageBody::RollCall(_) | MessageBody::Stored(_) => None,
        };
        // Without a record of the right controller, the one that sent the last message is the most likely addressee.
        found.unwrap_or(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_fleet::hello::NodeHello;
    use packetrig_fleet::message::PlanHash;
    use packetrig_fleet::message::{MessageHead, NodeCommand, NodeReply};

    fn head(run: &str, epoch: u64) -> MessageHead {
        MessageHead { run: RunId(run.into()), attempt: 1, epoch, plan: PlanHash::from_document("p") }
    }

    fn command(run: &str, epoch: u64) -> MessageBody {
        MessageBody::Command(head(run, epoch), NodeCommand::Query)
    }

    fn reply(run: &str, epoch: u64) -> MessageBody {
        MessageBody::Reply(head(run, epoch), NodeReply::Armed)
    }

    fn hello(answers: Option<u64>) -> MessageBody {
        MessageBody::Hello(Box::new(NodeHello { answers: answers.map(Nonce), ..NodeHello::default() }))
    }

    #[test]
    fn roll_call_answer_goes_to_caller_only() {
        let mut known = KnownControllers::default();
        known.on_message(1, &MessageBody::RollCall(Nonce(7)));
        assert_eq!(known.addressee_session(&hello(None)), 1, "nobody leads it yet");
        known.on_message(2, &command("r", 5));
        known.on_message(3, &MessageBody::RollCall(Nonce(8)));
        assert_eq!(known.addressee_session(&reply("r", 5)), 2);
        assert_eq!(
            [hello(Some(7)), hello(Some(8)), hello(None)].map(|body| known.addressee_session(&body)),
            [1, 3, 2]
        );
    }

    #[test]
    fn older_epoch_controller_is_answered_but_leads_nothing() {
        let mut known = KnownControllers::default();
        known.on_message(2, &command("r", 5));
        known.on_message(1, &command("old", 4));
        assert_eq!(
            [reply("old", 4), reply("r", 5), hello(None)].map(|body| known.addressee_session(&body)),
            [1, 2, 2]
        );
        known.on_message(3, &command("r", 6));
        assert_eq!([reply("r", 6), hello(None)].map(|body| known.addressee_session(&body)), [3, 3]);
    }

    #[test]
    fn known_controllers_are_bounded() {
        let mut known = KnownControllers::default();
        for number in 0..10_000 {
            known.on_message(number, &MessageBody::RollCall(Nonce(number)));
            known.on_message(number, &command(&number.to_string(), number));
        }
        assert_eq!((known.by_call.len(), known.by_run.len()), (MAX_REMEMBERED_RUNS, MAX_REMEMBERED_RUNS));
    }
}
