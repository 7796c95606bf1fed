//! The index: JSON, a line for each event. Half a line, left by a crash, is ignored.
//!
//! Each line ends with a checksum of what stands before it. Lines are only ever added. The whole file is written anew when a log begins: removed files then become one sum.

use super::{Error, INDEX, failed};
use packetrig_engine::capture::numbers::TapNumbers;
use packetrig_sys::private_files;
use packetrig_wire::checksum::crc32;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What stands between a line and its checksum.
const LINE_CHECKSUM: &str = ",\"line_crc32\":";

/// A thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum IndexEntry {
    /// Sum of all files that were removed before the log began.
    Before {
        /// Number of the last file removed.
        last_file: u64,
        files: u64,
        frames: u64,
    },
    Began {
        /// When, nanoseconds since 1970.
        at_ns: u64,
        interface: String,
        /// Number of its first file.
        file: u64,
        /// Number of its first frame, from 0.
        frame: u64,
        /// Trailer numbers of a tap up to then, by direction.
        numbers: TapNumbers,
    },
    /// A file is complete.
    File(FileEntry),
    /// A file was removed.
    Removed {
        /// When, nanoseconds since 1970.
        at_ns: u64,
        file: u64,
        /// Frames that were in it.
        frames: u64,
        why: RemovalReason,
    },
    /// A log ended in order.
    Ended {
        /// When, nanoseconds since 1970.
        at_ns: u64,
    },
}

/// Why a file was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalReason {
    /// All files together were too large.
    Size,
    /// It was too old.
    Age,
    /// The disk had too little room left.
    Free,
    /// The disk was full.
    Full,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub file: u64,
    /// Its name in the directory.
    pub name: String,
    /// Number of its first frame, from 0, counting all frames in files since the log was first begun.
    pub first_frame: u64,
    pub frames: u64,
    /// Bytes of the frames that were to be in it, FCS included; of a file that was mended, of those in it.
    pub frame_bytes: u64,
    pub size: u64,
    /// CRC-32 of its bytes; absent in an index of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
    /// When it was begun and ended, nanoseconds since 1970.
    pub span_ns: (u64, u64),
    /// When its first and its last frame arrived.
    pub arrivals_ns: Option<(u64, u64)>,
    /// Frames lost in the kernel's ring since the file before.
    pub dropped_kernel: u64,
    /// Frames lost because the disk was too slow.
    pub dropped_queue: u64,
    /// Frames that could not be written.
    pub dropped_disk: u64,
    /// Trailer numbers of a tap up to the end of the file, by direction.
    pub numbers: TapNumbers,
    /// The log was killed; what it lost is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mended: bool,
}

/// The index of a directory.
#[derive(Debug)]
pub struct LogIndex {
    path: PathBuf,
    file: File,
    /// Lines that are not written yet, because the disk had no room.
    unwritten: String,
}

/// What an index holds.
#[derive(Debug, Default)]
pub(super) struct IndexContent {
    /// Oldest first.
    pub(super) entries: Vec<IndexEntry>,
    /// Lines that are not as they were written.
    pub(super) damaged: Vec<DamagedLine>,
    /// Lines with a checksum that is right.
    pub(super) checked: usize,
    /// Whether it ends within a line: the log was killed, or is writing it now.
    pub(super) ends_within_line: bool,
}

/// A line of an index that is not as it was written.
#[derive(Debug)]
pub(super) struct DamagedLine {
    /// From 1.
    pub(super) number: u64,
    pub(super) why: String,
}

