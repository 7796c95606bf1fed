//! The agent, which executes a run on one node: a state machine without input, output or a clock.
//!
//! ```text
//!  idle -> prepared -> armed -> waiting(T) -> running -> stopped -> spooled -> idle
//!    ^________|__________|__________|____________| abort, or the controller is silent for too long
//! ```
//! T is the common start time of all nodes. The machine returns [`AgentAction`]s. The caller performs them in order,
//! and passes each outcome to the machine before any other event (only the outcomes of `Finish` and `Spool` may come
//! later). Commands may be repeated: a repeated command gets the same answer, and its action is not done twice.
//!
//! In a fleet ([`AgentMachine::new_leased`]) the agent sends only while its [lease](crate::lease) is valid, and stores
//! its result in the spool of its node. If the controller is silent, the senders of the agent stop at the end of the
//! lease, the receivers continue for a while, and the spool keeps the result until a controller collects it.
//!
//! Invariant: an agent sends only after it has acknowledged a commit and the confirmation came in time. It
//! never obeys a controller with an epoch lower than the highest that it has seen.

mod changes;
mod leased;
mod steps;

pub use leased::PersistentAgentState;

use crate::lease::{AgentLease, LeaseTerms};
use crate::message::{
    ChangeOrder, ChangeStep, LeaseGrant, MessageHead, NodeCommand, NodeReply, Nonce, RunId, RunPreparation,
    SentTotal, StopReason,
};
use changes::{ChangeProgress, LastChange};
use packetrig_plan::StreamResumePoint;
use packetrig_report::outcome::NodeFault;
use packetrig_stats::port::PortInfo;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::sync::Arc;

/// Minimum time between a confirmation and the start time. A later confirmation is refused, because the senders would
/// get the start time too late.
pub const CONFIRM_MARGIN: Nanos = Nanos::from_millis(20);
/// Minimum time between a confirmation and the start time if the agent runs in the controller's own process. A receiver
/// reads its orders every 5 ms, and must know the start time before the first frame arrives.
pub const LOCAL_CONFIRM_MARGIN: Nanos = Nanos::from_millis(7);
/// Maximum difference between the start times in the commit and in the confirmation. They may differ because the node
/// may convert the second one to its own clock with a better clock fit.
pub const MAX_START_TIME_DIFFERENCE: Nanos = Nanos::from_millis(10);
/// Number of ended runs whose late messages are still recognised.
const MAX_REMEMBERED_RUNS: usize = 256;

/// A finished attempt of this node.
#[derive(Clone, Debug)]
struct EndedAttempt {
    run: RunId,
    attempt: u32,
    /// Number of segments of the result in the spool; `None` if the result was not in the spool.
    kept: Option<u64>,
}

/// Input of the agent: a command, a grant, an outcome of the data plane, or the time.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentEvent {
    Command(MessageHead, NodeCommand),
    /// An authentic answer to [`AgentAction::Renew`] arrived.
    Granted(MessageHead, LeaseGrant),
    /// [`AgentAction::Prepare`] succeeded.
    Prepared(Vec<PortInfo>),
    /// [`AgentAction::Arm`] succeeded: the receivers run.
    Armed,
    /// [`ChangeStep::Hold`] is done, or failed with this fault and changed nothing.
    Held(u64, Vec<StreamResumePoint>, Option<NodeFault>),
    /// [`ChangeStep::Announce`] is done, or failed with this fault.
    Announced(u64, Option<NodeFault>),
    /// [`AgentAction::Steer`] or the last step of a change is done, or failed with this fault and changed nothing.
    Steered(u64, Option<NodeFault>, Box<CountSample>),
    /// Every sender has ended.
    SendersDone {
        sent: Vec<SentTotal>,
        /// True if a sender ended because the lease had ended.
        lease_ended: bool,
    },
    /// [`AgentAction::Finish`] succeeded.
    Finished(Arc<NodeResult>),
    /// [`AgentAction::Spool`] succeeded.
    Spooled {
        /// Number of segments of the result.
        segments: u64,
    },
    /// The data plane failed at its current task.
    Failed(NodeFault),
    Tick,
}

