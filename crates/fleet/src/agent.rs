//! The agent: a node's part in a run, as a pure machine.
//!
//! ```text
//!  idle -> prepared -> armed -> waiting(T) -> running -> stopped -> spooled -> idle
//!    ^________|__________|__________|____________| abort, or the controller is silent for too long
//! ```
//! Orders to the data plane are [`Action`]s. Whoever performs them does so in order and feeds each outcome back before
//! any other event. Commands may be repeated: a repeated one is answered again and does nothing twice.
//!
//! Invariant: nothing is sent unless a commit was acknowledged and its confirmation came in time.

use crate::message::{Command, Head, Order, PlanHash, Preparation, Reply, RunId, SentTotal};
use crate::outcome::Fault;
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{NodeResult, Sample};
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::Arc;

/// A confirmation that comes later than this before T is refused: the senders could not be told in time.
pub const CONFIRM_MARGIN: Nanos = Nanos::from_millis(20);
/// Ended runs whose late messages are still recognised as such.
const REMEMBERED: usize = 16;

/// What happens to an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A command came.
    Command(Head, Command),
    /// [`Action::Prepare`] worked.
    Prepared(Vec<PortInfo>),
    /// [`Action::Arm`] worked: receiving.
    Armed,
    /// [`Action::Steer`] worked, or changed nothing.
    Steered(u64, Option<Fault>, Box<Sample>),
    /// Every sender is done.
    SendersDone(Vec<SentTotal>),
    /// [`Action::Finish`] worked.
    Finished(Arc<NodeResult>),
    /// The data plane failed, in whatever it was doing.
    Failed(Fault),
    /// Time has passed.
    Tick,
}

/// What an agent wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Post this to the controller.
    Reply(Head, Reply),
    /// Read the plan, open the ports; answer with `Prepared` or `Failed`.
    Prepare(Box<Preparation>),
    /// Start the receivers; answer with `Armed` or `Failed`.
    Arm,
    /// Have the senders start at this instant.
    StartAt(MonoTime),
    /// Change something; answer with `Steered`.
    Steer(Box<Order>),
    /// Have the senders stop; `SendersDone` follows when they have.
    StopSenders,
    /// Stop the receivers and account; answer with `Finished` or `Failed`.
    Finish(Vec<SentTotal>),
    /// Stop everything and close the ports.
    Release,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Idle,
    Preparing,
    Prepared,
    Arming,
    Armed,
    /// Committed to T; `confirmed` when the senders know it too.
    Waiting {
        start: MonoTime,
        confirmed: bool,
    },
    Running,
    Stopped(Vec<SentTotal>),
    Finishing,
    /// The result is kept until the controller has it.
    Spooled(Arc<NodeResult>),
    /// It went wrong; kept so that a repeated command gets the same answer.
    Failed(Fault),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Agent {
    state: State,
    head: Option<Head>,
    ports: Vec<PortInfo>,
    steered: bool,
    /// The last change that was done, with its fault.
    last_change: (u64, Option<Fault>),
    epoch: u64,
    ended: VecDeque<(RunId, u32)>,
    heard: MonoTime,
    patience: Nanos,
}

impl Agent {
    /// An idle agent that gives a run up when it hears nothing of its controller for `patience`.
    pub fn new(patience: Nanos) -> Self {
        Self {
            state: State::Idle,
            head: None,
            ports: Vec::new(),
            steered: false,
            last_change: (0, None),
            epoch: 0,
            ended: VecDeque::new(),
            heard: MonoTime::default(),
            patience,
        }
    }

    /// Takes in an event.
    pub fn handle(&mut self, event: Event, now: MonoTime) -> Vec<Action> {
        match event {
            Event::Command(head, command) => self.command(head, command, now),
            Event::Prepared(ports) => self.prepared(ports),
            Event::Armed => self.outcome(&State::Arming, State::Armed, Reply::Armed),
            Event::Steered(number, fault, sample) => {
                self.last_change = (number, fault.clone());
                self.reply(Reply::Steered { number, fault, sample })
            }
            Event::SendersDone(sent) => self.senders_done(sent),
            Event::Finished(result) => self.finished(result),
            Event::Failed(fault) => self.failed(fault),
            Event::Tick => self.tick(now),
        }
    }

    /// When it wants to be ticked next, if nothing else happens.
    pub fn next_deadline(&self) -> Option<MonoTime> {
        let silence = (self.state != State::Idle).then(|| self.heard + self.patience);
        let start = if let State::Waiting { start, .. } = self.state { Some(start) } else { None };
        start.into_iter().chain(silence).min()
    }

    /// Whether senders may be at work: samples are worth taking.
    pub fn is_running(&self) -> bool {
        matches!(self.state, State::Running | State::Stopped(_))
    }

