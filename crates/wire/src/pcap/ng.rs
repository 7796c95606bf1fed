//! pcapng: a file consists of sections, and a section of blocks. Blocks with packets (enhanced, simple, and
//! the obsolete one) become records. Section and interface headers are stored as state. All other blocks are
//! skipped by their length.

use super::{ByteOrder, CaptureDamage, CaptureRecord, DecodedElement, MAX_BLOCK, merged};

/// Type of a section header block; it is the same in both byte orders.
pub(super) const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
/// Maximum number of interfaces in a section.
pub(super) const MAX_INTERFACES: usize = 1 << 16;

const INTERFACE_BLOCK: u32 = 1;
const OBSOLETE_PACKET_BLOCK: u32 = 2;
const SIMPLE_PACKET_BLOCK: u32 = 3;
const ENHANCED_PACKET_BLOCK: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Length of the block type and of both block lengths, in bytes.
const BLOCK_FRAMING_BYTES: usize = 12;

const END_OF_OPTIONS_CODE: u16 = 0;
const COMMENT_OPTION: u16 = 1;
const RESOLUTION_OPTION: u16 = 9;
const FCS_LENGTH_OPTION: u16 = 13;
const OFFSET_OPTION: u16 = 14;

#[derive(Clone, Copy, Debug)]
struct PcapngInterface {
    link_type: u16,
    snap_len: u32,
    resolution: TimeResolution,
    /// Seconds to add to every time.
    offset: i64,
    has_fcs: Option<bool>,
}

/// A unit of time: 10^-n or 2^-n seconds.
#[derive(Clone, Copy, Debug)]
enum TimeResolution {
    Decimal(u8),
    Binary(u8),
}

impl TimeResolution {
    fn new(byte: u8) -> Self {
        if byte & 0x80 == 0 { Self::Decimal(byte) } else { Self::Binary(byte & 0x7f) }
    }

    fn to_ns(self, units: u64) -> u128 {
        let ns = u128::from(units) * 1_000_000_000;
        match self {
            // With a unit below 10^-38 s, all values are below 1 ns.
            Self::Decimal(places) => 10u128.checked_pow(places.into()).map_or(0, |unit| ns / unit),
            Self::Binary(places) => ns >> places,
        }
    }
}

impl PcapngInterface {
    fn at_ns(&self, units: u64) -> u64 {
        // At most 2^64 units of one second are below 2^94 ns, so the result fits into the signed type.
        let ns = self.resolution.to_ns(units).cast_signed();
        let shifted = ns.saturating_add(i128::from(self.offset) * 1_000_000_000);
        // Times before 1970 become 1970, and times after 2554 become the last time that 64 bits can
        // represent.
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}

/// The state of the current section.
#[derive(Clone, Debug)]
pub(super) struct PcapngSection {
    order: ByteOrder,
    interfaces: Vec<PcapngInterface>,
}

impl PcapngSection {
    pub(super) fn new() -> Self {
        Self { order: ByteOrder::Little, interfaces: Vec::new() }
    }

