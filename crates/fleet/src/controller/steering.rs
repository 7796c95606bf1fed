//! Changes to a running run. The next change begins only when every node has answered the current one.
//!
//! A change that every node can make without the others is one order. A change that makes new stream segments on
//! several nodes has steps: all nodes hold (pause) their streams, then all announce the segments to their
//! receivers, then all begin. So receivers know the segments before the senders of another node use them. A fault
//! before all nodes hold their streams undoes the change. After that the change is final, even if a node is lost:
//! the loss is reported separately.

use super::{ControllerMachine, ControllerPhase};
use crate::message::{ChangeOrder, ChangeStep, NodeCommand, NodeName};
use packetrig_plan::{PlanChange, StreamResumePoint};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::NodeFault;
use packetrig_units::Blame;
use packetrig_units::MonoTime;
use std::collections::{BTreeSet, VecDeque};

/// The change that the nodes are making, and the changes that wait for its end.
#[derive(Clone, Debug, Default)]
pub(super) struct RunSteering {
    /// Number of changes that the user has requested so far, which is the number of the latest request.
    given: u64,
    current: Option<CurrentChange>,
    waiting: VecDeque<(u64, PlanChange)>,
}

#[derive(Clone, Debug)]
struct CurrentChange {
    number: u64,
    stage: ChangeStage,
    /// True if streams begin with this change.
    begins: bool,
    /// Nodes that have not answered the current step.
    open: BTreeSet<NodeName>,
    fault: Option<NodeFault>,
}

/// The step of the current change that the nodes are making, with its data.
#[derive(Clone, Debug)]
enum ChangeStage {
    Whole(ChangeOrder),
    Hold(PlanChange, Vec<StreamResumePoint>),
    Announce { held: Vec<StreamResumePoint>, at: Option<MonoTime> },
    Begin { at: Option<MonoTime> },
    Undo,
}

impl CurrentChange {
    fn to_command(&self) -> NodeCommand {
        let step = match &self.stage {
            ChangeStage::Whole(order) => return NodeCommand::Steer(Box::new(order.clone())),
            ChangeStage::Hold(steer, _) => ChangeStep::Hold(steer.clone()),
            ChangeStage::Announce { held, at } => ChangeStep::Announce { held: held.clone(), at: *at },
            ChangeStage::Begin { at } => ChangeStep::Begin { at: *at },
            ChangeStage::Undo => ChangeStep::Undo,
        };
        NodeCommand::Step { number: self.number, step: Box::new(step) }
    }
}

impl ControllerMachine {
    /// Queues a change that the user wants. [`RunEventKind::Steered`] reports the outcome, in the order of the
    /// requests. The first request of a run has number 1.
    pub(super) fn queue_change(&mut self, steer: PlanChange, now: MonoTime) {
        self.steering.given += 1;
        self.steering.waiting.push_back((self.steering.given, steer));
        self.begin_next_change(now);
    }

    /// Begins the next waiting change, unless a change is in progress or the run has not started.
    pub(super) fn begin_next_change(&mut self, now: MonoTime) {
        if self.steering.current.is_some() {
            return;
        }
        let is_early = matches!(
            self.phase,
            ControllerPhase::Draft
                | ControllerPhase::Preparing { .. }
                | ControllerPhase::Arming { .. }
                | ControllerPhase::Committing { .. }
                | ControllerPhase::Confirming { .. }
        );
        // A steered run may get its first changes before its nodes are ready. They wait for the start.
        if is_early && self.preparation.terms.steered {
            return;
        }
        let Some((number, steer)) = self.steering.waiting.pop_front() else { return };
        let is_under_way = matches!(self.phase, ControllerPhase::Running { .. }) && self.stopping.is_none();
        if !is_under_way || !self.preparation.terms.steered {
            let text = "the run has ended, or its flows cannot be changed while it runs".to_owned();
            return self.finish_change(number, Err(NodeFault { blame: Blame::Plan, text }), now);
        }
        let open = self.present_nodes();
        let begins = steer.starts_streams();
        // A single node informs its receivers before its senders. With several nodes, the receivers of all nodes must
        // be informed first, so a change with new stream segments is made in steps.
        let stage = if open.len() > 1 && steer.begins_new_segments() {
            ChangeStage::Hold(steer, Vec::new())
        } else {
            ChangeStage::Whole(ChangeOrder { number, steer })
        };
        self.steering.current = Some(CurrentChange { number, stage, begins, open, fault: None });
        self.send_change_step();
    }

    /// Nodes that the controller has not lost.
    fn present_nodes(&self) -> BTreeSet<NodeName> {
        self.peers.iter().filter(|(_, peer)| !peer.lost).map(|(node, _)| node.clone()).collect()
    }

    /// Sends the command of the current step to all nodes that have not answered it.
    fn send_change_step(&mut self) {
        let Some(current) = &self.steering.current else { return };
        let command = current.to_command();
        for node in current.open.clone() {
            self.send_command(node, command.clone());
        }
    }

    /// Returns the current change if it has this number. A reply with another number is late, and is ignored.
    fn current_change_numbered(&mut self, number: u64) -> Option<&mut CurrentChange> {
        self.steering.current.as_mut().filter(|current| current.number == number)
    }

