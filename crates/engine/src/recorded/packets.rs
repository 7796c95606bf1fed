//! The packets of a capture file, one after another, through a bounded buffer.
//!
//! Invariant: the end of reading is always reported as one of three: after a packet, inside one, or at damaged bytes.

use super::RecordedBytes;
use packetrig_wire::pcap::{CaptureDecoder, CaptureRecord, DecodedElement, MAX_DECODER_INPUT_BYTES};
use std::fs::File;
use std::io::{self, Read};

/// Size of the buffer; an incomplete packet is moved to the front before the next read.
const PACKET_BUFFER_BYTES: usize = 2 * MAX_DECODER_INPUT_BYTES;

/// Where the reading of a file ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileEnding {
    /// After its last packet.
    Whole,
    /// In the middle of a packet.
    Cut,
    /// At bytes that are no valid record.
    Damaged(String),
}

/// A capture file that is being read.
#[derive(Debug)]
pub struct RecordedPackets {
    /// `None` after a failure to rewind.
    source: Option<RecordedBytes>,
    /// Size of the file on the disk.
    size: u64,
    /// Offset at which the decompressed bytes of the file end; `None` until known.
    last: Option<u64>,
    decoder: CaptureDecoder,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset of `end` in the decompressed bytes; larger than their number if the file ended inside skipped bytes.
    position: u64,
}

impl RecordedPackets {
    /// Starts at the beginning of `file`, which must be a regular file: the size of the file tells where its bytes end.
    pub fn new(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let source = RecordedBytes::new(file)?;
        Ok(Self {
            last: (!source.is_compressed()).then_some(size),
            source: Some(source),
            size,
            decoder: CaptureDecoder::new(),
            buffer: vec![0; PACKET_BUFFER_BYTES],
            start: 0,
            end: 0,
            position: 0,
        })
    }

    /// Returns the size of the file on the disk, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns to the beginning of the file.
    pub fn rewind(&mut self) -> io::Result<()> {
        self.source = self.source.take().map(RecordedBytes::rewind_file).transpose()?;
        self.decoder = CaptureDecoder::new();
        self.start = 0;
        self.end = 0;
        self.position = 0;
        Ok(())
    }

    /// Gives the next packet to `take` and returns `None`, or returns how the file ended.
    pub fn next_packet_or_ending(
        &mut self,
        take: &mut dyn FnMut(&CaptureRecord<'_>),
    ) -> io::Result<Option<FileEnding>> {
        loop {
            // The decoder keeps no bytes. Each call gives it all available bytes, and it reports how many
            // bytes the step used.
            let input = &self.buffer[self.start..self.end];
            if let Some(last) = self.last
                && input.is_empty()
                && self.position >= last
            {
                return Ok(Some(if self.position == last { FileEnding::Whole } else { FileEnding::Cut }));
            }
            match self.decoder.next_step(input) {
                Ok(DecodedElement::Record { record, used }) => {
                    self.start += used;
                    take(&record);
                    return Ok(None);
                }
                Ok(DecodedElement::Skip(bytes)) => self.skip_bytes(bytes)?,
                Ok(DecodedElement::More(_)) => {
                    if !self.fill_buffer()? {
                        // The end of the compressed data is known only now: it may be just after the last packet.
                        let is_whole = self.start == self.end && self.last == Some(self.position);
                        return Ok(Some(if is_whole { FileEnding::Whole } else { FileEnding::Cut }));
                    }
                }
                Err(damage) => return Ok(Some(FileEnding::Damaged(damage.to_string()))),
            }
        }
    }

    fn skip_bytes(&mut self, bytes: u64) -> io::Result<()> {
        let at_hand = (self.end - self.start) as u64;
        match usize::try_from(bytes.min(at_hand)) {
            // `min` limits the value to the bytes in the buffer, so the conversion cannot fail.
            Ok(dropped) => self.start += dropped,
            Err(_) => self.start = self.end,
        }
        if bytes <= at_hand {
            return Ok(());
        }
        let left = bytes - at_hand;
        let from = self.position;
        self.position = from.saturating_add(left);
        if let Some(source) = &mut self.source {
            let skipped = source.skip_bytes(from, left)?;
            if skipped < left {
                // The file ended inside the skipped bytes.
                self.last = Some(from.saturating_add(skipped));
            }
        }
        Ok(())
    }

    /// Reads more bytes into the buffer; returns false at the end of the file.
    fn fill_buffer(&mut self) -> io::Result<bool> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            let Some(source) = &mut self.source else { return Ok(false) };
            match source.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    if read == 0 {
                        // A read of zero bytes is the only sign of the end of compressed data.
                        self.last.get_or_insert(self.position);
                    }
                    self.end += read;
                    self.position += read as u64;
                    return Ok(read > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
