//! Handles the replies of nodes.

use super::peer::PeerProgress;
use super::{ControllerEvent, ControllerMachine, ControllerPhase, LostNodePolicy};
use crate::hello::describe_starvation;
use crate::message::{NodeCommand, NodeName, NodeReply, SentTotal, StopReason};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::SPLIT_START_MARK;
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_units::{Blame, MonoTime, Nanos};
use std::sync::Arc;

impl ControllerMachine {
    /// Handles an event after the end of the run, which cannot change the outcome any more. Nodes that do not know that
    /// their result was collected, or that may still send, get an answer.
    pub(super) fn on_event_after_end(&mut self, event: ControllerEvent, now: MonoTime) {
        match event {
            ControllerEvent::Reply(node, head, NodeReply::Result(_) | NodeReply::Spooled { .. })
                if head == self.head && self.has_result_of(&node) =>
            {
                self.send_command(node, NodeCommand::Collected);
            }
            ControllerEvent::Renewal(node, head, nonce) => self.on_renewal(node, head, nonce, now),
            ControllerEvent::Steer(steer) => self.queue_change(steer, now),
            _ => {}
        }
    }

    pub(super) fn has_result_of(&self, node: &NodeName) -> bool {
        self.peers.get(node).is_some_and(|peer| peer.result.is_some())
    }

    pub(super) fn on_reply(&mut self, node: &NodeName, reply: NodeReply, now: MonoTime) {
        let started = self.has_started();
        if let (Some(out), NodeReply::Aborted) = (self.left_out.get_mut(node), &reply) {
            out.released = true;
        }
        let inherited = self.inherited.is_some();
        // A node that was left out is not in `peers`, and needs no further handling.
        let Some(progress) = self.peers.get(node).map(|peer| peer.progress) else { return };
        match reply {
            NodeReply::Prepared { .. } | NodeReply::Armed | NodeReply::Committed if inherited && started => {
                self.on_missed_start(node, now);
            }
            // The acknowledgement of the confirmation arrived after the start time.
            NodeReply::Confirmed if started && progress < PeerProgress::Confirmed => {
                self.raise_progress_of(node, PeerProgress::Confirmed, now);
            }
            // After the start these replies are late, repeated, or from a node that was reset. They do not count as
            // a sign of life.
            NodeReply::Prepared { .. } | NodeReply::Armed | NodeReply::Committed | NodeReply::Confirmed
                if started => {}
            NodeReply::Prepared { ports } => {
                self.raise_progress_of(node, PeerProgress::Prepared, now);
                if self.mark_ports_reported(node) {
                    self.emit_event(RunEventKind::Ports { node: node.clone(), ports });
                }
            }
            NodeReply::Armed => self.raise_progress_of(node, PeerProgress::Armed, now),
            NodeReply::Committed => self.raise_progress_of(node, PeerProgress::Committed, now),
            NodeReply::Confirmed => self.raise_progress_of(node, PeerProgress::Confirmed, now),
            NodeReply::Started => self.raise_progress_of(node, PeerProgress::Started, now),
            NodeReply::Held { number, fault, held } => {
                self.record_contact(node, now);
                self.on_streams_held(node, number, held, fault, now);
            }
            NodeReply::Announced { number, fault } => {
                self.record_contact(node, now);
                self.on_segments_announced(node, number, fault, now);
            }
            NodeReply::Steered { number, fault, sample } => {
                // The sample is emitted before the event of the change, so that readers of the event have the counts
                // right after the change.
                self.on_telemetry(node.clone(), sample, now);
                self.on_change_made(node, number, fault, now);
            }
            NodeReply::SendersDone { sent, why } => self.on_senders_done(node, sent, why, now),
            NodeReply::Result(result) => self.on_result(node, result, now),
            NodeReply::Spooled { .. } => self.on_result_spooled(node, now),
            NodeReply::Aborted => self.mark_node_released(node),
            NodeReply::Late => self.on_late_reply(node, now),
            // The node may still have ports open for the run, so it is not marked as gone.
            NodeReply::Refused(text) => {
                self.on_node_failure(node, Blame::Peer, &format!("refused: {text}"), now);
            }
            NodeReply::Failed(fault) => {
                self.mark_node_gone(node);
                self.on_node_failure(node, fault.blame, &fault.text, now);
            }
        }
    }

