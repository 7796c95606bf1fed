//! Parses frames into packets, one batch at a time.
//!
//! Every frame from a source is counted as seen. A frame that is not metered is counted at once as ignored, by reason.
//! A merged frame counts as the packets of which it consisted on the wire.
//!
//! Invariant: seen = packets in batches + ignored.

use crate::FlowShareFilter;
use packetrig_flow::parse::merged::{MergeMetadata, PacketSegments, SelectedSegments};
use packetrig_flow::parse::{FrameParser, LinkKind, ParseOptions, unified};
use packetrig_flow::{IgnoredReason, PacketCounts, PacketInfo, flags};
use packetrig_units::{clamp_to_u16, clamp_to_u32};

/// Number of packets in a batch: enough that the processor works on some packets while it waits for
/// the memory of others.
pub const PACKETS_PER_BATCH: usize = 32;

#[derive(Debug)]
pub struct PacketIntake {
    parser: FrameParser,
    packets: Box<[PacketInfo; PACKETS_PER_BATCH]>,
    filled: usize,
    counts: PacketCounts,
    /// One packet in this many is metered.
    sampling: u32,
    /// Number of packets that sampling has skipped since the last chosen packet.
    passed: u32,
    /// Share of the traffic that this meter meters; `None` means all traffic.
    share: Option<FlowShareFilter>,
}

impl PacketIntake {
    /// Creates an empty intake. It selects one in `sampling` packets of the share; 0 and 1 mean all packets.
    pub fn new(options: ParseOptions, sampling: u32, share: Option<FlowShareFilter>) -> Self {
        Self {
            parser: FrameParser::new(options),
            packets: Box::new([PacketInfo::default(); PACKETS_PER_BATCH]),
            filled: 0,
            counts: PacketCounts::default(),
            sampling: sampling.max(1),
            passed: 0,
            share,
        }
    }

    /// Number of packets that still fit into the batch.
    pub fn free_slots(&self) -> usize {
        PACKETS_PER_BATCH - self.filled
    }

    /// Parses a frame without FCS, and adds its packet to the batch, which must have [room](Self::free_slots).
    #[inline]
    pub fn add_frame(&mut self, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.add_frame_as(LinkKind::Ethernet, bytes, full_len, at_ns, input);
    }

    /// Like [`Self::add_frame`], for a frame that begins with a link header of the kind `link`.
    #[inline]
    pub fn add_frame_as(&mut self, link: LinkKind, bytes: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.count_received_bytes(full_len as u64);
        // The share comes before sampling: each meter then samples its own share, independent of other meters.
        if self.share.is_some_and(|share| !share.selects_frame(bytes, link)) {
            return self.counts.count_ignored(IgnoredReason::Elsewhere);
        }
        if !self.sample_packet() {
            return;
        }
        let packet = &mut self.packets[self.filled];
        match self.parser.parse_frame_as(link, bytes, full_len, at_ns, input, packet) {
            Ok(()) => {
                self.counts.unsplit += u64::from(packet.flags & flags::UNSPLIT_FLAG != 0);
                self.filled += 1;
            }
            Err(cause) => self.counts.count_ignored(cause),
        }
    }

    /// Like [`Self::add_frame`], for an Ethernet frame that was merged from several frames, according to the kernel.
    pub fn add_merged_frame(
        &mut self,
        bytes: &[u8],
        full_len: usize,
        note: MergeMetadata,
        at_ns: u64,
        input: u16,
    ) {
        let Some(segments) = PacketSegments::from_frame(bytes, full_len, note) else {
            return self.add_unsplit_frame(LinkKind::Ethernet, bytes, full_len, at_ns, input);
        };
        let all = segments.all_segments();
        let count = u64::from(all.count);
        // Every frame is counted before the share and the sampling: seen = packets in batches + ignored.
        self.counts.seen += count;
        self.counts.seen_bytes += segments.frame_bytes() as u64;
        self.counts.merged += 1;
        self.counts.merged_packets += count;
        if self.share.is_some_and(|share| !share.selects_frame(bytes, LinkKind::Ethernet)) {
            return self.counts.count_ignored_packets(IgnoredReason::Elsewhere, count);
        }
        let chosen = self.sample_segments(all);
        if chosen.count == 0 {
            return;
        }
        let packet = &mut self.packets[self.filled];
        match self.parser.parse_frame(bytes, full_len, at_ns, input, packet) {
            Ok(()) => {
                segments.apply_segments(chosen, packet);
                self.counts.unsplit += u64::from(packet.flags & flags::UNSPLIT_FLAG != 0);
                self.filled += 1;
            }
            // The other packets of the merged frame are already counted as left out by sampling.
            Err(cause) => self.counts.count_ignored_packets(cause, chosen.count.into()),
        }
    }

    /// Like [`Self::add_frame_as`], for a frame that is longer than any frame on the wire and that was merged from
    /// unknown frames. It counts as one packet, and its flow is marked.
    pub fn add_unsplit_frame(
        &mut self,
        link: LinkKind,
        bytes: &[u8],
        full_len: usize,
        at_ns: u64,
        input: u16,
    ) {
        // The frame may be ignored: only a packet that was added is marked.
        let before = self.filled;
        self.add_frame_as(link, bytes, full_len, at_ns, input);
        for packet in &mut self.packets[before..self.filled] {
            self.counts.unsplit += u64::from(packet.flags & flags::UNSPLIT_FLAG == 0);
            packet.flags |= flags::UNSPLIT_FLAG;
        }
    }

