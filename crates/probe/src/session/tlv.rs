//! What may follow a STAMP packet: type, length, value (RFC 8972).
//!
//! Invariant: reading never panics and never reads past the end; what cannot be read is marked, not dropped, because a reflector
//! sends back what it was sent.

use super::{SessionKey, be16, be32, be64};

/// Bytes in front of a value.
pub const HEADER: usize = 4;

/// Flags of a TLV.
pub mod flags {
    /// The reflector does not know it; a sender sets it.
    pub const UNRECOGNIZED: u8 = 0x80;
    /// Its length does not fit what it is.
    pub const MALFORMED: u8 = 0x40;
    /// The digest over it is wrong.
    pub const INTEGRITY: u8 = 0x20;
}

/// What a TLV is.
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
    /// Of a type field.
    pub const fn of(number: u8) -> Self {
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

    /// Whether a value of this length can be one.
    pub const fn fits(self, length: usize) -> bool {
        match self {
            Self::ExtraPadding | Self::Other(_) => true,
            Self::Location => length >= 4,
            Self::TimestampInformation | Self::ClassOfService | Self::AccessReport => length == 4,
            Self::DirectMeasurement => length == 12,
            Self::FollowUpTelemetry | Self::Hmac => length == 16,
        }
    }
}

/// A TLV as it lies in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    pub flags: u8,
    pub kind: TlvKind,
    /// Its value; cut if the packet ends before it does.
    pub value: &'a [u8],
    /// Where its header is, from the first TLV on.
    pub at: usize,
    /// It is cut, or its length does not suit its kind.
    pub is_malformed: bool,
}

/// The TLVs of a packet, from where they begin; ends at the first that is cut, or at padding of zeros.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = Tlv<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(at..)?.first_chunk::<HEADER>()?;
        // Type 0 is reserved: that is padding, as the light form of TWAMP has it.
        if head[1] == 0 {
            return None;
        }
        let (start, length) = (at + HEADER, usize::from(be16(bytes, at + 2)?));
        let end = (start + length).min(bytes.len());
        let (kind, value) = (TlvKind::of(head[1]), bytes.get(start..end)?);
        let is_malformed = value.len() < length || !kind.fits(length);
        let tlv = Tlv { flags: head[0], kind, value, at, is_malformed };
        at = start + length;
        Some(tlv)
    })
}

/// Adds one as a sender writes it.
pub fn ask(packet: &mut Vec<u8>, kind: TlvKind, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    packet.extend([flags::UNRECOGNIZED, kind.number()]);
    packet.extend(length.to_be_bytes());
    packet.extend(&value[..usize::from(length)]);
}

/// Adds the digest over number and TLVs, which begin at `from`.
pub fn seal(packet: &mut Vec<u8>, from: usize, key: &SessionKey) {
    let digest = key.digest(&[&packet[..4], &packet[from..]]);
    ask(packet, TlvKind::Hmac, &digest);
}

/// Whether TLVs from `from` on are covered by a right digest; also if there are none.
pub fn is_sealed(packet: &[u8], from: usize, key: &SessionKey) -> bool {
    let Some(bytes) = packet.get(from..) else { return true };
    let mut last = None;
    for tlv in read(bytes) {
        match tlv.kind {
            TlvKind::Hmac => {
                // Nothing may follow that it does not cover, but for padding.
                let behind = &bytes[tlv.at + HEADER + tlv.value.len()..];
                let padding = read(behind).take_while(|tlv| tlv.kind == TlvKind::ExtraPadding);
                let is_last = padding.map(|tlv| HEADER + tlv.value.len()).sum::<usize>() == behind.len();
                let is_right = key.is_right(&[&packet[..4], &bytes[..tlv.at]], tlv.value);
                return !tlv.is_malformed && is_last && is_right;
            }
            _ => last = Some(tlv),
        }
    }
    last.is_none()
}

/// What Follow-Up Telemetry says: when a reflection left in truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowUp {
    /// Number of that reflection.
    pub sequence: u32,
    /// When it left, as the reflection's times are written.
    pub sent: u64,
    /// How it was stamped: 1 by hardware, 2 by the kernel or driver, 3 by a program.
    pub method: u8,
}

impl FollowUp {
    /// From a value; `None` if it is empty, as a sender sends it, or no such value.
    pub fn read(value: &[u8]) -> Option<Self> {
        let found = Self { sequence: be32(value, 0)?, sent: be64(value, 4)?, method: *value.get(12)? };
        Some(found).filter(|found| found.sent != 0)
    }

    pub fn write(&self) -> [u8; 16] {
        let mut value = [0; 16];
        value[..4].copy_from_slice(&self.sequence.to_be_bytes());
        value[4..12].copy_from_slice(&self.sent.to_be_bytes());
        value[12] = self.method;
        value
    }
}

/// What Direct Measurement counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredCounts {
    /// Packets of the session the sender had sent.
    pub sent: u32,
    /// Those the reflector had received.
    pub received: u32,
    /// Those it had sent back.
    pub reflected: u32,
}

impl MeasuredCounts {
    pub fn read(value: &[u8]) -> Option<Self> {
        Some(Self { sent: be32(value, 0)?, received: be32(value, 4)?, reflected: be32(value, 8)? })
    }

    pub fn write(&self) -> [u8; 12] {
        let mut value = [0; 12];
        value[..4].copy_from_slice(&self.sent.to_be_bytes());
        value[4..8].copy_from_slice(&self.received.to_be_bytes());
        value[8..].copy_from_slice(&self.reflected.to_be_bytes());
        value
    }
}

/// What a Class of Service TLV says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceClass {
    /// The code point the sender wants for the reflection.
    pub wanted: u8,
    /// The code point the request arrived with.
    pub arrived: u8,
    /// Its ECN bits.
    pub ecn: u8,
    /// The reflector did not use the wanted code point.
    pub is_refused: bool,
}

impl ServiceClass {
    pub fn read(value: &[u8]) -> Option<Self> {
        let bits = be32(value, 0)?;
        let part = |shift: u32, mask: u32| u8::try_from(bits >> shift & mask).unwrap_or(0);
        Some(Self {
            wanted: part(26, 63),
            arrived: part(20, 63),
            ecn: part(18, 3),
            is_refused: part(16, 3) != 0,
        })
    }

    pub const fn write(&self) -> [u8; 4] {
        let bits = ((self.wanted & 63) as u32) << 26
            | ((self.arrived & 63) as u32) << 20
            | ((self.ecn & 3) as u32) << 18
            | (self.is_refused as u32) << 16;
        bits.to_be_bytes()
    }
}
