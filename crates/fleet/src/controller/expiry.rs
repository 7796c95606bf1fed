//! Checks deadlines: the controller stops waiting for nodes and answers that are late.

use super::peer::PeerProgress;
use super::{ControllerMachine, ControllerPhase};
use crate::message::NodeName;
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::SPLIT_START_MARK;
use packetrig_units::Blame;
use packetrig_units::{MonoTime, Nanos};

/// Text in a report for a node without a result. If the result arrives later, the text is replaced.
pub const RESULT_MISSING: &str = "its result did not arrive";

impl ControllerMachine {
    /// Gives up waiting for answers that did not arrive in time.
    pub(super) fn check_deadlines(&mut self, now: MonoTime) {
        match self.phase {
            ControllerPhase::Preparing { until } if now >= until => {
                self.on_silence_before_start(PeerProgress::Prepared, now);
            }
            ControllerPhase::Arming { until } if now >= until => {
                self.on_silence_before_start(PeerProgress::Armed, now);
            }
            ControllerPhase::Running { start } => self.check_running_deadlines(start, now),
            ControllerPhase::Committing { start, .. }
                if now + self.limits.guard >= start && !self.preparation.terms.steered =>
            {
                self.on_commit_timeout(now);
            }
            // In a steered run no stream begins at the start time, so the nodes may acknowledge the commit later:
            // within the time that they have to prepare.
            ControllerPhase::Committing { start, .. }
                if self.preparation.terms.steered && now >= start + self.limits.prepare =>
            {
                self.on_silence_before_start(PeerProgress::Committed, now);
            }
            ControllerPhase::Confirming { since, .. }
                if self.preparation.terms.steered && now >= since + self.limits.start =>
            {
                self.on_steered_start_timeout(now);
            }
            ControllerPhase::Collecting { until, .. } if now >= until => {
                self.give_up_peers_behind(PeerProgress::Reported, RESULT_MISSING, now);
            }
            _ => {}
        }
    }

    pub(super) fn on_silence_before_start(&mut self, wanted: PeerProgress, now: MonoTime) {
        let text = format!("did not get ready within {}", self.limits.prepare);
        let stragglers = self.list_stragglers(wanted, &text);
        // The error names only the first silent node; usually the others are silent for the same reason.
        let Some((first, _)) = stragglers.first().cloned() else { return };
        if !self.try_exclude_nodes(stragglers, now) {
            self.on_node_failure(&first, Blame::Peer, &text, now);
        }
    }

    /// Handles commits that were not acknowledged in time: leaves the silent nodes out if the user's policy allows it,
    /// otherwise begins the next attempt.
    pub(super) fn on_commit_timeout(&mut self, now: MonoTime) {
        let stragglers =
            self.list_stragglers(PeerProgress::Committed, "did not acknowledge the start in time");
        if !stragglers.is_empty() && !self.try_exclude_nodes(stragglers, now) {
            self.start_next_attempt(now);
        }
    }

    /// Fails a steered run if some nodes have not confirmed its start. Nothing was sent, so nothing is lost.
    fn on_steered_start_timeout(&mut self, now: MonoTime) {
        let why = format!("did not confirm the start {SPLIT_START_MARK}");
        let first = self.list_stragglers(PeerProgress::Confirmed, &why).into_iter().next();
        if let Some((node, why)) = first {
            self.on_node_failure(&node, Blame::Peer, &why, now);
        }
    }

    pub(super) fn check_running_deadlines(&mut self, start: MonoTime, now: MonoTime) {
        self.give_up_unconfirmed_nodes(start, now);
        if now >= start + self.limits.start {
            // A node with a confirmation starts by itself at the start time, so a missing report means
            // that the node failed.
            self.give_up_peers_behind(PeerProgress::Started, "did not start with the others", now);
        }
        if self.stopping.is_some_and(|until| now >= until) {
            // The other nodes must not wait for a node that does not stop. In a fleet its senders stop
            // when the lease ends.
            self.give_up_peers_behind(PeerProgress::Done, "did not stop after the order to stop", now);
        }
        if now >= self.silent_from {
            self.give_up_silent_nodes(now);
        }
    }

    fn give_up_silent_nodes(&mut self, now: MonoTime) {
        let quiet = self.limits.silence;
        let earliest = self.peers_behind(PeerProgress::Done).map(|(_, peer)| peer.heard).min();
        // No other node can have been silent for too long before this time, so no node is checked until then.
        self.silent_from = earliest.map_or(now, |heard| heard + quiet);
        let silent: Vec<NodeName> = self
            .peers_behind(PeerProgress::Done)
            .filter(|(_, peer)| now >= peer.heard + quiet)
            .map(|(node, _)| node.clone())
            .collect();
        if silent.is_empty() {
            return;
        }
        // If one machine is silent, that machine has failed. If all are silent, a component that they share has failed:
        // then all of them fell silent within the interval between two messages of a node.
        let lately = Nanos::new(quiet.as_u64() / 3 * 2);
        let nobody = self.peers.len() > 1 && self.peers.values().all(|peer| now >= peer.heard + lately);
        let what = if nobody {
            format!("no node sent a message for {quiet}: the message server or the path to it failed")
        } else {
            format!("silent for {quiet}")
        };
        for node in silent {
            self.on_node_failure(&node, Blame::Peer, &what, now);
        }
    }

    /// Handles a pause in which the controller's own program did not run.
    pub(super) fn on_standstill(&mut self, length: Nanos, now: MonoTime) {
        // A node counts as silent only for the time in which the controller could receive messages.
        self.peers.change_all_peers(|peer| peer.heard = (peer.heard + length).min(now));
        // The pause does not count against the deadlines, because the controller could read no answers in it.
        if let ControllerPhase::Preparing { until }
        | ControllerPhase::Arming { until }
        | ControllerPhase::Collecting { until, .. } = &mut self.phase
        {
            *until = *until + length;
        }
        // The report names the pause, because leases that ended in it were lost through the controller's own fault.
        let text = format!("the controller's own process did not run for {length}");
        self.emit_event(RunEventKind::Finding(text.clone()));
        // Before the start, the pause cannot have affected the traffic.
        if self.has_started() {
            self.reasons.push((None, text));
        }
    }

    pub(super) fn give_up_peers_behind(&mut self, wanted: PeerProgress, what: &str, now: MonoTime) {
        if self.have_all_peers_reached(wanted) {
            return;
        }
        // The nodes are collected first, because `on_node_failure` changes them.
        let behind: Vec<NodeName> = self.peers_behind(wanted).map(|(node, _)| node.clone()).collect();
        for node in behind {
            self.on_node_failure(&node, Blame::Peer, what, now);
        }
    }
}
