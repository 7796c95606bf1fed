//! Where frames become packets, a batch at a time.
//!
//! Everything a source gives is counted here as seen; what is not metered is counted by its cause at once.
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
    /// One in so many is metered.
    sampling: u32,
    /// Passed over since the last one that was.
    passed: u32,
    /// What this meter is to meter of what it sees; all if absent.
    share: Option<FlowShareFilter>,
}

impl PacketIntake {
    /// With nothing in it. `sampling`: every how many packets of the share one is metered; 0 and 1: all.
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

    /// How many packets it takes until it is full.
    pub fn room(&self) -> usize {
        BATCH - self.filled
    }

    /// Takes a frame without FCS. There must be [room](Self::room).
    #[inline]
    pub fn frame(&mut self, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.frame_as(LinkKind::Ethernet, bytes, full_len, at_ns, input);
    }

    /// The same of a frame that begins with something else.
    #[inline]
    pub fn frame_as(&mut self, link: LinkKind, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.see(full_len as u64);
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

    /// Takes a header that was read in the driver. There must be room.
    #[inline]
    pub fn header(&mut self, record: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.see(full_len as u64);
        let packet = &mut self.packets[self.filled];
        if !unified::read(record, full_len, at_ns, input, packet) {
            return self.counts.ignore(IgnoredReason::BadIp);
        }
        if self.share.is_some_and(|share| !share.has_packet(packet)) {
            return self.counts.ignore(IgnoredReason::Elsewhere);
        }
        self.filled += usize::from(self.is_chosen());
    }

    /// Takes what was passed over unread, for a cause. Like all that has no addresses it is of the first share.
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

    /// Begins the next batch.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// What was seen and ignored.
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
        self.passed += 1;
        if self.passed < self.sampling {
            self.counts.ignore(IgnoredReason::Sampled);
            return false;
        }
        self.passed = 0;
        true
    }
}