    /// Gives up a node that an earlier controller prepared and that has not started. The node accepts no start from a
    /// controller of a later epoch, so it never starts and has no result.
    fn on_missed_start(&mut self, node: &NodeName, now: MonoTime) {
        self.mark_node_gone(node);
        self.on_result_unfinished(node);
        self.send_command(node.clone(), NodeCommand::Abort);
        self.on_node_failure(node, Blame::Peer, "did not start", now);
    }

    fn raise_progress_of(&mut self, node: &NodeName, progress: PeerProgress, now: MonoTime) {
        if let Some(mut peer) = self.peers.get_mut(node) {
            peer.raise_progress(progress, now);
        }
    }

    fn record_contact(&mut self, node: &NodeName, now: MonoTime) {
        if let Some(mut peer) = self.peers.get_mut(node) {
            peer.heard = now;
        }
    }

    fn mark_node_gone(&mut self, node: &NodeName) {
        if let Some(mut peer) = self.peers.get_mut(node) {
            peer.gone = true;
        }
    }

    fn mark_node_released(&mut self, node: &NodeName) {
        if let Some(mut peer) = self.peers.get_mut(node) {
            peer.released = true;
        }
    }

    /// Marks the ports of this node as shown in an event. Returns `true` the first time.
    fn mark_ports_reported(&mut self, node: &NodeName) -> bool {
        self.peers.get_mut(node).is_some_and(|mut peer| !std::mem::replace(&mut peer.shown, true))
    }

    /// Handles a result that is safe on the node's disk.
    fn on_result_spooled(&mut self, node: &NodeName, now: MonoTime) {
        let Some(mut peer) = self.peers.get_mut(node) else { return };
        if peer.progress == PeerProgress::Reported {
            drop(peer);
            return self.send_command(node.clone(), NodeCommand::Collected);
        }
        peer.raise_progress(PeerProgress::Spooled, now);
        // The node answers again, so the controller waits for its result again, unless its agent has failed.
        peer.lost &= peer.gone;
    }

    pub(super) fn on_senders_done(
        &mut self,
        node: &NodeName,
        sent: Vec<SentTotal>,
        why: StopReason,
        now: MonoTime,
    ) {
        let Some(mut peer) = self.peers.get_mut(node) else { return };
        // An end after the order to stop, and a repeated reply, are no findings.
        let first = peer.progress < PeerProgress::Done && self.stopping.is_none();
        peer.sent = sent;
        peer.raise_progress(PeerProgress::Done, now);
        drop(peer);
        let cut = match why {
            StopReason::Done | StopReason::Told => return,
            StopReason::LeaseOver => "its senders stopped because their lease was not renewed".to_owned(),
            StopReason::NoLease => {
                format!("did not start: it had no valid lease at the start time {SPLIT_START_MARK}")
            }
            StopReason::OwnersLimit => {
                "its senders stopped after the longest duration that the node's owner allows".to_owned()
            }
        };
        if first {
            let text = format!("node {node}: {}", self.add_overload_note(node, &cut));
            self.emit_event(RunEventKind::Finding(text.clone()));
            self.reasons.push((None, text));
            // A node that stopped early affects the result like a lost node.
            if self.policies.on_loss == LostNodePolicy::Abort {
                self.stop_senders(now);
            }
        }
    }

    /// Handles the whole result of a node, which arrived as a reply or through the spool.
    pub(super) fn on_result(&mut self, node: &NodeName, result: Arc<NodeResult>, now: MonoTime) {
        let Some(mut peer) = self.peers.get_mut(node) else { return };
        peer.raise_progress(PeerProgress::Reported, now);
        // Segments may be delivered again, so a result may arrive twice. The first one counts.
        peer.result.get_or_insert(result);
        drop(peer);
        self.send_command(node.clone(), NodeCommand::Collected);
    }

