//! Runs the state machine of a controller in a loop: passes messages and local events to the machine, sends the
//! messages that it decides on, and reports the events of the run.
//!
//! The loop is the same for one machine and for a fleet. The fabric carries the messages; [`RunServices`] handles
//! records, collected results and clocks.

use crate::agent::now;
use crate::clock;
use crate::error::{Error, ignore_failure};
use packetrig_fleet::controller::{ControllerAction, ControllerEvent, ControllerMachine, RunRecord};
use packetrig_fleet::fabric::{self, Endpoint};
use packetrig_fleet::hello::NodeHello;
use packetrig_fleet::message::{MessageBody, MessageEnvelope, MessageHead, NodeCommand, NodeReply};
use packetrig_report::event::{RunEvent, RunEventKind};
use packetrig_report::{NodeName, RunTimes};
use packetrig_stats::clock::{ClockFit, ClockRecord};
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;

/// Maximum wait for a message while results arrive or a record is written, because those do not end the wait.
const MAX_MESSAGE_WAIT: Nanos = Nanos::from_millis(2);

/// Longest wait for a record to be saved; usually it takes less. After this wait the loop reads messages again.
const RECORD_SAVE_WAIT: Nanos = Nanos::from_millis(10);

/// If the time between two events is this much longer than the loop waited, the process counts as stopped in between.
const STANDSTILL_THRESHOLD: Nanos = Nanos::from_secs(1);

/// Receives the events of a run. While senders may be running it is called on a separate thread, because it may
/// wait for a terminal.
pub type RunEventCallback<'a> = &'a mut (dyn FnMut(&RunEvent) + Send);

/// Callbacks with which the user follows and influences a run.
pub struct RunUser<'a> {
    /// Returns the user's next request; called in each iteration of the control loop.
    pub requests: &'a mut dyn FnMut() -> Option<ControllerEvent>,
    /// Maximum time between two iterations of the control loop.
    pub turn: Nanos,
    /// Called with every event, in the control loop. It must not wait for anything.
    pub on_event: &'a mut dyn FnMut(&RunEvent),
}

/// Input for the control loop that did not arrive as a message.
pub(crate) enum LocalRunEvent {
    Event(ControllerEvent),
    /// A message to a node.
    Post(NodeName, MessageBody),
    /// A finding for the readers of the event stream.
    Finding(String),
}

/// Services that a run needs besides its state machine and its messages: records, collected results, clocks.
pub(crate) trait RunServices {
    /// Returns the next event that did not arrive as a message; an error ends the run.
    fn next_local_event(&mut self) -> Result<Option<LocalRunEvent>, Error>;
    /// Handles the hello of a node.
    fn on_hello(&mut self, _from: &NodeName, _hello: NodeHello) {}
    /// Handles a sample of a node's counts.
    fn on_sample(&mut self, _from: &NodeName, _sample: &CountSample) {}
    /// Handles a node's comparison of its clock with the controller's.
    fn on_clock_record(&mut self, _from: NodeName, _record: ClockRecord) {}
    /// Returns the clock fits of other nodes that a node needs, as far as they are reported; `None` on a single
    /// machine, which has only one clock.
    fn clock_fits(&self, _for: &NodeName) -> Option<Vec<(NodeName, ClockFit)>> {
        None
    }
    /// Returns the command with only the parts that concern this node.
    fn command_for_node(&self, _for: &NodeName, command: NodeCommand) -> NodeCommand {
        command
    }
    /// Returns the reply without entries about streams that other nodes send.
    fn filter_reply(&self, _from: &NodeName, reply: NodeReply) -> NodeReply {
        // On one machine a single agent sends all streams, so nothing is left out.
        reply
    }
    /// Begins to save the record that a later controller needs. The caller asks for the outcome before it
    /// saves the next record.
    fn save_record(&mut self, _record: RunRecord) {
        // On one machine a run ends with its process: no later controller would read the record.
    }
    /// Returns the state of the latest record. Waits at most this long while the record is being saved.
    fn await_record_state(&mut self, _within: Nanos) -> Result<RecordState, Error> {
        Ok(RecordState::Kept)
    }
}

/// State of a record that is being saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordState {
    Pending,
    Kept,
    /// Another controller has taken over.
    Deposed,
}

impl std::fmt::Debug for RunUser<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunUser").field("turn", &self.turn).finish_non_exhaustive()
    }
}

