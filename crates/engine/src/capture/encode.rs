//! Capture file formats as pure encoders: classic pcap (microseconds) and pcapng (nanoseconds), Ethernet, little-endian.

use packetrig_plan::CaptureFormat;

const LINK_TYPE_ETHERNET: u16 = 1;
const NO_LIMIT: u32 = 262_144;

/// What a file is about.
#[derive(Clone, Debug)]
pub(super) struct Header<'a> {
    pub(super) interface: &'a str,
    pub(super) comment: &'a str,
    pub(super) snap_len: Option<u32>,
}

/// A frame to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    /// Nanoseconds since 1970.
    pub(super) at_ns: u64,
    pub(super) bytes: &'a [u8],
    /// Length on the wire.
    pub(super) full_len: u32,
}

/// The beginning of a file.
pub(super) fn begin(format: CaptureFormat, header: &Header<'_>, out: &mut Vec<u8>) {
    let snap_len = header.snap_len.unwrap_or(NO_LIMIT);
    match format {
        CaptureFormat::Pcap => {
            words(out, &[0xa1b2_c3d4, 2 | 4 << 16, 0, 0, snap_len, LINK_TYPE_ETHERNET.into()]);
        }
        CaptureFormat::Pcapng => {
            let application = concat!("packetrig ", env!("CARGO_PKG_VERSION"));
            block(out, 0x0a0d_0d0a, |body| {
                words(body, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]);
                option(body, 4, application.as_bytes());
                option(body, 1, header.comment.as_bytes());
                option(body, 0, &[]);
            });
            block(out, 1, |body| {
                words(body, &[LINK_TYPE_ETHERNET.into(), snap_len]);
                option(body, 2, header.interface.as_bytes());
                option(body, 9, &[9]); // resolution: 10^-9 s
                option(body, 0, &[]);
            });
        }
    }
}

/// One frame.
pub(super) fn record(format: CaptureFormat, record: Record<'_>, out: &mut Vec<u8>) {
    let captured = u32::try_from(record.bytes.len()).unwrap_or(u32::MAX);
    match format {
        CaptureFormat::Pcap => {
            let (seconds, rest) = (record.at_ns / 1_000_000_000, record.at_ns % 1_000_000_000);
            words(out, &[low(seconds), low(rest / 1000), captured, record.full_len]);
            out.extend_from_slice(record.bytes);
        }
        CaptureFormat::Pcapng => block(out, 6, |body| {
            words(body, &[0, low(record.at_ns >> 32), low(record.at_ns), captured, record.full_len]);
            padded(body, record.bytes);
        }),
    }
}

/// The end of a file: how many frames the interface saw, and how many never got here. Classic pcap has no place for it.
pub(super) fn end(format: CaptureFormat, at_ns: u64, received: u64, dropped: u64, out: &mut Vec<u8>) {
    if format == CaptureFormat::Pcapng {
        block(out, 5, |body| {
            words(body, &[0, low(at_ns >> 32), low(at_ns)]);
            option(body, 4, &received.to_le_bytes());
            option(body, 5, &dropped.to_le_bytes());
            option(body, 0, &[]);
        });
    }
}

fn low(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    words(out, &[u32::from(code) | u32::from(len) << 16]);
    padded(out, &value[..usize::from(len)]);
}

/// A pcapng block: its length stands before and after the body.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    words(out, &[kind, 0]);
    body(out);
    let total = u32::try_from(out.len() - start + 4).unwrap_or(u32::MAX).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&total);
    out.extend_from_slice(&total);
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_parser::traits::PcapReaderIterator;
    use pcap_parser::{Block, LegacyPcapReader, PcapBlockOwned, PcapNGReader};

    fn file(format: CaptureFormat) -> Vec<u8> {
        let mut out = Vec::new();
        begin(format, &Header { interface: "rx/eth0", comment: "run 1", snap_len: Some(100) }, &mut out);
        for n in 0..3u8 {
            let bytes = vec![n; 61 + usize::from(n)];
            let at_ns = 1_700_000_000_123_456_789 + u64::from(n);
            record(format, Record { at_ns, bytes: &bytes, full_len: 1518 }, &mut out);
        }
        end(format, 1_700_000_001_000_000_000, 10, 7, &mut out);
        out
    }

    #[test]
    fn classic_pcap_reads_back() {
        let bytes = file(CaptureFormat::Pcap);
        let mut reader = LegacyPcapReader::new(4096, &bytes[..]).unwrap();
        let mut frames = 0;
        while let Ok((used, block)) = reader.next() {
            match block {
                PcapBlockOwned::LegacyHeader(header) => {
                    assert_eq!((header.snaplen, header.network.0), (100, 1));
                }
                PcapBlockOwned::Legacy(frame) => {
                    assert_eq!((frame.ts_usec, frame.origlen), (123_456, 1518));
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
        let bytes = file(CaptureFormat::Pcapng);
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
