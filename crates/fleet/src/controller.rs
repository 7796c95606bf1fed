//! The controller: one run from draft to its end, as a pure machine over any number of agents.
//!
//! ```text
//!  draft -> preparing -> armed -> committed(T) -> confirmed -> running -> draining -> collecting -> complete | partial
//!               ^------ a commit came too late: next attempt, later T
//!  before T: a refusal, a failure or silence -> failed; the user's stop -> aborted (both once every node has let go)
//!  after T:  a failure or silence -> the others stop, drain and report -> partial; the user's stop -> complete
//! ```
//! The four barriers are conditions here: all armed before T is given out, all confirmed before T, all senders done
//! before draining, draining over before any receiver stops.
//!
//! In a fleet nodes send on [leases](crate::lease) that it renews, a node that cannot be heard is waited for until its
//! lease has certainly ended, and results come in their own way, late ones too. What is to be known after its own death
//! is a [`RunRecord`], kept before anything is sent that it says.
//!
//! Invariant: a node's result is taken once; COMPLETE is said only with the result of every node; no receiver is told to
//! stop while a sender may be at work.

mod inherit;
mod leases;
mod limits;
mod peer;
mod policy;
mod record;
mod steering;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use policy::{OnLoss, Policies, Start};
pub use record::RunRecord;

use crate::event::RunEventKind;
use crate::message::{Command, Grant, Head, NodeName, Nonce, Preparation, Reply, SentTotal, StopReason};
use crate::outcome::{Blame, Fault, Outcome, RunState};
use packetrig_plan::Steer;
use packetrig_stats::result::{NodeResult, Sample};
use packetrig_units::MonoTime;
use peer::{Peer, Progress};
use policy::Out;
use std::collections::BTreeMap;
use std::sync::Arc;
use steering::Steering;

/// What happens to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Go.
    Begin,
    /// An agent said something.
    Reply(NodeName, Head, Reply),
    /// An agent's counts.
    Telemetry(NodeName, Head, Box<Sample>),
    /// An agent asks whether it may go on.
    Renewal(NodeName, Head, Nonce),
    /// The whole result of a node is stored. It may be said again.
    Collected(NodeName, Arc<NodeResult>),
    /// A node's agent was started again: what it did is over.
    Restarted(NodeName),
    /// Another controller has taken over.
    Deposed,
    /// The user wants a change; only a steered run can be changed.
    Steer(Steer),
    /// The user wants it to end: before T nothing happens at all, after T what was sent is accounted.
    Stop,
    /// Time has passed.
    Tick,
}

/// What a run wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Post this to a node.
    Send(NodeName, Head, Command),
    /// Answer a renewal.
    Grant(NodeName, Head, Grant),
    /// Keep this before anything that follows is sent. If somebody else has changed it: [`Event::Deposed`].
    Record(RunRecord),
    /// Tell the readers of the event stream.
    Emit(RunEventKind),
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Draft,
    Preparing { until: MonoTime },
    Arming { until: MonoTime },
    Committing { start: MonoTime },
    Confirming { start: MonoTime },
    Running { start: MonoTime },
    Draining { until: MonoTime },
    Collecting { until: MonoTime, late: MonoTime },
    Cancelling { until: MonoTime, ending: Outcome },
    Ended(Outcome),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Controller {
    head: Head,
    preparation: Preparation,
    limits: Limits,
    policies: Policies,
    peers: BTreeMap<NodeName, Peer>,
    /// Fenced off by a higher attempt.
    left_out: BTreeMap<NodeName, Out>,
    /// Starts that were tried with those who were there.
    tries: u32,
    /// What an earlier controller left.
    inherited: Option<RunRecord>,
    phase: Phase,
    /// Senders were told to stop, at the latest at this instant.
    stopping: Option<MonoTime>,
    stopped_by_user: bool,
    /// What is missing, with the node it is about.
    reasons: Vec<(Option<NodeName>, String)>,
    steering: Steering,
    repeat_at: MonoTime,
    actions: Vec<Action>,
}