/// A run at its end, as the controller saw it.
pub(crate) struct ControlledRun {
    pub(crate) controller: ControllerMachine,
    /// Times of the run's states.
    pub(crate) times: RunTimes,
}

/// Controls a run from its draft to its end.
pub(crate) fn control_run<E: Endpoint>(
    machine: ControllerMachine,
    endpoint: &mut E,
    services: &mut dyn RunServices,
    user: RunUser<'_>,
) -> Result<ControlledRun, Error> {
    let mut control = ControlLoop {
        machine,
        endpoint,
        services,
        user,
        waiting: VecDeque::new(),
        decided: now(),
        longest_wait: Nanos::ZERO,
        is_recording: false,
        began: None,
        times: RunTimes::default(),
    };
    control.run_control_loop()?;
    Ok(ControlledRun { controller: control.machine, times: control.times })
}

struct ControlLoop<'a, 'u, E> {
    machine: ControllerMachine,
    endpoint: &'a mut E,
    services: &'a mut dyn RunServices,
    user: RunUser<'u>,
    /// Actions that the machine has decided, with the time of the decision. They are performed once the record
    /// before them is saved.
    waiting: VecDeque<(MonoTime, ControllerAction)>,
    /// Time of the latest event.
    decided: MonoTime,
    /// Longest time that this loop itself may have waited for a message since the latest event.
    longest_wait: Nanos,
    is_recording: bool,
    /// Time of the first event.
    began: Option<MonoTime>,
    times: RunTimes,
}

impl<E: Endpoint> ControlLoop<'_, '_, E> {
    fn run_control_loop(&mut self) -> Result<(), Error> {
        self.feed_event(ControllerEvent::Begin)?;
        // The machine has a deadline as long as the run is not over.
        while let Some(deadline) = self.machine.next_deadline() {
            while let Some(news) = self.services.next_local_event()? {
                self.handle_local_event(news)?;
            }
            if let Some(request) = (self.user.requests)() {
                self.feed_event(request)?;
            }
            let comes_beside = self.machine.is_collecting() || self.is_recording;
            let turn = if comes_beside { MAX_MESSAGE_WAIT } else { self.user.turn };
            let turn = deadline.since(now()).min(turn);
            self.longest_wait = turn;
            let envelope = self.endpoint.receive_message(turn);
            let event = envelope.and_then(|envelope| self.dispatch_message(envelope));
            self.feed_event(event.unwrap_or(ControllerEvent::Tick))?;
            for trouble in self.endpoint.take_problems() {
                self.emit_event(now(), RunEventKind::Finding(trouble.to_string()));
            }
        }
        // Without the last record, a later controller would see an unfinished run and end it again.
        while self.is_recording {
            self.perform_waiting_actions(RECORD_SAVE_WAIT)?;
        }
        Ok(())
    }

    fn handle_local_event(&mut self, news: LocalRunEvent) -> Result<(), Error> {
        match news {
            LocalRunEvent::Event(event) => self.feed_event(event)?,
            LocalRunEvent::Post(to, body) => self.post_message(&to, body),
            LocalRunEvent::Finding(text) => self.emit_event(now(), RunEventKind::Finding(text)),
        }
        Ok(())
    }

    /// Passes the message to the services, or returns the event for the machine.
    fn dispatch_message(
        &mut self,
        MessageEnvelope { from, body }: MessageEnvelope,
    ) -> Option<ControllerEvent> {
        match body {
            MessageBody::Reply(head, reply) => {
                let reply = self.services.filter_reply(&from, reply);
                Some(ControllerEvent::Reply(from, head, reply))
            }
            MessageBody::Telemetry(head, sample) => {
                // Counts of another attempt would make the last known counts of this attempt wrong.
                if head == *self.machine.head() {
                    self.services.on_sample(&from, &sample);
                }
                Some(ControllerEvent::Telemetry(from, head, sample))
            }
            MessageBody::Renew(head, nonce) => Some(ControllerEvent::Renewal(from, head, nonce)),
            MessageBody::Clock(head, record) => {
                if head == *self.machine.head() {
                    self.services.on_clock_record(from, *record);
                }
                None
            }
            MessageBody::Hello(hello) => {
                self.services.on_hello(&from, *hello);
                None
            }
            _ => None,
        }
    }

