//! What the agent's shell does for changes to a steered run.
//!
//! A change that cannot be made ends nothing; a worker that died is found by the sample that follows.

use super::Shell;
use crate::error::fault_of;
use packetrig_engine::Error as EngineError;
use packetrig_engine::stream::ClockShift;
use packetrig_fleet::agent::Event;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{Order, Step};
use packetrig_fleet::outcome::Fault;
use packetrig_plan::PlanChange;

impl<E: Endpoint> Shell<'_, E> {
    pub(super) fn steer(&mut self, order: &Order) -> Option<Event> {
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

    pub(super) fn take_step(&mut self, number: u64, step: Step) -> Option<Event> {
        let done = match step {
            Step::Hold(steer) => return self.hold(number, &steer),
            Step::Announce { held, at } => {
                let fault = self.plane.as_mut()?.announce(&held, at).err().map(|error| fault_of(&error));
                let failed = self.agree();
                return failed.or(Some(Event::Announced(number, fault)));
            }
            Step::Begin { at } => self.plane.as_mut()?.begin(at),
            Step::Undo => self.plane.as_mut()?.undo(),
        };
        self.steered(number, done.err().map(|error| fault_of(&error)))
    }

    fn hold(&mut self, number: u64, steer: &PlanChange) -> Option<Event> {
        let held = match self.consider(steer) {
            Ok(()) => self.plane.as_mut()?.hold(steer).map_err(|error| fault_of(&error)),
            Err(fault) => Err(fault),
        };
        Some(match held {
            Ok(held) => Event::Held(number, held, None),
            Err(fault) => Event::Held(number, Vec::new(), Some(fault)),
        })
    }

    /// Whether the owner allows it.
    fn consider(&mut self, steer: &PlanChange) -> Result<(), Fault> {
        let considered = self.membership.as_mut().map_or(Ok(()), |member| member.consider(steer));
        considered.map_err(|error| error.fault())
    }

    /// What was considered is decided: streams may come from other nodes that did not before.
    fn agree(&mut self) -> Option<Event> {
        let shifts = self.membership.as_mut()?.agree();
        self.shift(&shifts)
    }

    pub(super) fn shift(&mut self, shifts: &[(usize, ClockShift)]) -> Option<Event> {
        let shifted: Result<(), EngineError> = self.plane.as_mut()?.shift(shifts);
        shifted.err().map(|error| self.failed(error))
    }

    /// A change is done, or not: with the counts right after it.
    fn steered(&mut self, number: u64, fault: Option<Fault>) -> Option<Event> {
        Some(match self.plane.as_mut()?.sample() {
            Ok(sample) => Event::Steered(number, fault, Box::new(sample)),
            Err(error) => self.failed(error),
        })
    }
}
