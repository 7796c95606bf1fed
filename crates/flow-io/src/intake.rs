//! Parses frames into packets, one batch at a time.
//!
//! Every frame that a source gives is counted as seen; one that is not metered is counted at once, by its reason.
//!
//! Invariant: seen = packets in batches + ignored.

use crate::FlowShareFilter;
use packetrig_flow::parse::{FrameParser, LinkKind, ParseOptions, unified};
use packetrig_flow::{IgnoredReason, PacketCounts, PacketInfo};

/// Packets of a batch: enough to hide the latency of memory behind each other's work.
pub const BATCH: usize = 32;

#[derive(Debug)]
pub struct PacketIntake {
    parser: FrameParser,
    packets: Box<[PacketInfo; BATCH]>,
    filled: usize,
    counts: PacketCounts,
    /// One packet in this many is metered.
    sampling: u32,
    /// Packets that were not chosen since the last one that was.
    passed: u32,
    /// The share of traffic that this meter is to meter; all if absent.
    share: Option<FlowShareFilter>,
}

impl PacketIntake {
    /// An empty intake. `sampling`: one packet of the share in this many is metered; 0 and 1 mean all.
    pub fn new(options: ParseOptions, sampling: u32, share: Option<FlowShareFilter>) -> Self {
        Self {
            parser: FrameParser::new(options),
            packets: Box::new([PacketInfo::default(); BATCH]),
            filled: 0,
            counts: PacketCounts::default(),
            sampling: sampling.max(1),
            passed: 0,
            share,
        }
    }

    /// How many packets still fit into the batch.
    pub fn room(&self) -> usize {
        BATCH - self.filled
    }

    /// Takes a frame without FCS. There must be [room](Self::room).
    #[inline]
    pub fn frame(&mut self, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.frame_as(LinkKind::Ethernet, bytes, full_len, at_ns, input);
    }

    /// Takes a frame that begins with another link header than Ethernet's.
    #[inline]
    pub fn frame_as(&mut self, link: LinkKind, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.see(full_len as u64);
        // Share before sampling: each meter then samples its own share, whatever the others see.
        if self.share.is_some_and(|share| !share.has_frame(bytes, link)) {
            return self.counts.ignore(IgnoredReason::Elsewhere);
        }
        if !self.is_chosen() {
            return;
        }
        let packet = &mut self.packets[self.filled];
        match self.parser.parse_as(link, bytes, full_len, at_ns, input, packet) {
            Ok(()) => self.filled += 1,
            Err(cause) => self.counts.ignore(cause),
        }
    }

    /// Takes a unified header, which an XDP program made in the driver. There must be room.
    #[inline]
    pub fn header(&mut self, record: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.see(full_len as u64);
        // The packet is written before it is known whether it counts; `filled` moves only if it does.
        let packet = &mut self.packets[self.filled];
        if !unified::read(record, full_len, at_ns, input, packet) {
            return self.counts.ignore(IgnoredReason::BadIp);
        }
        if self.share.is_some_and(|share| !share.has_packet(packet)) {
            return self.counts.ignore(IgnoredReason::Elsewhere);
        }
        self.filled += usize::from(self.is_chosen());
    }

    /// Counts packets that were not parsed, with the reason. They have no addresses, so they belong to the first share.
    pub fn ignored(&mut self, cause: IgnoredReason, packets: u64, bytes: u64) {
        let is_ours = self.share.is_none_or(FlowShareFilter::is_first);
        let cause = if is_ours { cause } else { IgnoredReason::Elsewhere };
        self.counts.seen += packets;
        self.counts.seen_bytes += bytes;
        self.counts.ignored[cause as usize] += packets;
    }

    pub fn packets(&self) -> &[PacketInfo] {
        &self.packets[..self.filled]
    }

    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Counts of what was seen and what was ignored.
    pub fn counts(&self) -> &PacketCounts {
        &self.counts
    }

    #[inline]
    fn see(&mut self, bytes: u64) {
        self.counts.seen += 1;
        self.counts.seen_bytes += bytes;
    }

    #[inline]
    fn is_chosen(&mut self) -> bool {
        if self.sampling == 1 {
            return true;
        }
        // Every n-th packet, not a random one: results are the same for every reading of a file.
        self.passed += 1;
        if self.passed < self.sampling {
            self.counts.ignore(IgnoredReason::Sampled);
            return false;
        }
        self.passed = 0;
        true
    }
}
