//! Capture files, classic pcap and pcapng: bytes become records. [`block`] has the functions for writers of pcapng.
//!
//! ```text
//!  bytes so far -> CaptureDecoder::next_step -> Record (borrows from them) | Skip bytes | More bytes are needed
//! ```
//! It opens no file and keeps no bytes: the caller owns a buffer of at most [`MAX_NEEDED`] bytes, passes its content and drops the
//! used bytes. So a file of any size is read in constant memory. It does not interpret the bytes of a record.
//!
//! Invariant: any bytes are fine. Every step but [`CaptureElement::More`] uses at least one byte, and [`CaptureElement::More`] asks for
//! more than there is, up to a fixed limit. So reading ends.

pub mod block;
mod classic;
pub mod merged;
mod ng;
#[cfg(test)]
mod tests;

/// Maximum number of bytes that a decoder asks for at once.
pub const MAX_NEEDED: usize = MAX_BLOCK;
/// The longest block with a packet that is believed; a longer one is damage, not data.
const MAX_BLOCK: usize = 1 << 20;
/// Link type of Ethernet frames.
pub const ETHERNET_LINK_TYPE: u16 = 1;

/// A packet of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureRecord<'a> {
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Length of the packet on the wire.
    pub full_len: u32,
    /// Time of the capture, nanoseconds since 1970; `None` where the file does not say.
    pub at_ns: Option<u64>,
    /// Link type of its bytes: a LINKTYPE number, [`ETHERNET_LINK_TYPE`] for Ethernet.
    pub link_type: u16,
    /// True if the file says that its bytes end with a frame check sequence of four bytes; `None` if the
    /// file does not say.
    pub has_fcs: Option<bool>,
    /// Set if the frame was merged from several packets and its writer states this ([`merged`]): payload
    /// bytes of each of them.
    pub merged: Option<u16>,
}

impl CaptureRecord<'_> {
    /// Reports whether a snap length cut it.
    pub fn is_cut(&self) -> bool {
        usize::try_from(self.full_len).is_ok_and(|full| full > self.bytes.len())
    }
}

/// The first element of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureElement<'a> {
    /// A packet; it takes `used` bytes.
    Record {
        record: CaptureRecord<'a>,
        /// Bytes of the input to drop.
        used: usize,
    },
    /// No packet: the caller drops this many bytes, which may be more than its buffer has.
    Skip(u64),
    /// This many bytes in all are needed to decide. At the end of a file it means that the file was cut here.
    More(usize),
}

/// Reasons why the bytes are no capture file, or from here on none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureDamage {
    /// It begins with none of the known magic numbers.
    #[error("it is neither a pcap nor a pcapng file")]
    Magic,
    /// A version with an unknown layout.
    #[error("it has format version {0}, which packetrig cannot read")]
    Version(u16),
    /// A length that no capture file has.
    #[error("it contains an impossible length of {0} bytes")]
    Length(u64),
    /// A packet of an interface that was not described.
    #[error("a packet belongs to interface {0}, which the file does not describe")]
    Interface(u32),
    /// More interfaces than anyone has.
    #[error("it describes more than {} interfaces", ng::MAX_INTERFACES)]
    Interfaces,
}

/// Byte order of a file or section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    fn read_u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Self::Little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    }

    fn read_u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Self::Little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    fn read_u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(if self == Self::Little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) })
    }
}

#[derive(Clone, Debug)]
enum DecoderFormat {
    Unknown,
    Classic(classic::ClassicFile),
    Ng(ng::PcapngSection),
}

/// Reads a capture file from its first byte on.
#[derive(Clone, Debug)]
pub struct CaptureDecoder(DecoderFormat);

impl Default for CaptureDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl CaptureDecoder {
    /// A decoder at the beginning of a file.
    pub fn new() -> Self {
        Self(DecoderFormat::Unknown)
    }

    /// Decodes the front of `input`: the bytes after the used ones.
    pub fn next_step<'a>(&mut self, input: &'a [u8]) -> Result<CaptureElement<'a>, CaptureDamage> {
        match &mut self.0 {
            DecoderFormat::Unknown => self.begin_file(input),
            DecoderFormat::Classic(file) => file.next_step(input),
            DecoderFormat::Ng(section) => section.next_step(input),
        }
    }

    fn begin_file<'a>(&mut self, input: &'a [u8]) -> Result<CaptureElement<'a>, CaptureDamage> {
        let Some(magic) = ByteOrder::Big.read_u32(input, 0) else { return Ok(CaptureElement::More(4)) };
        // The magic of a section header reads the same in either byte order, so it is recognised before the order is known.
        if magic == ng::SECTION_HEADER_BLOCK {
            let mut section = ng::PcapngSection::new();
            let step = section.next_step(input)?;
            // The state is kept only once the header was read completely: until then the next call starts
            // again from the front.
            if !matches!(step, CaptureElement::More(_)) {
                self.0 = DecoderFormat::Ng(section);
            }
            return Ok(step);
        }
        let Some(file) = classic::ClassicFile::read_header(input)? else {
            return Ok(CaptureElement::More(classic::FILE_HEADER));
        };
        self.0 = DecoderFormat::Classic(file);
        Ok(CaptureElement::Skip(classic::FILE_HEADER as u64))
    }
}
