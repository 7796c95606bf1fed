//! Splits a frame that represents several packets, because its sender left the segmentation of TCP or UDP
//! data to a network card.

use super::{IpHeaderLayer, PacketLayers, TransportLayer, complete_checksum};
use crate::checksum::{ChecksumSum, ones_complement_sum};

const TCP_PROTOCOL: u8 = 6;
const UDP_PROTOCOL: u8 = 17;
/// The TCP flags that only the last packet keeps (FIN and PSH), and the flag that only the first packet keeps
/// (CWR, RFC 3168 section 6.1.2).
const LAST_SEGMENT_TCP_FLAGS: u8 = 0x09;
const FIRST_SEGMENT_TCP_FLAGS: u8 = 0x80;

/// Cuts the payload of a frame into pieces of `segment_bytes` and passes the packets to `sink`, each with
/// its own length, sequence number and checksum. Returns false and passes no packet if `segment_bytes` is
/// 0, or if the frame has no payload or no complete TCP or UDP header at `transport_at` (for example in a
/// tunnel, or in a truncated frame).
pub fn split_merged_frame(
    frame: &[u8],
    segment_bytes: u16,
    transport_at: Option<usize>,
    scratch: &mut Vec<u8>,
    sink: &mut dyn FnMut(&[u8]),
) -> bool {
    let Some(PacketLayers { ip: Some(ip), transport: Some(transport), .. }) = PacketLayers::from_frame(frame)
    else {
        return false;
    };
    let is_other_header = transport_at.is_some_and(|at| at != transport.at);
    // Without a payload, there would be no packet at all.
    let is_empty = segment_bytes == 0 || transport.payload.is_empty();
    if is_other_header || is_empty || !matches!(transport.protocol, TCP_PROTOCOL | UDP_PROTOCOL) {
        return false;
    }
    let head = &frame[..transport.payload.start];
    let payload = &frame[transport.payload.clone()];
    let pieces = payload.chunks(usize::from(segment_bytes));
    let last = pieces.len().saturating_sub(1);
    for (number, piece) in pieces.enumerate() {
        scratch.clear();
        scratch.extend_from_slice(head);
        scratch.extend_from_slice(piece);
        write_ip_length(scratch, &ip, number);
        match transport.protocol {
            TCP_PROTOCOL => update_tcp_header(
                &mut scratch[transport.at..],
                number * usize::from(segment_bytes),
                number == 0,
                number == last,
            ),
            _ => write_udp_length(scratch, &transport),
        }
        write_pseudo_sum(scratch, &ip, &transport);
        complete_checksum(scratch);
        sink(scratch);
    }
    true
}

fn write_ip_length(packet: &mut [u8], ip: &IpHeaderLayer, number: usize) {
    let behind = packet.len() - ip.at;
    if ip.is_v6 {
        // The length field of IPv6 counts the bytes after the fixed header.
        write_u16(packet, ip.at + 4, behind - 40);
        return;
    }
    write_u16(packet, ip.at + 2, behind);
    // Each packet has its own identification, as the segments of the kernel have.
    let first = u16::from_be_bytes([packet[ip.at + 4], packet[ip.at + 5]]);
    write_u16(packet, ip.at + 4, usize::from(first) + number);
    let header = ip.at..ip.at + usize::from(packet[ip.at] & 0x0f) * 4;
    packet[ip.at + 10..ip.at + 12].fill(0);
    let sum = !ones_complement_sum(&packet[header]);
    packet[ip.at + 10..ip.at + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Updates the TCP header of a packet whose payload begins `before` bytes after that of the first packet.
fn update_tcp_header(tcp: &mut [u8], before: usize, is_first: bool, is_last: bool) {
    if let Some(sequence) = tcp.get_mut(4..).and_then(|rest| rest.first_chunk_mut()) {
        // A frame is far shorter than 4 GiB, so `before` fits into 32 bits.
        let number = u32::from_be_bytes(*sequence).wrapping_add(u32::try_from(before).unwrap_or(0));
        *sequence = number.to_be_bytes();
    }
    if !is_last {
        tcp[13] &= !LAST_SEGMENT_TCP_FLAGS;
    }
    if !is_first {
        tcp[13] &= !FIRST_SEGMENT_TCP_FLAGS;
    }
}

fn write_udp_length(packet: &mut [u8], transport: &TransportLayer) {
    write_u16(packet, transport.at + 4, packet.len() - transport.at);
}

/// Writes the sum of the pseudo-header into the checksum field, where [`complete_checksum`] expects it (RFC
/// 9293 section 3.1; RFC 8200 section 8.1).
fn write_pseudo_sum(packet: &mut [u8], ip: &IpHeaderLayer, transport: &TransportLayer) {
    let Some(at) = transport.checksum_at else { return };
    let addresses = if ip.is_v6 { ip.at + 8..ip.at + 40 } else { ip.at + 12..ip.at + 20 };
    let mut sum = ChecksumSum::default();
    sum.add_bytes(&packet[addresses]);
    sum.add_bytes(&[0, transport.protocol]);
    let length = low_u16(packet.len() - transport.at);
    sum.add_bytes(&length.to_be_bytes());
    packet[at..at + 2].copy_from_slice(&sum.folded_sum().to_be_bytes());
}

fn write_u16(packet: &mut [u8], at: usize, value: usize) {
    packet[at..at + 2].copy_from_slice(&low_u16(value).to_be_bytes());
}

/// Returns the low 16 bits: lengths fit into them, and identifications start again at 0 after 65535.
fn low_u16(value: usize) -> u16 {
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}
