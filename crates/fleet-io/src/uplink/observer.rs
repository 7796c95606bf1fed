//! Reads the state of an uplink for metrics.

use super::UplinkShared;
use packetrig_store::spool::ResultSpool;
use std::sync::Arc;

/// Results that a node keeps for its controller at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Attempts of runs that this process took part in.
    pub begun_runs: u64,
    /// Number of these attempts that ended with a result.
    pub finished_runs: u64,
    /// Segments that wait for the controller.
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
        // This comes before the lock of the uplink: the spool may wait for the disk, and callers of the
        // uplink must not wait for the disk.
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