    fn feed_event(&mut self, event: ControllerEvent) -> Result<(), Error> {
        // Events carry the time of the decision, even if writing the record before them takes a while.
        let at = now();
        let stood_still = at.since(self.decided).saturating_sub(self.longest_wait);
        self.decided = at;
        // A process that was stopped has not received its nodes' messages: their silence during that time
        // proves nothing. The process may be stopped at any point of the loop, so the machine gets this event
        // before any later event.
        if stood_still > STANDSTILL_THRESHOLD {
            self.decide(ControllerEvent::StoodStill(stood_still), at)?;
        }
        self.decide(event, at)
    }

    /// Passes an event to the machine, and performs the actions that need not wait for a record.
    fn decide(&mut self, event: ControllerEvent, at: MonoTime) -> Result<(), Error> {
        for action in self.machine.handle_event(event, at) {
            // A lease does not wait for a record: otherwise nodes would stop sending because of a slow disk.
            if matches!(action, ControllerAction::Grant(..)) {
                self.perform_action(at, action)?;
            } else {
                self.waiting.push_back((at, action));
            }
        }
        self.perform_waiting_actions(Nanos::ZERO)
    }

    /// Performs waiting actions in their order, up to a record that is not saved yet. `within`: time to wait
    /// for the first record.
    fn perform_waiting_actions(&mut self, mut within: Nanos) -> Result<(), Error> {
        loop {
            if self.is_recording {
                let state = self.services.await_record_state(within)?;
                self.is_recording = state == RecordState::Pending;
                match state {
                    RecordState::Pending => return Ok(()),
                    RecordState::Kept => {}
                    // Another controller leads now. The waiting messages of this controller must not be sent any more.
                    RecordState::Deposed => {
                        self.waiting.clear();
                        return self.feed_event(ControllerEvent::Deposed);
                    }
                }
            }
            let Some((at, action)) = self.waiting.pop_front() else { return Ok(()) };
            self.perform_action(at, action)?;
            // A record that was queued just now is usually saved within this time. Then
            // the actions after it need not wait for the next iteration.
            within = RECORD_SAVE_WAIT;
        }
    }

    fn perform_action(&mut self, at: MonoTime, action: ControllerAction) -> Result<(), Error> {
        match action {
            ControllerAction::Emit(kind) => self.emit_event(at, kind),
            ControllerAction::Send(to, head, command) => {
                if let Some(refusal) = self.send_command(to, head, command) {
                    self.feed_event(refusal)?;
                }
            }
            ControllerAction::Grant(to, head, grant) => {
                self.post_message(&to, MessageBody::Granted(head, grant));
            }
            ControllerAction::Record(record) => {
                self.services.save_record(record);
                self.is_recording = true;
            }
        }
        Ok(())
    }

    /// Sends a command. A command that is too large would never be answered, so this returns a refusal as if the
    /// node had sent it.
    fn send_command(
        &mut self,
        to: NodeName,
        head: MessageHead,
        command: NodeCommand,
    ) -> Option<ControllerEvent> {
        // This comes before CONFIRM: a receiver must know the senders' clocks when their first frames arrive.
        if let (NodeCommand::Confirm { .. }, Some(fits)) = (&command, self.services.clock_fits(&to)) {
            self.post_message(&to, MessageBody::Clocks(head.clone(), fits));
        }
        let command = match self.services.command_for_node(&to, command) {
            // A node gets its own key, derived from the controller's key, so it cannot falsify the clock of another
            // node.
            NodeCommand::Prepare(mut own) => {
                own.clock = own.clock.map(|server| clock::clock_server_with_node_key(&server, &to));
                NodeCommand::Prepare(own)
            }
            other => other,
        };
        let error = self.endpoint.post_message(&to, MessageBody::Command(head.clone(), command)).err()?;
        let is_too_large = matches!(error, fabric::Error::TooLarge(_));
        // Any other failure counts as a lost message, which the silence of the node shows.
        is_too_large.then(|| ControllerEvent::Reply(to, head, NodeReply::Refused(error.to_string())))
    }

    fn post_message(&mut self, to: &NodeName, body: MessageBody) {
        // The controller notices a dead node by its silence, or because its thread has ended.
        ignore_failure(self.endpoint.post_message(to, body));
    }

    fn emit_event(&mut self, at: MonoTime, kind: RunEventKind) {
        let event = RunEvent { run: self.machine.head().run.clone(), at, kind };
        self.times.on_event(&event, *self.began.get_or_insert(event.at));
        (self.user.on_event)(&event);
    }
}

#[cfg(test)]
mod tests;
