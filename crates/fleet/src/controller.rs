//! The controller, which leads one run on any number of agents from draft to end: a state machine without input,
//! output or a clock.
//!
//! ```text
//!  draft -> preparing -> armed -> committed(T) -> confirmed -> running -> draining -> collecting -> complete | partial
//!               ^------ a commit came too late: next attempt, later T
//!  before T: a refusal, a failure or silence -> failed; the user's stop -> aborted (both once every node released it
//!             or the time to wait for this is over)
//!  after T:  a failure or silence -> the others stop, drain and report -> partial; the user's stop -> complete
//! ```
//! T is the common start time of all nodes.
//!
//! There are four barriers: all nodes are armed before T is sent; all have confirmed before T; all senders are done
//! before draining; draining is over before any receiver stops.
//!
//! In a fleet, nodes send on [leases](crate::lease) that the controller renews. It waits for a silent node until the
//! lease of that node has certainly ended. Results are delivered separately, and late ones are accepted. State that
//! must survive the controller is in a [`RunRecord`], which is stored before any message that depends on it.
//!
//! Invariant: the controller uses only the first result of a node; a run is COMPLETE only with the results of all
//! nodes; no receiver is ordered to stop while a sender may be running.

mod commands;
mod draining;
mod ending;
mod expiry;
mod inherit;
mod leases;
mod limits;
mod peer;
mod peers;
mod policy;
mod record;
mod replies;
mod starting;
mod steering;
#[cfg(test)]
mod tests;

pub use expiry::RESULT_MISSING;
pub use limits::RunLimits;
pub use policy::{LostNodePolicy, RunPolicies, StartPolicy};
pub use record::RunRecord;

use crate::message::{LeaseGrant, MessageHead, NodeCommand, NodeName, NodeReply, Nonce, RunPreparation};
use packetrig_plan::PlanChange;
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{RunOutcome, RunState};
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_units::{MonoTime, Nanos};
use peer::{ControllerPeer, PeerProgress};
use peers::ControllerPeers;
use policy::ExcludedNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use steering::RunSteering;

/// Input of the controller: commands of the user, messages of nodes, and the time.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerEvent {
    Begin,
    /// An agent replied to a command.
    Reply(NodeName, MessageHead, NodeReply),
    Telemetry(NodeName, MessageHead, Box<CountSample>),
    /// An agent asks for a renewal of its lease.
    Renewal(NodeName, MessageHead, Nonce),
    /// The whole result of a node is stored. This event may be repeated.
    Collected(NodeName, Arc<NodeResult>),
    /// The result of a node has arrived, but it is incomplete or doubtful; the text says why. This
    /// event may be repeated.
    Doubted(String),
    /// All segments of the run that a node has were received, and they contain no result. This event may be repeated.
    Unfinished(NodeName),
    /// The agent of a node has waited this long for a processor within the last seconds.
    Starved(NodeName, Nanos),
    /// The agent of a node was restarted: its earlier work is lost.
    Restarted(NodeName),
    /// Another controller has taken over.
    Deposed,
    /// The controller's own program did not run for this long.
    StoodStill(Nanos),
    /// The user requests a change; only a steered run can be changed.
    Steer(PlanChange),
    /// The user ends the run. Before the start time, no frame is sent at all; after it, the report includes the
    /// frames that were sent.
    Stop,
    Tick,
}

/// Output of the controller: the actions that the caller must perform next, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerAction {
    /// Post this to a node.
    Send(NodeName, MessageHead, NodeCommand),
    Grant(NodeName, MessageHead, LeaseGrant),
    /// Store this record before any later action is performed. If another process has changed the
    /// record, answer with [`ControllerEvent::Deposed`].
    Record(RunRecord),
    /// Publish this in the event stream.
    Emit(RunEventKind),
}

#[derive(Clone, Debug, PartialEq)]
enum ControllerPhase {
    Draft,
    Preparing { until: MonoTime },
    Arming { until: MonoTime },
    Committing { since: MonoTime, start: MonoTime },
    Confirming { since: MonoTime, start: MonoTime },
    Running { start: MonoTime },
    Draining { since: MonoTime, until: MonoTime, limit: MonoTime },
    Collecting { until: MonoTime, late: MonoTime },
    Cancelling { until: MonoTime, ending: RunOutcome },
    Ended(RunOutcome),
}

