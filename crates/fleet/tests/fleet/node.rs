//! A node as the simulator sees it: an agent, senders behind a gate, a disk, a clock.

use crate::world::{Clock, MS};
use packetrig_fleet::agent::{AgentMachine, PersistentAgentState};
use packetrig_fleet::lease::LeaseTerms;
use packetrig_fleet::message::Nonce;
use packetrig_report::NodeName;
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) const TERMS: LeaseTerms = LeaseTerms::with_ttl(Nanos::from_secs(2));
/// Longest work between two looks at the gate.
pub(crate) const BATCH: u64 = 10 * MS;

/// Senders with a start time.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) from: u64,
    /// End of their plan.
    pub(crate) until: u64,
    /// Time of the order to stop.
    pub(crate) told: Option<u64>,
    /// Time of their end, and whether the gate was shut then.
    pub(crate) ended: Option<(u64, bool)>,
}

pub(crate) struct Node {
    pub(crate) name: NodeName,
    pub(crate) clock: Clock,
    pub(crate) agent: AgentMachine,
    pub(crate) alive: bool,
    pub(crate) frozen: Option<u64>,
    pub(crate) incarnation: u64,
    pub(crate) wake: Option<u64>,
    pub(crate) receiving: bool,
    pub(crate) sending: Option<Sending>,
    /// Times on the node's own clock.
    pub(crate) gate: Option<MonoTime>,
    /// Departure of the last frame, and whether the senders ended by themselves.
    pub(crate) last_frame: Option<u64>,
    pub(crate) ended_by_plan: bool,
    /// State on the disk, which survives a restart.
    pub(crate) epoch: u64,
    pub(crate) spool: BTreeMap<u32, Arc<NodeResult>>,
    /// State for the checks: the highest epoch that it received, the time of each question, and the time of the last
    /// question that any controller answered with yes.
    pub(crate) told_epoch: u64,
    pub(crate) asked: BTreeMap<Nonce, u64>,
    pub(crate) proven: Option<u64>,
    pub(crate) deaf: u32,
    pub(crate) mute: u32,
    pub(crate) finished: u32,
}

impl Node {
    pub(crate) fn new(name: NodeName, clock: Clock) -> Self {
        Self {
            name,
            clock,
            agent: agent(0, 1),
            alive: true,
            frozen: None,
            incarnation: 1,
            wake: None,
            receiving: false,
            sending: None,
            gate: None,
            last_frame: None,
            ended_by_plan: false,
            epoch: 0,
            spool: BTreeMap::new(),
            told_epoch: 0,
            asked: BTreeMap::new(),
            proven: None,
            deaf: 0,
            mute: 0,
            finished: 0,
        }
    }

    /// The process ends, and everything that is not on the disk.
    pub(crate) fn crash(&mut self, now: u64) {
        self.settle(now);
        self.close(self.frozen.unwrap_or(now));
        (self.alive, self.frozen, self.wake) = (false, None, None);
    }

    pub(crate) fn restart(&mut self) {
        self.incarnation += 1;
        self.agent = agent(self.epoch, self.incarnation);
        (self.alive, self.gate) = (true, None);
    }

    /// Ports are closed: nothing is sent or received.
    pub(crate) fn close(&mut self, now: u64) {
        if let Some(sending) = self.sending.take()
            && sending.ended.is_none()
            && sending.from < now
        {
            self.note_frames(sending.from, now);
        }
        (self.receiving, self.gate) = (false, None);
    }

    /// Runs the senders up to `now`: the gate shuts by itself.
    pub(crate) fn settle(&mut self, now: u64) {
        let now = self.frozen.map_or(now, |since| since.min(now));
        let shut = self.gate.map_or(0, |gate| self.clock.truth(gate));
        let Some(sending) = &mut self.sending else { return };
        if sending.ended.is_some() || now < sending.from {
            return;
        }
        let told = sending.told.unwrap_or(u64::MAX);
        let end = shut.min(sending.until).min(told);
        if now >= end {
            let from = sending.from;
            let is_shut = shut <= sending.until && shut <= told;
            sending.ended = Some((end.max(from), is_shut));
            self.ended_by_plan = end == sending.until;
            if end > from {
                self.note_frames(from, end);
            }
        }
    }

    /// Frames were sent from `from` to `to`; that must have been allowed.
    fn note_frames(&mut self, from: u64, to: u64) {
        let proven = self.proven.expect("nothing is sent before a question was answered with yes");
        let end = proven + TERMS.ttl.as_u64() + TERMS.ttl.as_u64() / 1000 + BATCH;
        assert!(to <= end, "{}: frames from {from} to {to}, the lease ended before {end}", self.name);
        self.last_frame = Some(to);
    }

    /// True if a frame can leave at `now`.
    pub(crate) fn is_sending(&mut self, now: u64) -> bool {
        self.settle(now);
        let at_work = self.sending.as_ref().is_some_and(|it| it.from <= now && it.ended.is_none());
        self.alive && self.frozen.is_none() && at_work
    }
}

fn agent(epoch: u64, incarnation: u64) -> AgentMachine {
    AgentMachine::new_leased(
        TERMS,
        PersistentAgentState { epoch, nonce: Nonce(incarnation << 32), longest: None },
    )
}