    /// Adds the packet of a unified header, which an XDP program has made in the driver. The batch must have room.
    #[inline]
    pub fn add_unified_header(&mut self, record: &[u8], full_len: usize, at_ns: u64, input: u16) {
        self.count_received_bytes(full_len as u64);
        // The packet is written before it is known whether it counts; `filled` moves only if it does.
        let packet = &mut self.packets[self.filled];
        if !unified::read_record(record, full_len, at_ns, input, packet) {
            // The program in the driver makes only whole records, so this record is damaged and has no usable header.
            return self.counts.count_ignored(IgnoredReason::BadIp);
        }
        if self.share.is_some_and(|share| !share.selects_packet(packet)) {
            return self.counts.count_ignored(IgnoredReason::Elsewhere);
        }
        self.filled += usize::from(self.sample_packet());
    }

    /// Counts packets that were not parsed, with the reason. They have no addresses, so they belong to the first share.
    pub fn count_ignored(&mut self, cause: IgnoredReason, packets: u64, bytes: u64) {
        // Exactly one meter must count these packets, or the shares would not add up to the traffic.
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

    /// Counts of seen and ignored packets.
    pub fn counts(&self) -> &PacketCounts {
        &self.counts
    }

    #[inline]
    fn count_received_bytes(&mut self, bytes: u64) {
        self.counts.seen += 1;
        self.counts.seen_bytes += bytes;
    }

    /// Chooses some of the packets of a merged frame: the same packets that [`Self::sample_packet`] would choose
    /// one after the other.
    fn sample_segments(&mut self, all: SelectedSegments) -> SelectedSegments {
        let (passed, count) = (u64::from(self.passed), u64::from(all.count));
        let sampling = u64::from(self.sampling);
        // The arithmetic gives the same result as counting one by one: sampling must not depend on merging.
        let (chosen, rest) = ((passed + count) / sampling, (passed + count) % sampling);
        self.counts.count_ignored_packets(IgnoredReason::Sampled, count - chosen);
        // The remainder carries over, so that sampling continues across merged packets.
        self.passed = clamp_to_u32(rest);
        SelectedSegments { count: clamp_to_u16(chosen), has_last: rest == 0 && chosen > 0 }
    }

    #[inline]
    fn sample_packet(&mut self) -> bool {
        if self.sampling == 1 {
            return true;
        }
        // Every n-th packet, not a random one: results are the same for every reading of a file.
        self.passed += 1;
        if self.passed < self.sampling {
            self.counts.count_ignored(IgnoredReason::Sampled);
            return false;
        }
        self.passed = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: usize = 14 + 20 + 8;

    /// A UDP packet over IPv4 with this much payload.
    fn udp(payload: usize) -> Vec<u8> {
        let length = |more| u16::try_from(payload + more).unwrap().to_be_bytes();
        let [[i0, i1], [u0, u1]] = [length(28), length(8)];
        let ip = [0x45, 0, i0, i1, 0, 0, 0x40, 0, 64, 17, 0, 0, 198, 18, 0, 1, 198, 19, 0, 1];
        let mut frame = [&[2; 12][..], &[8, 0], &ip, &[4, 0, 0, 53, u0, u1, 0, 0]].concat();
        frame.resize(HEADERS + payload, 7);
        frame
    }

    /// Returns the result of an intake for packets with these payloads, merged or one by one.
    fn taken(sampling: u32, payloads: [&[usize]; 3], is_merged: bool) -> (PacketCounts, u64, u64) {
        let mut intake = PacketIntake::new(ParseOptions::default(), sampling, None);
        for payloads in payloads {
            let note =
                MergeMetadata { segment_bytes: u16::try_from(payloads[0]).unwrap(), transport_at: None };
            if is_merged {
                let frame = udp(payloads.iter().sum());
                intake.add_merged_frame(&frame, frame.len(), note, 1, 1);
            } else {
                payloads.iter().map(|&payload| udp(payload)).for_each(|frame| {
                    intake.add_frame(&frame, frame.len(), 1, 1);
                });
            }
        }
        let packets = intake.packets().iter().map(|packet| u64::from(packet.packet_count())).sum();
        let bytes = intake.packets().iter().map(|packet| u64::from(packet.bytes)).sum();
        let counts = PacketCounts { merged: 0, merged_packets: 0, ..*intake.counts() };
        (counts, packets, bytes)
    }

    #[test]
    fn sampling_is_independent_of_frame_merging() {
        let payloads: [&[usize]; 3] = [&[1000, 1000, 1000, 300], &[500, 500], &[900, 900, 900, 900, 1]];
        for sampling in 1..=13 {
            assert_eq!(taken(sampling, payloads, true), taken(sampling, payloads, false), "1 in {sampling}");
        }
    }

    #[test]
    fn unsplittable_frame_counts_as_one_marked_packet() {
        let mut intake = PacketIntake::new(ParseOptions::default(), 1, None);
        let frame = udp(4000);
        intake.add_merged_frame(
            &frame,
            frame.len(),
            MergeMetadata { segment_bytes: 0, transport_at: None },
            1,
            1,
        );
        intake.add_unsplit_frame(LinkKind::Ethernet, &frame, frame.len(), 1, 1);
        intake.add_frame(&frame, frame.len(), 1, 1);
        let marked = intake.packets().iter().map(|packet| packet.flags & flags::UNSPLIT_FLAG != 0);
        assert_eq!(marked.collect::<Vec<_>>(), [true, true, false]);
        let PacketCounts { seen, unsplit, merged, .. } = *intake.counts();
        assert_eq!((seen, unsplit, merged), (3, 2, 0));
    }
}
