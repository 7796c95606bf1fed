//! Capture files to replay, made byte by byte, and what capture files of runs hold.

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, PcapBlockOwned, PcapNGReader};
use std::path::{Path, PathBuf};

/// A frame and when it was captured, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Time.
    pub at: u64,
    /// Bytes without FCS.
    pub bytes: Vec<u8>,
}

/// One's-complement sum, the plain way.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let bytes: Vec<u8> = parts.concat();
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        total = (total & 0xffff) + (total >> 16);
    }
    (!u16::try_from(total).unwrap_or(0)).to_be_bytes()
}

fn low_16(len: usize) -> [u8; 2] {
    u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes()
}

fn ethernet(key: u16, kind: [u8; 2], rest: &[u8]) -> Vec<u8> {
    let [high, low] = key.to_be_bytes();
    [&[2, 0, 0, 1, 0, 1, 2, 0, 0, 0, high, low][..], &kind, rest].concat()
}

fn ipv4(protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut header = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 1, 2, 3, 10, 9, 8, 7];
    header[2..4].copy_from_slice(&low_16(20 + segment.len()));
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum);
    [&header[..], segment].concat()
}

/// A UDP or TCP segment whose checksum covers these addresses.
fn segment(protocol: u8, addresses: &[u8], payload: &[u8]) -> Vec<u8> {
    let ports = [0x27, 0x10, 0x4e, 0x20];
    let (header, at) = if protocol == 17 {
        ([&ports[..], &low_16(8 + payload.len()), &[0, 0]].concat(), 6)
    } else {
        ([&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 0x10, 0, 0, 0, 0, 0]].concat(), 16)
    };
    let mut out = [&header[..], payload].concat();
    let sum = checksum(&[addresses, &[0, protocol], &low_16(out.len()), &out]);
    out[at..at + 2].copy_from_slice(&sum);
    out
}

/// Bytes that are not the same in any two frames.
fn payload(n: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((n % 65_536) as usize * 31 + i * 7 + i / 256).to_le_bytes()[0]).collect()
}

/// A UDP frame over IPv4 whose source address ends with `key`.
pub fn udp(key: u16, n: u64, len: usize) -> Vec<u8> {
    let addresses = [10, 1, 2, 3, 10, 9, 8, 7];
    ethernet(key, [8, 0], &ipv4(17, &segment(17, &addresses, &payload(n, len))))
}

/// A TCP frame over IPv4; without payload, an acknowledgement in which no tag fits.
pub fn tcp(key: u16, n: u64, len: usize) -> Vec<u8> {
    let addresses = [10, 1, 2, 3, 10, 9, 8, 7];
    ethernet(key, [8, 0], &ipv4(6, &segment(6, &addresses, &payload(n, len))))
}

/// A UDP frame over IPv6, in VLAN 9.
pub fn udp6(key: u16, n: u64, len: usize) -> Vec<u8> {
    let mut addresses = [0; 32];
    (addresses[0], addresses[16], addresses[15], addresses[31]) = (0x20, 0x20, 1, 2);
    let segment = segment(17, &addresses, &payload(n, len));
    let header = [&[0x60, 0, 0, 0][..], &low_16(segment.len()), &[17, 64], &addresses].concat();
    ethernet(key, [0x81, 0], &[&[0, 9, 0x86, 0xdd][..], &header, &segment].concat())
}

/// An ARP request, padded: nothing that could carry a tag.
pub fn arp(key: u16) -> Vec<u8> {
    let mut frame = ethernet(key, [8, 6], &[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.resize(60, 0);
    frame
}

/// `count` frames of all kinds, `gap` nanoseconds apart.
pub fn mixture(count: u64, gap: u64) -> Vec<Recorded> {
    let frame = |n: u64| match n % 6 {
        0 => udp(1, n, 30 + (n % 900) as usize),
        1 => tcp(1, n, 1 + (n % 1400) as usize),
        2 => udp6(1, n, 16 + (n % 800) as usize),
        3 => tcp(1, n, 0),
        4 => udp(1, n, 6 + (n % 10) as usize),
        _ => arp(1),
    };
    (0..count).map(|n| Recorded { at: 1_700_000_000_000_000_000 + n * gap, bytes: frame(n) }).collect()
}

/// Writes a classic pcap file with nanoseconds, big-endian.
pub fn write(path: &Path, frames: &[Recorded]) {
    let mut out = [0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4].to_vec();
    let encode = |words: [u64; 4]| words.map(|word| u32::try_from(word).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(encode([0, 0, 65_535, 1]).as_flattened());
    for Recorded { at, bytes } in frames {
        let words = [at / 1_000_000_000, at % 1_000_000_000, bytes.len() as u64, bytes.len() as u64];
        out.extend(encode(words).as_flattened());
        out.extend(bytes);
    }
    std::fs::write(path, out).expect("there is room for a capture file");
}

/// A directory with such a file in it.
pub fn stored(frames: &[Recorded]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("there is room for temporary files");
    let path = directory.path().join("recorded.pcap");
    write(&path, frames);
    (directory, path)
}

/// The frames of a pcapng file that a run captured, without the FCS that is written behind each.
pub fn captured(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).expect("the capture of a run can be read");
    let mut reader =
        PcapNGReader::new(file.len().max(1 << 16), &file[..]).expect("the capture of a run is pcapng");
    let mut frames = Vec::new();
    while let Ok((used, block)) = reader.next() {
        if let PcapBlockOwned::NG(Block::EnhancedPacket(packet)) = block {
            let whole = &packet.data[..packet.caplen as usize];
            frames.push(whole[..whole.len() - 4].to_vec());
        }
        reader.consume(used);
    }
    frames
}
