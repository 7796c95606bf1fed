//! The TLVs (type, length, value) that may follow a STAMP packet (RFC 8972).
//!
//! Invariant: reading never panics and never reads past the end. A TLV that cannot be read is marked, not
//! dropped, because a reflector returns it.

use super::{SessionKey, read_be16, read_be32, read_be64};
use packetrig_units::clamp_to_u16;

/// Bytes of flags, type and length.
pub const HEADER: usize = 4;

/// Flags of a TLV.
pub mod flags {
    /// The reflector does not support this TLV. A sender sets this flag, and a reflector that supports
    /// the TLV clears it.
    pub const UNRECOGNIZED_FLAG: u8 = 0x80;
    /// The length of the TLV is wrong for its type.
    pub const MALFORMED_FLAG: u8 = 0x40;
    /// The digest over the TLV is wrong.
    pub const INTEGRITY_FLAG: u8 = 0x20;
}

/// The type of a TLV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlvKind {
    ExtraPadding,
    Location,
    TimestampInformation,
    ClassOfService,
    DirectMeasurement,
    AccessReport,
    FollowUpTelemetry,
    Hmac,
    Other(u8),
}

impl TlvKind {
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::ExtraPadding,
            2 => Self::Location,
            3 => Self::TimestampInformation,
            4 => Self::ClassOfService,
            5 => Self::DirectMeasurement,
            6 => Self::AccessReport,
            7 => Self::FollowUpTelemetry,
            8 => Self::Hmac,
            other => Self::Other(other),
        }
    }

    pub const fn number(self) -> u8 {
        match self {
            Self::ExtraPadding => 1,
            Self::Location => 2,
            Self::TimestampInformation => 3,
            Self::ClassOfService => 4,
            Self::DirectMeasurement => 5,
            Self::AccessReport => 6,
            Self::FollowUpTelemetry => 7,
            Self::Hmac => 8,
            Self::Other(number) => number,
        }
    }

    /// Returns whether a value of this type may have this length.
    pub const fn allows_length(self, length: usize) -> bool {
        match self {
            Self::ExtraPadding | Self::Other(_) => true,
            Self::Location => length >= 4,
            Self::TimestampInformation | Self::ClassOfService | Self::AccessReport => length == 4,
            Self::DirectMeasurement => length == 12,
            Self::FollowUpTelemetry | Self::Hmac => length == 16,
        }
    }
}

/// A TLV in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    pub flags: u8,
    pub kind: TlvKind,
    /// The value, cut off at the end of the packet if the stated length is too large.
    pub value: &'a [u8],
    /// Offset of the TLV's header from the first TLV.
    pub at: usize,
    /// True if the TLV is cut off, or if its length is wrong for its type.
    pub is_malformed: bool,
}

/// Reads the TLVs of a packet. Ends after the first one that is cut off, which it returns as malformed, or before padding of zeros.
pub fn read_tlvs(bytes: &[u8]) -> impl Iterator<Item = Tlv<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(at..)?.first_chunk::<HEADER>()?;
        // Type 0 is reserved, so this is the padding of zeros that senders of TWAMP Light add.
        if head[1] == 0 {
            return None;
        }
        let start = at + HEADER;
        let length = usize::from(read_be16(bytes, at + 2)?);
        let end = (start + length).min(bytes.len());
        let kind = TlvKind::from_number(head[1]);
        let value = bytes.get(start..end)?;
        let is_malformed = value.len() < length || !kind.allows_length(length);
        let tlv = Tlv { flags: head[0], kind, value, at, is_malformed };
        // The stated length is used, so that the iteration ends after a TLV that is cut off.
        at = start + length;
        Some(tlv)
    })
}

/// Appends a TLV as a sender writes it: flagged as unrecognized until a reflector clears the flag.
pub fn push_tlv(packet: &mut Vec<u8>, kind: TlvKind, value: &[u8]) {
    let length = clamp_to_u16(value.len());
    packet.extend([flags::UNRECOGNIZED_FLAG, kind.number()]);
    packet.extend(length.to_be_bytes());
    packet.extend(&value[..usize::from(length)]);
}

/// Appends an HMAC TLV: the digest over the sequence number and the TLVs, which begin at `from`.
pub fn push_digest(packet: &mut Vec<u8>, from: usize, key: &SessionKey) {
    let digest = key.compute_digest(&[&packet[..4], &packet[from..]]);
    push_tlv(packet, TlvKind::Hmac, &digest);
}

