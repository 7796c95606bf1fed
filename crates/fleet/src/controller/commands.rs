//! Sends the command of each phase to the nodes, and repeats commands that were not answered.

use super::peer::{ControllerPeer, PeerProgress};
use super::{ControllerMachine, ControllerPhase};
use crate::message::{NodeCommand, NodeName, SentTotal};
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// Time that the delivery of the plan takes for each node. In a large fleet, PREPARE is not repeated before this time
/// multiplied by the number of nodes.
const PLAN_DELIVERY_TIME_PER_NODE: Nanos = Nanos::from_millis(1);

impl ControllerMachine {
    /// Repeats the commands that were not answered, if the time for a repetition has come.
    pub(super) fn repeat_unanswered_commands(&mut self, now: MonoTime) {
        if now >= self.repeat_at && !matches!(self.phase, ControllerPhase::Draft | ControllerPhase::Ended(_))
        {
            self.broadcast_commands(now);
        }
    }

    /// Sends the command of the current phase, and the current change, to every node that has not answered them.
    pub(super) fn broadcast_commands(&mut self, now: MonoTime) {
        let is_urgent =
            matches!(self.phase, ControllerPhase::Committing { .. } | ControllerPhase::Confirming { .. });
        let is_long = matches!(self.phase, ControllerPhase::Preparing { .. });
        self.repeat_at = now
            + match (is_urgent, is_long) {
                (true, _) => self.limits.insist,
                // The delivery of the plan to many nodes takes longer than the usual interval.
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
                // A stop must not wait for a change, and a node that has not confirmed the start makes no change.
                let first = self.stopping.is_some() || peer.progress < PeerProgress::Confirmed;
                let wanted = self.next_command_for(peer, &sent).filter(|_| change.is_none() || first);
                let wanted = wanted.filter(|it| *it != NodeCommand::Query || self.is_query_due(peer, now));
                wanted.into_iter().chain(change).map(|command| (node.clone(), command))
            })
            .collect();
        for (node, command) in letters {
            // Only queries have a minimum interval, so only their times are recorded.
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

    /// True if the controller must send a QUERY to a node now. A node that sends samples is asked less often.
    fn is_query_due(&self, peer: &ControllerPeer, now: MonoTime) -> bool {
        // Each query is signed, and a fleet may have thousands of nodes. A node that sends samples is asked only
        // because its last reply may have been lost.
        now >= peer.heard + self.limits.repeat || now >= peer.asked + self.limits.query
    }

    /// Returns the command of the current phase for this node; `None` if the node has answered it or needs none.
    /// `sent`: the totals of all streams, used only for FINISH.
    fn next_command_for(&self, peer: &ControllerPeer, sent: &Arc<[SentTotal]>) -> Option<NodeCommand> {
        let (command, reached) = match &self.phase {
            ControllerPhase::Cancelling { .. } => return (!peer.released).then_some(NodeCommand::Abort),
            // A node that is gone has no resources of the run. Without leases, a lost node has got an abort already.
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
            // The query is also a sign of life while the receivers drain: an agent that gets no messages
            // gives the run up.
            ControllerPhase::Running { .. } | ControllerPhase::Draining { .. } => {
                (NodeCommand::Query, PeerProgress::Reported)
            }
            ControllerPhase::Collecting { .. } => {
                (NodeCommand::Finish { sent: Arc::clone(sent) }, PeerProgress::Reported)
            }
        };
        (peer.progress < reached).then_some(command)
    }

    /// Returns the numbers of sent frames that nodes have reported, one entry for each stream: a stream has one sender.
    pub(super) fn sent_totals(&self) -> Arc<[SentTotal]> {
        self.peers.values().flat_map(|peer| peer.sent.iter().copied()).collect()
    }
}
