//! Performs changes to a steered run (a run that can be changed while it sends) on the data plane.
//!
//! A change that cannot be made does not end the run. If a worker has died, the next sample of counts reports it.

use super::{AgentShell, NodePlan, require_part};
use crate::blame::engine_error_to_fault;
use packetrig_engine::Error as EngineError;
use packetrig_engine::stream::ClockShift;
use packetrig_fleet::agent::AgentEvent;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{ChangeOrder, ChangeStep};
use packetrig_plan::{PlanChange, PlanGrowth, PlanProblems};
use packetrig_report::outcome::NodeFault;

impl<E: Endpoint> AgentShell<'_, E> {
    pub(super) fn apply_change(&mut self, order: &ChangeOrder) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = require_part(&mut self.plane)?;
        let fault = match Self::read_plan_change(require_part(&mut self.plan)?, &order.steer) {
            Ok(change) => plane.apply_change(&change).err().map(|error| engine_error_to_fault(&error)),
            Err(fault) => Some(fault),
        };
        // The plan grows only by changes that were made, so its streams have the same numbers as on the controller.
        if fault.is_none() {
            self.accept_change()?;
        }
        self.steered_event(order.number, fault)
    }

    pub(super) fn execute_step(
        &mut self,
        number: u64,
        step: ChangeStep,
    ) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = require_part(&mut self.plane)?;
        let done = match step {
            ChangeStep::Hold(steer) => return self.hold_streams_for_change(number, &steer),
            ChangeStep::Announce { held, at } => {
                // From here on the change is final, even if it failed on this node: if the plan grows on one node, it
                // grows on all (decision 0009).
                let fault = plane.announce_change(&held, at).err().map(|error| engine_error_to_fault(&error));
                self.accept_change()?;
                return Ok(Some(AgentEvent::Announced(number, fault)));
            }
            ChangeStep::Begin { at } => plane.begin_change(at),
            ChangeStep::Undo => plane.undo_change(),
        };
        self.steered_event(number, done.err().map(|error| engine_error_to_fault(&error)))
    }

    fn hold_streams_for_change(
        &mut self,
        number: u64,
        steer: &PlanChange,
    ) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = require_part(&mut self.plane)?;
        // The new streams stay a proposal until the change is announced or another change is read.
        let change = Self::read_plan_change(require_part(&mut self.plan)?, steer);
        let held = change
            .and_then(|change| plane.hold_for_change(&change).map_err(|error| engine_error_to_fault(&error)));
        Ok(Some(match held {
            Ok(held) => AgentEvent::Held(number, held, None),
            Err(fault) => AgentEvent::Held(number, Vec::new(), Some(fault)),
        }))
    }

    /// Reads the document of a change, and replaces it by what it adds to the plan. A node reads
    /// such documents only here.
    fn read_plan_change(
        own: &mut NodePlan,
        change: &PlanChange,
    ) -> Result<PlanChange<PlanGrowth>, NodeFault> {
        // The proposal of an earlier change that was not made is dropped, even if this change does not alter the plan.
        own.plan.drop_proposal();
        let read = change.clone().try_map_document(|document| {
            let newer = document.read_document(own.reading)?;
            Ok(own.plan.propose_plan(newer.plan()))
        });
        read.map_err(|problems: PlanProblems| engine_error_to_fault(&problems.into()))
    }

    /// Accepts a change that is final. If the plan grows by it, this node may receive new streams from other nodes, so
    /// the differences between their clocks and this node's clock are set.
    fn accept_change(&mut self) -> Result<(), NodeFault> {
        let own = require_part(&mut self.plan)?;
        // Without a proposal the change left the plan as it is: there are no new streams and no new clocks.
        if !own.plan.accept_proposal() {
            return Ok(());
        }
        // Without a fleet every sender has this machine's clock.
        let Some(member) = &mut self.membership else { return Ok(()) };
        let shifts = member.apply_grown_plan(own.plan.current());
        self.shift_clocks(&shifts)
    }

    pub(super) fn shift_clocks(&mut self, shifts: &[(usize, ClockShift)]) -> Result<(), NodeFault> {
        let shifted: Result<(), EngineError> = require_part(&mut self.plane)?.set_clock_shifts(shifts);
        shifted.map_err(|error| self.record_failure(error))
    }

    /// Returns the event for a change that is done or has failed, with the counts right after the change.
    fn steered_event(
        &mut self,
        number: u64,
        fault: Option<NodeFault>,
    ) -> Result<Option<AgentEvent>, NodeFault> {
        Ok(Some(match require_part(&mut self.plane)?.sample_counts() {
            Ok(sample) => AgentEvent::Steered(number, fault, Box::new(sample)),
            Err(error) => self.record_failed_event(error),
        }))
    }
}
