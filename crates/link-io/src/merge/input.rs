//! The packets of a capture, one after the other: of a file, or of all files of a log.

use super::{Error, failed};
use crate::log;
use packetrig_engine::recorded::RecordedBytes;
use packetrig_wire::pcap::{CaptureDecoder, CaptureRecord, DecoderStep, MOST_NEEDED};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// A capture as it was named.
#[derive(Debug)]
pub(super) struct CaptureSource {
    /// Its name in the result.
    pub(super) name: String,
    pub(super) files: Vec<PathBuf>,
}

/// The captures behind these paths, none of which may be `into`.
pub(super) fn sources(paths: &[PathBuf], into: &Path) -> Result<Vec<CaptureSource>, Error> {
    let into = into.canonicalize().ok();
    let mut sources = Vec::new();
    for path in paths {
        let files = files_of(path)?;
        for file in &files {
            let real = file.canonicalize().map_err(failed("read", file))?;
            if into.as_ref() == Some(&real) {
                return Err(Error::IntoItself(path.clone()));
            }
        }
        sources.push(CaptureSource { name: name_of(path, paths), files });
    }
    Ok(sources)
}

fn files_of(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files: Vec<PathBuf> = log::files(path)?.into_iter().map(|(_, file)| file).collect();
    if files.is_empty() { Err(Error::NoLog(path.to_owned())) } else { Ok(files) }
}

/// The last part of a path, or all of it if that part is not its own.
fn name_of(path: &Path, all: &[PathBuf]) -> String {
    let last = path.file_name();
    let is_own = last.is_some() && all.iter().filter(|other| other.file_name() == last).count() == 1;
    let name =
        last.filter(|_| is_own).map_or_else(|| path.display().to_string(), |name| name.display().to_string());
    name.trim_end_matches('/').to_owned()
}

/// Where a packet is in the buffer.
#[derive(Clone, Copy)]
struct PacketPlace {
    start: usize,
    len: usize,
    full_len: u32,
    link_type: u16,
    has_fcs: Option<bool>,
}

/// Reads a capture from its beginning.
pub(super) struct CaptureReader {
    /// Files that are still to be read, the last one first.
    files: Vec<PathBuf>,
    open: Option<OpenFile>,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    packet: Option<PacketPlace>,
    last_ns: u64,
    /// Packets of the file that is open.
    in_file: u64,
    pub(super) damages: Vec<String>,
    pub(super) remarks: Vec<String>,
}

struct OpenFile {
    path: PathBuf,
    bytes: RecordedBytes,
    decoder: CaptureDecoder,
    position: u64,
}

/// What the bytes in the buffer came to.
enum ReadStep {
    Packet(u64),
    /// More bytes are needed.
    More,
    /// The rest of the file says nothing.
    Damaged(String),
}

impl CaptureReader {
    pub(super) fn new(files: &[PathBuf]) -> Result<Self, Error> {
        let mut reader = Self {
            files: files.iter().rev().cloned().collect(),
            open: None,
            // A whole record always fits behind what is left of the last one.
            buffer: vec![0; 2 * MOST_NEEDED],
            from: 0,
            to: 0,
            packet: None,
            last_ns: 0,
            in_file: 0,
            damages: Vec::new(),
            remarks: Vec::new(),
        };
        reader.open_next()?;
        Ok(reader)
    }

    /// Goes to the next packet; returns when it was captured, or `None` at the end.
    pub(super) fn advance(&mut self) -> Result<Option<u64>, Error> {
        self.packet = None;
        while self.open.is_some() {
            match self.step()? {
                ReadStep::Packet(at_ns) => {
                    self.in_file += 1;
                    return Ok(Some(at_ns));
                }
                ReadStep::More if self.fill()? => {}
                ReadStep::More => {
                    let is_cut = self.from < self.to;
                    if let Some(open) = self.open.as_ref().filter(|_| is_cut) {
                        self.remarks
                            .push(format!("{}: the file ends within its last packet", open.path.display()));
                    }
                    self.open_next()?;
                }
                ReadStep::Damaged(damage) => {
                    self.damages.push(damage);
                    self.open_next()?;
                }
            }
        }
        Ok(None)
    }

    /// The packet that [`advance`](Self::advance) went to.
    pub(super) fn packet(&self) -> Option<CaptureRecord<'_>> {
        let PacketPlace { start, len, full_len, link_type, has_fcs } = self.packet?;
        let bytes = &self.buffer[start..start + len];
        Some(CaptureRecord { bytes, full_len, at_ns: Some(self.last_ns), link_type, has_fcs })
    }

    /// Decodes what is in the buffer up to the next packet.
    fn step(&mut self) -> Result<ReadStep, Error> {
        let Some(open) = &mut self.open else { return Ok(ReadStep::More) };
        loop {
            let input = &self.buffer[self.from..self.to];
            match open.decoder.next(input) {
                Ok(DecoderStep::Record { record, used }) => {
                    // The record's bytes are a part of the buffer.
                    let start = self.from + (record.bytes.as_ptr().addr() - input.as_ptr().addr());
                    let CaptureRecord { bytes, full_len, at_ns, link_type, has_fcs } = record;
                    self.packet = Some(PacketPlace { start, len: bytes.len(), full_len, link_type, has_fcs });
                    // Simple packet blocks of pcapng have no time: they get that of the packet before them.
                    self.last_ns = at_ns.unwrap_or(self.last_ns);
                    self.from += used;
                    return Ok(ReadStep::Packet(self.last_ns));
                }
                Ok(DecoderStep::Skip(bytes)) => {
                    let held = usize::try_from(bytes)
                        .map_or(self.to - self.from, |bytes| bytes.min(self.to - self.from));
                    self.from += held;
                    let left = bytes - held as u64;
                    if left > 0 {
                        open.bytes.skip(open.position, left).map_err(failed("read", &open.path))?;
                        open.position = open.position.saturating_add(left);
                    }
                }
                Ok(DecoderStep::More(_)) => return Ok(ReadStep::More),
                Err(damage) if open.position == self.to as u64 && self.from == 0 && self.in_file == 0 => {
                    return Err(Error::NoCapture { path: open.path.clone(), damage });
                }
                Err(damage) => {
                    let path = open.path.display();
                    let packet = self.in_file + 1;
                    return Ok(ReadStep::Damaged(format!(
                        "{path} is damaged at packet {packet} ({damage}); only the packets before that are merged"
                    )));
                }
            }
        }
    }

    /// Reads more bytes; `false` at the end of the file.
    fn fill(&mut self) -> Result<bool, Error> {
        let Some(open) = &mut self.open else { return Ok(false) };
        self.buffer.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        loop {
            match open.bytes.read(&mut self.buffer[self.to..]) {
                Ok(0) => return Ok(false),
                Ok(read) => {
                    self.to += read;
                    open.position += read as u64;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A compressed file that was cut off: what could be decompressed is merged.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                Err(source) => return Err(failed("read", &open.path)(source)),
            }
        }
    }

    fn open_next(&mut self) -> Result<(), Error> {
        (self.from, self.to, self.in_file) = (0, 0, 0);
        self.open = None;
        if let Some(path) = self.files.pop() {
            let bytes = File::open(&path).and_then(RecordedBytes::new).map_err(failed("read", &path))?;
            self.open = Some(OpenFile { path, bytes, decoder: CaptureDecoder::new(), position: 0 });
        }
        Ok(())
    }
}
