//! Capture file formats as pure encoders: classic pcap and pcapng, Ethernet, little-endian.

use packetrig_plan::CaptureFormat;
use packetrig_units::clamp_to_u32;
use packetrig_wire::pcap::ETHERNET_LINK_TYPE;
use packetrig_wire::pcap::block::{low_32_bits, write_block, write_block_option, write_words};
use packetrig_wire::pcap::merged::{self, MergeComment};

const NO_SNAP_LENGTH: u32 = 262_144;
/// Upper bound of the bytes that [`write_file_header`] and [`write_statistics`] write for one interface, apart from the
/// texts that they are given.
pub(super) const MAX_FILE_OVERHEAD_BYTES: usize = 512;

/// Encoding of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureFileFormat {
    /// Classic pcap with microseconds, readable by every tool.
    Pcap,
    /// Classic pcap with nanosecond time stamps.
    PcapNanos,
    /// pcapng with nanoseconds, statistics and comments.
    Pcapng,
}

impl From<CaptureFormat> for CaptureFileFormat {
    /// Maps the format that a plan names.
    fn from(format: CaptureFormat) -> Self {
        match format {
            CaptureFormat::Pcap => Self::Pcap,
            CaptureFormat::Pcapng => Self::Pcapng,
        }
    }
}

/// Contents of a file header. Empty texts are left out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CaptureHeader<'a> {
    pub(crate) interface: &'a str,
    /// Further interfaces, numbered from 1; the first is 0. Only pcapng records on which interface a frame arrived.
    pub(crate) further: &'a [String],
    pub(crate) comment: &'a str,
    pub(crate) system: &'a str,
    pub(crate) filter: &'a str,
    pub(crate) snap_len: Option<u32>,
    /// Frames end with their FCS.
    pub(crate) fcs: bool,
}

/// Fields of a frame's record in the file. The bytes of the frame are written separately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRecord {
    /// Arrival time, nanoseconds since 1970.
    pub(crate) at_ns: u64,
    /// Number of bytes that are written.
    pub(crate) kept: usize,
    /// Length on the wire.
    pub(crate) full_len: u32,
    /// Number of the frame's interface in the file.
    pub(crate) interface: u32,
    /// Payload bytes of each packet that the kernel or card merged into this frame. Only pcapng can express it.
    pub(crate) merged: Option<u16>,
}

/// Upper bound of the bytes after a frame: three bytes of padding, a comment, the end of options, the repeated length.
const MAX_RECORD_TAIL_BYTES: usize = 3 + 4 + merged::MAX_COMMENT_BYTES.next_multiple_of(4) + 4 + 4;

/// Counters for the statistics at the end of a file. They count from the beginning of the recording.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CaptureTotals {
    /// Time at which the file was started, nanoseconds since 1970, if known.
    pub(super) from_ns: Option<u64>,
    /// Time at which the file was ended.
    pub(super) to_ns: u64,
    /// Frames that passed the filter, plus frames that the kernel dropped.
    pub(super) received: u64,
    /// Frames that the kernel, the full queue or the size limit kept out of the files. Failed writes are not included.
    pub(super) dropped: u64,
    /// The part of `dropped` that the kernel lost; `None` if it is not known.
    pub(super) by_kernel: Option<u64>,
    /// The counters are sums over several interfaces.
    pub(super) of_all: bool,
}

/// The encoded bytes before and after a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameEnvelope {
    head: [u8; 28],
    head_len: usize,
    tail: [u8; MAX_RECORD_TAIL_BYTES],
    tail_len: usize,
}

