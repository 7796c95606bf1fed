//! Reads the records of the BPF program in the driver, which has parsed the headers, into [`PacketInfo`]s.
//!
//! The program (`bpf/meter.bpf.c` in `sys`) reads what is plain: Ethernet, at most two VLAN tags, IP without options or
//! extension headers, whole packets of TCP, UDP, SCTP and ICMP that are no tunnels. All else comes up as the beginning of the
//! frame, for the [`FrameParser`](super::FrameParser).
//!
//! Invariant: a record and the frame it was made of give the same packet.

use super::{length, mapped};
use crate::{PacketInfo, flags};

/// Bytes of a record of IPv4; of one of IPv6.
pub const LENGTHS: [usize; 2] = [36, 60];

/// What is in front of the addresses. Numbers are in the machine's own order.
const HEAD: usize = 28;

/// The packet of a record. `full_len` and `at_ns` stand beside it in the ring. False if it is no record.
#[inline]
pub fn read(record: &[u8], full_len: usize, at_ns: u64, input: u16, packet: &mut PacketInfo) -> bool {
    let Some((head, addresses)) = record.split_first_chunk::<HEAD>() else { return false };
    // Version and length must agree: anything else is the beginning of a frame, for the parser.
    let (source, destination, version) = match (head[0], addresses.len()) {
        (4, 8) => {
            let Some(source) = addresses.first_chunk() else { return false };
            let Some(destination) = addresses.last_chunk() else { return false };
            (mapped(*source), mapped(*destination), 0)
        }
        (6, 32) => {
            let Some(source) = addresses.first_chunk() else { return false };
            let Some(destination) = addresses.last_chunk() else { return false };
            (*source, *destination, flags::IPV6)
        }
        _ => return false,
    };
    *packet = PacketInfo {
        source,
        destination,
        at_ns,
        frame_bytes: length(full_len),
        input,
        bytes: native_16(head, 6).into(),
        source_port: native_16(head, 8),
        destination_port: native_16(head, 10),
        vlan: native_16(head, 12),
        inner_vlan: native_16(head, 14),
        protocol: head[1],
        tcp_flags: head[2],
        ttl: head[3],
        tos: head[4],
        flags: version,
        destination_mac: [head[16], head[17], head[18], head[19], head[20], head[21]],
        source_mac: [head[22], head[23], head[24], head[25], head[26], head[27]],
        ..PacketInfo::default()
    };
    true
}

/// 16 bits in the machine's own order, as the program wrote them.
#[inline]
const fn native_16(head: &[u8; HEAD], at: usize) -> u16 {
    u16::from_ne_bytes([head[at], head[at + 1]])
}
