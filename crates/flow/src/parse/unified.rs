//! Converts the records of the BPF program in the driver, which has parsed the headers, to [`PacketInfo`]s.
//!
//! The program (`bpf/meter.bpf.c` in `sys`) reads only common packets: Ethernet, at most two VLAN tags, IP without
//! options or extension headers, whole packets of TCP, UDP, SCTP and ICMP that are no tunnels. Of all other frames, it
//! passes on the first bytes, for the [`FrameParser`](super::FrameParser).
//!
//! Invariant: a record and the frame from which it was made give the same packet.

use super::{clamp_length, ipv4_mapped};
use crate::{PacketInfo, flags};

/// Bytes of a record of an IPv4 packet, and of an IPv6 packet.
pub const UNIFIED_RECORD_LENGTHS: [usize; 2] = [40, 64];

/// Bytes before the addresses in a record. Numbers are in the machine's own byte order.
const RECORD_HEAD_BYTES: usize = 32;

/// Converts a record to a packet. `full_len` and `at_ns` come from the record's entry in the ring. Returns false if the
/// bytes are not a record but the beginning of a frame.
#[inline]
pub fn read_record(record: &[u8], full_len: usize, at_ns: u64, input: u16, packet: &mut PacketInfo) -> bool {
    let Some((head, addresses)) = record.split_first_chunk::<RECORD_HEAD_BYTES>() else { return false };
    // Version and length must agree: anything else is the beginning of a frame, for the parser.
    let (source, destination, version) = match (head[0], addresses.len()) {
        (4, 8) => {
            let Some(source) = addresses.first_chunk() else { return false };
            let Some(destination) = addresses.last_chunk() else { return false };
            (ipv4_mapped(*source), ipv4_mapped(*destination), 0)
        }
        (6, 32) => {
            let Some(source) = addresses.first_chunk() else { return false };
            let Some(destination) = addresses.last_chunk() else { return false };
            (*source, *destination, flags::IPV6_FLAG)
        }
        _ => return false,
    };
    *packet = PacketInfo {
        source,
        destination,
        at_ns,
        frame_bytes: clamp_length(full_len),
        input,
        bytes: read_native_u16(head, 6).into(),
        source_port: read_native_u16(head, 8),
        destination_port: read_native_u16(head, 10),
        vlan: read_native_u16(head, 12),
        inner_vlan: read_native_u16(head, 14),
        protocol: head[1],
        tcp_flags: head[2],
        ttl: head[3],
        tos: head[4],
        flags: version,
        destination_mac: [head[16], head[17], head[18], head[19], head[20], head[21]],
        source_mac: [head[22], head[23], head[24], head[25], head[26], head[27]],
        content: u32::from_ne_bytes([head[28], head[29], head[30], head[31]]),
        ..PacketInfo::default()
    };
    true
}

/// Reads 16 bits in the machine's own byte order, as the program wrote them.
#[inline]
const fn read_native_u16(head: &[u8; RECORD_HEAD_BYTES], at: usize) -> u16 {
    u16::from_ne_bytes([head[at], head[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// The layout that the program is compiled with: offsets by field, and the lengths of records.
    fn layout() -> HashMap<String, usize> {
        let text = include_str!("../../../sys/bpf/layout/meter.h");
        let inner = text.lines().filter_map(|line| line.split_once('(')?.1.strip_suffix(')'));
        let parts = inner.map(|inner| inner.split(", ").collect::<Vec<_>>());
        let named = parts.filter_map(|parts| match parts[..] {
            ["header", name, at] => Some((name.to_owned(), at.parse().ok()?)),
            [name, length] => Some((name.to_owned(), length.parse().ok()?)),
            _ => None,
        });
        named.collect()
    }

    /// A record of one version, with another value in each byte.
    fn record(version: u8, length: usize, at: &HashMap<String, usize>) -> Vec<u8> {
        let mut record: Vec<u8> = (100..).take(length).collect();
        record[at["version"]] = version;
        record
    }

    #[test]
    fn unified_record_fields_match_program_layout() {
        let at = layout();
        assert_eq!([at["HEADER_V4"], at["HEADER_V6"]], UNIFIED_RECORD_LENGTHS);
        assert_eq!(at["addresses"], RECORD_HEAD_BYTES);
        for (version, length) in [(4, UNIFIED_RECORD_LENGTHS[0]), (6, UNIFIED_RECORD_LENGTHS[1])] {
            let record = record(version, length, &at);
            let mut packet = PacketInfo::default();
            assert!(read_record(&record, 60, 1, 2, &mut packet));
            let byte = |field: &str| record[at[field]];
            let number = |field: &str| u16::from_ne_bytes([record[at[field]], record[at[field] + 1]]);
            let small = [packet.protocol, packet.tcp_flags, packet.ttl, packet.tos];
            assert_eq!(small, ["protocol", "tcp_flags", "ttl", "tos"].map(byte));
            let numbers = [packet.source_port, packet.destination_port, packet.vlan, packet.inner_vlan];
            assert_eq!(numbers, ["source_port", "destination_port", "vlan", "inner_vlan"].map(number));
            assert_eq!(packet.bytes, u32::from(number("bytes")));
            let content = &record[at["content"]..at["content"] + 4];
            assert_eq!(packet.content.to_ne_bytes(), content);
            let macs = [packet.destination_mac, packet.source_mac].concat();
            assert_eq!(macs, record[at["macs"]..at["macs"] + 12]);
            let own = if version == 4 { 4 } else { 16 };
            let ends = [&packet.source[16 - own..], &packet.destination[16 - own..]].concat();
            assert_eq!(ends, record[at["addresses"]..]);
        }
    }

    #[test]
    fn malformed_unified_record_is_refused() {
        let at = layout();
        let mut packet = PacketInfo::default();
        for (version, length) in [
            (6, UNIFIED_RECORD_LENGTHS[0]),
            (4, UNIFIED_RECORD_LENGTHS[1]),
            (5, UNIFIED_RECORD_LENGTHS[0]),
            (4, 31),
            (4, 41),
        ] {
            assert!(!read_record(&record(version, length, &at), 60, 1, 2, &mut packet), "{version} {length}");
        }
    }
}
