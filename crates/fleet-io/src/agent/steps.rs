//! Performs the steps of a run on the data plane: prepare, arm, finish, store the result.

use super::{AgentShell, MAX_SAMPLE_INTERVAL, NodePlan, not_prepared_fault, require_part};
use crate::membership::NodeMembership;
use crate::pulse::{StandstillWatcher, build_standstill_caveat};
use packetrig_fleet::agent::AgentEvent;
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{MessageBody, RunPreparation, SentTotal};
use packetrig_report::outcome::NodeFault;
use packetrig_stats::result::NodeResult;
use std::sync::Arc;

impl<E: Endpoint> AgentShell<'_, E> {
    pub(super) fn prepare_run(&mut self, preparation: &RunPreparation) -> AgentEvent {
        // On a single machine the user's own preparation is used unchanged.
        let own = match (&mut self.membership, self.agent.head()) {
            (Some(member), Some(head)) => match member.prepare_run(head, preparation) {
                Ok(own) => own,
                Err(error) => return AgentEvent::Failed(error.to_fault()),
            },
            _ => preparation.clone(),
        };
        let plan = match NodePlan::read_plan(&own, self.membership.is_some()) {
            Ok(plan) => plan,
            Err(problems) => return self.record_failed_event(problems.into()),
        };
        let prepared = self.planes.prepare_plane(&own, Arc::clone(plan.plan.current()));
        // `prepare_plane` has checked the owner's permit. Only for a permitted run does this node store
        // results and compare clocks.
        if let (Ok(_), Some(member), Some(head)) = (&prepared, &mut self.membership, self.agent.head())
            && let Err(error) = member.begin_run(head, &own, plan.plan.current())
        {
            return AgentEvent::Failed(error.to_fault());
        }
        self.plan = Some(plan);
        match prepared {
            Ok((plane, ports)) => {
                self.plane = Some(plane);
                // The receivers of the earlier run ended with its plane, so these ports are not armed yet.
                self.is_armed = false;
                self.report_every = own.say_every.min(MAX_SAMPLE_INTERVAL);
                AgentEvent::Prepared(ports)
            }
            Err(error) => self.record_failed_event(error),
        }
    }

    pub(super) fn arm_plane(&mut self) -> Result<Option<AgentEvent>, NodeFault> {
        let plane = require_part(&mut self.plane)?;
        if !self.is_armed
            && let Err(error) = plane.arm_ports()
        {
            return Ok(Some(self.record_failed_event(error)));
        }
        self.is_armed = true;
        // Another attempt uses the same receivers, so the watch for standstills of this process
        // continues without a gap.
        if self.pulse.is_none() {
            match StandstillWatcher::start_watching() {
                Ok(pulse) => self.pulse = Some(pulse),
                Err(error) => return Err(error.to_fault()),
            }
        }
        if let (Some(member), Some(head)) = (&mut self.membership, self.agent.head())
            && let Err(error) = member.begin_attempt(head)
        {
            return Err(error.to_fault());
        }
        // This waits for the first series of clock probes. The start time and the times of other senders are converted
        // with the clock fit from these probes, so the controller gets the fit before it confirms a start.
        let clock = self.membership.as_mut().and_then(NodeMembership::compare_clocks);
        if let (Some(clock), Some(head)) = (clock, self.agent.head().cloned()) {
            self.post_to_controller(MessageBody::Clock(head, Box::new(clock)));
        }
        Ok(Some(AgentEvent::Armed))
    }

    pub(super) fn finish_run(&mut self, sent: &[SentTotal]) -> Result<Option<AgentEvent>, NodeFault> {
        let name = self.endpoint.name().to_string();
        let plane = self.plane.take().ok_or_else(not_prepared_fault)?;
        let outcome = self.finished.insert(plane).finish_run(&name, sent);
        Ok(Some(match outcome {
            Ok(mut result) => {
                // A process that was stopped cannot have noticed its losses, so the result gets a caveat.
                let standstills = self.pulse.take().map(|pulse| pulse.standstills());
                result.caveats.extend(build_standstill_caveat(
                    &standstills.unwrap_or_default(),
                    &name,
                    result.started,
                ));
                AgentEvent::Finished(Arc::new(result))
            }
            Err(error) => self.record_failed_event(error),
        }))
    }

    pub(super) fn spool_result(&mut self, result: &NodeResult) -> Result<Option<AgentEvent>, NodeFault> {
        let spooled = require_part(&mut self.membership)?.spool_result(result);
        let segments = spooled.map_err(|error| error.to_fault())?;
        Ok(Some(AgentEvent::Spooled { segments }))
    }
}
