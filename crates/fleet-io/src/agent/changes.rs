//! What the agent's shell does for changes to a steered run.
//!
//! A change that cannot be made ends nothing; a worker that died is found by the sample that follows.

use super::AgentShell;
use crate::blame::fault_of;
use packetrig_engine::Error as EngineError;
use packetrig_engine::stream::ClockShift;
use packetrig_fleet::agent::AgentEvent;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{ChangeOrder, ChangeStep};
use packetrig_fleet::outcome::NodeFault;
use packetrig_plan::PlanChange;

impl<E: Endpoint> AgentShell<'_, E> {
    pub(super) fn steer(&mut self, order: &ChangeOrder) -> Option<AgentEvent> {
        let fault = self.consider(&order.steer).err().or_else(|| {
            let error = self.plane.as_mut()?.steer(&order.steer).err();
            error.map(|error| fault_of(&error))
        });
        if fault.is_none()
            && let Some(failed) = self.agree()
        {
            return Some(failed);
        }
        self.steered(order.number, fault)
    }

    pub(super) fn take_step(&mut self, number: u64, step: ChangeStep) -> Option<AgentEvent> {
        let done = match step {
            ChangeStep::Hold(steer) => return self.hold(number, &steer),
            ChangeStep::Announce { held, at } => {
                // From here on the change is final, whatever this node could do: a plan that grows on one node grows on all (decision 0009).
                let fault = self.plane.as_mut()?.announce(&held, at).err().map(|error| fault_of(&error));
                let failed = self.agree();
                return failed.or(Some(AgentEvent::Announced(number, fault)));
            }
            ChangeStep::Begin { at } => self.plane.as_mut()?.begin(at),
            ChangeStep::Undo => self.plane.as_mut()?.undo(),
        };
        self.steered(number, done.err().map(|error| fault_of(&error)))
    }

    fn hold(&mut self, number: u64, steer: &PlanChange) -> Option<AgentEvent> {
        let held = match self.consider(steer) {
            Ok(()) => self.plane.as_mut()?.hold(steer).map_err(|error| fault_of(&error)),
            Err(fault) => Err(fault),
        };
        Some(match held {
            Ok(held) => AgentEvent::Held(number, held, None),
            Err(fault) => AgentEvent::Held(number, Vec::new(), Some(fault)),
        })
    }

    /// Whether the owner allows it.
    fn consider(&mut self, steer: &PlanChange) -> Result<(), NodeFault> {
        let considered = self.membership.as_mut().map_or(Ok(()), |member| member.consider(steer));
        considered.map_err(|error| error.fault())
    }

    /// The change is decided: new streams may come from other nodes, so their clocks' relations to this node's are set.
    fn agree(&mut self) -> Option<AgentEvent> {
        let shifts = self.membership.as_mut()?.agree();
        self.shift(&shifts)
    }

    pub(super) fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Option<AgentEvent> {
        let shifted: Result<(), EngineError> = self.plane.as_mut()?.shift(shifts);
        shifted.err().map(|error| self.failed(error))
    }

    /// A change is done, or not: with the counts right after it.
    fn steered(&mut self, number: u64, fault: Option<NodeFault>) -> Option<AgentEvent> {
        Some(match self.plane.as_mut()?.sample() {
            Ok(sample) => AgentEvent::Steered(number, fault, Box::new(sample)),
            Err(error) => self.failed(error),
        })
    }
}