impl Controller {
    /// A run in draft, to be executed by `nodes`.
    pub fn new(head: Head, preparation: Preparation, nodes: &[NodeName], limits: Limits) -> Self {
        let peers = nodes.iter().map(|node| (node.clone(), Peer::new(MonoTime::default()))).collect();
        Self {
            head,
            preparation,
            limits,
            policies: Policies::default(),
            peers,
            left_out: BTreeMap::new(),
            tries: 1,
            inherited: None,
            phase: Phase::Draft,
            stopping: None,
            stopped_by_user: false,
            reasons: Vec::new(),
            steering: Steering::default(),
            repeat_at: MonoTime::default(),
            actions: Vec::new(),
        }
    }

    /// Takes in an event.
    pub fn handle(&mut self, event: Event, now: MonoTime) -> Vec<Action> {
        match event {
            Event::Begin if self.phase == Phase::Draft => self.begin(now),
            Event::Reply(node, head, reply) if head == self.head => self.reply(&node, reply, now),
            Event::Telemetry(node, head, sample) if head == self.head => self.telemetry(node, sample, now),
            // Of another attempt, or nothing but time.
            Event::Reply(..) | Event::Telemetry(..) | Event::Begin | Event::Tick => {}
            Event::Renewal(node, head, nonce) => self.renewal(node, head, nonce, now),
            Event::Collected(node, result) => self.collected(&node, result, now),
            Event::Restarted(node) => self.restarted(&node, now),
            Event::Deposed => self.depose(),
            Event::Steer(steer) => self.steer(steer, now),
            Event::Stop => self.stop(now),
        }
        self.expire(now);
        self.advance(now);
        self.settle_change(now);
        self.next_change(now);
        self.repeat(now);
        std::mem::take(&mut self.actions)
    }

    /// When it wants to be ticked next, if nothing else happens; `None` when the run is over.
    pub fn next_deadline(&self) -> Option<MonoTime> {
        let own = match self.phase {
            Phase::Draft | Phase::Ended(_) => return None,
            Phase::Committing { start } if self.preparation.steered => start.max(self.repeat_at),
            Phase::Committing { start } => start - self.limits.guard,
            Phase::Confirming { start } => start,
            Phase::Running { start } if !self.all(Progress::Confirmed) => self.confirmed_by(start),
            Phase::Running { .. } => self.repeat_at,
            Phase::Preparing { until }
            | Phase::Arming { until }
            | Phase::Draining { until }
            | Phase::Collecting { until, .. }
            | Phase::Cancelling { until, .. } => until,
        };
        Some(own.min(self.repeat_at))
    }

    /// How it ended, once it has.
    pub const fn outcome(&self) -> Option<&Outcome> {
        if let Phase::Ended(outcome) = &self.phase { Some(outcome) } else { None }
    }

    /// The attempt under way.
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// The results that came in, one for each node that reported.
    pub fn into_results(self) -> Vec<NodeResult> {
        self.peers.into_values().filter_map(|peer| peer.result).map(Arc::unwrap_or_clone).collect()
    }

    fn prepare(&mut self, now: MonoTime) {
        for peer in self.peers.values_mut() {
            peer.progress = Progress::Asked;
            peer.heard = now;
        }
        self.phase = Phase::Preparing { until: now + self.limits.prepare };
        self.enter(RunState::Preparing);
        self.broadcast(now);
    }

    fn commit(&mut self, now: MonoTime) {
        let doublings = self.tries.saturating_sub(1).min(16);
        let lead = packetrig_units::Nanos::new(self.limits.lead.as_u64() << doublings);
        // In a steered run nothing begins at T: there is nothing to wait for.
        let start = if self.preparation.steered { now } else { now + lead };
        self.phase = Phase::Committing { start };
        self.enter(RunState::Committed);
        self.emit(RunEventKind::StartSet { at: start });
        self.broadcast(now);
    }

    /// The commit came too late somewhere. Nothing was confirmed, so nothing starts at the old T.
    fn try_again(&mut self, now: MonoTime) {
        if self.tries >= self.limits.attempts {
            let text =
                format!("no start instant was accepted by all nodes in {} attempts", self.limits.attempts);
            return self.fail(Fault { blame: Blame::Peer, text }, now);
        }
        self.tries += 1;
        self.head.attempt += 1;
        self.emit(RunEventKind::Finding(format!("the start came too late; attempt {}", self.head.attempt)));
        self.prepare(now);
    }