    pub(super) fn next_step<'a>(&mut self, input: &'a [u8]) -> Result<DecodedElement<'a>, CaptureDamage> {
        let Some(kind) = self.order.read_u32(input, 0) else { return Ok(DecodedElement::More(8)) };
        // The block type is checked before the length is read, because a new section may have the other byte
        // order.
        if kind == SECTION_HEADER_BLOCK {
            return self.read_section(input);
        }
        let Some(length) = self.order.read_u32(input, 4) else { return Ok(DecodedElement::More(8)) };
        let length = check_length(length)?;
        // A block without a packet may have any length, because it is skipped without being read into memory.
        if !matches!(
            kind,
            INTERFACE_BLOCK | OBSOLETE_PACKET_BLOCK | SIMPLE_PACKET_BLOCK | ENHANCED_PACKET_BLOCK
        ) {
            return Ok(DecodedElement::Skip(length));
        }
        // The body of the other blocks is read into memory, so their length is limited.
        let used = usize::try_from(length).ok().filter(|length| *length <= MAX_BLOCK);
        let used = used.ok_or(CaptureDamage::Length(length))?;
        let Some(block) = input.get(..used) else { return Ok(DecodedElement::More(used)) };
        // The two lengths of a block are equal, unless the file is damaged or was truncated while it was
        // written.
        let again = self.order.read_u32(block, used - 4).map_or(0, u64::from);
        if again != length {
            return Err(CaptureDamage::Length(again));
        }
        let body = &block[8..used - 4];
        if kind == INTERFACE_BLOCK {
            self.read_interface(body)?;
            return Ok(DecodedElement::Skip(length));
        }
        Ok(DecodedElement::Record { record: self.read_packet(kind, body)?, used })
    }

    /// Reads a section header. A section has its own byte order and its own interfaces.
    fn read_section<'a>(&mut self, input: &'a [u8]) -> Result<DecodedElement<'a>, CaptureDamage> {
        let Some(magic) = ByteOrder::Little.read_u32(input, 8) else { return Ok(DecodedElement::More(16)) };
        let order = match magic {
            BYTE_ORDER_MAGIC => ByteOrder::Little,
            magic if magic.swap_bytes() == BYTE_ORDER_MAGIC => ByteOrder::Big,
            _ => return Err(CaptureDamage::Magic),
        };
        let Some(length) = order.read_u32(input, 4) else { return Ok(DecodedElement::More(16)) };
        let Some(version) = order.read_u16(input, 12) else { return Ok(DecodedElement::More(16)) };
        if version != 1 {
            return Err(CaptureDamage::Version(version));
        }
        // Interfaces are numbered anew in each section, so those of the previous section are removed.
        *self = Self { order, interfaces: Vec::new() };
        check_length(length).map(DecodedElement::Skip)
    }

    fn read_interface(&mut self, body: &[u8]) -> Result<(), CaptureDamage> {
        let short = CaptureDamage::Length(body.len() as u64);
        let link_type = self.order.read_u16(body, 0).ok_or(short)?;
        let snap_len = self.order.read_u32(body, 4).ok_or(short)?;
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(CaptureDamage::Interfaces);
        }
        // The unit is microseconds, unless an option states another one.
        let resolution = TimeResolution::Decimal(6);
        let mut interface = PcapngInterface { link_type, snap_len, resolution, offset: 0, has_fcs: None };
        self.for_each_option(&body[8..], |code, value| match (code, value) {
            (RESOLUTION_OPTION, [byte, ..]) => interface.resolution = TimeResolution::new(*byte),
            // The format specifies the length in bits, but many writers give it in bytes.
            (FCS_LENGTH_OPTION, [byte, ..]) => interface.has_fcs = Some(matches!(byte, 4 | 32)),
            // The offset is a signed number of seconds.
            (OFFSET_OPTION, value) => {
                interface.offset = self.order.read_u64(value, 0).map_or(0, u64::cast_signed);
            }
            _ => {}
        });
        self.interfaces.push(interface);
        Ok(())
    }

    /// Passes the options of a block to `take`; stops at the end of the options, or at an invalid one.
    fn for_each_option(&self, mut bytes: &[u8], mut take: impl FnMut(u16, &[u8])) {
        while let (Some(code), Some(len)) = (self.order.read_u16(bytes, 0), self.order.read_u16(bytes, 2)) {
            let len = usize::from(len);
            let padded = len.next_multiple_of(4);
            let Some(value) = bytes.get(4..4 + len).filter(|_| code != END_OF_OPTIONS_CODE) else { return };
            take(code, value);
            bytes = bytes.get(4 + padded..).unwrap_or_default();
        }
    }

    fn read_packet<'a>(&self, kind: u32, body: &'a [u8]) -> Result<CaptureRecord<'a>, CaptureDamage> {
        if kind == SIMPLE_PACKET_BLOCK {
            return self.read_simple_packet(self.read_word(body, 0)?, &body[4..]);
        }
        let short = CaptureDamage::Length(body.len() as u64);
        let index = match kind {
            // The interface and a drop count share the first word.
            OBSOLETE_PACKET_BLOCK => self.order.read_u16(body, 0).map(u32::from).ok_or(short)?,
            _ => self.read_word(body, 0)?,
        };
        let interface = self.interface_at(index)?;
        // The upper half comes first in both byte orders.
        let units = u64::from(self.read_word(body, 4)?) << 32 | u64::from(self.read_word(body, 8)?);
        let kept = self.read_word(body, 12)?;
        let full_len = self.read_word(body, 16)?;
        let kept = usize::try_from(kept).map_err(|_| short)?;
        let bytes = body[20..].get(..kept).ok_or(CaptureDamage::Length(kept as u64))?;
        let mut record = interface.to_record(bytes, full_len, Some(interface.at_ns(units)));
        // The check for options saves a call, because few packets have any.
        let options = body.get(20 + kept.next_multiple_of(4)..).unwrap_or_default();
        if kind == ENHANCED_PACKET_BLOCK && !options.is_empty() {
            self.for_each_option(options, |code, value| {
                if code == COMMENT_OPTION && record.merged.is_none() {
                    record.merged = merged::parse_merge_comment(value);
                }
            });
        }
        Ok(record)
    }

    /// Reads a word of a block's body; fails if the body is too short.
    fn read_word(&self, body: &[u8], at: usize) -> Result<u32, CaptureDamage> {
        self.order.read_u32(body, at).ok_or(CaptureDamage::Length(body.len() as u64))
    }

    /// Reads a simple packet block. It contains only the length on the wire: the packet belongs to the first
    /// interface, whose snap length limits the number of stored bytes.
    fn read_simple_packet<'a>(
        &self,
        full_len: u32,
        rest: &'a [u8],
    ) -> Result<CaptureRecord<'a>, CaptureDamage> {
        let interface = self.interface_at(0)?;
        // A snap length of 0 means that no packet was truncated.
        let kept = if interface.snap_len == 0 { full_len } else { full_len.min(interface.snap_len) };
        // The block is padded, so its body may be longer than the packet. The body of a damaged block is
        // shorter.
        let kept = usize::try_from(kept).map_or(rest.len(), |kept| kept.min(rest.len()));
        Ok(interface.to_record(&rest[..kept], full_len, None))
    }

    fn interface_at(&self, index: u32) -> Result<&PcapngInterface, CaptureDamage> {
        let found = usize::try_from(index).ok().and_then(|index| self.interfaces.get(index));
        found.ok_or(CaptureDamage::Interface(index))
    }
}

impl PcapngInterface {
    fn to_record(self, bytes: &[u8], full_len: u32, at_ns: Option<u64>) -> CaptureRecord<'_> {
        let Self { link_type, has_fcs, .. } = self;
        CaptureRecord { bytes, full_len, at_ns, link_type, has_fcs, merged: None }
    }
}

/// Checks whether a block can have this length, and returns it.
fn check_length(length: u32) -> Result<u64, CaptureDamage> {
    let fits = length as usize >= BLOCK_FRAMING_BYTES && length.is_multiple_of(4);
    if fits { Ok(length.into()) } else { Err(CaptureDamage::Length(length.into())) }
}
