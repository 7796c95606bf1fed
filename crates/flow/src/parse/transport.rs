//! Transport headers: ports, TCP flags, ICMP types and codes.

use crate::packet::protocol::{ICMP, ICMPV6, TCP, UDP};
use crate::{PacketInfo, flags};

const DCCP_PROTOCOL: u8 = 33;
const SCTP: u8 = 132;
const UDP_LITE: u8 = 136;

/// Reads the header of the protocol in `packet.protocol`, as far as it was captured.
pub(super) fn read_header(bytes: &[u8], packet: &mut PacketInfo) {
    // Missing bytes leave zeros and a flag: a packet that is cut after its IP header still counts for its flow.
    let whole = match packet.protocol {
        TCP => read_ports(bytes, packet) && read_tcp_flags(bytes, packet),
        UDP | DCCP_PROTOCOL | SCTP | UDP_LITE => read_ports(bytes, packet),
        ICMP | ICMPV6 => read_type_and_code(bytes, packet),
        _ => true,
    };
    if !whole {
        packet.flags |= flags::CUT_FLAG;
    }
}

fn read_ports(bytes: &[u8], packet: &mut PacketInfo) -> bool {
    let Some([a, b, c, d]) = bytes.first_chunk() else { return false };
    packet.source_port = u16::from_be_bytes([*a, *b]);
    packet.destination_port = u16::from_be_bytes([*c, *d]);
    true
}

fn read_tcp_flags(bytes: &[u8], packet: &mut PacketInfo) -> bool {
    let Some(flags) = bytes.get(13) else { return false };
    packet.tcp_flags = *flags;
    true
}

fn read_type_and_code(bytes: &[u8], packet: &mut PacketInfo) -> bool {
    let Some([kind, code]) = bytes.first_chunk() else { return false };
    packet.destination_port = u16::from_be_bytes([*kind, *code]);
    true
}
