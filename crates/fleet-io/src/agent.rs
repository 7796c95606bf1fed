//! Runs the state machine of an agent in a loop: receives messages, performs the machine's actions on the data plane,
//! and sends replies and samples of counts to the controller.
//!
//! In a fleet, the loop also uses the clocks, leases and spool of the node's [`NodeMembership`]. On a single machine
//! there is no membership.

use crate::blame::engine_error_to_fault;
use crate::error::{Error, ignore_failure};
use crate::event_log;
use crate::membership::NodeMembership;
use crate::plane::PlaneSource;
use crate::pulse::StandstillWatcher;
use packetrig_engine::Error as EngineError;
use packetrig_engine::rig::DataPlane;
use packetrig_fleet::agent::{AgentAction, AgentEvent, AgentMachine};
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{MessageBody, Nonce, RunPreparation};
use packetrig_plan::{GrowingPlan, PlanParseOptions, PlanProblems};
use packetrig_report::NodeName;
use packetrig_report::outcome::NodeFault;
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

mod changes;
mod steps;
mod turns;

/// Builds the event for senders that are done. Only the senders know whether the end of the lease stopped them: the
/// lease may have been renewed since, or it may have expired after the senders ended by themselves.
fn build_senders_done_event(plane: &mut dyn DataPlane) -> Result<AgentEvent, EngineError> {
    let sent = plane.sent_totals()?;
    let lease_ended = plane.lease_ended()?;
    Ok(AgentEvent::SendersDone { sent, lease_ended })
}

#[cfg(test)]
mod tests;

const SAMPLE_INTERVAL: Nanos = Nanos::from_millis(125);
/// Tolerance for the time of a report: a sample that is early by at most this much is reported. Otherwise the report
/// would have to wait for the next sample.
const HALF_SAMPLE_INTERVAL: Nanos = Nanos::from_millis(62);
/// Longest time between two samples that are reported, however rarely the controller wants them.
const MAX_SAMPLE_INTERVAL: Nanos = Nanos::from_secs(2);

/// Runs the agent of one node until `over` is set; then stops the senders and closes the data plane. Returns the first
/// error of the data plane, because the controller receives only the text of that error.
pub fn serve_agent<E: Endpoint>(
    endpoint: E,
    planes: &mut dyn PlaneSource,
    agent: AgentMachine,
    over: &AtomicBool,
) -> Option<EngineError> {
    AgentShell::new(endpoint, planes, agent, None).serve_until(over)
}

/// Runs the agent of a fleet's node, with clock comparison, leases and a spool for results; see [`serve_agent`].
pub fn serve_fleet_agent<E: Endpoint>(
    endpoint: E,
    planes: &mut dyn PlaneSource,
    agent: AgentMachine,
    membership: NodeMembership,
    over: &AtomicBool,
) -> Option<EngineError> {
    AgentShell::new(endpoint, planes, agent, Some(membership)).serve_until(over)
}

pub(crate) fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

/// The plan of the run that this node takes part in.
struct NodePlan {
    plan: GrowingPlan,
    /// Options for reading the plan and the documents of later changes.
    reading: PlanParseOptions,
}

impl NodePlan {
    fn read_plan(preparation: &RunPreparation, fleet: bool) -> Result<Self, PlanProblems> {
        let part = preparation.part_of.is_some();
        let reading = PlanParseOptions { seed: preparation.terms.seed, fleet, part };
        let document = preparation.document.read_document(reading)?;
        Ok(Self { plan: GrowingPlan::new(Arc::clone(document.plan())), reading })
    }
}

struct AgentShell<'a, E> {
    endpoint: E,
    planes: &'a mut dyn PlaneSource,
    agent: AgentMachine,
    membership: Option<NodeMembership>,
    plane: Option<Box<dyn DataPlane>>,
    /// Plan of the current run. Membership and data plane get the parsed plan from here and
    /// read no document themselves.
    plan: Option<NodePlan>,
    /// A plane that is finished but not yet closed: closing takes some time, and the result need not wait for it.
    finished: Option<Box<dyn DataPlane>>,
    /// True if the receivers of the data plane are running: another attempt at the same run does not start them again.
    is_armed: bool,
    failure: Option<EngineError>,
    sample_at: MonoTime,
    /// Time of the next report of a sample to the controller.
    report_at: MonoTime,
    /// Interval of the reports to the controller: as the controller requests, but at most [`MAX_SAMPLE_INTERVAL`].
    report_every: Nanos,
    pulse: Option<StandstillWatcher>,
    /// Start time of the latest run; `None` before the first run.
    sending_since: Option<MonoTime>,
}