#[derive(Clone, Debug)]
pub struct ControllerMachine {
    head: MessageHead,
    preparation: RunPreparation,
    limits: RunLimits,
    policies: RunPolicies,
    peers: ControllerPeers,
    /// Nodes that were left out of the run. The current attempt has a higher number, so their late replies are ignored.
    left_out: BTreeMap<NodeName, ExcludedNode>,
    /// Number of attempts to start, with the current one. Attempts that began only to leave out nodes are not counted.
    tries: u32,
    /// Record of a run that an earlier controller began.
    inherited: Option<RunRecord>,
    /// True if the run may end while its results are still in the spools of the nodes.
    leaves_results: bool,
    /// Nodes of an inherited run that other controllers lead.
    elsewhere: BTreeSet<NodeName>,
    phase: ControllerPhase,
    /// Deadline for the senders to stop; `None` before the order to stop.
    stopping: Option<MonoTime>,
    stopped_by_user: bool,
    /// Reasons why the run is incomplete, with the node that each is about.
    reasons: Vec<(Option<NodeName>, String)>,
    steering: RunSteering,
    /// Longest delay of a frame that any node has reported so far.
    longest_delay: Nanos,
    repeat_at: MonoTime,
    /// No node can have been silent for too long before this time, so nodes are not checked earlier.
    silent_from: MonoTime,
    /// Earliest time at which a timeout can expire. Before it, a sample or a renewal needs no check of all nodes.
    deadline: Option<MonoTime>,
    actions: Vec<ControllerAction>,
}

impl ControllerMachine {
    /// Creates the controller of a run that `nodes` will execute. [`ControllerEvent::Begin`] starts the run.
    pub fn new(
        head: MessageHead,
        preparation: RunPreparation,
        nodes: &[NodeName],
        limits: RunLimits,
    ) -> Self {
        Self {
            head,
            preparation,
            limits,
            policies: RunPolicies::default(),
            peers: ControllerPeers::new(nodes),
            left_out: BTreeMap::new(),
            tries: 1,
            inherited: None,
            leaves_results: false,
            elsewhere: BTreeSet::new(),
            phase: ControllerPhase::Draft,
            stopping: None,
            stopped_by_user: false,
            reasons: Vec::new(),
            steering: RunSteering::default(),
            longest_delay: Nanos::ZERO,
            repeat_at: MonoTime::default(),
            silent_from: MonoTime::default(),
            deadline: None,
            actions: Vec::new(),
        }
    }

    /// Handles an event and returns the actions that follow from it.
    pub fn handle_event(&mut self, event: ControllerEvent, now: MonoTime) -> Vec<ControllerAction> {
        if matches!(self.phase, ControllerPhase::Ended(_)) {
            self.on_event_after_end(event, now);
            return std::mem::take(&mut self.actions);
        }
        let is_sign_of_life = matches!(event, ControllerEvent::Telemetry(..) | ControllerEvent::Renewal(..));
        match event {
            ControllerEvent::Begin if self.phase == ControllerPhase::Draft => self.begin_run(now),
            ControllerEvent::Reply(node, head, reply) if head == self.head => {
                self.on_reply(&node, reply, now);
            }
            ControllerEvent::Telemetry(node, head, sample) if head == self.head => {
                self.on_telemetry(node, sample, now);
            }
            // Nothing to handle: a message of another attempt, a second `Begin`, or an event that
            // only carries the time.
            ControllerEvent::Reply(..)
            | ControllerEvent::Telemetry(..)
            | ControllerEvent::Begin
            | ControllerEvent::Tick => {}
            // A renewal of any attempt is answered, because a node of an old attempt must be ordered to stop sending.
            ControllerEvent::Renewal(node, head, nonce) => self.on_renewal(node, head, nonce, now),
            ControllerEvent::Collected(node, result) => self.on_result(&node, result, now),
            ControllerEvent::Doubted(why) => self.add_partial_reason(why),
            ControllerEvent::Unfinished(node) => self.on_result_unfinished(&node),
            ControllerEvent::Starved(node, waited) => self.on_node_starved(&node, waited),
            ControllerEvent::Restarted(node) => self.on_node_restarted(&node, now),
            ControllerEvent::Deposed => self.on_deposed(),
            ControllerEvent::StoodStill(length) => self.on_standstill(length, now),
            ControllerEvent::Steer(steer) => self.queue_change(steer, now),
            ControllerEvent::Stop => self.stop_run(now),
        }
        // The nodes of a fleet send thousands of samples and renewals a second, and these can only postpone a deadline.
        // So before the deadline, a sample or renewal never needs a check of all nodes.
        if is_sign_of_life && self.deadline.is_some_and(|at| now < at) {
            return std::mem::take(&mut self.actions);
        }
        // The order matters: give up late nodes, enter the phases that do not have to wait for them any more, then
        // repeat the commands that are still unanswered.
        self.check_deadlines(now);
        self.advance_ready_phases(now);
        self.advance_change(now);
        self.begin_next_change(now);
        self.repeat_unanswered_commands(now);
        self.deadline = self.compute_deadline();
        std::mem::take(&mut self.actions)
    }

