//! Reads the state of an uplink for metrics.

use super::UplinkShared;
use packetrig_store::spool::ResultSpool;
use std::sync::Arc;

/// State of an uplink at one moment: the results that a node keeps for its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Number of attempts of runs that this process took part in.
    pub begun_runs: u64,
    /// Number of these attempts that ended with a result.
    pub finished_runs: u64,
    /// Number of segments that wait for the controller.
    pub waiting_segments: u64,
    /// Bytes that the spool uses on the disk.
    pub used_bytes: u64,
    /// True if segments cannot be handed over now.
    pub is_blocked: bool,
}

/// Reads the state of an uplink on any thread.
#[derive(Clone, Debug)]
pub struct UplinkObserver {
    spool: ResultSpool,
    shared: Arc<UplinkShared>,
}

impl UplinkObserver {
    pub(super) const fn new(spool: ResultSpool, shared: Arc<UplinkShared>) -> Self {
        Self { spool, shared }
    }

    pub fn read_status(&self) -> UplinkStatus {
        // The spool is read before the uplink is locked: the spool may wait for the disk, and callers of the uplink
        // must not wait for it.
        let (waiting_segments, used_bytes) = (self.spool.pending_segment_count(), self.spool.used_bytes());
        let state = self.shared.lock_uplink();
        UplinkStatus {
            begun_runs: state.begun_runs,
            finished_runs: state.finished_runs,
            waiting_segments,
            used_bytes,
            is_blocked: state.obstacle.is_some(),
        }
    }
}
