//! Attempts to start: prepares the nodes, chooses the start time, and tries again if a node gets the
//! start time too late.

use super::peer::PeerProgress;
use super::{ControllerMachine, ControllerPhase};
use packetrig_report::event::RunEventKind;
use packetrig_report::outcome::{NodeFault, RunState};
use packetrig_units::{MonoTime, Nanos};

/// Maximum lead time that is computed from the time to arm. If arming takes very long, the ports are slow and not the
/// messages, so a longer lead time would not help.
const MAX_LEAD: Nanos = Nanos::from_secs(10);

impl ControllerMachine {
    pub(super) fn prepare_nodes(&mut self, now: MonoTime) {
        // Progress is reset in each attempt. Late replies of an earlier attempt carry its number and are ignored.
        self.peers.change_all_peers(|peer| {
            peer.progress = PeerProgress::Asked;
            peer.heard = now;
        });
        self.phase = ControllerPhase::Preparing { until: now + self.limits.prepare };
        self.enter_state(RunState::Preparing);
        self.broadcast_commands(now);
    }

    /// Chooses the start time and sends it to the nodes. `arming` is the time that the nodes took to arm.
    pub(super) fn commit_start(&mut self, arming: Nanos, now: MonoTime) {
        // The last lead time was too short for a node, so it is doubled. The limit keeps the shift from overflowing.
        let doublings = self.tries.saturating_sub(1).min(16);
        // Arming is one round of messages with all nodes, and shows how fast they are now. Two more rounds follow
        // before the start (commit and confirmation), and the second must not be late at any node. A round trip that
        // was measured on an idle fleet would be too short.
        let rounds = Nanos::new(arming.as_u64().saturating_mul(self.limits.arming_rounds)).min(MAX_LEAD);
        let lead = Nanos::new(self.limits.lead.as_u64() << doublings).max(rounds);
        // In a steered run no stream begins at the start time, so the start needs no lead time.
        let start = if self.preparation.terms.steered { now } else { now + lead };
        self.phase = ControllerPhase::Committing { since: now, start };
        self.enter_state(RunState::Committed);
        self.emit_event(RunEventKind::StartSet { at: start });
        self.broadcast_commands(now);
    }

    /// True if confirmations that are sent now arrive in time, assuming that they take as long as the slowest
    /// acknowledgement of the commit.
    pub(super) fn can_confirm(&self, since: MonoTime, start: MonoTime, now: MonoTime) -> bool {
        // A confirmation that reaches only some nodes is the only step that cannot be undone.
        self.preparation.terms.steered || now + self.limits.margin + now.since(since) < start
    }

    /// True if the run has started. A steered run sends nothing at its start time, so it counts as started only when
    /// all nodes have confirmed: either all of them start or none.
    pub(super) fn has_run_begun(&self, start: MonoTime, now: MonoTime) -> bool {
        if self.preparation.terms.steered {
            return self.have_all_peers_reached(PeerProgress::Confirmed);
        }
        now >= start && (!self.awaits_single_local_node() || now >= self.confirmation_deadline(start))
    }

    /// True if the start time has passed, so that nodes may have sent something. A steered run sends nothing then.
    pub(super) fn has_start_passed(&self, start: MonoTime, now: MonoTime) -> bool {
        now >= start && !self.preparation.terms.steered
    }

    /// True if the run has only one node, in the controller's own process, and this node has not accepted the
    /// confirmation. Until then nothing has started, even after the start time, so the start can be tried again.
    pub(super) fn awaits_single_local_node(&self) -> bool {
        self.limits.lease.is_none()
            && self.peers.len() == 1
            && !self.have_all_peers_reached(PeerProgress::Confirmed)
    }

    /// Begins another attempt, because the commit was too late for some node.
    pub(super) fn start_next_attempt(&mut self, now: MonoTime) {
        // Nothing was confirmed, so nothing starts at the old start time.
        if self.tries >= self.limits.attempts {
            let late: Vec<String> = self
                .peers_behind(PeerProgress::Committed)
                .map(|(node, _)| format!("; node {node} did not accept it"))
                .collect();
            return self.fail_run(NodeFault::no_common_start(self.limits.attempts, &late.concat()), now);
        }
        // Fencing: nodes refuse commands with the old start time, because they carry a lower attempt number.
        self.tries += 1;
        self.head.attempt += 1;
        self.emit_event(RunEventKind::Finding(format!(
            "a node received the start time too late; trying again with attempt {}",
            self.head.attempt
        )));
        self.prepare_nodes(now);
    }
}