impl<'a, E: Endpoint> AgentShell<'a, E> {
    fn new(
        endpoint: E,
        planes: &'a mut dyn PlaneSource,
        agent: AgentMachine,
        membership: Option<NodeMembership>,
    ) -> Self {
        Self {
            endpoint,
            planes,
            agent,
            membership,
            plane: None,
            plan: None,
            finished: None,
            is_armed: false,
            failure: None,
            sample_at: MonoTime::default(),
            report_at: MonoTime::default(),
            report_every: Nanos::ZERO,
            pulse: None,
            sending_since: None,
        }
    }

    fn serve_until(mut self, over: &AtomicBool) -> Option<EngineError> {
        while !over.load(Ordering::Acquire) {
            self.poll_once();
        }
        self.failure
    }

    fn poll_once(&mut self) {
        let turn = self.longest_wait();
        let wait = self.agent.next_deadline().map_or(turn, |at| at.since(now()).min(turn));
        let asked_at = now();
        let envelope = self.endpoint.receive_message(wait);
        if let Some(member) = &mut self.membership {
            // A message may end the wait early. Only the time beyond the wait counts as starvation.
            member.record_wait(wait, now().since(asked_at));
        }
        if let Some(envelope) = envelope {
            self.on_message(envelope.body);
        }
        self.feed_event(AgentEvent::Tick);
        self.check_senders_done();
        self.sample_counts_if_due();
        // The first call after a run starts the time for which unused ports stay open, so there must be no
        // call during a run.
        if self.plane.is_none() {
            self.planes.close_unused_ports(now());
        }
        // Hellos are also sent during a run: with them the controller learns of a
        // node's problems and overload.
        if self.membership.as_mut().is_some_and(NodeMembership::refresh_hello_if_due) {
            self.send_hello(None);
        }
    }

    fn on_message(&mut self, body: MessageBody) {
        match (body, &mut self.membership) {
            (MessageBody::Command(head, command), None) => {
                self.feed_event(AgentEvent::Command(head, command));
            }
            (MessageBody::Command(head, command), Some(member)) => {
                // The controller's times are converted to this node's clock here; the state machine uses
                // only this node's clock.
                let command = member.convert_command_times(command);
                self.feed_event(AgentEvent::Command(head, command));
            }
            // Without a fleet there are no leases: the agent gives up after a long silence of its controller.
            (MessageBody::Granted(head, grant), Some(_)) => self.feed_event(AgentEvent::Granted(head, grant)),
            (MessageBody::RollCall(call), Some(_)) => self.send_hello(Some(call)),
            // Clock fits of another run would shift the streams of this run.
            (MessageBody::Clocks(head, fits), Some(member)) if self.agent.head() == Some(&head) => {
                let shifts = member.update_clock_shifts(fits);
                // A node that has finished measures no latency any more.
                if self.plane.is_some()
                    && let Err(fault) = self.shift_clocks(&shifts)
                {
                    self.feed_event(AgentEvent::Failed(fault));
                }
            }
            (MessageBody::Stored(mark), Some(member)) => member.delete_stored_segments(&mark),
            // Ignored: messages that are not for an agent or belong to another run, and on a single machine the
            // messages for members of a fleet.
            _ => {}
        }
    }

    /// Sends a hello. `answers`: the roll call that it answers; `None` for a hello that is sent
    /// at its regular interval.
    fn send_hello(&mut self, answers: Option<Nonce>) {
        let epoch = self.agent.epoch();
        let busy = self.agent.blocking_run().cloned();
        if let Some(member) = &mut self.membership {
            let hello = member.build_hello(epoch, busy, answers);
            self.post_to_controller(MessageBody::Hello(hello));
        }
    }

