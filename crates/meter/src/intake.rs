//! Where frames become packets, a batch at a time.
//!
//! Everything a source gives is counted here as seen; what is not metered is counted by its cause at once.
//!
//! Invariant: seen = packets in batches + ignored.

use crate::Share;
use packetrig_flow::parse::{Link, ParseOptions, Parser, unified};
use packetrig_flow::{Counts, Ignored, Packet};

/// Packets of a batch: enough to hide the latency of memory behind each other's work.
pub const BATCH: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct Intake {
    parser: Parser,
    packets: Box<[Packet; BATCH]>,
    filled: usize,
    counts: Counts,
    /// One in so many is metered.
    sampling: u32,
    /// Passed over since the last one that was.
    passed: u32,
    /// What this meter is to meter of what it sees; all if absent.
    share: Option<Share>,
}

impl Intake {
    /// With nothing in it. `sampling`: every how many packets of the share one is metered; 0 and 1: all.
    pub fn new(options: ParseOptions, sampling: u32, share: Option<Share>) -> Self {
        Self {
            parser: Parser::new(options),
            packets: Box::new([Packet::default(); BATCH]),
            filled: 0,
            counts: Counts::default(),
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
        self.frame_as(Link::Ethernet, bytes, full_len, at_ns, input);
    }

    /// The same of a frame that begins with something else.
    #[inline]
    pub fn frame_as(&mut self, link: Link, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.see(full_len as u64);
        if self.share.is_some_and(|share| !share.has_frame(bytes, link)) {
            return self.counts.ignore(Ignored::Elsewhere);
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
            return self.counts.ignore(Ignored::BadIp);
        }
        if self.share.is_some_and(|share| !share.has_packet(packet)) {
            return self.counts.ignore(Ignored::Elsewhere);
        }
        self.filled += usize::from(self.is_chosen());
    }

    /// Takes what was passed over unread, for a cause. Like all that has no addresses it is of the first share.
    pub fn ignored(&mut self, cause: Ignored, packets: u64, bytes: u64) {
        let is_ours = self.share.is_none_or(Share::is_first);
        let cause = if is_ours { cause } else { Ignored::Elsewhere };
        self.counts.seen += packets;
        self.counts.seen_bytes += bytes;
        self.counts.ignored[cause as usize] += packets;
    }

    /// The batch.
    pub fn packets(&self) -> &[Packet] {
        &self.packets[..self.filled]
    }

    /// Begins the next batch.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// What was seen and ignored.
    pub fn counts(&self) -> &Counts {
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
            self.counts.ignore(Ignored::Sampled);
            return false;
        }
        self.passed = 0;
        true
    }
}
