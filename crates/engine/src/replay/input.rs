//! The packets of a file that can be replayed.

use super::{FileEnding, SkippedPackets};
use crate::recorded::RecordedPackets;
use packetrig_wire::pcap::{CaptureRecord, ETHERNET_LINK_TYPE};
use std::fs::File;
use std::io;

/// Lengths of an Ethernet header and of an FCS, bytes.
const HEADER: usize = 14;
const FCS: usize = 4;

/// Reads the packets of a capture file that can be replayed, and counts the other packets.
pub(super) struct ReplayInput {
    packets: RecordedPackets,
    pub(super) skipped: SkippedPackets,
}

/// A packet that can be replayed: its bytes, possibly with FCS.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayPacket<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at_ns: Option<u64>,
    /// Whether the packet ends with an FCS; `None` if the file does not say.
    pub(super) has_fcs: Option<bool>,
    /// Whether the file says that several packets on the wire were merged into this one.
    pub(super) is_merged: bool,
}

impl<'a> ReplayPacket<'a> {
    /// Returns the frame without FCS. If the file does not say whether the frame has an FCS, `usual` decides.
    pub(super) fn without_fcs(&self, usual: bool) -> &'a [u8] {
        // The FCS of a frame that is too short for header and FCS is not removed, whatever the file says.
        let has_fcs = self.has_fcs.unwrap_or(usual) && self.bytes.len() >= HEADER + FCS;
        if has_fcs { &self.bytes[..self.bytes.len() - FCS] } else { self.bytes }
    }
}

impl ReplayInput {
    pub(super) fn new(file: File) -> io::Result<Self> {
        Ok(Self { packets: RecordedPackets::new(file)?, skipped: SkippedPackets::default() })
    }

    pub(super) fn size(&self) -> u64 {
        self.packets.size()
    }

    /// Returns to the beginning of the file. The counts of skipped packets stay.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.packets.rewind()
    }

    /// Gives the next packet that can be replayed to `take` and returns `None`, or returns how the file ended.
    pub(super) fn next_packet_or_ending(
        &mut self,
        take: &mut dyn FnMut(ReplayPacket<'_>),
    ) -> io::Result<Option<FileEnding>> {
        let Self { packets, skipped } = self;
        let mut has_taken = false;
        while !has_taken {
            let ending = packets.next_packet_or_ending(&mut |record| {
                if check_replayable_or_count_skipped(skipped, record) {
                    let CaptureRecord { bytes, at_ns, has_fcs, merged, .. } = *record;
                    take(ReplayPacket { bytes, at_ns, has_fcs, is_merged: merged.is_some() });
                    has_taken = true;
                }
            })?;
            if ending.is_some() {
                return Ok(ending);
            }
        }
        Ok(None)
    }
}

/// Returns whether a packet can be replayed; if not, counts it by the reason.
fn check_replayable_or_count_skipped(skipped: &mut SkippedPackets, record: &CaptureRecord<'_>) -> bool {
    // One reason per packet, so that the counters add up to the packets of the file.
    let reason = if record.link_type != ETHERNET_LINK_TYPE {
        &mut skipped.other_link
    } else if record.is_cut() {
        &mut skipped.cut
    } else if record.bytes.len() < HEADER {
        &mut skipped.short
    } else {
        return true;
    };
    *reason += 1;
    false
}