    /// Passes an event to the machine and performs the actions that it returns. The machine gets their outcomes
    /// before any other event.
    fn feed_event(&mut self, event: AgentEvent) {
        // With a queue instead of recursion, outcomes are handled in the order of their actions.
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            event_log::log_agent_event(self.agent.head(), &event);
            for action in self.agent.handle_event(event, now()) {
                events.extend(self.perform_action(action));
            }
        }
        // Every reply is sent: now the ports may be closed.
        self.finished = None;
    }

    /// Performs an action. A failure is also passed on as an event: otherwise the machine would wait for
    /// the outcome for ever.
    fn perform_action(&mut self, action: AgentAction) -> Option<AgentEvent> {
        self.try_perform_action(action).unwrap_or_else(|fault| Some(AgentEvent::Failed(fault)))
    }

    fn try_perform_action(&mut self, action: AgentAction) -> Result<Option<AgentEvent>, NodeFault> {
        event_log::log_agent_action(self.agent.head(), &action);
        match action {
            AgentAction::Reply(head, reply) => self.post_to_controller(MessageBody::Reply(head, reply)),
            AgentAction::Release => {
                // Dropping the plane stops its senders and closes its ports.
                self.plane = None;
                self.plan = None;
                self.pulse = None;
                // The plane is dropped first: no sender may be running any more when the supervisor
                // stops watching this node.
                let left = self.membership.as_mut().map_or(Ok(()), NodeMembership::leave_run);
                return Ok(Self::failure_to_event(left));
            }
            AgentAction::StartAt(start) => {
                let at = self.membership.as_mut().map_or(start, |member| member.fix_local_start(start));
                // The supervisor begins to watch before the first frame is sent: a crash must never
                // leave an unwatched sender.
                let watched = self.membership.as_mut().map_or(Ok(()), NodeMembership::begin_sending);
                let failed = Self::failure_to_event(watched);
                if failed.is_none() {
                    require_part(&mut self.plane)?.start_at(at);
                    self.sending_since = Some(at);
                }
                return Ok(failed);
            }
            AgentAction::StopSenders => require_part(&mut self.plane)?.stop_senders(),
            AgentAction::Steer(order) => return self.apply_change(&order),
            AgentAction::Step(number, step) => return self.execute_step(number, *step),
            AgentAction::Prepare(preparation) => return Ok(Some(self.prepare_run(&preparation))),
            AgentAction::Arm => return self.arm_plane(),
            AgentAction::Finish(sent) => return self.finish_run(&sent),
            AgentAction::Remember(epoch) => {
                let kept = self.membership.as_ref().map_or(Ok(()), |member| member.remember_epoch(epoch));
                return Ok(Self::failure_to_event(kept));
            }
            AgentAction::Renew(head, nonce) => self.post_to_controller(MessageBody::Renew(head, nonce)),
            AgentAction::Extend(until) => {
                let extended = self.membership.as_ref().map_or(Ok(()), |member| member.extend_lease(until));
                return Ok(Self::failure_to_event(extended));
            }
            AgentAction::Spool(result) => return self.spool_result(&result),
        }
        Ok(None)
    }

    fn check_senders_done(&mut self) {
        if !self.agent.awaits_senders() {
            return;
        }
        let Some(plane) = self.plane.as_mut() else { return };
        if plane.senders_done() {
            let event = build_senders_done_event(plane.as_mut());
            let event = event.unwrap_or_else(|error| self.record_failed_event(error));
            self.feed_event(event);
            let rested = self.membership.as_mut().map_or(Ok(()), NodeMembership::stop_watching);
            self.report_if_failed(rested);
        }
    }

    fn sample_counts_if_due(&mut self) {
        if !self.agent.is_running() || now() < self.sample_at {
            return;
        }
        let Some(plane) = self.plane.as_mut() else { return };
        // The next interval begins now, not at the due time: after a delay, missed samples are not taken later.
        self.sample_at = now() + SAMPLE_INTERVAL;
        match plane.sample_counts() {
            Ok(sample) => {
                // The sample is stored each second, separately from the reports: after a crash, only the
                // spool's last sample has this node's counts.
                let kept = self.membership.as_mut().map_or(Ok(()), |member| member.store_sample(&sample));
                if let Some(head) = self.agent.head().cloned().filter(|_| now() >= self.report_at) {
                    self.report_at = now() + self.report_every.saturating_sub(HALF_SAMPLE_INTERVAL);
                    self.post_to_controller(MessageBody::Telemetry(head, Box::new(sample)));
                }
                self.report_if_failed(kept);
            }
            Err(error) => {
                let event = self.record_failed_event(error);
                self.feed_event(event);
            }
        }
    }

    fn post_to_controller(&mut self, body: MessageBody) {
        // The silence of a dead controller is noticed elsewhere; there is nobody to report the failure to.
        ignore_failure(self.endpoint.post_message(&NodeName::controller(), body));
    }

    /// Converts an error outside the data plane to an event. Such an error also ends the run on this node.
    fn failure_to_event(outcome: Result<(), Error>) -> Option<AgentEvent> {
        outcome.err().map(|error| AgentEvent::Failed(error.to_fault()))
    }

    fn report_if_failed(&mut self, outcome: Result<(), Error>) {
        if let Some(event) = Self::failure_to_event(outcome) {
            self.feed_event(event);
        }
    }

    fn record_failed_event(&mut self, error: EngineError) -> AgentEvent {
        AgentEvent::Failed(self.record_failure(error))
    }

    /// Converts an error for the controller. The first error is stored for the caller of [`serve_agent`].
    fn record_failure(&mut self, error: EngineError) -> NodeFault {
        let fault: NodeFault = engine_error_to_fault(&error);
        // Later errors are usually consequences of the first one.
        self.failure.get_or_insert(error);
        fault
    }
}

/// Returns what an action of the machine needs: the data plane, the plan or the membership. Fails if the controller has
/// requested something that needs a prepared run, and none is prepared.
fn require_part<T>(part: &mut Option<T>) -> Result<&mut T, NodeFault> {
    part.as_mut().ok_or_else(not_prepared_fault)
}

fn not_prepared_fault() -> NodeFault {
    engine_error_to_fault(&EngineError::Bug("a command refers to a run that is not prepared on this node"))
}
