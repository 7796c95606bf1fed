//! Frames in memory, in an order that no cache can foresee: IPv4 and UDP of so many flows, and the same as a capture file.

use packetrig_flow::parse::unified;
use std::io::Write;
use std::path::Path;

/// Frames that are made; each flow has as many.
pub const FRAMES: usize = 1 << 21;
/// Bytes of a frame that is cut.
pub const TRIMMED: usize = 64;
/// Frames without FCS.
const FCS: usize = 4;
/// Time between frames.
pub const EVERY_NS: u64 = 100;

/// What comes up from the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Whole frames.
    Full,
    /// Their beginning.
    Trimmed,
    /// Headers read in the driver.
    Unified,
}

/// Frames one behind the other, all as long.
#[derive(Debug)]
pub struct Traffic {
    /// The frames.
    pub bytes: Vec<u8>,
    /// Bytes of each that are here.
    pub each: usize,
    /// Bytes that each had on the link, without FCS.
    pub length: usize,
}

/// The flow of a frame: every flow once, then again, in the same jumbled order.
#[expect(clippy::cast_possible_truncation, reason = "flows are counted in 32 bits")]
fn flow(frame: usize, bits: u32) -> u32 {
    let mask = (1_u32 << bits) - 1;
    let mut n = frame as u32 & mask;
    // Each step is one to one below the mask.
    for factor in [0x9e37_79b1, 0x85eb_ca77] {
        n = n.wrapping_mul(factor) & mask;
        n ^= n >> (bits / 2);
    }
    n
}

/// A frame of so many bytes without FCS, by a flow's number.
pub fn frame(flow: u32, length: usize) -> Vec<u8> {
    let total = u16::try_from(length - 14).unwrap_or(u16::MAX);
    let [t0, t1] = total.to_be_bytes();
    let [u0, u1] = (total - 20).to_be_bytes();
    let [a, b, c, d] = flow.to_be_bytes();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, t0, t1, 0, 0, 0, 0, 64, 17, 0, 0, 198, 18, c, d, 198, 19, a, b]);
    frame.extend([0x30, 0x39, 0, 53, u0, u1, 0, 0]);
    frame.resize(length, 0);
    frame
}

impl Traffic {
    /// Frames of `size` bytes with FCS, of 2^`bits` flows.
    pub fn new(size: usize, bits: u32, form: Form) -> Self {
        let length = size - FCS;
        let each = match form {
            Form::Full => length,
            Form::Trimmed => length.min(TRIMMED),
            Form::Unified => unified::UNIFIED_RECORD_LENGTHS[0],
        };
        let mut bytes = Vec::with_capacity(each * FRAMES);
        for n in 0..FRAMES {
            let frame = frame(flow(n, bits), length);
            match form {
                Form::Unified => bytes.extend(record(&frame)),
                Form::Full | Form::Trimmed => bytes.extend(&frame[..each]),
            }
        }
        Self { bytes, each, length }
    }

    /// Writes whole frames to a capture file, ten million a second.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        // Nanoseconds, Ethernet.
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.write_all(&word.to_le_bytes())?;
        }
        let length = u32::try_from(self.length)?.to_le_bytes();
        let mut at_ns = 1_700_000_000_000_000_000_u64;
        for frame in self.bytes.chunks_exact(self.each) {
            at_ns += EVERY_NS;
            file.write_all(&u32::try_from(at_ns / 1_000_000_000)?.to_le_bytes())?;
            file.write_all(&u32::try_from(at_ns % 1_000_000_000)?.to_le_bytes())?;
            file.write_all(&length)?;
            file.write_all(&length)?;
            file.write_all(frame)?;
        }
        file.flush()?;
        Ok(())
    }
}

/// What the program in the driver makes of such a frame.
fn record(frame: &[u8]) -> Vec<u8> {
    let native = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]).to_ne_bytes();
    let mut record = vec![4, frame[23], 0, frame[22], frame[15], 0];
    for at in [16, 34, 36] {
        record.extend(native(at));
    }
    record.extend([0; 4]);
    record.extend(&frame[..12]);
    record.extend(content(frame).to_ne_bytes());
    record.extend(&frame[26..34]);
    record
}

/// What a packet of UDP carries, as the program in the driver numbers it.
fn content(frame: &[u8]) -> u32 {
    let word = |at: usize| {
        let bytes = frame.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)))
    };
    let identification = u64::from(u16::from_be_bytes([frame[18], frame[19]]));
    let first = (identification << 32 | word(38)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let second = (first ^ first >> 32 ^ (word(42) << 32 | word(46))).wrapping_mul(0xd6e8_feb8_6659_fd93);
    u32::from_be_bytes(second.to_be_bytes()[..4].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_flow::PacketInfo;
    use packetrig_flow::parse::{FrameParser, ParseOptions};

    #[test]
    fn every_flow_comes_as_often() {
        let mut seen = vec![0; 1 << 11];
        for n in 0..1 << 13 {
            seen[flow(n, 11) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count == 4));
    }

    #[test]
    fn a_record_says_what_its_frame_says() {
        let frame = frame(0x0102_0304, 60);
        let (mut of_frame, mut of_record) = (PacketInfo::default(), PacketInfo::default());
        FrameParser::new(ParseOptions::default()).parse_frame(&frame, 60, 5, 1, &mut of_frame).unwrap();
        assert!(unified::read_record(&record(&frame), 60, 5, 1, &mut of_record));
        assert_eq!(of_frame, of_record);
    }
}