    /// Handles the reply of a node that holds its streams, or that could not hold them.
    pub(super) fn on_streams_held(
        &mut self,
        node: &NodeName,
        number: u64,
        streams: Vec<StreamResumePoint>,
        fault: Option<NodeFault>,
        now: MonoTime,
    ) {
        let Some(current) = self.current_change_numbered(number) else { return };
        if let ChangeStage::Hold(_, held) = &mut current.stage
            // A node that is not in `open` has answered already: a repeated answer must not add its streams again.
            && current.open.remove(node)
        {
            held.extend(streams);
            // Only the first fault is reported to the user.
            current.fault = current.fault.take().or(fault);
        }
        self.advance_change(now);
    }

    /// Handles the reply of a node that has announced the new stream segments to its receivers, or failed to do so.
    pub(super) fn on_segments_announced(
        &mut self,
        node: &NodeName,
        number: u64,
        fault: Option<NodeFault>,
        now: MonoTime,
    ) {
        let Some(current) = self.current_change_numbered(number) else { return };
        if matches!(current.stage, ChangeStage::Announce { .. }) && current.open.remove(node) {
            current.fault = current.fault.take().or(fault);
        }
        self.advance_change(now);
    }

    /// Handles the reply of a node that has made or undone the change, or that failed to do so.
    pub(super) fn on_change_made(
        &mut self,
        node: &NodeName,
        number: u64,
        fault: Option<NodeFault>,
        now: MonoTime,
    ) {
        let Some(current) = self.current_change_numbered(number) else { return };
        let is_last =
            matches!(current.stage, ChangeStage::Whole(_) | ChangeStage::Begin { .. } | ChangeStage::Undo);
        if is_last && current.open.remove(node) {
            current.fault = current.fault.take().or(fault);
        }
        self.advance_change(now);
    }

    /// Starts the next step of the change, or ends the change, when all nodes have answered.
    pub(super) fn advance_change(&mut self, now: MonoTime) {
        self.drop_lost_nodes();
        self.undo_change_on_stop();
        let Some(current) = self.steering.current.take_if(|current| current.open.is_empty()) else { return };
        let CurrentChange { number, stage, begins, fault, .. } = current;
        // All nodes get one start time, late enough for the announcement to reach each of them.
        let at = begins.then(|| now + self.limits.lead);
        let stage = match (stage, &fault) {
            (ChangeStage::Hold(..), Some(_)) => ChangeStage::Undo,
            (ChangeStage::Hold(_, held), None) => ChangeStage::Announce { held, at },
            // The nodes announced this time. If the announcements took long, all nodes get a later one.
            (ChangeStage::Announce { at: said, .. }, _) => {
                ChangeStage::Begin { at: said.map(|said| said.max(now + self.limits.guard)) }
            }
            (ChangeStage::Whole(_) | ChangeStage::Begin { .. } | ChangeStage::Undo, _) => {
                return self.finish_change(number, fault.map_or(Ok(()), Err), now);
            }
        };
        self.steering.current =
            Some(CurrentChange { number, stage, begins, open: self.present_nodes(), fault });
        self.send_change_step();
        // If no node is left, no answer will advance the change.
        self.advance_change(now);
    }

    /// Stops waiting for lost nodes. If a lost node had not yet held its streams or made the change, that is a fault.
    fn drop_lost_nodes(&mut self) {
        let Some(current) = &mut self.steering.current else { return };
        let lost = current.open.iter().find(|node| self.peers.is_lost(node)).cloned();
        let Some(node) = lost else { return };
        current.open.retain(|node| !self.peers.is_lost(node));
        if matches!(current.stage, ChangeStage::Whole(_) | ChangeStage::Hold(..)) {
            let text = format!("node {node} stopped answering before it made the change");
            current.fault.get_or_insert(NodeFault { blame: Blame::Peer, text });
        }
    }

    /// Ends a change as undone if the run is stopped while nodes hold their streams for the change.
    fn undo_change_on_stop(&mut self) {
        let is_over = self.stopping.is_some() || !matches!(self.phase, ControllerPhase::Running { .. });
        let Some(current) = self.steering.current.as_mut().filter(|_| is_over) else { return };
        if matches!(current.stage, ChangeStage::Hold(..) | ChangeStage::Undo) {
            let text = "the run was stopped before the change was made".to_owned();
            current.fault.get_or_insert(NodeFault { blame: Blame::Plan, text });
            current.stage = ChangeStage::Undo;
            // The controller need not wait for answers, because the stop ends the held streams on every node.
            current.open.clear();
        }
    }

    /// Reports the outcome of a change and begins the next one.
    fn finish_change(&mut self, number: u64, outcome: Result<(), NodeFault>, now: MonoTime) {
        // Changes follow the order of the requests: the next change begins only after this one has its outcome.
        self.emit_event(RunEventKind::Steered { number, outcome });
        self.begin_next_change(now);
    }

    /// Returns the command of the current change that `node` has not answered yet.
    pub(super) fn unanswered_change_command(&self, node: &NodeName) -> Option<NodeCommand> {
        let current = self.steering.current.as_ref().filter(|current| current.open.contains(node))?;
        Some(current.to_command())
    }
}
