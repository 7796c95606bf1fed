//! Cumulative counts of one stream: cheap to copy ten times a second, so that live readers never disturb a worker.

use crate::sequence::SequenceCounts;
use packetrig_units::MonoTime;
use serde::{Deserialize, Serialize};

/// Counts of a stream at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTxCounts {
    /// Frames built and handed over so far.
    pub frames: u64,
    /// Their bytes, FCS included.
    pub bytes: u64,
    /// Frames sent later than their instant by more than the stated tolerance.
    pub late: u64,
    /// Frames of a stream with tags that left without one: they cannot be known again at the receiver.
    #[serde(default)]
    pub untagged: u64,
    /// First departure.
    pub first: Option<MonoTime>,
    /// Last departure.
    pub last: Option<MonoTime>,
}

impl StreamTxCounts {
    /// Frames that receivers can know again; numbers in tags go from 0 to this.
    pub const fn numbered(&self) -> u64 {
        self.frames - self.untagged
    }
}

/// Counts of a stream at one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamRxCounts {
    /// Frames recognised, copies included.
    pub frames: u64,
    /// Their bytes, FCS included.
    pub bytes: u64,
    /// Loss, duplicates, reordering.
    pub sequence: SequenceCounts,
    /// Frames whose headers are not as sent, payload intact.
    pub altered: u64,
    /// Frames whose payload is damaged, tag intact.
    pub corrupt: u64,
    /// Frames known by their headers only: the tag was damaged.
    pub unnumbered: u64,
    /// Frames stamped earlier than they were sent: the clocks disagree.
    pub negative: u64,
    /// First arrival.
    pub first: Option<MonoTime>,
    /// Last arrival.
    pub last: Option<MonoTime>,
}