impl FrameEnvelope {
    /// Returns the bytes that precede the frame.
    pub(crate) fn head_bytes(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    /// Returns the bytes that follow the frame.
    pub(super) fn tail_bytes(&self) -> &[u8] {
        &self.tail[..self.tail_len]
    }

    /// Encodes the bytes around a frame. Allocates nothing.
    pub(crate) fn for_frame(format: CaptureFileFormat, record: FrameRecord) -> Self {
        let rest = record.at_ns % 1_000_000_000;
        match format {
            CaptureFileFormat::Pcap => Self::for_classic_pcap(record, rest / 1000),
            CaptureFileFormat::PcapNanos => Self::for_classic_pcap(record, rest),
            CaptureFileFormat::Pcapng => {
                // pcapng pads the body of a block to 32 bits and repeats the total length behind it, so that readers
                // can go backwards: 28 bytes of head, the frame, its padding, and the repeated length.
                let mut envelope = Self::new(&[], record.kept.next_multiple_of(4) - record.kept);
                if let Some(segment_bytes) = record.merged {
                    envelope.put_comment(MergeComment::new(segment_bytes).as_bytes());
                }
                let total = low_32_bits((28 + record.kept + envelope.tail_len + 4) as u64);
                let [high, low] = split_timestamp(record.at_ns);
                let captured = clamp_to_u32(record.kept);
                envelope.put_head_words(&[6, total, record.interface, high, low, captured, record.full_len]);
                envelope.put_tail_bytes(&total.to_le_bytes());
                envelope
            }
        }
    }

    /// Appends a comment (pcapng option 1) and the end of options.
    fn put_comment(&mut self, comment: &[u8]) {
        let length = u16::try_from(comment.len()).unwrap_or(0);
        self.put_tail_bytes(&1u16.to_le_bytes());
        self.put_tail_bytes(&length.to_le_bytes());
        self.put_tail_bytes(comment);
        self.tail_len += comment.len().next_multiple_of(4) - comment.len();
        self.put_tail_bytes(&[0; 4]);
    }

    fn put_tail_bytes(&mut self, bytes: &[u8]) {
        self.tail[self.tail_len..self.tail_len + bytes.len()].copy_from_slice(bytes);
        self.tail_len += bytes.len();
    }

    /// Encodes a classic pcap record header; `fraction` is the part of the second in the unit of the file.
    fn for_classic_pcap(record: FrameRecord, fraction: u64) -> Self {
        let seconds = record.at_ns / 1_000_000_000;
        let captured = clamp_to_u32(record.kept);
        Self::new(&[low_32_bits(seconds), low_32_bits(fraction), captured, record.full_len], 0)
    }

    fn new(words: &[u32], padding: usize) -> Self {
        // The arrays have a fixed size, because this runs once per captured frame. The longest block header,
        // that of an enhanced packet block, has seven words.
        let mut envelope =
            Self { head: [0; 28], head_len: 0, tail: [0; MAX_RECORD_TAIL_BYTES], tail_len: padding };
        envelope.put_head_words(words);
        envelope
    }

    fn put_head_words(&mut self, words: &[u32]) {
        self.head_len = words.len() * 4;
        for (place, word) in self.head.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Appends a file header.
pub(crate) fn write_file_header(format: CaptureFileFormat, header: &CaptureHeader<'_>, out: &mut Vec<u8>) {
    match format {
        CaptureFileFormat::Pcap => write_classic_header(0xa1b2_c3d4, header, out),
        CaptureFileFormat::PcapNanos => write_classic_header(0xa1b2_3c4d, header, out),
        CaptureFileFormat::Pcapng => {
            let application = concat!("packetrig ", env!("CARGO_PKG_VERSION"));
            // Section header: the byte-order magic, version 1.0, and a section length of -1, which
            // means "not known yet".
            write_block(out, 0x0a0d_0d0a, |body| {
                write_words(body, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
                // shb_os, shb_userappl and the comment.
                write_text_option(body, 3, header.system);
                write_text_option(body, 4, application);
                write_text_option(body, 1, header.comment);
                write_block_option(body, 0, &[]);
            });
            write_interface_block(header, header.interface, out);
            header.further.iter().for_each(|name| write_interface_block(header, name, out));
        }
    }
}

/// Appends the classic pcap header, version 2.4.
fn write_classic_header(magic: u32, header: &CaptureHeader<'_>, out: &mut Vec<u8>) {
    let snap_len = header.snap_len.unwrap_or(NO_SNAP_LENGTH);
    // Version 2.4; the two zeros are reserved fields, once time zone and accuracy.
    write_words(out, &[magic, 2 | 4 << 16, 0, 0, snap_len, ETHERNET_LINK_TYPE.into()]);
}

/// Splits a time as pcapng stores it: the upper half first.
fn split_timestamp(ns: u64) -> [u32; 2] {
    [low_32_bits(ns >> 32), low_32_bits(ns)]
}

/// Appends an interface description block.
fn write_interface_block(header: &CaptureHeader<'_>, name: &str, out: &mut Vec<u8>) {
    write_block(out, 1, |body| {
        write_words(body, &[ETHERNET_LINK_TYPE.into(), header.snap_len.unwrap_or(NO_SNAP_LENGTH)]);
        write_text_option(body, 2, name);
        write_block_option(body, 9, &[9]); // resolution: 10^-9 s
        if !header.filter.is_empty() {
            // Code 0: the filter follows as text.
            write_block_option(body, 11, &[&[0], header.filter.as_bytes()].concat());
        }
        write_text_option(body, 12, header.system);
        if header.fcs {
            write_block_option(body, 13, &[4]);
        }
        write_block_option(body, 0, &[]);
    });
}

/// Appends the interface statistics of a finished file. The classic pcap formats cannot store them.
pub(super) fn write_statistics(format: CaptureFileFormat, totals: CaptureTotals, out: &mut Vec<u8>) {
    if format == CaptureFileFormat::Pcapng {
        write_block(out, 5, |body| {
            // Interface 0: one block has the counts of all interfaces, because the recorder does not count each.
            write_words(body, &[0]);
            write_words(body, &split_timestamp(totals.to_ns));
            if totals.of_all {
                write_text_option(body, 1, "the counts are sums over all interfaces");
            }
            if let Some(from_ns) = totals.from_ns {
                let [high, low] = split_timestamp(from_ns);
                write_block_option(body, 2, &[high.to_le_bytes(), low.to_le_bytes()].concat());
                let [high, low] = split_timestamp(totals.to_ns);
                write_block_option(body, 3, &[high.to_le_bytes(), low.to_le_bytes()].concat());
            }
            // isb_ifrecv, isb_ifdrop and isb_osdrop.
            write_block_option(body, 4, &totals.received.to_le_bytes());
            write_block_option(body, 5, &totals.dropped.to_le_bytes());
            if let Some(by_kernel) = totals.by_kernel {
                write_block_option(body, 7, &by_kernel.to_le_bytes());
            }
            write_block_option(body, 0, &[]);
        });
    }
}

fn write_text_option(out: &mut Vec<u8>, code: u16, value: &str) {
    if !value.is_empty() {
        write_block_option(out, code, value.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_parser::traits::PcapReaderIterator;
    use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapNGReader};

    fn file(format: CaptureFileFormat) -> Vec<u8> {
        let mut out = Vec::new();
        write_file_header(
            format,
            &CaptureHeader {
                interface: "rx/eth0",
                comment: "run 1",
                snap_len: Some(100),
                ..CaptureHeader::default()
            },
            &mut out,
        );
        for n in 0..3u8 {
            let bytes = vec![n; 61 + usize::from(n)];
            let at_ns = 1_700_000_000_123_456_789 + u64::from(n);
            let frame = FrameEnvelope::for_frame(
                format,
                FrameRecord { at_ns, kept: bytes.len(), full_len: 1518, interface: 0, merged: None },
            );
            out.extend([frame.head_bytes(), &bytes, frame.tail_bytes()].concat());
        }
        let to_ns = 1_700_000_001_000_000_000;
        write_statistics(
            format,
            CaptureTotals { to_ns, received: 10, dropped: 7, ..CaptureTotals::default() },
            &mut out,
        );
        out
    }

    #[test]
    fn merged_frame_comment_only_in_pcapng() {
        for kept in 60..64 {
            let bytes = vec![7; kept];
            let record = FrameRecord { at_ns: 1, kept, full_len: 9000, interface: 0, merged: Some(1448) };
            for (format, wanted) in [(CaptureFileFormat::Pcapng, Some(1448)), (CaptureFileFormat::Pcap, None)]
            {
                let mut out = Vec::new();
                write_file_header(format, &CaptureHeader::default(), &mut out);
                for record in [record, FrameRecord { merged: None, ..record }] {
                    let envelope = FrameEnvelope::for_frame(format, record);
                    out.extend([envelope.head_bytes(), &bytes, envelope.tail_bytes()].concat());
                }
                assert_eq!(merges(&out), [wanted, None]);
            }
        }
    }

    /// Returns the merge comment of each record.
    fn merges(mut bytes: &[u8]) -> Vec<Option<u16>> {
        use packetrig_wire::pcap::{CaptureDecoder, DecodedElement};
        let mut decoder = CaptureDecoder::new();
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let used = match decoder.next_step(bytes).unwrap() {
                DecodedElement::Record { record, used } => {
                    found.push(record.merged);
                    used
                }
                DecodedElement::Skip(used) => usize::try_from(used).unwrap(),
                DecodedElement::More(_) => panic!("the file is whole"),
            };
            bytes = &bytes[used..];
        }
        found
    }

    #[test]
    fn classic_pcap_reads_back() {
        let bytes = file(CaptureFileFormat::PcapNanos);
        let mut reader = LegacyPcapReader::new(4096, &bytes[..]).unwrap();
        let mut frames = 0;
        while let Ok((used, block)) = reader.next() {
            match block {
                PcapBlockOwned::LegacyHeader(header) => {
                    assert_eq!((header.snaplen, header.network.0), (100, 1));
                }
                PcapBlockOwned::Legacy(frame) => {
                    assert_eq!((frame.ts_usec, frame.origlen), (123_456_789 + u32::from(frames), 1518));
                    assert_eq!(frame.data, vec![frames; 61 + usize::from(frames)]);
                    frames += 1;
                }
                PcapBlockOwned::NG(_) => panic!("not classic"),
            }
            reader.consume(used);
        }
        assert_eq!(frames, 3);
    }

    #[test]
    fn pcapng_reads_back_with_nanoseconds_and_statistics() {
        let bytes = file(CaptureFileFormat::Pcapng);
        let mut reader = PcapNGReader::new(4096, &bytes[..]).unwrap();
        let (mut frames, mut kinds) = (0u8, Vec::new());
        while let Ok((used, block)) = reader.next() {
            let PcapBlockOwned::NG(block) = block else { panic!("not pcapng") };
            match block {
                Block::SectionHeader(_) => kinds.push("section"),
                Block::InterfaceDescription(interface) => {
                    assert_eq!((interface.snaplen, interface.if_tsresol), (100, 9));
                    kinds.push("interface");
                }
                Block::EnhancedPacket(packet) => {
                    let at = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                    assert_eq!(at, 1_700_000_000_123_456_789 + u64::from(frames));
                    assert_eq!((packet.caplen, packet.origlen), (61 + u32::from(frames), 1518));
                    frames += 1;
                }
                Block::InterfaceStatistics(statistics) => {
                    assert_eq!(statistics.options.len(), 3);
                    kinds.push("statistics");
                }
                other => panic!("{other:?}"),
            }
            reader.consume(used);
        }
        assert_eq!((frames, kinds), (3, vec!["section", "interface", "statistics"]));
    }
}
