//! What the controller knows of one node.

use crate::message::SentTotal;
use packetrig_stats::result::NodeResult;
use packetrig_units::{MonoTime, Nanos};
use std::sync::Arc;

/// How far a node has said it is, in this attempt. It only rises, so repeated and overtaken replies do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PeerProgress {
    Asked,
    Prepared,
    Armed,
    Committed,
    Confirmed,
    Started,
    Done,
    /// Its result is safe with itself.
    Spooled,
    Reported,
}

impl PeerProgress {
    /// How many there are.
    pub(super) const STEPS: usize = Self::Reported as usize + 1;
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own; none excludes another")]
pub(super) struct ControllerPeer {
    pub(super) progress: PeerProgress,
    /// Last sign of life that fits the state of the run.
    pub(super) heard: MonoTime,
    /// When it was last asked how far it is.
    pub(super) asked: MonoTime,
    pub(super) shown: bool,
    pub(super) released: bool,
    /// Not waited for any more.
    pub(super) lost: bool,
    /// Nothing of the run is open there any more: its agent failed or was started again.
    pub(super) gone: bool,
    /// When it was last told that it may go on sending.
    pub(super) granted: Option<MonoTime>,
    pub(super) sampled: Option<MonoTime>,
    pub(super) sent: Vec<SentTotal>,
    pub(super) result: Option<Arc<NodeResult>>,
    /// All that it kept is here, and there is no result among it.
    pub(super) unfinished: bool,
    /// The longest that its agent has waited for a processor.
    pub(super) starved: Nanos,
}

impl ControllerPeer {
    /// Whether its result may still come.
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

    pub(super) fn reach(&mut self, progress: PeerProgress, now: MonoTime) {
        self.progress = self.progress.max(progress);
        self.heard = now;
    }
}