    /// True while the controller waits for the results of the nodes.
    pub const fn is_collecting(&self) -> bool {
        matches!(self.phase, ControllerPhase::Collecting { .. })
    }

    /// Time at which the controller needs the next tick, if no other event comes first; `None` when the run is over.
    pub const fn next_deadline(&self) -> Option<MonoTime> {
        self.deadline
    }

    fn compute_deadline(&self) -> Option<MonoTime> {
        let own = match self.phase {
            ControllerPhase::Draft | ControllerPhase::Ended(_) => return None,
            ControllerPhase::Committing { start, .. } if self.preparation.terms.steered => {
                start.max(self.repeat_at)
            }
            ControllerPhase::Committing { start, .. } => start - self.limits.guard,
            ControllerPhase::Confirming { since, .. } if self.preparation.terms.steered => {
                since + self.limits.start
            }
            ControllerPhase::Confirming { start, .. } if self.awaits_single_local_node() => {
                self.confirmation_deadline(start)
            }
            ControllerPhase::Confirming { start, .. } => start,
            ControllerPhase::Running { start } if !self.have_all_peers_reached(PeerProgress::Confirmed) => {
                self.confirmation_deadline(start)
            }
            ControllerPhase::Running { .. } => self.repeat_at,
            ControllerPhase::Preparing { until }
            | ControllerPhase::Arming { until }
            | ControllerPhase::Draining { until, .. }
            | ControllerPhase::Collecting { until, .. }
            | ControllerPhase::Cancelling { until, .. } => until,
        };
        Some(own.min(self.repeat_at))
    }

    /// The outcome, once the run has ended.
    pub const fn outcome(&self) -> Option<&RunOutcome> {
        if let ControllerPhase::Ended(outcome) = &self.phase { Some(outcome) } else { None }
    }

    /// Head of the current attempt.
    pub const fn head(&self) -> &MessageHead {
        &self.head
    }

    /// The results that have arrived so far.
    pub fn results(&self) -> impl Iterator<Item = &NodeResult> {
        self.peers.values().filter_map(|peer| peer.result.as_deref())
    }

    /// Returns the results that have arrived: one for each node that has reported its result.
    pub fn into_results(self) -> Vec<NodeResult> {
        self.peers.into_values().filter_map(|peer| peer.result).map(Arc::unwrap_or_clone).collect()
    }

    /// Advances through every phase that has reached its barrier.
    fn advance_ready_phases(&mut self, now: MonoTime) {
        while self.advance_ready_phase(now) {}
    }

