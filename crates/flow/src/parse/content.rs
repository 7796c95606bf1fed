//! Hash of a packet's content: meters that see copies of a packet recognise it by this hash.
//!
//! The hash covers content that copying does not change and that all sources see: the identification of IPv4,
//! and up to twelve bytes after the ports. For TCP these are the sequence and acknowledgement numbers, for UDP
//! the length, the checksum and the first bytes of data. `bpf/meter.bpf.c` in `sys` computes the same number.

use crate::packet::protocol::TCP;

const FIRST_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND_FACTOR: u64 = 0xd6e8_feb8_6659_fd93;

/// Hashes an IP packet with this identification (0 in IPv6) and the start of its payload.
#[inline]
pub(super) fn hash_payload(protocol: u8, identification: u16, payload: &[u8]) -> u32 {
    // For TCP, this word contains the flags, and cards that merge packets change them.
    let last = if protocol == TCP { 0 } else { payload_word(payload, 12) };
    let first = (u64::from(identification) << 32 | payload_word(payload, 4)).wrapping_mul(FIRST_FACTOR);
    let second = (first ^ first >> 32 ^ (payload_word(payload, 8) << 32 | last)).wrapping_mul(SECOND_FACTOR);
    (second >> 32) as u32
}

#[inline]
fn payload_word(payload: &[u8], at: usize) -> u64 {
    let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)))
}
