//! What is not waited for any longer.

use super::peer::PeerProgress;
use super::{ControllerMachine, ControllerPhase};
use crate::event::RunEventKind;
use crate::message::NodeName;
use crate::outcome::SPLIT_START;
use packetrig_units::Blame;
use packetrig_units::{MonoTime, Nanos};

/// Why a node is missing in a report. It is no reason any more once its result has come.
pub const RESULT_MISSING: &str = "its result did not come";

impl ControllerMachine {
    /// Gives up waiting for what did not come in time.
    pub(super) fn expire(&mut self, now: MonoTime) {
        match self.phase {
            ControllerPhase::Preparing { until } if now >= until => {
                self.silent_before_start(PeerProgress::Prepared, now);
            }
            ControllerPhase::Arming { until } if now >= until => {
                self.silent_before_start(PeerProgress::Armed, now);
            }
            ControllerPhase::Running { start } => self.expire_running(start, now),
            ControllerPhase::Committing { start, .. }
                if now + self.limits.guard >= start && !self.preparation.terms.steered =>
            {
                self.expire_commit(now);
            }
            // Nothing begins at T in a steered run, so an acknowledgement is late only when nobody waits for it any more.
            ControllerPhase::Committing { start, .. }
                if self.preparation.terms.steered && now >= start + self.limits.prepare =>
            {
                self.silent_before_start(PeerProgress::Committed, now);
            }
            ControllerPhase::Confirming { since, .. }
                if self.preparation.terms.steered && now >= since + self.limits.start =>
            {
                self.expire_steered_start(now);
            }
            ControllerPhase::Collecting { until, .. } if now >= until => {
                self.give_up(PeerProgress::Reported, RESULT_MISSING, now);
            }
            _ => {}
        }
    }

    pub(super) fn silent_before_start(&mut self, wanted: PeerProgress, now: MonoTime) {
        let text = format!("did not get ready within {}", self.limits.prepare);
        let stragglers = self.stragglers(wanted, &text);
        let Some((first, _)) = stragglers.first().cloned() else { return };
        if !self.leave_out(stragglers, now) {
            self.trouble(&first, Blame::Peer, &text, now);
        }
    }

    /// Not all have acknowledged the commit in time: without the silent ones if that is accepted, else once more.
    pub(super) fn expire_commit(&mut self, now: MonoTime) {
        let stragglers = self.stragglers(PeerProgress::Committed, "did not acknowledge the start in time");
        if !stragglers.is_empty() && !self.leave_out(stragglers, now) {
            self.try_again(now);
        }
    }

    /// Nothing was sent, so a steered run whose start some nodes have not confirmed fails as a whole.
    fn expire_steered_start(&mut self, now: MonoTime) {
        let why = format!("did not confirm the start {SPLIT_START}");
        let first = self.stragglers(PeerProgress::Confirmed, &why).into_iter().next();
        if let Some((node, why)) = first {
            self.trouble(&node, Blame::Peer, &why, now);
        }
    }

    pub(super) fn expire_running(&mut self, start: MonoTime, now: MonoTime) {
        self.expire_confirmations(start, now);
        if now >= start + self.limits.start {
            self.give_up(PeerProgress::Started, "did not start with the others", now);
        }
        if self.stopping.is_some_and(|until| now >= until) {
            self.give_up(PeerProgress::Done, "did not stop when told", now);
        }
        if now >= self.silent_from {
            self.expire_silent(now);
        }
    }

    fn expire_silent(&mut self, now: MonoTime) {
        let quiet = self.limits.silence;
        let earliest = self.behind(PeerProgress::Done).map(|(_, peer)| peer.heard).min();
        // The earliest time at which another node can have been silent too long: until then nobody needs to
        // be looked at.
        self.silent_from = earliest.map_or(now, |heard| heard + quiet);
        let silent: Vec<NodeName> = self
            .behind(PeerProgress::Done)
            .filter(|(_, peer)| now >= peer.heard + quiet)
            .map(|(node, _)| node.clone())
            .collect();
        if silent.is_empty() {
            return;
        }
        // One machine that cannot be heard is that machine; all of them are what they have in common. They fell silent within
        // the time between two of their words.
        let lately = Nanos::new(quiet.as_u64() / 3 * 2);
        let nobody = self.peers.len() > 1 && self.peers.values().all(|peer| now >= peer.heard + lately);
        let what = if nobody {
            format!("not heard for {quiet}, nor was any other: the message server or the path to it failed")
        } else {
            format!("silent for {quiet}")
        };
        for node in silent {
            self.trouble(&node, Blame::Peer, &what, now);
        }
    }

    /// This controller's own program did not run for that long.
    pub(super) fn stood_still(&mut self, length: Nanos, now: MonoTime) {
        // Only time in which the controller could hear counts as silence.
        self.peers.change_all(|peer| peer.heard = (peer.heard + length).min(now));
        // Nodes get the time that they were promised: while nobody read their answers, it did not pass.
        if let ControllerPhase::Preparing { until }
        | ControllerPhase::Arming { until }
        | ControllerPhase::Collecting { until, .. } = &mut self.phase
        {
            *until = *until + length;
        }
        // Messages of the nodes still wait to be read. That their leases have run out is the controller's own
        // fault.
        let text = format!("the controller itself stood still for {length}");
        self.emit(RunEventKind::Finding(text.clone()));
        if self.has_started() {
            self.reasons.push((None, text));
        }
    }

    pub(super) fn give_up(&mut self, wanted: PeerProgress, what: &str, now: MonoTime) {
        if self.all(wanted) {
            return;
        }
        let behind: Vec<NodeName> = self.behind(wanted).map(|(node, _)| node.clone()).collect();
        for node in behind {
            self.trouble(&node, Blame::Peer, what, now);
        }
    }
}