    /// Whether it waits to be told that every sender is done.
    pub fn awaits_senders(&self) -> bool {
        self.state == State::Running
    }

    /// Whether it takes part in no run.
    pub fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// The run it takes part in.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn command(&mut self, head: Head, command: Command, now: MonoTime) -> Vec<Action> {
        if let Some(refusal) = self.refusal(&head, &command) {
            return vec![Action::Reply(head, Reply::Refused(refusal))];
        }
        self.epoch = head.epoch;
        self.heard = now;
        match command {
            Command::Prepare(preparation) => self.prepare(head, preparation),
            Command::Abort => self.abort(head),
            Command::Collected => self.collected(&head),
            _ if self.head.as_ref() != Some(&head) => {
                vec![Action::Reply(head, Reply::Refused("this run was not prepared here".to_owned()))]
            }
            Command::Arm => self.arm(),
            Command::Commit { start, guard } => self.commit(start, guard, now),
            Command::Confirm { start } => self.confirm(start, now),
            Command::Query => self.answer(),
            Command::Steer(order) => self.steer(order),
            Command::Stop => self.stop(),
            Command::Finish { sent } => self.finish(sent),
        }
    }

    /// Why a command cannot be for now.
    fn refusal(&self, head: &Head, command: &Command) -> Option<String> {
        if head.epoch < self.epoch {
            return Some(format!("epoch {} is over, this is epoch {}", head.epoch, self.epoch));
        }
        if matches!(command, Command::Abort | Command::Collected) {
            return None;
        }
        if self.ended.iter().any(|(run, attempt)| *run == head.run && head.attempt <= *attempt) {
            return Some(format!("attempt {} of run {} is over", head.attempt, head.run));
        }
        let own = self.head.as_ref()?;
        if own.run != head.run {
            return Some(format!("busy with run {}", own.run));
        }
        if head.attempt < own.attempt {
            return Some(format!("attempt {} is over, this is attempt {}", head.attempt, own.attempt));
        }
        None
    }

    fn prepare(&mut self, head: Head, preparation: Box<Preparation>) -> Vec<Action> {
        if self.head.as_ref() == Some(&head) {
            return self.answer();
        }
        if PlanHash::of(&preparation.document) != head.plan {
            return vec![Action::Reply(
                head,
                Reply::Refused("the plan's text is not the one announced".to_owned()),
            )];
        }
        let newer = self.head.as_ref().is_some_and(|own| own.attempt < head.attempt && own.plan == head.plan);
        match self.state {
            State::Idle => {
                self.head = Some(head);
                self.state = State::Preparing;
                (self.steered, self.last_change) = (preparation.steered, (0, None));
                vec![Action::Prepare(preparation)]
            }
            // Nothing was confirmed, so nothing was sent: the ports serve the new attempt as they are.
            State::Prepared | State::Armed | State::Waiting { confirmed: false, .. } if newer => {
                self.head = Some(head);
                self.state = State::Prepared;
                self.reply(Reply::Prepared { ports: self.ports.clone() })
            }
            _ => {
                vec![Action::Reply(head, Reply::Refused("an earlier attempt is still under way".to_owned()))]
            }
        }
    }

    fn prepared(&mut self, ports: Vec<PortInfo>) -> Vec<Action> {
        self.ports.clone_from(&ports);
        self.outcome(&State::Preparing, State::Prepared, Reply::Prepared { ports })
    }

    fn arm(&mut self) -> Vec<Action> {
        if self.state == State::Prepared {
            self.state = State::Arming;
            return vec![Action::Arm];
        }
        self.answer()
    }

    fn commit(&mut self, start: MonoTime, guard: Nanos, now: MonoTime) -> Vec<Action> {
        if self.state == State::Armed {
            // In a steered run nothing begins at T.
            if now + guard >= start && !self.steered {
                return self.reply(Reply::Late);
            }
            self.state = State::Waiting { start, confirmed: false };
        }
        self.answer()
    }

    fn confirm(&mut self, start: MonoTime, now: MonoTime) -> Vec<Action> {
        match self.state {
            State::Waiting { start: own, confirmed: false } if own == start => {
                if now + CONFIRM_MARGIN >= start && !self.steered {
                    return self.reply(Reply::Late);
                }
                self.state = State::Waiting { start, confirmed: true };
                let mut actions = vec![Action::StartAt(start)];
                actions.extend(self.reply(Reply::Confirmed));
                actions
            }
            State::Armed | State::Prepared => self.reply(Reply::Refused("no start was committed".to_owned())),
            _ => self.answer(),
        }
    }

    fn steer(&mut self, order: Box<Order>) -> Vec<Action> {
        match &self.last_change {
            (number, fault) if *number == order.number => {
                let (number, fault, sample) = (*number, fault.clone(), Box::default());
                self.reply(Reply::Steered { number, fault, sample })
            }
            // An older one comes late; before T the controller says it again.
            (number, _) if *number > order.number || self.state != State::Running => Vec::new(),
            _ => vec![Action::Steer(order)],
        }
    }

    fn stop(&mut self) -> Vec<Action> {
        match self.state {
            State::Running => vec![Action::StopSenders],
            _ => self.answer(),
        }
    }

    fn senders_done(&mut self, sent: Vec<SentTotal>) -> Vec<Action> {
        self.outcome(&State::Running, State::Stopped(sent.clone()), Reply::SendersDone { sent })
    }

    fn finish(&mut self, sent: Vec<SentTotal>) -> Vec<Action> {
        match self.state {
            State::Stopped(_) => {
                self.state = State::Finishing;
                vec![Action::Finish(sent)]
            }
            State::Running => self.reply(Reply::Refused("senders are still at work".to_owned())),
            _ => self.answer(),
        }
    }

    fn finished(&mut self, result: Arc<NodeResult>) -> Vec<Action> {
        let reply = Reply::Result(Arc::clone(&result));
        self.outcome(&State::Finishing, State::Spooled(result), reply)
    }

    fn collected(&mut self, head: &Head) -> Vec<Action> {
        if self.head.as_ref() == Some(head) && matches!(self.state, State::Spooled(_) | State::Failed(_)) {
            self.forget(head.clone());
        }
        Vec::new()
    }

    fn abort(&mut self, head: Head) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.head.as_ref().is_some_and(|own| own.run == head.run && own.attempt <= head.attempt) {
            actions.push(Action::Release);
            self.forget(head.clone());
        } else {
            self.remember(&head);
        }
        actions.push(Action::Reply(head, Reply::Aborted));
        actions
    }

    /// What went wrong ends the run here; the controller decides what that means for the others.
    fn failed(&mut self, fault: Fault) -> Vec<Action> {
        if matches!(self.state, State::Idle | State::Spooled(_) | State::Failed(_)) {
            return Vec::new();
        }
        self.state = State::Failed(fault.clone());
        let mut actions = vec![Action::Release];
        actions.extend(self.reply(Reply::Failed(fault)));
        actions
    }

    fn tick(&mut self, now: MonoTime) -> Vec<Action> {
        if self.state != State::Idle && now >= self.heard + self.patience {
            return self.deserted();
        }
        match self.state {
            State::Waiting { start, confirmed: true } if now >= start => {
                self.state = State::Running;
                self.reply(Reply::Started)
            }
            State::Waiting { start, confirmed: false } if now >= start && !self.steered => {
                // T has passed without a confirmation. Still receiving, ready for another attempt.
                self.state = State::Armed;
                self.reply(Reply::Late)
            }
            _ => Vec::new(),
        }
    }

    /// The controller is silent: nobody can stop what runs here, so it stops.
    fn deserted(&mut self) -> Vec<Action> {
        if let Some(head) = self.head.clone() {
            self.forget(head);
        }
        vec![Action::Release]
    }

    /// Goes on to `next` if the data plane's answer is to what was asked last.
    fn outcome(&mut self, asked: &State, next: State, reply: Reply) -> Vec<Action> {
        if self.state != *asked {
            return Vec::new();
        }
        self.state = next;
        self.reply(reply)
    }

    /// How far it is, as the reply that said so.
    fn answer(&self) -> Vec<Action> {
        let reply = match &self.state {
            State::Idle | State::Preparing | State::Arming | State::Finishing => return Vec::new(),
            State::Prepared => Reply::Prepared { ports: self.ports.clone() },
            State::Armed => Reply::Armed,
            State::Waiting { confirmed: false, .. } => Reply::Committed,
            State::Waiting { confirmed: true, .. } => Reply::Confirmed,
            State::Running => Reply::Started,
            State::Stopped(sent) => Reply::SendersDone { sent: sent.clone() },
            State::Spooled(result) => Reply::Result(Arc::clone(result)),
            State::Failed(fault) => Reply::Failed(fault.clone()),
        };
        self.reply(reply)
    }

    fn reply(&self, reply: Reply) -> Vec<Action> {
        self.head.iter().map(|head| Action::Reply(head.clone(), reply.clone())).collect()
    }

    fn forget(&mut self, head: Head) {
        self.remember(&head);
        self.head = None;
        self.ports.clear();
        self.state = State::Idle;
    }

    fn remember(&mut self, head: &Head) {
        if self.ended.len() == REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back((head.run.clone(), head.attempt));
    }
}

#[cfg(test)]
mod tests;