    fn reply(&mut self, node: &NodeName, reply: Reply, now: MonoTime) {
        let started = self.has_started();
        if let (Some(out), Reply::Aborted) = (self.left_out.get_mut(node), &reply) {
            out.released = true;
        }
        let inherited = self.inherited.is_some();
        let Some(peer) = self.peers.get_mut(node) else { return };
        match reply {
            Reply::Prepared { .. } | Reply::Armed | Reply::Committed if inherited && started => {
                // Nor can it in this epoch.
                peer.gone = true;
                self.send(node.clone(), Command::Abort);
                self.trouble(node, Blame::Peer, "did not start", now);
            }
            // The word that it will start came after T.
            Reply::Confirmed if started && peer.progress < Progress::Confirmed => {
                peer.reach(Progress::Confirmed, now);
            }
            // In a run that goes on these are echoes, or a node that forgot: no sign of life.
            Reply::Prepared { .. } | Reply::Armed | Reply::Committed | Reply::Confirmed if started => {}
            Reply::Prepared { ports } => {
                peer.reach(Progress::Prepared, now);
                if !std::mem::replace(&mut peer.shown, true) {
                    self.emit(RunEventKind::Ports { node: node.clone(), ports });
                }
            }
            Reply::Armed => peer.reach(Progress::Armed, now),
            Reply::Committed => peer.reach(Progress::Committed, now),
            Reply::Confirmed => peer.reach(Progress::Confirmed, now),
            Reply::Started => peer.reach(Progress::Started, now),
            Reply::Held { number, fault, held } => {
                peer.heard = now;
                self.held(node, number, held, fault, now);
            }
            Reply::Announced { number, fault } => {
                peer.heard = now;
                self.announced(node, number, fault, now);
            }
            Reply::Steered { number, fault, sample } => {
                // Before the change is told, so that its readers know the counts right after it.
                self.telemetry(node.clone(), sample, now);
                self.changed(node, number, fault, now);
            }
            Reply::SendersDone { sent, why } => self.senders_done(node, sent, why, now),
            Reply::Result(result) => self.collected(node, result, now),
            Reply::Spooled { .. } if peer.progress == Progress::Reported => {
                self.send(node.clone(), Command::Collected);
            }
            Reply::Spooled { .. } => peer.reach(Progress::Spooled, now),
            Reply::Aborted => peer.released = true,
            Reply::Late => self.late(node, now),
            Reply::Refused(text) => self.trouble(node, Blame::Peer, &format!("refused: {text}"), now),
            Reply::Failed(fault) => {
                peer.gone = true;
                self.trouble(node, fault.blame, &fault.text, now);
            }
        }
    }