/// Output of the agent: the actions that the caller must perform next, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum AgentAction {
    /// Post this to the controller.
    Reply(MessageHead, NodeReply),
    /// Read the plan, open the ports; answer with `Prepared` or `Failed`.
    Prepare(Box<RunPreparation>),
    /// Start the receivers; answer with `Armed` or `Failed`.
    Arm,
    /// Make the senders start at this time.
    StartAt(MonoTime),
    /// Make this change to the running streams; answer with `Steered`.
    Steer(Box<ChangeOrder>),
    /// Perform a step of a change; answer with `Held`, `Announced` or `Steered`.
    Step(u64, Box<ChangeStep>),
    /// Stop the senders; `SendersDone` follows when they have stopped.
    StopSenders,
    /// Stop the receivers and compute the final counts; answer with `Finished` or `Failed`.
    Finish(Vec<SentTotal>),
    /// Stop everything and close the ports.
    Release,
    /// Store this epoch as the highest one seen, so that it survives restarts, before any later action.
    Remember(u64),
    /// Ask the controller to renew the lease, so that senders may continue.
    Renew(MessageHead, Nonce),
    /// Allow senders to run until this time on the node's clock. Before the first such action they must not send.
    Extend(MonoTime),
    /// Store the result on the disk until it is collected; answer with `Spooled` or `Failed`.
    Spool(Arc<NodeResult>),
}

#[derive(Clone, Debug, PartialEq)]
enum AgentState {
    Idle,
    Preparing,
    Prepared,
    Arming,
    /// Receivers run; the first lease has not arrived yet.
    Leasing,
    Armed,
    /// The start time was accepted. `confirmed` is true once the senders have it, too.
    Waiting {
        start: MonoTime,
        confirmed: bool,
    },
    Running,
    Stopped(Vec<SentTotal>),
    Finishing,
    Spooling,
    /// The result is stored until the controller has it.
    Spooled(StoredResult),
    /// The data plane failed. The fault is kept so that a repeated command gets the same answer.
    Failed(NodeFault),
}

/// Where a result is stored: in memory, or in the segments of the spool.
#[derive(Clone, Debug, PartialEq)]
enum StoredResult {
    Result(Arc<NodeResult>),
    Segments(u64),
}

#[derive(Clone, Debug)]
pub struct AgentMachine {
    state: AgentState,
    head: Option<MessageHead>,
    ports: Vec<PortInfo>,
    steered: bool,
    change: LastChange,
    epoch: u64,
    ended: VecDeque<EndedAttempt>,
    heard: MonoTime,
    silence_timeout: Nanos,
    /// A confirmation that leaves less than this before the start time is refused.
    margin: Nanos,
    /// Lease of this node; `None` outside a fleet.
    lease: Option<AgentLease>,
    longest: Option<Nanos>,
    /// Time at which the owner's limit stops the senders.
    stop_at: Option<MonoTime>,
    /// Why the senders stop: the reason of the first order to stop, or of their own end. `None` until then.
    why: Option<StopReason>,
    /// True if the agent finishes the run without an order, because its controller is silent.
    orphan: bool,
}

impl AgentMachine {
    /// Creates an idle agent without leases. It gives a run up after `silence_timeout` without a
    /// message of its controller.
    pub fn new(silence_timeout: Nanos) -> Self {
        Self {
            state: AgentState::Idle,
            head: None,
            ports: Vec::new(),
            steered: false,
            change: LastChange::default(),
            epoch: 0,
            ended: VecDeque::new(),
            heard: MonoTime::default(),
            silence_timeout,
            margin: CONFIRM_MARGIN,
            lease: None,
            longest: None,
            stop_at: None,
            why: None,
            orphan: false,
        }
    }

    /// Creates an idle agent in the controller's own process.
    pub fn new_local(silence_timeout: Nanos) -> Self {
        Self { margin: LOCAL_CONFIRM_MARGIN, ..Self::new(silence_timeout) }
    }

    /// Creates an idle agent of a fleet. `past` has the state that survives restarts of the agent.
    pub fn new_leased(terms: LeaseTerms, past: PersistentAgentState) -> Self {
        Self {
            epoch: past.epoch,
            lease: Some(AgentLease::new(terms, past.nonce)),
            longest: past.longest,
            ..Self::new(terms.orphaned)
        }
    }