impl IndexContent {
    /// Reads an index; empty if there is none.
    pub(super) fn read(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(INDEX);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        // A process that was killed while it wrote leaves a line without its end, which is no entry. A complete file
        // that such a line was about is found in the directory and entered again (`LoggedFiles::repair`).
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<&[u8]> = bytes[..end].split_inclusive(|byte| *byte == b'\n').collect();
        let mut content = Self { ends_within_line: end < bytes.len(), ..Self::default() };
        // The whole index is written anew when a log begins, so either all lines have a checksum or none has.
        let has_checksums = lines.iter().any(|line| matches!(checked_line(line), Some(Ok(_))));
        for (number, line) in (1..).zip(lines) {
            let read = match checked_line(line) {
                Some(checked) => checked.inspect(|_| content.checked += 1),
                None if has_checksums => Err("it has no checksum".to_owned()),
                None => Ok(line),
            };
            match read.and_then(|line| serde_json::from_slice(line).map_err(|error| error.to_string())) {
                Ok(entry) => content.entries.push(entry),
                Err(why) => content.damaged.push(DamagedLine { number, why }),
            }
        }
        Ok(content)
    }
}

/// The line if its checksum is right; `None` if it has none.
fn checked_line(line: &[u8]) -> Option<Result<&[u8], String>> {
    let at = line.windows(LINE_CHECKSUM.len()).rposition(|part| part == LINE_CHECKSUM.as_bytes())?;
    let (said, rest) = (&line[at + LINE_CHECKSUM.len()..], &line[..at]);
    // Compared as it is written, so that no other way to write the same number passes.
    let is_right = said == line_end(rest).as_bytes();
    Some(if is_right { Ok(line) } else { Err("its checksum is wrong".to_owned()) })
}

/// How a line ends that begins like this, behind [`LINE_CHECKSUM`].
fn line_end(begin: &[u8]) -> String {
    format!("{}}}\n", crc32(0, begin))
}

impl LogIndex {
    /// Its entries, oldest first; none if there is no index. Half a line at the end is left out.
    pub fn read(directory: &Path) -> Result<Vec<IndexEntry>, Error> {
        let content = IndexContent::read(directory)?;
        match content.damaged.first() {
            None => Ok(content.entries),
            Some(DamagedLine { number, why }) => {
                Err(Error::Damaged { path: directory.join(INDEX), why: format!("line {number}: {why}") })
            }
        }
    }

    /// Writes the index anew and keeps it open.
    pub fn renew(directory: &Path, entries: &[IndexEntry]) -> Result<Self, Error> {
        let path = directory.join(INDEX);
        let text: String = entries.iter().map(line).collect();
        // Written beside and renamed: a crash here leaves the old index, never half of the new one.
        private_files::replace(&path, text).map_err(failed("write", &path))?;
        let file = OpenOptions::new().append(true).open(&path).map_err(failed("open", &path))?;
        Ok(Self { path, file, unwritten: String::new() })
    }

    /// Adds a line. Without room on the disk, it is kept until there is some.
    pub fn add(&mut self, entry: &IndexEntry) {
        self.unwritten.push_str(&line(entry));
        self.write_pending();
    }

    /// Writes the lines that are not written yet.
    pub fn write_pending(&mut self) {
        if self.unwritten.is_empty() {
            return;
        }
        let before = self.file.metadata().map(|facts| facts.len());
        // Synced at once: a file is removed before its entry is written, and if the entry were lost in a power cut,
        // the next check would report the file as missing.
        let written = self.file.write_all(self.unwritten.as_bytes()).and_then(|()| self.file.sync_data());
        match (written, before) {
            (Ok(()), _) => self.unwritten.clear(),
            // Half of it is taken back, to be written whole another time. If that fails, too, a broken line stays, which
            // `packetrig log` reports when it reads the index.
            (Err(_), Ok(before)) => drop(self.file.set_len(before)),
            (Err(_), Err(_)) => {}
        }
    }

    /// Lines that are still not written, because the disk never had room for them.
    pub fn unwritten(&self) -> usize {
        self.unwritten.lines().count()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn line(entry: &IndexEntry) -> String {
    // Numbers and short texts: nothing in it can fail.
    let mut text = serde_json::to_string(entry).unwrap_or_default();
    // The brace that closes the object comes back behind the checksum.
    text.pop();
    let end = line_end(text.as_bytes());
    text + LINE_CHECKSUM + &end
}
