//! The flow meter's parser: frames of anybody's making.
//!
//! The input is how deep to look, then frames: their length in two bytes, and the bytes.

use super::cost;
use packetrig_flow::parse::{FrameParser, ParseOptions, unified};
use packetrig_flow::{IPV4_MAPPED_PREFIX, IgnoredReason, PacketInfo, TunnelKind, flags};

/// The frames of an input; the last may be shorter than it says.
pub fn frames(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = data.get(1..).unwrap_or_default();
    std::iter::from_fn(move || {
        let ([high, low], behind) = rest.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let frame;
        (frame, rest) = behind.split_at(len.min(behind.len()));
        Some(frame)
    })
}

/// Any frames are packets that make sense, or are ignored for a cause; ports of fragments are theirs or none.
pub fn flow_parse(data: &[u8]) {
    cost::assert_bounded(data.len(), || parse_once(data));
}

fn parse_once(data: &[u8]) {
    let depth = data.first().map_or(0, |first| first % 4);
    let mut parser = FrameParser::new(ParseOptions { depth, fragments: 16, ..ParseOptions::default() });
    for (at_ns, frame) in (0..).zip(frames(data)) {
        let mut packet = PacketInfo { tunnel: TunnelKind::Gre, flags: 0xff, ..PacketInfo::default() };
        match parser.parse_frame(frame, frame.len() + frame.len() / 3, at_ns, 7, &mut packet) {
            Ok(()) => assert_makes_sense(&packet, frame, depth),
            Err(cause) => assert_ne!(cause, IgnoredReason::Sampled, "nothing samples here"),
        }
        unified::read_record(frame, frame.len(), at_ns, 7, &mut packet);
    }
    let counts = parser.fragment_counts();
    assert!(counts.joined == 0 || counts.first > 0);
    assert!(counts.evicted <= counts.first);
}

fn assert_makes_sense(packet: &PacketInfo, frame: &[u8], depth: u8) {
    let is_six = packet.flags & flags::IPV6_FLAG != 0;
    assert!(packet.frame_bytes as usize >= frame.len() && frame.len() >= 34);
    assert!(packet.bytes >= if is_six { 40 } else { 20 });
    assert!(
        is_six
            || (packet.source.starts_with(&IPV4_MAPPED_PREFIX)
                && packet.destination.starts_with(&IPV4_MAPPED_PREFIX))
    );
    assert!(depth > 0 || packet.tunnel == TunnelKind::None);
    assert!(packet.tunnel != TunnelKind::None || (packet.tunnel_id, packet.outer_source) == (0, [0; 16]));
    assert!(packet.flags & flags::LATER_FRAGMENT_FLAG == 0 || packet.flags & flags::FRAGMENT_FLAG != 0);
    assert!(packet.vlan < 4096 && packet.inner_vlan < 4096 && packet.input == 7);
    // What is wholly there was not cut.
    assert!(packet.flags & flags::CUT_FLAG != 0 || packet.bytes as usize <= frame.len());
}