/// Returns whether a valid digest covers the TLVs from `from` on, or the packet has no TLVs.
pub fn has_valid_digest(packet: &[u8], from: usize, key: &SessionKey) -> bool {
    let Some(bytes) = packet.get(from..) else { return true };
    let mut last = None;
    for tlv in read_tlvs(bytes) {
        match tlv.kind {
            TlvKind::Hmac => {
                // Only Extra Padding may follow the digest, since nothing protects it (RFC 8972, 4.8).
                let behind = &bytes[tlv.at + HEADER + tlv.value.len()..];
                let padding = read_tlvs(behind).take_while(|tlv| tlv.kind == TlvKind::ExtraPadding);
                let is_last = padding.map(|tlv| HEADER + tlv.value.len()).sum::<usize>() == behind.len();
                let is_right = key.is_digest_right(&[&packet[..4], &bytes[..tlv.at]], tlv.value);
                return !tlv.is_malformed && is_last && is_right;
            }
            _ => last = Some(tlv),
        }
    }
    // TLVs without a digest are treated like TLVs with a wrong one. A packet without TLVs needs no digest.
    last.is_none()
}

/// The value of Follow-Up Telemetry: when an earlier reflection really left (RFC 8972, 4.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowUp {
    /// Sequence number of the earlier reflection.
    pub sequence: u32,
    /// Departure time, in the format of the reflection's times.
    pub sent: u64,
    /// Timestamping method: 1 hardware, 2 local software, 3 control plane.
    pub method: u8,
}

impl FollowUp {
    /// Reads a value; `None` if it is too short, or if its time is zero, as in a request.
    pub fn from_value(value: &[u8]) -> Option<Self> {
        let found =
            Self { sequence: read_be32(value, 0)?, sent: read_be64(value, 4)?, method: *value.get(12)? };
        Some(found).filter(|found| found.sent != 0)
    }

    pub fn to_value(&self) -> [u8; 16] {
        let mut value = [0; 16];
        value[..4].copy_from_slice(&self.sequence.to_be_bytes());
        value[4..12].copy_from_slice(&self.sent.to_be_bytes());
        value[12] = self.method;
        value
    }
}

/// The counts of Direct Measurement (RFC 8972, 4.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredCounts {
    /// Packets of the session that the sender had sent.
    pub sent: u32,
    /// Packets that the reflector had received.
    pub received: u32,
    /// Packets that the reflector had sent back.
    pub reflected: u32,
}

impl MeasuredCounts {
    pub fn from_value(value: &[u8]) -> Option<Self> {
        Some(Self {
            sent: read_be32(value, 0)?,
            received: read_be32(value, 4)?,
            reflected: read_be32(value, 8)?,
        })
    }

    pub fn to_value(&self) -> [u8; 12] {
        let mut value = [0; 12];
        value[..4].copy_from_slice(&self.sent.to_be_bytes());
        value[4..8].copy_from_slice(&self.received.to_be_bytes());
        value[8..].copy_from_slice(&self.reflected.to_be_bytes());
        value
    }
}

/// The value of Class of Service (RFC 8972, 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceClass {
    /// The code point (DSCP) that the sender requests for the reflection.
    pub wanted: u8,
    /// The code point (DSCP) that the request arrived with.
    pub arrived: u8,
    /// The ECN bits of the request.
    pub ecn: u8,
    /// True if the reflector did not use the requested code point.
    pub is_refused: bool,
}

impl ServiceClass {
    pub fn from_value(value: &[u8]) -> Option<Self> {
        // DSCP1 (6 bits), DSCP2 (6), ECN (2), RP (2), then reserved bits: the second field spans both bytes.
        let [first, second, ..] = *value.first_chunk::<4>()?;
        Some(Self {
            wanted: first >> 2,
            arrived: (first & 3) << 4 | second >> 4,
            ecn: second >> 2 & 3,
            is_refused: second & 3 != 0,
        })
    }

    pub const fn to_value(&self) -> [u8; 4] {
        let bits = ((self.wanted & 63) as u32) << 26
            | ((self.arrived & 63) as u32) << 20
            | ((self.ecn & 3) as u32) << 18
            | (self.is_refused as u32) << 16;
        bits.to_be_bytes()
    }
}
