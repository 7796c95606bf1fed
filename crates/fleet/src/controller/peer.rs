//! State of one node, as the controller knows it from the node's messages.

use crate::message::SentTotal;
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// Progress that a node has reported in this attempt. It only rises, so repeated and late replies change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerProgress {
    Asked,
    Prepared,
    Armed,
    Committed,
    Confirmed,
    Started,
    Done,
    /// The result is safe on the node's disk.
    Spooled,
    Reported,
}

impl PeerProgress {
    /// Number of steps, for counts by step.
    pub(super) const STEP_COUNT: usize = Self::Reported as usize + 1;
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own; none excludes another")]
pub(super) struct ControllerPeer {
    pub(super) progress: PeerProgress,
    /// Time of the last message that counts as a sign of life.
    pub(super) heard: MonoTime,
    /// Time at which the controller last sent a QUERY to the node.
    pub(super) asked: MonoTime,
    pub(super) shown: bool,
    pub(super) released: bool,
    /// True if the controller does not wait for this node any more.
    pub(super) lost: bool,
    /// True if the node no longer has this run: its agent failed, was restarted, or missed the start.
    pub(super) gone: bool,
    /// Time of the last lease grant that allowed the node to send.
    pub(super) granted: Option<MonoTime>,
    pub(super) sampled: Option<MonoTime>,
    pub(super) sent: Vec<SentTotal>,
    pub(super) result: Option<Arc<NodeResult>>,
    /// True if all stored segments of the node have arrived, and no result is among them.
    pub(super) unfinished: bool,
    /// Longest time for which the node's agent has waited for a processor.
    pub(super) starved: Nanos,
}

impl ControllerPeer {
    /// True if the node's result may still arrive.
    pub(super) const fn owes_result(&self) -> bool {
        self.result.is_none() && !self.unfinished
    }
}

impl ControllerPeer {
    pub(super) const fn new(now: MonoTime) -> Self {
        Self {
            progress: PeerProgress::Asked,
            heard: now,
            asked: now,
            shown: false,
            released: false,
            lost: false,
            gone: false,
            granted: None,
            sampled: None,
            sent: Vec::new(),
            result: None,
            unfinished: false,
            starved: Nanos::ZERO,
        }
    }

    pub(super) fn raise_progress(&mut self, progress: PeerProgress, now: MonoTime) {
        // A late reply to an earlier command must not set the node back.
        self.progress = self.progress.max(progress);
        self.heard = now;
    }
}
