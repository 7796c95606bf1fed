//! Handles changes to a steered run. Each change has a number.
//!
//! Invariant: no step of a change is done twice, or before the step that must come before it. Late commands for an
//! ended change have no effect.

use super::{AgentAction, AgentMachine, AgentState};
use crate::message::{ChangeOrder, ChangeStep, NodeReply};
use packetrig_plan::StreamResumePoint;
use packetrig_report::outcome::NodeFault;
use packetrig_units::Blame;
use std::cmp::Ordering;

/// The last step of a change that this agent has answered. A fault means that the step failed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ChangeProgress {
    Held(Vec<StreamResumePoint>, Option<NodeFault>),
    Announced(Option<NodeFault>),
    Over(Option<NodeFault>),
}

/// The last change that this agent has answered. Before the first change: number 0, and over.
#[derive(Clone, Debug)]
pub(super) struct LastChange {
    pub(super) number: u64,
    pub(super) progress: ChangeProgress,
}

impl Default for LastChange {
    fn default() -> Self {
        Self { number: 0, progress: ChangeProgress::Over(None) }
    }
}

impl AgentMachine {
    pub(super) fn on_change_order(&mut self, order: Box<ChangeOrder>) -> Vec<AgentAction> {
        match order.number.cmp(&self.change.number) {
            // The controller orders a change only after every node has answered the one before, so an older number
            // is a late repetition.
            Ordering::Less => Vec::new(),
            Ordering::Equal => self.repeat_progress(),
            // The number is recorded with the answer of the data plane, see `AgentEvent::Steered`.
            Ordering::Greater if self.state == AgentState::Running => vec![AgentAction::Steer(order)],
            Ordering::Greater => self.refuse_change_if_senders_stopped(order.number, ChangeProgress::Over),
        }
    }

    pub(super) fn execute_step(&mut self, number: u64, step: Box<ChangeStep>) -> Vec<AgentAction> {
        match number.cmp(&self.change.number) {
            // A late repetition of an older change.
            Ordering::Less => Vec::new(),
            Ordering::Equal => self.execute_next_step(number, step),
            Ordering::Greater => self.execute_first_step(number, step),
        }
    }

    fn execute_first_step(&mut self, number: u64, step: Box<ChangeStep>) -> Vec<AgentAction> {
        match *step {
            ChangeStep::Hold(_) if self.state == AgentState::Running => vec![AgentAction::Step(number, step)],
            ChangeStep::Hold(_) => {
                self.refuse_change_if_senders_stopped(number, |fault| ChangeProgress::Held(Vec::new(), fault))
            }
            // The streams were never held on this node. An order to hold them that arrives after this has no effect.
            ChangeStep::Undo => self.set_progress(number, ChangeProgress::Over(None)),
            // All nodes hold before any node gets these steps. A node that did not hold does not have the streams.
            ChangeStep::Announce { .. } | ChangeStep::Begin { .. } => Vec::new(),
        }
    }

    fn execute_next_step(&mut self, number: u64, step: Box<ChangeStep>) -> Vec<AgentAction> {
        match (step.as_ref(), &self.change.progress) {
            // The step was done and its answer was lost: the agent answers again.
            (ChangeStep::Hold(_), ChangeProgress::Held(..))
            | (ChangeStep::Announce { .. }, ChangeProgress::Announced(_))
            | (ChangeStep::Begin { .. } | ChangeStep::Undo, ChangeProgress::Over(_)) => {
                self.repeat_progress()
            }
            // A failed step has undone its own effects, so nothing is left to undo. A change whose
            // announcement failed cannot begin.
            (ChangeStep::Undo, ChangeProgress::Held(_, Some(_)))
            | (ChangeStep::Begin { .. }, ChangeProgress::Announced(Some(_))) => {
                self.set_progress(number, ChangeProgress::Over(None))
            }
            (ChangeStep::Announce { .. } | ChangeStep::Undo, ChangeProgress::Held(_, None))
            | (ChangeStep::Begin { .. }, ChangeProgress::Announced(None)) => {
                match (&self.state, step.as_ref()) {
                    // Announcements are for receivers, which run longer than senders: another node may
                    // still begin to send.
                    (AgentState::Running, _) | (AgentState::Stopped(_), ChangeStep::Announce { .. }) => {
                        vec![AgentAction::Step(number, step)]
                    }
                    (_, ChangeStep::Announce { .. }) => {
                        self.refuse_change_if_senders_stopped(number, ChangeProgress::Announced)
                    }
                    _ => self.refuse_change_if_senders_stopped(number, ChangeProgress::Over),
                }
            }
            // A later step has overtaken this one.
            _ => Vec::new(),
        }
    }

    /// Records that a step has ended or needed no action, and reports the progress to the controller.
    pub(super) fn set_progress(&mut self, number: u64, progress: ChangeProgress) -> Vec<AgentAction> {
        self.change = LastChange { number, progress };
        self.repeat_progress()
    }

    fn repeat_progress(&self) -> Vec<AgentAction> {
        let LastChange { number, progress } = self.change.clone();
        self.reply_to_controller(match progress {
            ChangeProgress::Held(held, fault) => NodeReply::Held { number, fault, held },
            ChangeProgress::Announced(fault) => NodeReply::Announced { number, fault },
            // There is no sample: the counts right after the change are gone.
            ChangeProgress::Over(fault) => NodeReply::Steered { number, fault, sample: Box::default() },
        })
    }

    /// Handles a change that arrives while no sender runs. Before the start of the run the change is ignored:
    /// the controller repeats it. After the senders have stopped, the change cannot be made any more, and the
    /// agent reports a fault.
    fn refuse_change_if_senders_stopped(
        &mut self,
        number: u64,
        made: impl FnOnce(Option<NodeFault>) -> ChangeProgress,
    ) -> Vec<AgentAction> {
        match self.state {
            AgentState::Stopped(_)
            | AgentState::Finishing
            | AgentState::Spooling
            | AgentState::Spooled(_) => {
                let text = "the senders of this node have already stopped".to_owned();
                self.set_progress(number, made(Some(NodeFault { blame: Blame::World, text })))
            }
            _ => Vec::new(),
        }
    }
}
