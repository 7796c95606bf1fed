//! Actions of nodes: on letters, on orders of their agents, on results on their disks.

use crate::fleet::{Fleet, Happening};
use crate::node::Sending;
use crate::world::MS;
use packetrig_fleet::agent::{AgentAction as Order, AgentEvent};
use packetrig_fleet::controller::ControllerEvent;
use packetrig_fleet::message::{MessageBody, NodeCommand, NodeReply, SentTotal};
use packetrig_stats::result::NodeResult;
use packetrig_units::MonoTime;
use std::sync::Arc;

impl Fleet {
    pub(crate) fn letter_to_node(&mut self, index: usize, chief: usize, body: MessageBody) {
        match body {
            MessageBody::Command(head, command) => {
                let epoch = head.epoch;
                let event = AgentEvent::Command(head, self.converted(index, chief, command));
                self.tell_on_epoch(index, event, epoch);
            }
            MessageBody::Granted(head, grant) => {
                let epoch = head.epoch;
                self.tell_on_epoch(index, AgentEvent::Granted(head, grant), epoch);
            }
            _ => {}
        }
    }

    /// T on the node's clock, by its clock fit.
    pub(crate) fn converted(&mut self, index: usize, chief: usize, mut command: NodeCommand) -> NodeCommand {
        let bound = self.world.bound_us * 1000;
        if let NodeCommand::Commit { start, .. } | NodeCommand::Confirm { start } = &mut command {
            let error = self.random.below(2 * bound + 1);
            let truth = self.chiefs[chief].clock.truth(*start);
            *start = self.nodes[index].clock.shows(truth + error - bound.min(truth));
        }
        command
    }

    pub(crate) fn tell_on_epoch(&mut self, index: usize, event: AgentEvent, epoch: u64) {
        let node = &mut self.nodes[index];
        if !node.alive {
            return;
        }
        let is_old = epoch < node.told_epoch;
        if matches!(event, AgentEvent::Command(..)) {
            node.told_epoch = node.told_epoch.max(epoch);
        }
        if !is_old {
            return self.tell_node(index, event);
        }
        node.settle(self.now);
        let now = node.clock.shows(self.now);
        for order in node.agent.handle_event(event, now) {
            let Order::Reply(head, NodeReply::Refused(why)) = order else {
                panic!("{order:?} was done on the old epoch {epoch}")
            };
            self.refused += 1;
            self.post(
                index,
                false,
                Happening::ToController(index, MessageBody::Reply(head, NodeReply::Refused(why))),
            );
        }
    }

