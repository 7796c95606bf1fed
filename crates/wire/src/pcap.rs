//! Capture files (classic pcap and pcapng): decodes their bytes into records. [`block`] has the functions
//! for writers of pcapng.
//!
//! ```text
//!  bytes so far -> CaptureDecoder::next_step -> Record (borrows from them) | Skip bytes | More bytes are needed
//! ```
//! The decoder opens no file and stores no bytes: the caller has a buffer of at most [`MAX_DECODER_INPUT_BYTES`] bytes,
//! passes its content, and drops the used bytes. So a file of any size is read with constant memory. The
//! bytes of a record are not interpreted.
//!
//! Invariant: any bytes are valid input. Every step except [`DecodedElement::More`] uses at least one byte, and
//! [`DecodedElement::More`] asks for more bytes than the input has, up to a fixed limit. So reading a file always ends.

pub mod block;
mod classic;
pub mod merged;
mod ng;
#[cfg(test)]
mod tests;

/// Maximum number of bytes that a decoder needs at once.
pub const MAX_DECODER_INPUT_BYTES: usize = MAX_BLOCK;
/// Maximum length of a block with a packet or an interface description. A longer one counts as damage.
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
    /// Time of the capture in nanoseconds since 1970; `None` if the file does not state it.
    pub at_ns: Option<u64>,
    /// Link type of the packet: a LINKTYPE number, [`ETHERNET_LINK_TYPE`] for Ethernet.
    pub link_type: u16,
    /// True if the bytes end with a frame check sequence of four bytes; `None` if the file does not
    /// state whether they do.
    pub has_fcs: Option<bool>,
    /// Payload bytes of each of the packets from which this frame was merged, if the file states this (see [`merged`]).
    pub merged: Option<u16>,
}

impl CaptureRecord<'_> {
    /// Returns whether the packet was truncated, for example by a snap length.
    pub fn is_cut(&self) -> bool {
        usize::try_from(self.full_len).is_ok_and(|full| full > self.bytes.len())
    }
}

/// Result of one step of the decoder: what is at the beginning of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedElement<'a> {
    /// A packet.
    Record {
        record: CaptureRecord<'a>,
        /// Number of input bytes that the caller must drop.
        used: usize,
    },
    /// No packet: the caller must drop this many bytes, which may be more than its buffer contains.
    Skip(u64),
    /// The decoder needs this many bytes in total. At the end of a file, this means that the file is truncated.
    More(usize),
}

/// Reason why the bytes are not a capture file, or why the file is damaged from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureDamage {
    /// The file begins with none of the known magic numbers.
    #[error("the file is neither a pcap nor a pcapng file")]
    Magic,
    /// The format version has an unknown layout.
    #[error("the file has format version {0}, which packetrig cannot read")]
    Version(u16),
    /// A length is impossible in a capture file.
    #[error("the file contains an impossible length of {0} bytes")]
    Length(u64),
    /// A packet belongs to an interface that the file does not describe.
    #[error("a packet belongs to interface {0}, which the file does not describe")]
    Interface(u32),
    /// A section of the file describes more interfaces than packetrig accepts.
    #[error("a section of the file describes more than {} interfaces, packetrig's limit", ng::MAX_INTERFACES)]
    Interfaces,
}

/// The byte order of a file or section.
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

/// Decodes a capture file from its first byte on.
#[derive(Clone, Debug)]
pub struct CaptureDecoder(DecoderFormat);

impl Default for CaptureDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl CaptureDecoder {
    /// Creates a decoder for the beginning of a file.
    pub fn new() -> Self {
        Self(DecoderFormat::Unknown)
    }

    /// Decodes the next element, which begins at the start of `input`. The caller must have dropped all earlier bytes.
    pub fn next_step<'a>(&mut self, input: &'a [u8]) -> Result<DecodedElement<'a>, CaptureDamage> {
        match &mut self.0 {
            DecoderFormat::Unknown => self.begin_file(input),
            DecoderFormat::Classic(file) => file.next_step(input),
            DecoderFormat::Ng(section) => section.next_step(input),
        }
    }

    fn begin_file<'a>(&mut self, input: &'a [u8]) -> Result<DecodedElement<'a>, CaptureDamage> {
        let Some(magic) = ByteOrder::Big.read_u32(input, 0) else { return Ok(DecodedElement::More(4)) };
        // The magic number of a section header is the same in both byte orders, so it is recognised before
        // the byte order is known.
        if magic == ng::SECTION_HEADER_BLOCK {
            let mut section = ng::PcapngSection::new();
            let step = section.next_step(input)?;
            // The state is stored only after the header was read completely; until then, the next call starts
            // again at the beginning.
            if !matches!(step, DecodedElement::More(_)) {
                self.0 = DecoderFormat::Ng(section);
            }
            return Ok(step);
        }
        let Some(file) = classic::ClassicFile::read_header(input)? else {
            return Ok(DecodedElement::More(classic::FILE_HEADER));
        };
        self.0 = DecoderFormat::Classic(file);
        Ok(DecodedElement::Skip(classic::FILE_HEADER as u64))
    }
}