    fn senders_done(&mut self, node: &NodeName, sent: Vec<SentTotal>, why: StopReason, now: MonoTime) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        let first = peer.progress < Progress::Done && self.stopping.is_none();
        peer.sent = sent;
        peer.reach(Progress::Done, now);
        let cut = match why {
            StopReason::Done | StopReason::Told => return,
            StopReason::LeaseOver => "its senders stopped because their lease was not renewed",
            StopReason::NoLease => "did not start: it had no lease at T (split_start)",
            StopReason::OwnersLimit => "its senders stopped at the longest duration its owner allows",
        };
        if first {
            let text = format!("node {node}: {cut}");
            self.emit(RunEventKind::Finding(text.clone()));
            self.reasons.push((None, text));
            if self.policies.on_loss == OnLoss::Abort {
                self.stop_senders(now);
            }
        }
    }

    /// A node's whole result is here, by whatever way it came.
    fn collected(&mut self, node: &NodeName, result: Arc<NodeResult>, now: MonoTime) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        if matches!(self.phase, Phase::Ended(_)) && peer.result.is_none() {
            // What is said of the run is said.
            return;
        }
        peer.reach(Progress::Reported, now);
        peer.result.get_or_insert(result);
        self.send(node.clone(), Command::Collected);
    }

    fn restarted(&mut self, node: &NodeName, now: MonoTime) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        peer.gone = true;
        // What is safe on its disk still comes.
        if peer.progress < Progress::Spooled {
            self.trouble(node, Blame::Peer, "its agent was started again", now);
        }
    }

    fn telemetry(&mut self, node: NodeName, sample: Box<Sample>, now: MonoTime) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.heard = now;
        if peer.sampled.is_none_or(|at| at < sample.at) {
            peer.sampled = Some(sample.at);
            self.emit(RunEventKind::Counters { node, sample });
        }
    }

    fn late(&mut self, node: &NodeName, now: MonoTime) {
        match self.phase {
            Phase::Committing { .. } => self.try_again(now),
            Phase::Confirming { .. } | Phase::Running { .. } => {
                self.trouble(node, Blame::Peer, "did not start: the confirmation came too late", now);
            }
            _ => {}
        }
    }

    /// A node cannot go on.
    fn trouble(&mut self, node: &NodeName, blame: Blame, what: &str, now: MonoTime) {
        match self.phase {
            Phase::Draft | Phase::Cancelling { .. } | Phase::Ended(_) => {}
            Phase::Confirming { start } if now >= start => {
                self.lose(node, format!("node {node}: {what}"), now);
            }
            Phase::Running { .. } | Phase::Draining { .. } | Phase::Collecting { .. } => {
                self.lose(node, format!("node {node}: {what}"), now);
            }
            _ => self.trouble_before_start(node, blame, what, now),
        }
    }

    fn stop(&mut self, now: MonoTime) {
        match self.phase {
            Phase::Draft => self.end(Outcome::Aborted),
            Phase::Preparing { .. } | Phase::Arming { .. } | Phase::Committing { .. } => {
                self.cancel(Outcome::Aborted, now);
            }
            Phase::Confirming { start } if now < start => self.cancel(Outcome::Aborted, now),
            Phase::Confirming { .. } | Phase::Running { .. } => {
                self.stopped_by_user = true;
                self.stop_senders(now);
            }
            // It ends by itself already.
            Phase::Draining { .. }
            | Phase::Collecting { .. }
            | Phase::Cancelling { .. }
            | Phase::Ended(_) => {}
        }
    }

    fn stop_senders(&mut self, now: MonoTime) {
        if self.stopping.is_none() {
            self.stopping = Some(now + self.limits.stop);
            self.broadcast(now);
        }
    }

    fn fail(&mut self, fault: Fault, now: MonoTime) {
        self.cancel(Outcome::Failed { fault }, now);
    }

    /// Ends as `ending` once every node has let go.
    fn cancel(&mut self, ending: Outcome, now: MonoTime) {
        let until = now + self.limits.stop;
        let until = self.quiet_at().map_or(until, |quiet| quiet.max(until));
        self.phase = Phase::Cancelling { until, ending };
        self.broadcast(now);
    }

    /// Gives up waiting for what did not come in time.
    fn expire(&mut self, now: MonoTime) {
        match self.phase {
            Phase::Preparing { until } if now >= until => self.silent_before_start(Progress::Prepared, now),
            Phase::Arming { until } if now >= until => self.silent_before_start(Progress::Armed, now),
            Phase::Running { start } => self.expire_running(start, now),
            Phase::Committing { start } if now + self.limits.guard >= start && !self.preparation.steered => {
                self.expire_commit(now);
            }
            // Nothing begins at T in a steered run, so an acknowledgement is late only when nobody waits for it any more.
            Phase::Committing { start } if self.preparation.steered && now >= start + self.limits.prepare => {
                self.silent_before_start(Progress::Committed, now);
            }
            Phase::Collecting { until, .. } if now >= until => {
                self.give_up(Progress::Reported, "its result did not come", now);
            }
            _ => {}
        }
    }

    fn silent_before_start(&mut self, wanted: Progress, now: MonoTime) {
        let text = format!("did not get ready within {}", self.limits.prepare);
        let stragglers = self.stragglers(wanted, &text);
        let Some((first, _)) = stragglers.first().cloned() else { return };
        if !self.do_without(stragglers, now) {
            self.trouble(&first, Blame::Peer, &text, now);
        }
    }

    /// Not all have acknowledged the commit in time: without the silent ones if that is accepted, else once more.
    fn expire_commit(&mut self, now: MonoTime) {
        let stragglers = self.stragglers(Progress::Committed, "did not acknowledge the start in time");
        if !stragglers.is_empty() && !self.do_without(stragglers, now) {
            self.try_again(now);
        }
    }

    fn expire_running(&mut self, start: MonoTime, now: MonoTime) {
        self.expire_confirmations(start, now);
        if now >= start + self.limits.start {
            self.give_up(Progress::Started, "did not start with the others", now);
        }
        if self.stopping.is_some_and(|until| now >= until) {
            self.give_up(Progress::Done, "did not stop when told", now);
        }
        let quiet = self.limits.silence;
        let silent: Vec<NodeName> = self
            .behind(Progress::Done)
            .filter(|(_, peer)| now >= peer.heard + quiet)
            .map(|(node, _)| node.clone())
            .collect();
        for node in silent {
            self.trouble(&node, Blame::Peer, &format!("silent for {quiet}"), now);
        }
    }

    fn give_up(&mut self, wanted: Progress, what: &str, now: MonoTime) {
        let behind: Vec<NodeName> = self.behind(wanted).map(|(node, _)| node.clone()).collect();
        for node in behind {
            self.trouble(&node, Blame::Peer, what, now);
        }
    }

    /// Takes every step whose barrier is reached.
    fn advance(&mut self, now: MonoTime) {
        while self.step(now) {}
    }

    fn step(&mut self, now: MonoTime) -> bool {
        match self.phase.clone() {
            Phase::Preparing { .. } if self.all(Progress::Prepared) => {
                self.phase = Phase::Arming { until: now + self.limits.prepare };
                self.broadcast(now);
            }
            Phase::Arming { .. } if self.all(Progress::Armed) => {
                self.enter(RunState::Armed);
                self.commit(now);
            }
            Phase::Committing { start } if self.all(Progress::Committed) => {
                self.phase = Phase::Confirming { start };
                self.enter(RunState::Confirmed);
                self.broadcast(now);
            }
            Phase::Confirming { start } if now >= start => {
                self.phase = Phase::Running { start };
                self.enter(RunState::Running);
            }
            Phase::Running { .. } if self.nobody_left() && self.limits.lease.is_none() => self.end_of_run(),
            Phase::Running { .. } if self.all(Progress::Done) && self.is_quiet(now) => {
                self.phase = Phase::Draining { until: now + self.limits.drain };
                self.enter(RunState::Draining);
            }
            Phase::Draining { until } if now >= until => {
                self.phase =
                    Phase::Collecting { until: now + self.limits.collect, late: now + self.limits.late };
                self.enter(RunState::Collecting);
                self.broadcast(now);
            }
            Phase::Collecting { late, .. }
                if self.all(Progress::Reported) && self.nothing_more(late, now) =>
            {
                self.end_of_run();
            }
            Phase::Cancelling { until, ending } if self.all_released() || now >= until => {
                self.end(ending);
            }
            _ => return false,
        }
        true
    }

    /// Whether no result of a node that was given up can come any more, or was waited for long enough.
    fn nothing_more(&self, late: MonoTime, now: MonoTime) -> bool {
        now >= late || self.peers.values().all(|peer| peer.result.is_some())
    }

    fn end_of_run(&mut self) {
        // Of a steered run the stop is the end.
        let stopped = self.stopped_by_user && !self.preparation.steered;
        let missing = self.peers.values().any(|peer| peer.result.is_none());
        let mut reasons: Vec<String> = self.left_out.values().map(|out| out.why.clone()).collect();
        for (node, text) in std::mem::take(&mut self.reasons) {
            let is_here =
                node.is_some_and(|node| self.peers.get(&node).is_some_and(|it| it.result.is_some()));
            // Of an inherited run it matters what is missing, not what was said of nodes that had ended it already.
            if self.inherited.is_none() || !is_here {
                reasons.push(text);
            }
        }
        let whole = !missing && reasons.is_empty();
        self.end(if whole { Outcome::Complete { stopped } } else { Outcome::Partial { reasons, stopped } });
    }

    fn end(&mut self, outcome: Outcome) {
        let lost: Vec<NodeName> =
            self.peers.iter().filter(|(_, peer)| peer.lost).map(|(n, _)| n.clone()).collect();
        self.conclude(outcome);
        for node in lost {
            self.dismiss(node);
        }
    }

    /// What is left to say to a node that was lost; it may have missed what was said before.
    fn dismiss(&mut self, node: NodeName) {
        let Some(peer) = self.peers.get(&node) else { return };
        let command = if self.limits.lease.is_none() || peer.gone {
            Command::Abort
        } else if peer.result.is_some() {
            Command::Collected
        } else {
            // It keeps what it has for whoever collects.
            Command::Finish { sent: self.sent_totals() }
        };
        self.send(node, command);
    }

    fn conclude(&mut self, outcome: Outcome) {
        self.enter(outcome.state());
        self.emit(RunEventKind::Ended(outcome.clone()));
        self.phase = Phase::Ended(outcome);
    }

    /// Says again what was not answered.
    fn repeat(&mut self, now: MonoTime) {
        if now >= self.repeat_at && !matches!(self.phase, Phase::Draft | Phase::Ended(_)) {
            self.broadcast(now);
        }
    }

    /// Tells every node that has not got there what this phase wants of it.
    fn broadcast(&mut self, now: MonoTime) {
        let is_urgent = matches!(self.phase, Phase::Committing { .. } | Phase::Confirming { .. });
        self.repeat_at = now + if is_urgent { self.limits.insist } else { self.limits.repeat };
        let letters: Vec<(NodeName, Command)> = self
            .peers
            .iter()
            .flat_map(|(node, peer)| {
                let change = self.unanswered(node);
                // Nothing keeps a stop waiting, and before it has begun a node makes no change.
                let first = self.stopping.is_some() || peer.progress < Progress::Confirmed;
                let wanted = self.wanted_of(peer).filter(|_| change.is_none() || first);
                wanted.into_iter().chain(change).map(|command| (node.clone(), command))
            })
            .collect();
        for (node, command) in letters {
            self.send(node, command);
        }
        let fenced: Vec<NodeName> =
            self.left_out.iter().filter(|(_, out)| !out.released).map(|(node, _)| node.clone()).collect();
        for node in fenced {
            self.send(node, Command::Abort);
        }
    }

    fn wanted_of(&self, peer: &Peer) -> Option<Command> {
        let (command, reached) = match &self.phase {
            Phase::Cancelling { .. } => return (!peer.released).then_some(Command::Abort),
            _ if peer.gone || peer.lost && self.limits.lease.is_none() => return None,
            Phase::Running { .. } | Phase::Draining { .. } if peer.lost => (Command::Stop, Progress::Done),
            Phase::Draft | Phase::Ended(_) => return None,
            Phase::Preparing { .. } => {
                (Command::Prepare(Box::new(self.preparation.clone())), Progress::Prepared)
            }
            Phase::Arming { .. } => (Command::Arm, Progress::Armed),
            Phase::Committing { start } => {
                (Command::Commit { start: *start, guard: self.limits.guard }, Progress::Committed)
            }
            Phase::Confirming { start } => (Command::Confirm { start: *start }, Progress::Confirmed),
            Phase::Running { .. } if self.stopping.is_some() => (Command::Stop, Progress::Done),
            // Nothing has begun at T in a steered run: who has not heard that it holds can still do so.
            Phase::Running { start } if self.preparation.steered && peer.progress < Progress::Confirmed => {
                (Command::Confirm { start: *start }, Progress::Confirmed)
            }
            // Also while draining, as a sign of life: an agent that hears nothing gives up.
            Phase::Running { .. } | Phase::Draining { .. } => (Command::Query, Progress::Reported),
            Phase::Collecting { .. } => (Command::Finish { sent: self.sent_totals() }, Progress::Reported),
        };
        (peer.progress < reached).then_some(command)
    }

    /// What every stream sent, from the nodes that know. A stream has one sender.
    fn sent_totals(&self) -> Vec<SentTotal> {
        self.peers.values().flat_map(|peer| peer.sent.iter().copied()).collect()
    }

    const fn has_started(&self) -> bool {
        matches!(self.phase, Phase::Running { .. } | Phase::Draining { .. } | Phase::Collecting { .. })
    }

    /// Nodes that are waited for and have not got that far.
    fn behind(&self, wanted: Progress) -> impl Iterator<Item = (&NodeName, &Peer)> {
        self.peers.iter().filter(move |(_, peer)| !peer.lost && peer.progress < wanted)
    }

    fn all(&self, wanted: Progress) -> bool {
        self.behind(wanted).next().is_none()
    }

    fn nobody_left(&self) -> bool {
        self.peers.values().all(|peer| peer.lost)
    }

    fn all_released(&self) -> bool {
        self.peers.values().all(|peer| peer.released)
    }

    fn send(&mut self, node: NodeName, command: Command) {
        self.actions.push(Action::Send(node, self.head.clone(), command));
    }

    fn enter(&mut self, state: RunState) {
        self.record(state);
        self.emit(RunEventKind::StateChanged(state));
    }

    fn emit(&mut self, kind: RunEventKind) {
        self.actions.push(Action::Emit(kind));
    }
}
