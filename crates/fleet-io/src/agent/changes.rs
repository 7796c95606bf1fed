//! Performs changes to a steered run on the data plane.
//!
//! A change that cannot be made ends nothing; a worker that died is found by the sample that follows.

use super::{AgentShell, NodePlan, prepared};
use crate::blame::fault_of;
use packetrig_engine::Error as EngineError;
use packetrig_engine::stream::ClockShift;
use packetrig_fleet::agent::AgentEvent;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{ChangeOrder, ChangeStep};
use packetrig_fleet::outcome::NodeFault;
use packetrig_plan::{PlanChange, PlanGrowth, PlanProblems};

impl<E: Endpoint> AgentShell<'_, E> {
    pub(super) fn steer(&mut self, order: &ChangeOrder) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = prepared(&mut self.plane)?;
        let fault = match Self::read_change(prepared(&mut self.plan)?, &order.steer) {
            Ok(change) => plane.steer(&change).err().map(|error| fault_of(&error)),
            Err(fault) => Some(fault),
        };
        if fault.is_none() {
            self.agree()?;
        }
        self.steered(order.number, fault)
    }

    pub(super) fn take_step(
        &mut self,
        number: u64,
        step: ChangeStep,
    ) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = prepared(&mut self.plane)?;
        let done = match step {
            ChangeStep::Hold(steer) => return self.hold(number, &steer),
            ChangeStep::Announce { held, at } => {
                // From here on the change is final, even if it failed here: a plan that grows on one node grows on all (decision 0009).
                let fault = plane.announce(&held, at).err().map(|error| fault_of(&error));
                self.agree()?;
                return Ok(Some(AgentEvent::Announced(number, fault)));
            }
            ChangeStep::Begin { at } => plane.begin(at),
            ChangeStep::Undo => plane.undo(),
        };
        self.steered(number, done.err().map(|error| fault_of(&error)))
    }

    fn hold(&mut self, number: u64, steer: &PlanChange) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = prepared(&mut self.plane)?;
        let change = Self::read_change(prepared(&mut self.plan)?, steer);
        let held = change.and_then(|change| plane.hold(&change).map_err(|error| fault_of(&error)));
        Ok(Some(match held {
            Ok(held) => AgentEvent::Held(number, held, None),
            Err(fault) => AgentEvent::Held(number, Vec::new(), Some(fault)),
        }))
    }

    /// Reads a change into the growth of the plan. This is the only place where the document of a change is read on a node.
    fn read_change(own: &mut NodePlan, change: &PlanChange) -> Result<PlanChange<PlanGrowth>, NodeFault> {
        // A change that was read before and not made is forgotten, even if this one leaves the plan alone.
        own.plan.drop_proposal();
        let read = change.clone().try_map(|document| {
            let newer = document.read(own.reading)?;
            Ok(own.plan.propose(newer.plan()))
        });
        read.map_err(|problems: PlanProblems| fault_of(&problems.into()))
    }

    /// Accepts a decided change. If the plan grows by it, new streams may come from other nodes, so the relations of their clocks to
    /// this node's are set.
    fn agree(&mut self) -> Result<(), NodeFault> {
        let own = prepared(&mut self.plan)?;
        if !own.plan.accept() {
            return Ok(());
        }
        // Without a fleet every sender has this machine's clock.
        let Some(member) = &mut self.membership else { return Ok(()) };
        let shifts = member.follow(own.plan.current());
        self.shift(&shifts)
    }

    pub(super) fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), NodeFault> {
        let shifted: Result<(), EngineError> = prepared(&mut self.plane)?.shift(shifts);
        shifted.map_err(|error| self.fault(error))
    }

    /// The event for a change that is done, or has failed, with the counts right after it.
    fn steered(&mut self, number: u64, fault: Option<NodeFault>) -> Result<Option<AgentEvent>, NodeFault> {
        Ok(Some(match prepared(&mut self.plane)?.sample() {
            Ok(sample) => AgentEvent::Steered(number, fault, Box::new(sample)),
            Err(error) => self.failed(error),
        }))
    }
}