    pub(crate) fn tell_node(&mut self, index: usize, event: AgentEvent) {
        let node = &mut self.nodes[index];
        if !node.alive {
            return;
        }
        node.settle(self.now);
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let now = self.nodes[index].clock.shows(self.now);
            for order in self.nodes[index].agent.handle_event(event, now) {
                events.extend(self.obey(index, order));
            }
        }
        let node = &mut self.nodes[index];
        if let Some(at) = node.agent.next_deadline() {
            let at = node.clock.truth(at).max(self.now + MS / 2);
            if node.wake.is_none_or(|wake| at < wake || wake <= self.now) {
                node.wake = Some(at);
                self.at(at, Happening::NodeWakes(index));
            }
        }
    }

    pub(crate) fn obey(&mut self, index: usize, order: Order) -> Option<AgentEvent> {
        let now = self.now;
        match order {
            Order::Reply(head, reply) => {
                self.post(index, false, Happening::ToController(index, MessageBody::Reply(head, reply)));
            }
            Order::Renew(head, nonce) => {
                assert!(self.nodes[index].asked.insert(nonce, now).is_none(), "a nonce is used once");
                self.post(index, false, Happening::ToController(index, MessageBody::Renew(head, nonce)));
            }
            Order::Remember(epoch) => self.nodes[index].epoch = epoch,
            Order::Prepare(_) => return Some(AgentEvent::Prepared(vec![])),
            Order::Arm => {
                self.nodes[index].receiving = true;
                return Some(AgentEvent::Armed);
            }
            Order::Extend(until) => {
                self.nodes[index].gate = Some(until);
                let shut = self.nodes[index].clock.truth(until);
                let incarnation = self.nodes[index].incarnation;
                self.at(shut, Happening::SendersLook(index, incarnation));
            }
            Order::StartAt(start) => self.start(index, start),
            // See `tests/steering.rs`.
            Order::Steer(_) | Order::Step(..) => unreachable!("the run is not steered"),
            Order::StopSenders => {
                let told = now + self.random.below(10 * MS);
                let node = &mut self.nodes[index];
                if let Some(sending) = &mut node.sending {
                    sending.told.get_or_insert(told);
                    // A change that has not begun does not begin.
                    sending.from = sending.from.min(told.max(now));
                }
                let incarnation = node.incarnation;
                self.at(told, Happening::SendersLook(index, incarnation));
            }
            Order::Finish(_) => {
                let node = &mut self.nodes[index];
                assert!(!node.is_sending(now), "receivers do not stop before their own senders");
                node.receiving = false;
                node.finished += 1;
                let result = NodeResult { node: node.name.to_string(), ..NodeResult::default() };
                return Some(AgentEvent::Finished(Arc::new(result)));
            }
            Order::Spool(result) => {
                let attempt = self.nodes[index].agent.head().map_or(0, |head| head.attempt);
                self.nodes[index].spool.insert(attempt, result);
                self.at(now, Happening::UploadDue(index));
                return Some(AgentEvent::Spooled { segments: 1 });
            }
            Order::Release => self.nodes[index].close(now),
        }
        None
    }

    pub(crate) fn start(&mut self, index: usize, start: MonoTime) {
        let from = self.nodes[index].clock.truth(start);
        let bound = self.world.bound_us * 1000 + 10;
        let is_given = self.starts.iter().any(|given| given.abs_diff(from) <= bound);
        assert!(is_given && from > self.now, "it starts at a T that was given out, within the bound");
        assert!(self.nodes[index].receiving);
        let until = from + self.world.length * MS;
        self.nodes[index].sending = Some(Sending { from, until, told: None, ended: None });
        let incarnation = self.nodes[index].incarnation;
        self.at(until, Happening::SendersLook(index, incarnation));
    }

    /// The shell looks whether the senders are done.
    pub(crate) fn senders_look(&mut self, index: usize, incarnation: u64) {
        let node = &mut self.nodes[index];
        if !node.alive || node.incarnation != incarnation {
            return;
        }
        node.settle(self.now);
        let Some((_, lease_ended)) = node.sending.as_ref().and_then(|sending| sending.ended) else { return };
        if !node.agent.awaits_senders() {
            return self.at(self.now + 5 * MS, Happening::SendersLook(index, incarnation));
        }
        node.sending = None;
        let sent = vec![SentTotal { stream: index, frames: 100 }];
        self.tell_node(index, AgentEvent::SendersDone { sent, lease_ended });
    }

    /// The node sends what waits on its disk, again and again until it is stored.
    pub(crate) fn upload(&mut self, index: usize) {
        let over = self.chiefs.iter().all(|chief| !chief.alive || chief.machine.outcome().is_some());
        if !self.nodes[index].alive || self.nodes[index].spool.is_empty() || (over && self.now > 200_000 * MS)
        {
            return;
        }
        for (attempt, result) in self.nodes[index].spool.clone() {
            self.post(index, false, Happening::Upload(index, attempt, result));
        }
        self.at(self.now + 700 * MS, Happening::UploadDue(index));
    }

    pub(crate) fn uploaded(&mut self, index: usize, attempt: u32, result: Arc<NodeResult>) {
        if !self.chiefs.iter().any(|chief| chief.alive && !chief.frozen) {
            return;
        }
        if self.store.insert(index, Arc::clone(&result)).is_some() {
            self.redelivered += 1;
        }
        let name = self.nodes[index].name.clone();
        self.tell_chiefs(&ControllerEvent::Collected(name, result));
        self.post(index, true, Happening::Stored(index, attempt));
    }
}
