//! The bytes of a capture file, in order. One that is compressed with zstd is read as what is in it.
//!
//! What the bytes mean is `wire::pcap`'s business. Nothing is kept here: the caller has the buffer.

mod packets;

pub use packets::{FileEnding, RecordedPackets};

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

/// What a file that is compressed with zstd begins with.
const SQUEEZED: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub struct RecordedBytes(RecordedKind);

enum RecordedKind {
    Plain(File),
    Squeezed(zstd::Decoder<'static, BufReader<File>>),
}

impl std::fmt::Debug for RecordedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordedBytes").field("squeezed", &self.is_compressed()).finish_non_exhaustive()
    }
}

impl RecordedBytes {
    /// From the beginning of a file that can be read again from there.
    pub fn new(mut file: File) -> io::Result<Self> {
        let mut magic = Vec::new();
        Read::by_ref(&mut file).take(SQUEEZED.len() as u64).read_to_end(&mut magic)?;
        file.rewind()?;
        let kind = if magic == SQUEEZED {
            RecordedKind::Squeezed(zstd::Decoder::new(file)?)
        } else {
            RecordedKind::Plain(file)
        };
        Ok(Self(kind))
    }

    /// Whether they are compressed in the file.
    pub fn is_compressed(&self) -> bool {
        matches!(self.0, RecordedKind::Squeezed(_))
    }

    /// Back to the beginning.
    pub fn rewind(self) -> io::Result<Self> {
        let mut file = match self.0 {
            RecordedKind::Plain(file) => file,
            RecordedKind::Squeezed(decoder) => decoder.finish().into_inner(),
        };
        file.rewind()?;
        Self::new(file)
    }

    /// Passes over bytes that begin at `from`; says how many there were, which is not known of a file that is not compressed:
    /// it can be asked to go beyond its end.
    pub fn skip(&mut self, from: u64, bytes: u64) -> io::Result<u64> {
        match &mut self.0 {
            RecordedKind::Plain(file) => {
                file.seek(SeekFrom::Start(from.saturating_add(bytes)))?;
                Ok(bytes)
            }
            RecordedKind::Squeezed(decoder) => {
                io::copy(&mut Read::by_ref(decoder).take(bytes), &mut io::sink())
            }
        }
    }
}

impl Read for RecordedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            RecordedKind::Plain(file) => file.read(buffer),
            RecordedKind::Squeezed(decoder) => decoder.read(buffer),
        }
    }
}