    fn advance_ready_phase(&mut self, now: MonoTime) -> bool {
        match self.phase.clone() {
            ControllerPhase::Preparing { .. } if self.have_all_peers_reached(PeerProgress::Prepared) => {
                self.phase = ControllerPhase::Arming { until: now + self.limits.prepare };
                self.broadcast_commands(now);
            }
            ControllerPhase::Arming { until } if self.have_all_peers_reached(PeerProgress::Armed) => {
                self.enter_state(RunState::Armed);
                // `until` is the beginning of the phase plus its time limit.
                let arming = now.since(until - self.limits.prepare);
                self.commit_start(arming, now);
            }
            ControllerPhase::Committing { since, start }
                if self.have_all_peers_reached(PeerProgress::Committed) =>
            {
                // Until the confirmation is sent, the start can still be cancelled; see `can_confirm`.
                if !self.can_confirm(since, start, now) {
                    self.start_next_attempt(now);
                    return true;
                }
                self.phase = ControllerPhase::Confirming { since: now, start };
                self.enter_state(RunState::Confirmed);
                self.broadcast_commands(now);
            }
            // Nodes with a confirmation start by themselves at the start time. Nodes that have not acknowledged the
            // confirmation are handled in `Running` (`give_up_unconfirmed_nodes`).
            ControllerPhase::Confirming { start, .. } if self.has_run_begun(start, now) => {
                self.phase = ControllerPhase::Running { start };
                self.enter_state(RunState::Running);
            }
            // A lost agent in this process cannot send. In a fleet, the leases of the lost nodes must
            // end first, see `have_all_senders_stopped`.
            ControllerPhase::Running { .. } if self.has_no_node_left() && self.limits.lease.is_none() => {
                self.end_run_by_results();
            }
            // Barrier: every sender is done, and every silent node has certainly stopped.
            ControllerPhase::Running { .. }
                if self.have_all_peers_reached(PeerProgress::Done) && self.have_all_senders_stopped(now) =>
            {
                self.begin_draining(now);
                self.enter_state(RunState::Draining);
            }
            ControllerPhase::Draining { until, .. } if now >= until => {
                self.phase = ControllerPhase::Collecting {
                    until: now + self.limits.collect,
                    late: now + self.limits.late,
                };
                self.enter_state(RunState::Collecting);
                self.broadcast_commands(now);
            }
            ControllerPhase::Collecting { .. }
                // A result on the disk of its node is safe. The controller that began the run collects it.
                if self.leaves_results && self.have_all_peers_reached(PeerProgress::Spooled) =>
            {
                self.end_run_by_results();
            }
            ControllerPhase::Collecting { late, .. }
                if self.have_all_peers_reached(PeerProgress::Reported) && self.has_no_more_results_due(late, now) =>
            {
                self.end_run_by_results();
            }
            // The run ends even if a node never answers: the lease of that node has certainly ended by `until`.
            ControllerPhase::Cancelling { until, ending } if self.have_all_nodes_released() || now >= until => {
                self.end_run(ending);
            }
            _ => return false,
        }
        true
    }

    const fn has_started(&self) -> bool {
        matches!(
            self.phase,
            ControllerPhase::Running { .. }
                | ControllerPhase::Draining { .. }
                | ControllerPhase::Collecting { .. }
        )
    }

    /// Returns the nodes that the controller waits for: not lost, and not yet at the step `wanted`.
    fn peers_behind(&self, wanted: PeerProgress) -> impl Iterator<Item = (&NodeName, &ControllerPeer)> {
        self.peers.iter().filter(move |(_, peer)| !peer.lost && peer.progress < wanted)
    }

    fn have_all_peers_reached(&self, wanted: PeerProgress) -> bool {
        self.peers.have_all_peers_reached(wanted)
    }

    fn has_no_node_left(&self) -> bool {
        self.peers.present_count() == 0
    }

    fn have_all_nodes_released(&self) -> bool {
        self.peers.iter().all(|(node, peer)| peer.released || self.elsewhere.contains(node))
    }

    fn send_command(&mut self, node: NodeName, command: NodeCommand) {
        // Another controller leads the node now. The result of the node arrives without a command.
        if self.elsewhere.contains(&node) {
            return;
        }
        self.actions.push(ControllerAction::Send(node, self.head.clone(), command));
    }

    fn enter_state(&mut self, state: RunState) {
        // The record must be stored before readers of the event stream see the state.
        self.record_state(state);
        self.emit_event(RunEventKind::StateChanged(state));
    }

    fn emit_event(&mut self, kind: RunEventKind) {
        self.actions.push(ControllerAction::Emit(kind));
    }
}
