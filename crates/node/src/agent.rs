//! The loop around the agent machine: messages in, orders to the data plane, replies and samples out.

use crate::error::fault_of;
use crate::plane::{DataPlane, Planes};
use packetrig_engine::Error;
use packetrig_fleet::NodeName;
use packetrig_fleet::agent::{Action, Agent, Event};
use packetrig_fleet::fabric::Endpoint;
use packetrig_fleet::message::{Body, Envelope};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Between two samples.
const SAMPLE_EVERY: Nanos = Nanos::from_millis(125);
/// Longest wait for a message: how fast it notices that senders are done or that it is no longer wanted.
const TURN: Nanos = Nanos::from_millis(10);

/// Serves one node's part in runs until `over` says so; then everything is stopped and closed. Gives back the first
/// error of the data plane: what travelled to the controller is only its text.
pub fn serve<E: Endpoint>(
    endpoint: E,
    planes: &mut dyn Planes,
    agent: Agent,
    over: &AtomicBool,
) -> Option<Error> {
    let mut shell =
        Shell { endpoint, planes, agent, plane: None, failure: None, sample_at: MonoTime::default() };
    while !over.load(Ordering::Acquire) {
        shell.turn();
    }
    shell.failure
}

pub(crate) fn now() -> MonoTime {
    MonoTime::from_nanos(clock::monotonic_ns())
}

struct Shell<'a, E> {
    endpoint: E,
    planes: &'a mut dyn Planes,
    agent: Agent,
    plane: Option<Box<dyn DataPlane>>,
    failure: Option<Error>,
    sample_at: MonoTime,
}

impl<E: Endpoint> Shell<'_, E> {
    fn turn(&mut self) {
        let wait = self.agent.next_deadline().map_or(TURN, |at| at.since(now()).min(TURN));
        if let Some(Envelope { body: Body::Command(head, command), .. }) = self.endpoint.receive(wait) {
            self.feed(Event::Command(head, command));
        }
        self.feed(Event::Tick);
        self.watch_senders();
        self.sample();
    }

    /// Hands an event to the machine and performs what it asks; outcomes go before anything else.
    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.agent.handle(event, now()) {
                events.extend(self.perform(action));
            }
        }
    }

    fn perform(&mut self, action: Action) -> Option<Event> {
        let done = match action {
            Action::Reply(head, reply) => {
                self.post(Body::Reply(head, reply));
                return None;
            }
            Action::Release => {
                self.plane = None;
                return None;
            }
            Action::StartAt(at) => {
                self.plane.as_mut()?.start_at(at);
                return None;
            }
            Action::StopSenders => {
                self.plane.as_mut()?.stop_senders();
                return None;
            }
            Action::Steer(order) => {
                let plane = self.plane.as_mut()?;
                // A change that cannot be made ends nothing; a worker that died is found by the next sample.
                let fault = plane.steer(&order.steer, order.at).err().map(|error| fault_of(&error));
                return Some(match plane.sample() {
                    Ok(sample) => Event::Steered(order.number, fault, Box::new(sample)),
                    Err(error) => self.failed(error),
                });
            }
            Action::Prepare(preparation) => self.planes.prepare(&preparation).map(|(plane, ports)| {
                self.plane = Some(plane);
                Event::Prepared(ports)
            }),
            Action::Arm => self.plane.as_mut()?.arm().map(|()| Event::Armed),
            Action::Finish(sent) => {
                let name = self.endpoint.name().to_string();
                self.plane.take()?.finish(&name, &sent).map(|result| Event::Finished(Arc::new(result)))
            }
        };
        Some(done.unwrap_or_else(|error| self.failed(error)))
    }

    fn watch_senders(&mut self) {
        if !self.agent.awaits_senders() {
            return;
        }
        let Some(plane) = self.plane.as_mut() else { return };
        if plane.senders_done() {
            let event = plane.sent().map_or_else(|error| self.failed(error), Event::SendersDone);
            self.feed(event);
        }
    }

    fn sample(&mut self) {
        if !self.agent.is_running() || now() < self.sample_at {
            return;
        }
        let Some(plane) = self.plane.as_mut() else { return };
        self.sample_at = now() + SAMPLE_EVERY;
        match plane.sample() {
            Ok(sample) => {
                if let Some(head) = self.agent.head().cloned() {
                    self.post(Body::Telemetry(head, Box::new(sample)));
                }
            }
            Err(error) => {
                let event = self.failed(error);
                self.feed(event);
            }
        }
    }

    fn post(&mut self, body: Body) {
        // A controller that is gone is noticed by its silence; there is nobody to tell.
        self.endpoint.post(&NodeName::controller(), body).unwrap_or(());
    }

    fn failed(&mut self, error: Error) -> Event {
        let fault = fault_of(&error);
        self.failure.get_or_insert(error);
        Event::Failed(fault)
    }
}