    /// Handles an event and returns the actions that follow from it.
    pub fn handle_event(&mut self, event: AgentEvent, now: MonoTime) -> Vec<AgentAction> {
        match event {
            AgentEvent::Command(head, command) => self.on_command(head, command, now),
            AgentEvent::Prepared(ports) => self.on_ports_prepared(ports),
            AgentEvent::Granted(head, grant) => self.on_lease_grant(&head, grant, now),
            AgentEvent::Armed => self.on_ports_armed(now),
            AgentEvent::Held(number, held, fault) => {
                self.set_progress(number, ChangeProgress::Held(held, fault))
            }
            AgentEvent::Announced(number, fault) => {
                self.set_progress(number, ChangeProgress::Announced(fault))
            }
            AgentEvent::Steered(number, fault, sample) => {
                // Recorded, so that a repeated order gets the same answer and is not executed twice.
                self.change = LastChange { number, progress: ChangeProgress::Over(fault.clone()) };
                self.reply_to_controller(NodeReply::Steered { number, fault, sample })
            }
            AgentEvent::SendersDone { sent, lease_ended } => self.on_senders_done(sent, lease_ended),
            AgentEvent::Finished(result) => self.on_run_finished(result),
            AgentEvent::Spooled { segments } => self.on_result_spooled(segments),
            AgentEvent::Failed(fault) => self.on_run_failed(fault),
            AgentEvent::Tick => self.on_tick(now),
        }
    }

    /// Time at which the agent needs the next tick, if no other event comes earlier.
    pub fn next_deadline(&self) -> Option<MonoTime> {
        let start = match self.state {
            // In a steered run nothing happens at an unconfirmed start time, so no tick is needed for it.
            AgentState::Waiting { start, confirmed } if confirmed || !self.steered => Some(start),
            _ => None,
        };
        let renewal = self.lease.as_ref().and_then(AgentLease::next_deadline);
        [start, renewal, self.senders_deadline(), self.silence_deadline()].into_iter().flatten().min()
    }

    /// True from the start of the run until its receivers stop. Only then do the counts change, so only then are
    /// samples of the counts needed.
    pub fn is_running(&self) -> bool {
        matches!(self.state, AgentState::Running | AgentState::Stopped(_))
    }

    /// True while the agent waits for [`AgentEvent::SendersDone`].
    pub fn awaits_senders(&self) -> bool {
        self.state == AgentState::Running
    }

    /// True while the agent takes part in no run.
    pub fn is_idle(&self) -> bool {
        self.state == AgentState::Idle
    }

    /// Highest epoch that the agent has seen.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Head of the run that blocks other runs on this node, if there is one. In a fleet, neither a failed run nor a run
    /// with its result on the disk blocks another run.
    pub fn blocking_run(&self) -> Option<&MessageHead> {
        self.head.as_ref().filter(|_| !self.has_released_ports())
    }

    /// Head of the current run, also if the run has failed or its result is already on the disk.
    pub fn head(&self) -> Option<&MessageHead> {
        self.head.as_ref()
    }

    fn on_command(&mut self, head: MessageHead, command: NodeCommand, now: MonoTime) -> Vec<AgentAction> {
        // The epoch is raised first: even a refused command of a higher epoch shows that the controllers of all
        // lower epochs were replaced.
        let mut actions = self.raise_epoch(head.epoch);
        // A later controller asks for a run that has ended on this node without a controller. The answer must not make
        // the run current again: the spool already delivers its result.
        if let Some(segments) = self.stored_segment_count(&head, &command) {
            actions.push(AgentAction::Reply(head, NodeReply::Spooled { segments }));
            return actions;
        }
        if let Some(refusal) = self.refusal_reason(&head, &command) {
            actions.push(AgentAction::Reply(head, NodeReply::Refused(refusal)));
            return actions;
        }
        // Only an accepted command counts as a sign of life. A controller that no longer leads this node may repeat its
        // commands, and these must not prolong the run.
        self.record_contact(now);
        self.adopt_epoch(&head, &command);
        actions.extend(self.execute_command(head, command, now));
        actions
    }

    fn execute_command(
        &mut self,
        head: MessageHead,
        command: NodeCommand,
        now: MonoTime,
    ) -> Vec<AgentAction> {
        match command {
            // The functions for these three commands check the head themselves. Every other command applies only to the
            // attempt that was prepared on this node.
            NodeCommand::Prepare(preparation) => self.prepare_run(head, preparation),
            NodeCommand::Abort => self.abort_run(head),
            NodeCommand::Collected => self.on_result_collected(&head),
            // The whole head is compared, so that a command with another plan or attempt never affects this run.
            _ if self.head.as_ref() != Some(&head) => {
                vec![AgentAction::Reply(
                    head,
                    NodeReply::Refused("this run was not prepared on this node".to_owned()),
                )]
            }
            NodeCommand::Arm => self.arm_receivers(),
            NodeCommand::Commit { start, guard } => self.commit_start(start, guard, now),
            NodeCommand::Confirm { start } => self.confirm_start(start, now),
            NodeCommand::Query => self.report_state(),
            NodeCommand::Steer(order) => self.on_change_order(order),
            NodeCommand::Step { number, step } => self.execute_step(number, step),
            NodeCommand::Stop => self.stop_run(),
            NodeCommand::Finish { sent } => self.finish_run(sent.to_vec()),
        }
    }

