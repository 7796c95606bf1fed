//! Sends the command of each phase to the nodes, and repeats commands that were not answered.

use super::peer::{ControllerPeer, PeerProgress};
use super::{ControllerMachine, ControllerPhase};
use crate::message::{NodeCommand, NodeName, SentTotal};
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// Time to deliver the plan to one node, when many nodes get it.
const PLAN_DELIVERY_TIME_PER_NODE: Nanos = Nanos::from_millis(1);

impl ControllerMachine {
    /// Repeats the commands that were not answered, if the time for a repetition has come.
    pub(super) fn repeat_unanswered_commands(&mut self, now: MonoTime) {
        if now >= self.repeat_at && !matches!(self.phase, ControllerPhase::Draft | ControllerPhase::Ended(_))
        {
            self.broadcast_commands(now);
        }
    }

    /// Sends the command of this phase to every node that is behind.
    pub(super) fn broadcast_commands(&mut self, now: MonoTime) {
        let is_urgent =
            matches!(self.phase, ControllerPhase::Committing { .. } | ControllerPhase::Confirming { .. });
        let is_long = matches!(self.phase, ControllerPhase::Preparing { .. });
        self.repeat_at = now
            + match (is_urgent, is_long) {
                (true, _) => self.limits.insist,
                // The delivery of the plan to many nodes takes a while, and so do their answers.
                (_, true) => self
                    .limits
                    .repeat
                    .max(Nanos::new(PLAN_DELIVERY_TIME_PER_NODE.as_u64() * self.peers.len() as u64)),
                (_, false) => self.limits.repeat,
            };
        // Only FINISH needs the totals, and for a large fleet they are a long list.
        let is_collecting = matches!(self.phase, ControllerPhase::Collecting { .. });
        let sent = if is_collecting { self.sent_totals() } else { Arc::default() };
        let letters: Vec<(NodeName, NodeCommand)> = self
            .peers
            .iter()
            .flat_map(|(node, peer)| {
                let change = self.unanswered_change_command(node);
                // A stop is never delayed, and a node makes no change before it has started.
                let first = self.stopping.is_some() || peer.progress < PeerProgress::Confirmed;
                let wanted = self.next_command_for(peer, &sent).filter(|_| change.is_none() || first);
                let wanted = wanted.filter(|it| *it != NodeCommand::Query || self.is_query_due(peer, now));
                wanted.into_iter().chain(change).map(|command| (node.clone(), command))
            })
            .collect();
        for (node, command) in letters {
            // Only queries are limited in their rate, so only their times are recorded.
            if let (NodeCommand::Query, Some(mut peer)) = (&command, self.peers.get_mut(&node)) {
                peer.asked = now;
            }
            self.send_command(node, command);
        }
        // Excluded nodes may still hold ports of an old attempt. They get an abort until they confirm the release.
        let fenced: Vec<NodeName> =
            self.left_out.iter().filter(|(_, out)| !out.released).map(|(node, _)| node.clone()).collect();
        for node in fenced {
            self.send_command(node, NodeCommand::Abort);
        }
    }

    /// True if the controller must send a QUERY to a node now. A node that reports by itself is asked less often.
    fn is_query_due(&self, peer: &ControllerPeer, now: MonoTime) -> bool {
        // Each question is signed, and a fleet may have thousands of nodes. A node that reports is only asked because
        // its last reply may have been lost.
        now >= peer.heard + self.limits.repeat || now >= peer.asked + self.limits.query
    }

    /// Returns the command that moves this node on, if it is behind. `sent` holds the totals of all
    /// streams, for FINISH only.
    fn next_command_for(&self, peer: &ControllerPeer, sent: &Arc<[SentTotal]>) -> Option<NodeCommand> {
        let (command, reached) = match &self.phase {
            ControllerPhase::Cancelling { .. } => return (!peer.released).then_some(NodeCommand::Abort),
            // A node that is gone holds nothing of the run any more. Without leases, a lost node got an abort already.
            _ if peer.gone || peer.lost && self.limits.lease.is_none() => return None,
            // A silent node may still receive: a stop can reach it before its lease ends.
            ControllerPhase::Running { .. } | ControllerPhase::Draining { .. } if peer.lost => {
                (NodeCommand::Stop, PeerProgress::Done)
            }
            ControllerPhase::Draft | ControllerPhase::Ended(_) => return None,
            ControllerPhase::Preparing { .. } => {
                (NodeCommand::Prepare(Box::new(self.preparation.clone())), PeerProgress::Prepared)
            }
            ControllerPhase::Arming { .. } => (NodeCommand::Arm, PeerProgress::Armed),
            ControllerPhase::Committing { start, .. } => {
                (NodeCommand::Commit { start: *start, guard: self.limits.guard }, PeerProgress::Committed)
            }
            ControllerPhase::Confirming { start, .. } => {
                (NodeCommand::Confirm { start: *start }, PeerProgress::Confirmed)
            }
            ControllerPhase::Running { .. } if self.stopping.is_some() => {
                (NodeCommand::Stop, PeerProgress::Done)
            }
            // The query is also sent while draining, as a sign of life: an agent without messages gives the run
            // up.
            ControllerPhase::Running { .. } | ControllerPhase::Draining { .. } => {
                (NodeCommand::Query, PeerProgress::Reported)
            }
            ControllerPhase::Collecting { .. } => {
                (NodeCommand::Finish { sent: Arc::clone(sent) }, PeerProgress::Reported)
            }
        };
        (peer.progress < reached).then_some(command)
    }

    /// Frame totals of all streams, from the nodes that have reported them. A stream has one sender.
    pub(super) fn sent_totals(&self) -> Arc<[SentTotal]> {
        self.peers.values().flat_map(|peer| peer.sent.iter().copied()).collect()
    }
}
