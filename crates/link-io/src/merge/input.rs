//! Reads the packets of a capture, one after the other: from a file, or from all files of a log.

use super::{Error, file_error};
use crate::log;
use packetrig_engine::recorded::{FileEnding, RecordedPackets};
use packetrig_wire::pcap::CaptureRecord;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A capture with its files.
#[derive(Debug)]
pub(super) struct CaptureSource {
    /// The capture's name in the result.
    pub(super) name: String,
    pub(super) files: Vec<PathBuf>,
}

/// Finds the files of the captures that these paths name. Fails if `into`, the output file, is one of them.
pub(super) fn find_capture_files(paths: &[PathBuf], into: &Path) -> Result<Vec<CaptureSource>, Error> {
    // A file that does not exist yet has no canonical path and is none of the captures.
    let into = into.canonicalize().ok();
    let mut sources = Vec::new();
    for path in paths {
        let files = list_capture_files(path)?;
        for file in &files {
            // A pipe could not be read a second time.
            if file.metadata().is_ok_and(|about| !about.is_file()) {
                return Err(Error::NotAFile(file.clone()));
            }
            let real = file.canonicalize().map_err(file_error("read", file))?;
            if into.as_ref() == Some(&real) {
                return Err(Error::IntoItself(path.clone()));
            }
        }
        sources.push(CaptureSource { name: choose_capture_name(path, paths), files });
    }
    Ok(sources)
}

fn list_capture_files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let files: Vec<PathBuf> = log::list_files(path)?.into_iter().map(|(_, file)| file).collect();
    if files.is_empty() { Err(Error::NoLog(path.to_owned())) } else { Ok(files) }
}

/// Returns the last part of a path, or all of the path if several captures end with that part.
fn choose_capture_name(path: &Path, all: &[PathBuf]) -> String {
    let last = path.file_name();
    let is_own = last.is_some() && all.iter().filter(|other| other.file_name() == last).count() == 1;
    let name =
        last.filter(|_| is_own).map_or_else(|| path.display().to_string(), |name| name.display().to_string());
    name.trim_end_matches('/').to_owned()
}

/// The reader's current packet.
#[derive(Debug, Default)]
struct CurrentPacket {
    bytes: Vec<u8>,
    full_len: u32,
    link_type: u16,
    has_fcs: Option<bool>,
    merged: Option<u16>,
}

impl CurrentPacket {
    fn copy_record(&mut self, record: &CaptureRecord<'_>) {
        let CaptureRecord { bytes, full_len, link_type, has_fcs, merged, .. } = *record;
        // The buffer is used again, because a capture may have millions of packets.
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.full_len = full_len;
        self.link_type = link_type;
        self.has_fcs = has_fcs;
        self.merged = merged;
    }
}

struct OpenFile {
    path: PathBuf,
    packets: RecordedPackets,
    /// Number of packets read so far.
    count: u64,
}

/// Reads a capture from its beginning.
pub(super) struct CaptureReader {
    /// Files that are still to be read, the last one first.
    files: Vec<PathBuf>,
    open: Option<OpenFile>,
    packet: CurrentPacket,
    last_ns: u64,
    pub(super) damages: Vec<String>,
    pub(super) remarks: Vec<String>,
}

impl CaptureReader {
    pub(super) fn new(files: &[PathBuf]) -> Result<Self, Error> {
        let mut reader = Self {
            // `open_next_capture_file` takes the files from the end.
            files: files.iter().rev().cloned().collect(),
            open: None,
            packet: CurrentPacket::default(),
            last_ns: 0,
            damages: Vec::new(),
            remarks: Vec::new(),
        };
        reader.open_next_capture_file()?;
        Ok(reader)
    }

    /// Advances to the next packet; returns its capture time, or `None` at the end.
    pub(super) fn advance_to_next_packet(&mut self) -> Result<Option<u64>, Error> {
        while let Some(open) = &mut self.open {
            let Self { packet, last_ns, .. } = self;
            let step = open.packets.next_packet_or_ending(&mut |record| {
                packet.copy_record(record);
                // Simple packet blocks of pcapng have no time: they get the time of the packet before them.
                *last_ns = record.at_ns.unwrap_or(*last_ns);
            });
            let ending = match step {
                Ok(ending) => ending,
                // The compressed file was cut off: everything that can be decompressed is merged.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Some(FileEnding::Cut),
                Err(source) => return Err(file_error("read", &open.path)(source)),
            };
            let Some(ending) = ending else {
                open.count += 1;
                return Ok(Some(self.last_ns));
            };
            self.report_file_ending(ending)?;
            self.open_next_capture_file()?;
        }
        Ok(None)
    }

    /// Returns the packet to which [`advance_to_next_packet`](Self::advance_to_next_packet) moved.
    pub(super) fn current_packet(&self) -> CaptureRecord<'_> {
        let CurrentPacket { bytes, full_len, link_type, has_fcs, merged } = &self.packet;
        CaptureRecord {
            bytes,
            full_len: *full_len,
            at_ns: Some(self.last_ns),
            link_type: *link_type,
            has_fcs: *has_fcs,
            merged: *merged,
        }
    }

    fn report_file_ending(&mut self, ending: FileEnding) -> Result<(), Error> {
        let Some(OpenFile { path, count, .. }) = &self.open else { return Ok(()) };
        match ending {
            FileEnding::Whole => {}
            FileEnding::Cut => {
                self.remarks.push(format!("{}: the file ends within its last packet", path.display()));
            }
            FileEnding::Damaged(why) if *count == 0 => {
                return Err(Error::NoCapture { path: path.clone(), why });
            }
            FileEnding::Damaged(why) => self.damages.push(format!(
                "{} is damaged at packet {} ({why}); only the packets before that are merged",
                path.display(),
                count + 1
            )),
        }
        Ok(())
    }

    fn open_next_capture_file(&mut self) -> Result<(), Error> {
        self.open = None;
        if let Some(path) = self.files.pop() {
            let packets =
                File::open(&path).and_then(RecordedPackets::new).map_err(file_error("read", &path))?;
            self.open = Some(OpenFile { path, packets, count: 0 });
        }
        Ok(())
    }
}