    /// Returns the reason for refusing a command: a lower epoch, an ended attempt, or a node that is busy with another
    /// run. Returns `None` if the command is acceptable.
    fn refusal_reason(&self, head: &MessageHead, command: &NodeCommand) -> Option<String> {
        if head.epoch < self.epoch {
            return Some(format!("epoch {} has ended; this node is in epoch {}", head.epoch, self.epoch));
        }
        // ABORT and COLLECTED only release a run, so they are accepted for any run.
        if matches!(command, NodeCommand::Abort | NodeCommand::Collected) {
            return None;
        }
        // A PREPARE that was overtaken by its ABORT must not start the run again.
        if self.ended.iter().any(|ended| ended.run == head.run && head.attempt <= ended.attempt) {
            return Some(format!("attempt {} of run {} has ended", head.attempt, head.run));
        }
        let own = self.head.as_ref()?;
        if own.run != head.run && !self.has_released_ports() {
            // Spooled and failed runs hold no ports: they must not block the next run of the fleet.
            return Some(format!("this node is busy with run {}", own.run));
        }
        if own.run == head.run && head.attempt < own.attempt {
            return Some(format!("attempt {} has ended; this is attempt {}", head.attempt, own.attempt));
        }
        None
    }

    /// Enters the state `next` and replies, but only if the agent is still in the state `asked`, in which it ordered
    /// the action that has ended now.
    fn advance_if_in_state(
        &mut self,
        asked: &AgentState,
        next: AgentState,
        reply: NodeReply,
    ) -> Vec<AgentAction> {
        // The run may have been aborted while the data plane worked. Then the outcome has no effect.
        if self.state != *asked {
            return Vec::new();
        }
        self.state = next;
        self.reply_to_controller(reply)
    }

    /// Sends the reply of the present state again, for a repeated command or a query.
    fn report_state(&self) -> Vec<AgentAction> {
        let reply = match &self.state {
            // No reply: either there is no run, or the reply follows when the data plane has finished its action.
            AgentState::Idle
            | AgentState::Preparing
            | AgentState::Arming
            | AgentState::Leasing
            | AgentState::Finishing
            | AgentState::Spooling => return Vec::new(),
            AgentState::Prepared => NodeReply::Prepared { ports: self.ports.clone() },
            AgentState::Armed => NodeReply::Armed,
            AgentState::Waiting { confirmed: false, .. } => NodeReply::Committed,
            AgentState::Waiting { confirmed: true, .. } => NodeReply::Confirmed,
            AgentState::Running => NodeReply::Started,
            AgentState::Stopped(sent) => {
                NodeReply::SendersDone { sent: sent.clone(), why: self.why.unwrap_or_default() }
            }
            AgentState::Spooled(StoredResult::Result(result)) => NodeReply::Result(Arc::clone(result)),
            AgentState::Spooled(StoredResult::Segments(segments)) => {
                NodeReply::Spooled { segments: *segments }
            }
            AgentState::Failed(fault) => NodeReply::Failed(fault.clone()),
        };
        self.reply_to_controller(reply)
    }

    fn reply_to_controller(&self, reply: NodeReply) -> Vec<AgentAction> {
        // Without a run there is no controller that could receive a reply.
        self.head.iter().map(|head| AgentAction::Reply(head.clone(), reply.clone())).collect()
    }

    fn forget_run(&mut self, head: MessageHead) {
        // The attempt is remembered first, because `remember_ended_attempt` reads the state that is reset below.
        self.remember_ended_attempt(&head);
        self.head = None;
        self.ports.clear();
        // The agent must not ask for a lease of a run that it has forgotten.
        self.stop_lease_renewal();
        self.why = None;
        self.stop_at = None;
        self.orphan = false;
        self.state = AgentState::Idle;
    }
}

#[cfg(test)]
mod tests;