    pub(super) fn on_result_unfinished(&mut self, node: &NodeName) {
        if let Some(mut peer) = self.peers.get_mut(node) {
            peer.unfinished = true;
        }
    }

    pub(super) fn on_node_starved(&mut self, node: &NodeName, waited: Nanos) {
        if let Some(mut peer) = self.peers.get_mut(node) {
            peer.starved = peer.starved.max(waited);
        }
    }

    /// Appends a note to the text of a node's fault if its machine is overloaded, because that may be the cause.
    pub(super) fn add_overload_note(&self, node: &NodeName, what: &str) -> String {
        let overload = self.peers.get(node).and_then(|peer| describe_starvation(peer.starved));
        overload.map_or_else(|| what.to_owned(), |overload| format!("{what}; {overload}"))
    }

    /// Adds a reason that makes the run partial.
    pub(super) fn add_partial_reason(&mut self, why: String) {
        let reason = (None, why);
        // The event may be repeated; the reason counts once.
        if !self.reasons.contains(&reason) {
            self.emit_event(RunEventKind::Finding(reason.1.clone()));
            self.reasons.push(reason);
        }
    }

    pub(super) fn on_node_restarted(&mut self, node: &NodeName, now: MonoTime) {
        let Some(mut peer) = self.peers.get_mut(node) else { return };
        peer.gone = true;
        let is_safe = peer.progress >= PeerProgress::Spooled;
        drop(peer);
        // A result that is on the disk of the node still arrives.
        if !is_safe {
            self.on_node_failure(node, Blame::Peer, "its agent was started again", now);
        }
    }

    pub(super) fn on_telemetry(&mut self, node: NodeName, sample: Box<CountSample>, now: MonoTime) {
        let Some(mut peer) = self.peers.get_mut(&node) else { return };
        peer.heard = now;
        // Counts are cumulative, so a sample that arrives after a newer one adds nothing.
        let is_newer = peer.sampled.is_none_or(|at| at < sample.at);
        if is_newer {
            peer.sampled = Some(sample.at);
        }
        drop(peer);
        if is_newer {
            self.extend_drain(&sample, now);
            self.emit_event(RunEventKind::Counters { node, sample });
        }
    }

    pub(super) fn on_late_reply(&mut self, node: &NodeName, now: MonoTime) {
        match self.phase {
            // A single late node forces a new attempt: the start time is common, so all nodes get a later one.
            ControllerPhase::Committing { .. } => self.start_next_attempt(now),
            // The only node refused the confirmation, or the start time passed without one, so nothing has started.
            ControllerPhase::Confirming { .. } if self.awaits_single_local_node() => {
                self.start_next_attempt(now);
            }
            ControllerPhase::Confirming { .. } | ControllerPhase::Running { .. } => {
                self.on_node_failure(
                    node,
                    Blame::Peer,
                    &format!("did not start: the confirmation came too late {SPLIT_START_MARK}"),
                    now,
                );
            }
            _ => {}
        }
    }

    /// Handles a fault with which a node drops out of the run. Before the start, the run may fail; after it, the
    /// controller gives up the node.
    pub(super) fn on_node_failure(&mut self, node: &NodeName, blame: Blame, what: &str, now: MonoTime) {
        let what = self.add_overload_note(node, what);
        match self.phase {
            ControllerPhase::Draft | ControllerPhase::Cancelling { .. } | ControllerPhase::Ended(_) => {}
            // The start time has passed, and only the next tick will set the phase to `Running`.
            ControllerPhase::Confirming { start, .. } if self.has_start_passed(start, now) => {
                self.give_up_node(node, format!("node {node}: {what}"), now);
            }
            ControllerPhase::Running { .. }
            | ControllerPhase::Draining { .. }
            | ControllerPhase::Collecting { .. } => {
                self.give_up_node(node, format!("node {node}: {what}"), now);
            }
            _ => self.on_node_failure_before_start(node, blame, &what, now),
        }
    }
}
