//! The packets of both directions, with and without digest.
//!
//! Invariant: what is written is read back the same; a packet that is too short is none.

use super::time::ErrorEstimate;
use super::{DIGEST, SessionKey, be16, be32, be64};

/// Bytes of a packet without digest, and of one with it; TLVs follow.
pub const OPEN: usize = 44;
/// See [`OPEN`].
pub const SEALED: usize = 112;
/// The digest covers what is in front of it.
const COVERED: usize = SEALED - DIGEST;

/// What a sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampRequest {
    pub sequence: u32,
    /// When it left, by the sender's word.
    pub sent: u64,
    /// How far the sender's clock may be off.
    pub estimate: ErrorEstimate,
    /// Which session of the sender (RFC 8972); zero: it does not say.
    pub session: u16,
}

/// What a reflector sends back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampReflection {
    /// Its own number: the request's, or counted where the reflector keeps count.
    pub sequence: u32,
    /// When it left, by the reflector's word.
    pub sent: u64,
    /// How far the reflector's clock may be off.
    pub estimate: ErrorEstimate,
    pub session: u16,
    /// When the request came in.
    pub received: u64,
    pub request: StampRequest,
    /// Hops the request had left.
    pub hops: u8,
}

/// Length of the part in front of the TLVs.
pub const fn length(key: Option<&SessionKey>) -> usize {
    if key.is_some() { SEALED } else { OPEN }
}

/// Where the fields are: offsets of (time, estimate, session) and, in a reflection, of what it says about the request.
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

const OPEN_PLACES: FieldOffsets = FieldOffsets {
    time: 4,
    estimate: 12,
    session: 14,
    received: 16,
    request: 24,
    request_time: 28,
    request_estimate: 36,
    hops: 40,
};
const SEALED_PLACES: FieldOffsets = FieldOffsets {
    time: 16,
    estimate: 24,
    session: 26,
    received: 32,
    request: 48,
    request_time: 64,
    request_estimate: 72,
    hops: 80,
};

const fn places(key: Option<&SessionKey>) -> FieldOffsets {
    if key.is_some() { SEALED_PLACES } else { OPEN_PLACES }
}

impl StampRequest {
    /// Into a packet without TLVs, whose old content is forgotten.
    pub fn write(&self, key: Option<&SessionKey>, packet: &mut Vec<u8>) {
        begin(key, packet);
        self.put(packet, &places(key));
        seal(key, packet);
    }

    fn put(&self, packet: &mut [u8], places: &FieldOffsets) {
        put(packet, 0, &self.sequence.to_be_bytes());
        put(packet, places.time, &self.sent.to_be_bytes());
        put(packet, places.estimate, &self.estimate.write().to_be_bytes());
        put(packet, places.session, &self.session.to_be_bytes());
    }

    /// `None` if it is too short, or its digest is wrong.
    pub fn read(packet: &[u8], key: Option<&SessionKey>) -> Option<Self> {
        if !is_sealed(packet, key) {
            return None;
        }
        let at = places(key);
        Some(Self {
            sequence: be32(packet, 0)?,
            sent: be64(packet, at.time)?,
            estimate: ErrorEstimate::read(be16(packet, at.estimate)?),
            session: be16(packet, at.session)?,
        })
    }
}

impl StampReflection {
    /// Into a packet without TLVs, whose old content is forgotten.
    pub fn write(&self, key: Option<&SessionKey>, packet: &mut Vec<u8>) {
        begin(key, packet);
        let at = places(key);
        let own = StampRequest {
            sequence: self.sequence,
            sent: self.sent,
            estimate: self.estimate,
            session: self.session,
        };
        own.put(packet, &at);
        put(packet, at.received, &self.received.to_be_bytes());
        put(packet, at.request, &self.request.sequence.to_be_bytes());
        put(packet, at.request_time, &self.request.sent.to_be_bytes());
        put(packet, at.request_estimate, &self.request.estimate.write().to_be_bytes());
        put(packet, at.hops, &[self.hops]);
        seal(key, packet);
    }

    /// `None` if it is too short, or its digest is wrong.
    pub fn read(packet: &[u8], key: Option<&SessionKey>) -> Option<Self> {
        let own = StampRequest::read(packet, key)?;
        let at = places(key);
        let request = StampRequest {
            sequence: be32(packet, at.request)?,
            sent: be64(packet, at.request_time)?,
            estimate: ErrorEstimate::read(be16(packet, at.request_estimate)?),
            session: own.session,
        };
        Some(Self {
            sequence: own.sequence,
            sent: own.sent,
            estimate: own.estimate,
            session: own.session,
            received: be64(packet, at.received)?,
            request,
            hops: *packet.get(at.hops)?,
        })
    }
}

fn begin(key: Option<&SessionKey>, packet: &mut Vec<u8>) {
    packet.clear();
    packet.resize(length(key), 0);
}

fn put(packet: &mut [u8], at: usize, bytes: &[u8]) {
    packet[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes the digest where there is a key.
fn seal(key: Option<&SessionKey>, packet: &mut [u8]) {
    if let Some(key) = key {
        let digest = key.digest(&[&packet[..COVERED]]);
        put(packet, COVERED, &digest);
    }
}

/// Whether a packet is long enough, and its digest right where there has to be one.
fn is_sealed(packet: &[u8], key: Option<&SessionKey>) -> bool {
    let Some(head) = packet.get(..length(key)) else { return false };
    key.is_none_or(|key| key.is_right(&[&head[..COVERED]], &head[COVERED..]))
}
