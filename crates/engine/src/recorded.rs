//! The bytes of a capture file, in order. A file compressed with zstd is decompressed.
//!
//! `wire::pcap` interprets the bytes. Only compressed bytes are buffered here; the caller buffers decompressed bytes.

mod packets;

pub use packets::{FileEnding, RecordedPackets};

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek, SeekFrom};

/// First bytes of a file compressed with zstd.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub struct RecordedBytes(RecordedKind);

enum RecordedKind {
    Plain(PartlyReadFile),
    Squeezed(zstd::Decoder<'static, BufReader<PartlyReadFile>>),
}

/// A file of which the first bytes were already read. They are stored, because a pipe delivers them only once.
struct PartlyReadFile {
    begin: io::Cursor<Vec<u8>>,
    file: File,
}

impl PartlyReadFile {
    /// Reads the first four bytes, which show whether the file is compressed.
    fn new(mut file: File) -> io::Result<Self> {
        let mut begin = Vec::new();
        // Fewer bytes are no error here: the decoder reports a file that is too short.
        Read::by_ref(&mut file).take(ZSTD_MAGIC.len() as u64).read_to_end(&mut begin)?;
        Ok(Self { begin: io::Cursor::new(begin), file })
    }

    fn rewind_file(mut self) -> io::Result<Self> {
        self.file.rewind().map_err(|error| match error.kind() {
            ErrorKind::NotSeekable => io::Error::new(error.kind(), "a pipe can be read only once"),
            _ => error,
        })?;
        Self::new(self.file)
    }

    /// Skips `bytes` bytes that begin at `from`; returns how many were skipped. In a seekable file this number may be
    /// larger than the rest of the file, because seeking beyond the end succeeds.
    fn skip_bytes(&mut self, from: u64, bytes: u64) -> io::Result<u64> {
        match self.file.seek(SeekFrom::Start(from.saturating_add(bytes))) {
            Ok(_) => {
                // The bytes read first lie before the new position.
                self.begin = io::Cursor::default();
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::NotSeekable => {
                io::copy(&mut Read::by_ref(self).take(bytes), &mut io::sink())
            }
            Err(error) => Err(error),
        }
    }
}

impl Read for PartlyReadFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.begin.read(buffer)? {
            0 => self.file.read(buffer),
            read => Ok(read),
        }
    }
}

impl std::fmt::Debug for RecordedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordedBytes").field("squeezed", &self.is_compressed()).finish_non_exhaustive()
    }
}

impl RecordedBytes {
    /// Starts at the beginning of a file or pipe.
    pub fn new(file: File) -> io::Result<Self> {
        PartlyReadFile::new(file).and_then(Self::from_file_start)
    }

    fn from_file_start(file: PartlyReadFile) -> io::Result<Self> {
        Ok(Self(if file.begin.get_ref()[..] == ZSTD_MAGIC {
            RecordedKind::Squeezed(zstd::Decoder::new(file)?)
        } else {
            RecordedKind::Plain(file)
        }))
    }

    /// Returns whether the file is compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(self.0, RecordedKind::Squeezed(_))
    }

    /// Returns to the beginning of the file; fails for a pipe.
    pub fn rewind_file(self) -> io::Result<Self> {
        let file = match self.0 {
            RecordedKind::Plain(file) => file,
            RecordedKind::Squeezed(decoder) => decoder.finish().into_inner(),
        };
        file.rewind_file().and_then(Self::from_file_start)
    }

    /// Skips `bytes` bytes that begin at `from`; returns how many were skipped. For an uncompressed file this number
    /// may be larger than the rest of the file, because seeking beyond the end succeeds.
    pub fn skip_bytes(&mut self, from: u64, bytes: u64) -> io::Result<u64> {
        match &mut self.0 {
            RecordedKind::Plain(file) => file.skip_bytes(from, bytes),
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
