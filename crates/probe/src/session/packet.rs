//! The packets of both directions, with and without digest (RFC 8762, 4.2 and 4.3).
//!
//! Invariant: a written packet is read back the same; a packet that is too short is refused.

use super::time::ErrorEstimate;
use super::{DIGEST_BYTES, SessionKey, read_be16, read_be32, read_be64};

/// Bytes of a packet without digest; TLVs may follow.
pub const UNAUTHENTICATED_PACKET_BYTES: usize = 44;
/// Bytes of a packet with digest; TLVs may follow.
pub const AUTHENTICATED_PACKET_BYTES: usize = 112;
/// Number of bytes before the digest, which the digest covers.
const DIGEST_COVERED_BYTES: usize = AUTHENTICATED_PACKET_BYTES - DIGEST_BYTES;

/// Content of a packet from the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampRequest {
    pub sequence: u32,
    /// Departure time, as the sender states it.
    pub sent: u64,
    /// Error of the sender's clock.
    pub estimate: ErrorEstimate,
    /// The sender's number of the session (RFC 8972, 3); zero if it has none.
    pub session: u16,
}

/// Content of a packet from the reflector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampReflection {
    /// A stateful reflector counts its reflections; a stateless one returns the request's number.
    pub sequence: u32,
    /// Departure time, as the reflector states it.
    pub sent: u64,
    /// Error of the reflector's clock.
    pub estimate: ErrorEstimate,
    pub session: u16,
    /// Arrival time of the request.
    pub received: u64,
    pub request: StampRequest,
    /// The hop limit (TTL) that the request arrived with.
    pub hops: u8,
}

/// Bytes of a packet before its TLVs; a packet with a digest is longer.
pub const fn base_length(key: Option<&SessionKey>) -> usize {
    if key.is_some() { AUTHENTICATED_PACKET_BYTES } else { UNAUTHENTICATED_PACKET_BYTES }
}

/// Offsets of the fields in a packet. A request has only the first three fields.
struct FieldOffsets {
    time: usize,
    estimate: usize,
    session: usize,
    received: usize,
    request: usize,
    request_time: usize,
    request_estimate: usize,
    hops: usize,
}

const UNAUTHENTICATED_OFFSETS: FieldOffsets = FieldOffsets {
    time: 4,
    estimate: 12,
    session: 14,
    received: 16,
    request: 24,
    request_time: 28,
    request_estimate: 36,
    hops: 40,
};
const AUTHENTICATED_OFFSETS: FieldOffsets = FieldOffsets {
    time: 16,
    estimate: 24,
    session: 26,
    received: 32,
    request: 48,
    request_time: 64,
    request_estimate: 72,
    hops: 80,
};

const fn field_offsets(key: Option<&SessionKey>) -> FieldOffsets {
    if key.is_some() { AUTHENTICATED_OFFSETS } else { UNAUTHENTICATED_OFFSETS }
}

impl StampRequest {
    /// Writes a packet without TLVs, in place of the old content.
    pub fn write_packet(&self, key: Option<&SessionKey>, packet: &mut Vec<u8>) {
        begin_packet(key, packet);
        self.write_stamp_fields(packet, &field_offsets(key));
        write_digest(key, packet);
    }

    fn write_stamp_fields(&self, packet: &mut [u8], places: &FieldOffsets) {
        put_bytes(packet, 0, &self.sequence.to_be_bytes());
        put_bytes(packet, places.time, &self.sent.to_be_bytes());
        put_bytes(packet, places.estimate, &self.estimate.to_bits().to_be_bytes());
        put_bytes(packet, places.session, &self.session.to_be_bytes());
    }

    /// Reads a packet from the sender; `None` if it is too short, or its digest is wrong.
    pub fn read_packet(packet: &[u8], key: Option<&SessionKey>) -> Option<Self> {
        // The digest is checked first, so that no field of a forged packet is used.
        if !has_valid_digest(packet, key) {
            return None;
        }
        let at = field_offsets(key);
        Some(Self {
            sequence: read_be32(packet, 0)?,
            sent: read_be64(packet, at.time)?,
            estimate: ErrorEstimate::from_bits(read_be16(packet, at.estimate)?),
            session: read_be16(packet, at.session)?,
        })
    }
}

impl StampReflection {
    /// Writes a packet without TLVs, in place of the old content.
    pub fn write_packet(&self, key: Option<&SessionKey>, packet: &mut Vec<u8>) {
        begin_packet(key, packet);
        let at = field_offsets(key);
        // A reflection begins with the same fields as a request (RFC 8762, 4.3).
        let own = StampRequest {
            sequence: self.sequence,
            sent: self.sent,
            estimate: self.estimate,
            session: self.session,
        };
        own.write_stamp_fields(packet, &at);
        put_bytes(packet, at.received, &self.received.to_be_bytes());
        put_bytes(packet, at.request, &self.request.sequence.to_be_bytes());
        put_bytes(packet, at.request_time, &self.request.sent.to_be_bytes());
        put_bytes(packet, at.request_estimate, &self.request.estimate.to_bits().to_be_bytes());
        put_bytes(packet, at.hops, &[self.hops]);
        write_digest(key, packet);
    }

    /// Reads a packet from the reflector; `None` if it is too short, or its digest is wrong.
    pub fn read_packet(packet: &[u8], key: Option<&SessionKey>) -> Option<Self> {
        let own = StampRequest::read_packet(packet, key)?;
        let at = field_offsets(key);
        let request = StampRequest {
            sequence: read_be32(packet, at.request)?,
            sent: read_be64(packet, at.request_time)?,
            estimate: ErrorEstimate::from_bits(read_be16(packet, at.request_estimate)?),
            // The packet has one field for the session number, which both ends share.
            session: own.session,
        };
        Some(Self {
            sequence: own.sequence,
            sent: own.sent,
            estimate: own.estimate,
            session: own.session,
            received: read_be64(packet, at.received)?,
            request,
            hops: *packet.get(at.hops)?,
        })
    }
}

fn begin_packet(key: Option<&SessionKey>, packet: &mut Vec<u8>) {
    packet.clear();
    packet.resize(base_length(key), 0);
}

fn put_bytes(packet: &mut [u8], at: usize, bytes: &[u8]) {
    packet[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes the digest if there is a key.
fn write_digest(key: Option<&SessionKey>, packet: &mut [u8]) {
    if let Some(key) = key {
        let digest = key.compute_digest(&[&packet[..DIGEST_COVERED_BYTES]]);
        put_bytes(packet, DIGEST_COVERED_BYTES, &digest);
    }
}

/// Returns whether a packet is long enough, and has a right digest if there is a key.
fn has_valid_digest(packet: &[u8], key: Option<&SessionKey>) -> bool {
    let Some(head) = packet.get(..base_length(key)) else { return false };
    key.is_none_or(|key| key.is_digest_right(&[&head[..DIGEST_COVERED_BYTES]], &head[DIGEST_COVERED_BYTES..]))
}
