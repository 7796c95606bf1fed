//! The packets of a file that can be replayed.

use super::{FileEnding, SkippedPackets};
use crate::recorded::RecordedPackets;
use packetrig_wire::pcap::{CaptureRecord, ETHERNET};
use std::fs::File;
use std::io;

/// Bytes of an Ethernet header, and of an FCS.
const HEADER: usize = 14;
const FCS: usize = 4;

/// A capture file being read.
pub(super) struct ReplayInput {
    packets: RecordedPackets,
    pub(super) skipped: SkippedPackets,
}

/// A packet that can be replayed: its bytes, perhaps with FCS.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplayPacket<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at_ns: Option<u64>,
    /// What the file says of the FCS.
    pub(super) has_fcs: Option<bool>,
    /// Whether the file says that it is several packets on the wire.
    pub(super) is_merged: bool,
}

impl<'a> ReplayPacket<'a> {
    /// The frame without FCS. `usual`: whether there is one where the file says nothing.
    pub(super) fn frame(&self, usual: bool) -> &'a [u8] {
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

    /// Back to the beginning.
    pub(super) fn rewind(&mut self) -> io::Result<()> {
        self.packets.rewind()
    }

    /// Gives the next packet that can be replayed to `take`; `Some` if there is none any more.
    pub(super) fn next(&mut self, take: &mut dyn FnMut(ReplayPacket<'_>)) -> io::Result<Option<FileEnding>> {
        let Self { packets, skipped } = self;
        let mut has_taken = false;
        while !has_taken {
            let ending = packets.next(&mut |record| {
                if pick(skipped, record) {
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

/// Whether a packet can be replayed; counts it if not.
fn pick(skipped: &mut SkippedPackets, record: &CaptureRecord<'_>) -> bool {
    let reason = if record.link_type != ETHERNET {
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
