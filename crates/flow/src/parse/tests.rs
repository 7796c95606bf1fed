use super::*;
use crate::flags;

mod addresses;
mod fragments;
mod frames;
mod kinds;
mod oracle;
mod records;

use frames::{LEFT, RIGHT};

/// A parser of default options, used once.
fn parsed(frame: &[u8]) -> Result<PacketInfo, IgnoredReason> {
    parsed_by(&mut FrameParser::new(ParseOptions::default()), frame, frame.len(), 0)
}

fn parsed_by(
    parser: &mut FrameParser,
    frame: &[u8],
    full_len: usize,
    at_ns: u64,
) -> Result<PacketInfo, IgnoredReason> {
    let mut packet = PacketInfo { mpls: [9; 3], outer_source: [9; 16], flags: 0xff, ..PacketInfo::default() };
    parser.parse_frame(frame, full_len, at_ns, 3, &mut packet)?;
    let mut general = PacketInfo::default();
    let arrival = FrameArrival { at_ns, input: 3, frame_bytes: clamp_length(full_len) };
    if packet.flags & flags::FRAGMENT_FLAG == 0 {
        assert_eq!(parser.read_frame(LinkKind::Ethernet, frame, arrival, &mut general), Ok(()));
        assert_eq!(packet, general, "both ways read alike");
    }
    Ok(packet)
}

fn deep(frame: &[u8], depth: u8) -> PacketInfo {
    let mut parser = FrameParser::new(ParseOptions { depth, ..ParseOptions::default() });
    parsed_by(&mut parser, frame, frame.len(), 0).unwrap()
}
