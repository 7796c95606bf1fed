//! Classic pcap: a file header, then packets. The magic number determines the byte order and the unit of the
//! times (micro- or nanoseconds).

use super::{ByteOrder, CaptureDamage, CaptureRecord, DecodedElement, MAX_BLOCK};

/// Length of the file header in bytes.
pub(super) const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;
const MICROSECONDS_MAGIC: u32 = 0xa1b2_c3d4;
const NANOSECONDS_MAGIC: u32 = 0xa1b2_3c4d;
/// Flag in the upper half of the link type word: if it is set, the top bits contain the length of the FCS in
/// units of two bytes.
const FCS_LENGTH_KNOWN_FLAG: u32 = 1 << 26;

/// The contents of the file header.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassicFile {
    order: ByteOrder,
    /// Nanoseconds in one unit of the fraction of a time.
    unit_ns: u64,
    link_type: u16,
    has_fcs: Option<bool>,
}

/// The header of a packet: its time, the number of its bytes in the file, and its length on the wire.
struct ClassicPacketHeader {
    seconds: u32,
    fraction: u32,
    kept: u32,
    full_len: u32,
}

impl ClassicFile {
    /// Reads the file header; `None` if it is not complete.
    pub(super) fn read_header(input: &[u8]) -> Result<Option<Self>, CaptureDamage> {
        let ClassicMagic { order, unit_ns } = read_magic(input).ok_or(CaptureDamage::Magic)?;
        if input.len() < FILE_HEADER {
            return Ok(None);
        }
        let version = order.read_u16(input, 4).unwrap_or(0);
        if version != 2 {
            return Err(CaptureDamage::Version(version));
        }
        let word = order.read_u32(input, 20).unwrap_or(0);
        // The top four bits count units of two bytes, so 2 means an FCS of four bytes.
        let has_fcs = (word & FCS_LENGTH_KNOWN_FLAG != 0).then_some(word >> 28 == 2);
        let link_type = (word & 0xffff) as u16;
        Ok(Some(Self { order, unit_ns, link_type, has_fcs }))
    }

    fn read_packet_header(&self, input: &[u8]) -> Option<ClassicPacketHeader> {
        Some(ClassicPacketHeader {
            seconds: self.order.read_u32(input, 0)?,
            fraction: self.order.read_u32(input, 4)?,
            kept: self.order.read_u32(input, 8)?,
            full_len: self.order.read_u32(input, 12)?,
        })
    }

    pub(super) fn next_step<'a>(&self, input: &'a [u8]) -> Result<DecodedElement<'a>, CaptureDamage> {
        let Some(ClassicPacketHeader { seconds, fraction, kept, full_len }) = self.read_packet_header(input)
        else {
            return Ok(DecodedElement::More(PACKET_HEADER));
        };
        // A length above `MAX_BLOCK` is taken for damage, because no writer uses it. Otherwise, a damaged
        // length would skip the rest of the file or allocate 4 GiB of memory.
        let used = usize::try_from(kept).ok().and_then(|kept| kept.checked_add(PACKET_HEADER));
        let used =
            used.filter(|used| *used <= MAX_BLOCK).ok_or_else(|| CaptureDamage::Length(kept.into()))?;
        let Some(bytes) = input.get(PACKET_HEADER..used) else { return Ok(DecodedElement::More(used)) };
        let at_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.unit_ns;
        let record = CaptureRecord {
            bytes,
            full_len,
            at_ns: Some(at_ns),
            link_type: self.link_type,
            has_fcs: self.has_fcs,
            merged: None,
        };
        Ok(DecodedElement::Record { record, used })
    }
}

/// The meaning of a magic number.
struct ClassicMagic {
    order: ByteOrder,
    /// Nanoseconds in one unit of the fraction of a time.
    unit_ns: u64,
}

fn read_magic(input: &[u8]) -> Option<ClassicMagic> {
    [ByteOrder::Little, ByteOrder::Big].into_iter().find_map(|order| match order.read_u32(input, 0)? {
        MICROSECONDS_MAGIC => Some(ClassicMagic { order, unit_ns: 1_000 }),
        NANOSECONDS_MAGIC => Some(ClassicMagic { order, unit_ns: 1 }),
        _ => None,
    })
}
