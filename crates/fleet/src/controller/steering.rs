//! Changes to a run under way: one after another, each to every node, done when every node has answered.

use super::{Controller, Phase};
use crate::event::RunEventKind;
use crate::message::{Command, NodeName, Order};
use crate::outcome::{Blame, Fault};
use packetrig_plan::Steer;
use packetrig_units::MonoTime;
use std::collections::{BTreeSet, VecDeque};

/// The change that nodes are at work on, and those that wait for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Steering {
    /// Changes so far; the last one's number.
    given: u64,
    current: Option<Current>,
    waiting: VecDeque<(u64, Steer)>,
}

#[derive(Clone, Debug)]
struct Current {
    order: Order,
    open: BTreeSet<NodeName>,
    fault: Option<Fault>,
}

impl Controller {
    /// The user wants a change. Its outcome is told by [`RunEventKind::Steered`], in the order in which changes were asked for; the
    /// first one has number 1.
    pub(super) fn steer(&mut self, steer: Steer, now: MonoTime) {
        self.steering.given += 1;
        self.steering.waiting.push_back((self.steering.given, steer));
        self.next_change(now);
    }

    /// Takes up the next change, if none is under way.
    pub(super) fn next_change(&mut self, now: MonoTime) {
        if self.steering.current.is_some() {
            return;
        }
        let can_be_steered = matches!(self.phase, Phase::Running { .. })
            && self.stopping.is_none()
            && self.preparation.steered;
        let is_early = matches!(
            self.phase,
            Phase::Draft
                | Phase::Preparing { .. }
                | Phase::Arming { .. }
                | Phase::Committing { .. }
                | Phase::Confirming { .. }
        );
        if is_early && self.preparation.steered {
            return;
        }
        let Some((number, steer)) = self.steering.waiting.pop_front() else { return };
        if !can_be_steered {
            let text = "the run is not under way, or cannot be steered".to_owned();
            return self.steered(number, Err(Fault { blame: Blame::User, text }), now);
        }
        let open: BTreeSet<NodeName> =
            self.peers.iter().filter(|(_, peer)| !peer.lost).map(|(node, _)| node.clone()).collect();
        // One machine starts as soon as it can; several need an instant that all hear of in time.
        let at = (open.len() > 1).then(|| now + self.limits.lead);
        let order = Order { number, at, steer };
        for node in &open {
            self.send(node.clone(), Command::Steer(Box::new(order.clone())));
        }
        self.steering.current = Some(Current { order, open, fault: None });
    }

    /// A node has done the change, or says why it could not.
    pub(super) fn answered(&mut self, node: &NodeName, number: u64, fault: Option<Fault>, now: MonoTime) {
        let Some(current) = self.steering.current.as_mut().filter(|it| it.order.number == number) else {
            return;
        };
        if current.open.remove(node) {
            current.fault = current.fault.take().or(fault);
        }
        self.settle_change(now);
    }

    /// A change is over when no node is waited for; a node that is lost has not done it.
    pub(super) fn settle_change(&mut self, now: MonoTime) {
        let Some(current) = &mut self.steering.current else { return };
        let gone = |node: &NodeName| self.peers.get(node).is_none_or(|peer| peer.lost);
        let lost = current.open.iter().find(|node| gone(node)).cloned();
        if let Some(node) = lost {
            let text = format!("node {node} was lost before it had done it");
            current.fault.get_or_insert(Fault { blame: Blame::Peer, text });
            current.open.retain(|node| !gone(node));
        }
        if !current.open.is_empty() {
            return;
        }
        if let Some(Current { order, fault, .. }) = self.steering.current.take() {
            self.steered(order.number, fault.map_or(Ok(()), Err), now);
        }
    }

    fn steered(&mut self, number: u64, outcome: Result<(), Fault>, now: MonoTime) {
        self.emit(RunEventKind::Steered { number, outcome });
        self.next_change(now);
    }

    /// What `node` has not answered yet.
    pub(super) fn unanswered(&self, node: &NodeName) -> Option<Command> {
        let current = self.steering.current.as_ref().filter(|current| current.open.contains(node))?;
        Some(Command::Steer(Box::new(current.order.clone())))
    }
}
