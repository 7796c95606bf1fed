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
fn parsed(frame: &[u8]) -> Result<Packet, Ignored> {
    parsed_by(&mut Parser::new(ParseOptions::default()), frame, frame.len(), 0)
}

fn parsed_by(parser: &mut Parser, frame: &[u8], full_len: usize, at_ns: u64) -> Result<Packet, Ignored> {
    let mut packet = Packet { mpls: [9; 3], outer_source: [9; 16], flags: 0xff, ..Packet::default() };
    parser.parse(frame, full_len, at_ns, 3, &mut packet)?;
    let mut general = Packet::default();
    let arrival = Arrival { at_ns, input: 3, frame_bytes: length(full_len) };
    if packet.flags & flags::FRAGMENT == 0 {
        assert_eq!(parser.read(Link::Ethernet, frame, arrival, &mut general), Ok(()));
        assert_eq!(packet, general, "both ways read alike");
    }
    Ok(packet)
}

fn deep(frame: &[u8], depth: u8) -> Packet {
    let mut parser = Parser::new(ParseOptions { depth, ..ParseOptions::default() });
    parsed_by(&mut parser, frame, frame.len(), 0).unwrap()
}
