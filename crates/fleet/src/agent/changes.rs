//! Changes to a steered run, by the number of each.
//!
//! Invariant: no step of a change is done twice, none before the one it follows, and nothing of a change that is over.

use super::{Action, Agent, State};
use crate::message::{Order, Reply, Step};
use crate::outcome::{Blame, Fault};
use packetrig_plan::HeldStream;
use std::cmp::Ordering;

/// How far a change is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Made {
    Held(Vec<HeldStream>, Option<Fault>),
    Announced(Option<Fault>),
    Over(Option<Fault>),
}

impl Agent {
    pub(super) fn steer(&mut self, order: Box<Order>) -> Vec<Action> {
        match order.number.cmp(&self.change.0) {
            Ordering::Less => Vec::new(),
            Ordering::Equal => self.say_again(),
            Ordering::Greater if self.state == State::Running => vec![Action::Steer(order)],
            Ordering::Greater => self.too_late(order.number, Made::Over),
        }
    }

    pub(super) fn take_step(&mut self, number: u64, step: Box<Step>) -> Vec<Action> {
        match number.cmp(&self.change.0) {
            // An older one comes late.
            Ordering::Less => Vec::new(),
            Ordering::Equal => self.next_step(number, step),
            Ordering::Greater => self.first_step(number, step),
        }
    }

    fn first_step(&mut self, number: u64, step: Box<Step>) -> Vec<Action> {
        match *step {
            Step::Hold(_) if self.state == State::Running => vec![Action::Step(number, step)],
            Step::Hold(_) => self.too_late(number, |fault| Made::Held(Vec::new(), fault)),
            // It was never held here, and if that order still comes it comes too late.
            Step::Undo => self.made(number, Made::Over(None)),
            Step::Announce { .. } | Step::Begin { .. } => Vec::new(),
        }
    }

    fn next_step(&mut self, number: u64, step: Box<Step>) -> Vec<Action> {
        match (step.as_ref(), &self.change.1) {
            (Step::Hold(_), Made::Held(..))
            | (Step::Announce { .. }, Made::Announced(_))
            | (Step::Begin { .. } | Step::Undo, Made::Over(_)) => self.say_again(),
            // Where nothing is held there is nothing to undo, and what is not announced does not begin.
            (Step::Undo, Made::Held(_, Some(_))) | (Step::Begin { .. }, Made::Announced(Some(_))) => {
                self.made(number, Made::Over(None))
            }
            (Step::Announce { .. } | Step::Undo, Made::Held(_, None))
            | (Step::Begin { .. }, Made::Announced(None)) => match (&self.state, step.as_ref()) {
                // Receivers outlive senders, and another's may still begin.
                (State::Running, _) | (State::Stopped(_), Step::Announce { .. }) => {
                    vec![Action::Step(number, step)]
                }
                (_, Step::Announce { .. }) => self.too_late(number, Made::Announced),
                _ => self.too_late(number, Made::Over),
            },
            // Overtaken by what followed it.
            _ => Vec::new(),
        }
    }

    /// A step is done, or there was nothing to be done.
    pub(super) fn made(&mut self, number: u64, made: Made) -> Vec<Action> {
        self.change = (number, made);
        self.say_again()
    }

    fn say_again(&self) -> Vec<Action> {
        let (number, made) = self.change.clone();
        self.reply(match made {
            Made::Held(held, fault) => Reply::Held { number, fault, held },
            Made::Announced(fault) => Reply::Announced { number, fault },
            Made::Over(fault) => Reply::Steered { number, fault, sample: Box::default() },
        })
    }

    /// Before T the controller says it again; after the senders' end it would never be done.
    fn too_late(&mut self, number: u64, made: impl FnOnce(Option<Fault>) -> Made) -> Vec<Action> {
        match self.state {
            State::Stopped(_) | State::Finishing | State::Spooling | State::Spooled(_) => {
                let text = "its senders have stopped".to_owned();
                self.made(number, made(Some(Fault { blame: Blame::World, text })))
            }
            _ => Vec::new(),
        }
    }
}
