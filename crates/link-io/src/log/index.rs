//! The index of a log: a file with one line of JSON for each event, such as a complete or removed file. A partial last
//! line, which a crash has left, is ignored.
//!
//! Each line ends with a checksum of the text before it. Lines are only appended. When a log begins, it
//! writes the whole file again and combines the entries of removed files into one sum.

use super::{Error, INDEX_FILE_NAME, file_error};
use packetrig_engine::capture::numbers::TapNumbers;
use packetrig_sys::private_files;
use packetrig_units::ExceededLimit;
use packetrig_wire::checksum::crc32;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Separator between a line's text and its checksum.
const CHECKSUM_SEPARATOR: &str = ",\"line_crc32\":";

/// Directions of the frames of a log, seen from the machine that logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoggedDirection {
    /// Frames that arrive. Older versions logged only arriving frames, and their index does not state the direction.
    #[default]
    In,
    /// Also frames that this machine sends through its network stack.
    Both,
}

/// An event of a log, which is one line of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum LogIndexEntry {
    /// Sum of all files that were removed before the log began.
    Before {
        /// Number of the last file removed.
        last_file: u64,
        files: u64,
        frames: u64,
    },
    Began {
        /// Start time, nanoseconds since 1970.
        at_ns: u64,
        interface: String,
        /// Number of the run's first file.
        file: u64,
        /// Number of the run's first frame, from 0.
        frame: u64,
        /// State of the tap's trailer numbers at the start, by direction.
        numbers: TapNumbers,
        #[serde(default)]
        direction: LoggedDirection,
    },
    /// A file is complete.
    File(LogFileEntry),
    /// A file was removed.
    Removed {
        /// Time of the removal, nanoseconds since 1970.
        at_ns: u64,
        file: u64,
        /// Frames that were in the file.
        frames: u64,
        why: RemovalReason,
    },
    /// A log ended regularly.
    Ended {
        /// End time, nanoseconds since 1970.
        at_ns: u64,
    },
}

/// Reason for the removal of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemovalReason {
    /// The total size of the files exceeded the limit.
    Size,
    /// The file was too old.
    Age,
    /// The disk had less free space than the limit.
    Free,
    /// The disk was full.
    Full,
}

impl From<ExceededLimit> for RemovalReason {
    fn from(limit: ExceededLimit) -> Self {
        match limit {
            ExceededLimit::Size => Self::Size,
            ExceededLimit::Age => Self::Age,
            ExceededLimit::Free => Self::Free,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFileEntry {
    pub file: u64,
    /// File name in the directory.
    pub name: String,
    /// Number of the file's first frame. Frames are numbered from 0, over all files since the log's first run.
    pub first_frame: u64,
    pub frames: u64,
    /// Bytes of the frames that were to be written to the file, FCS included. For a repaired file: bytes of
    /// the frames that are in it.
    pub frame_bytes: u64,
    pub size: u64,
    /// CRC-32 of the file's bytes; absent in an index of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32: Option<u32>,
    /// Times at which the file was begun and ended, nanoseconds since 1970.
    pub span_ns: (u64, u64),
    /// Arrival times of the first and the last frame.
    pub arrivals_ns: Option<(u64, u64)>,
    /// Frames lost in the kernel's ring since the previous file.
    pub dropped_kernel: u64,
    /// Frames lost because the disk was too slow.
    pub dropped_queue: u64,
    /// Frames that could not be written.
    pub dropped_disk: u64,
    /// State of the tap's trailer numbers at the end of the file, by direction.
    pub numbers: TapNumbers,
    #[serde(default)]
    pub direction: LoggedDirection,
    /// True if the log was killed while it wrote this file, so that the number of lost frames is unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mended: bool,
}

/// The open index of a directory.
#[derive(Debug)]
pub struct LogIndex {
    path: PathBuf,
    file: File,
    /// Lines that could not be written yet, because the disk was full.
    unwritten: String,
}

/// Content of an index.
#[derive(Debug, Default)]
pub(super) struct LogIndexContent {
    /// Entries, oldest first.
    pub(super) entries: Vec<LogIndexEntry>,
    /// Lines that fail their checksum or cannot be parsed.
    pub(super) damaged: Vec<DamagedLine>,
    /// Number of lines with a correct checksum.
    pub(super) checked: usize,
    /// True if the index ends within a line: the log was killed, or is writing the line now.
    pub(super) ends_within_line: bool,
}

/// A line of an index that fails its checksum or cannot be parsed.
#[derive(Debug)]
pub(super) struct DamagedLine {
    /// The line's number, from 1.
    pub(super) number: u64,
    pub(super) why: String,
}

impl LogIndexContent {
    /// Reads an index; an absent index is empty.
    pub(super) fn read_index(directory: &Path) -> Result<Self, Error> {
        let path = directory.join(INDEX_FILE_NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(file_error("read", &path)(error)),
        };
        // A process that was killed while it wrote leaves a line without its end, which is not an entry. If
        // that line was about a complete file, the file is found in the directory and added again
        // (`IndexedFiles::add_unlisted_files`).
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<&[u8]> = bytes[..end].split_inclusive(|byte| *byte == b'\n').collect();
        let mut content = Self { ends_within_line: end < bytes.len(), ..Self::default() };
        // The whole index is written again when a log begins, so either all lines have a checksum or none
        // has.
        let has_checksums = lines.iter().any(|line| matches!(verify_line_checksum(line), Some(Ok(_))));
        for (number, line) in (1..).zip(lines) {
            let read = match verify_line_checksum(line) {
                Some(checked) => checked.inspect(|_| content.checked += 1),
                None if has_checksums => Err("the line has no checksum".to_owned()),
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

/// Returns the line if its checksum is right; `None` if the line has no checksum.
fn verify_line_checksum(line: &[u8]) -> Option<Result<&[u8], String>> {
    let at =
        line.windows(CHECKSUM_SEPARATOR.len()).rposition(|part| part == CHECKSUM_SEPARATOR.as_bytes())?;
    let (said, rest) = (&line[at + CHECKSUM_SEPARATOR.len()..], &line[..at]);
    // The checksums are compared as text, so that no other spelling of the same number is accepted.
    let is_right = said == checksum_and_line_end(rest).as_bytes();
    Some(if is_right { Ok(line) } else { Err("the checksum of the line is wrong".to_owned()) })
}

/// Returns the checksum and the end of a line that begins with `begin`; they follow [`CHECKSUM_SEPARATOR`].
fn checksum_and_line_end(begin: &[u8]) -> String {
    format!("{}}}\n", crc32(0, begin))
}

impl LogIndex {
    /// Reads the entries, oldest first; none if there is no index. A partial last line is left out. Fails
    /// at a damaged line.
    pub fn read_index_entries(directory: &Path) -> Result<Vec<LogIndexEntry>, Error> {
        let content = LogIndexContent::read_index(directory)?;
        match content.damaged.first() {
            None => Ok(content.entries),
            Some(DamagedLine { number, why }) => Err(Error::Damaged {
                path: directory.join(INDEX_FILE_NAME),
                why: format!("line {number}: {why}"),
            }),
        }
    }

    /// Writes the whole index again and keeps it open.
    pub fn create_with_entries(directory: &Path, entries: &[LogIndexEntry]) -> Result<Self, Error> {
        let path = directory.join(INDEX_FILE_NAME);
        let text: String = entries.iter().map(entry_line).collect();
        // The index is written to a second file and renamed: a crash here leaves the old index, never half of
        // the new one.
        private_files::replace_file(&path, text).map_err(file_error("write", &path))?;
        let file = OpenOptions::new().append(true).open(&path).map_err(file_error("open", &path))?;
        Ok(Self { path, file, unwritten: String::new() })
    }

    /// Adds a line. If the disk is full, keeps the line until there is space.
    pub fn add_entry(&mut self, entry: &LogIndexEntry) {
        self.unwritten.push_str(&entry_line(entry));
        self.write_pending_lines();
    }

    /// Writes the lines that are still pending.
    pub fn write_pending_lines(&mut self) {
        if self.unwritten.is_empty() {
            return;
        }
        // The length is needed to cut off a partial line if the write fails.
        let before = self.file.metadata().map(|facts| facts.len());
        // The entry is synced immediately, because a file is removed before its entry is written. If a power
        // cut lost the entry, the next check would report the file as missing.
        let written = self.file.write_all(self.unwritten.as_bytes()).and_then(|()| self.file.sync_data());
        match (written, before) {
            (Ok(()), _) => self.unwritten.clear(),
            // Removes a partial line, so that the whole line can be written later. If this fails, too, a
            // broken line stays, and `packetrig log` reports it when it reads the index.
            (Err(_), Ok(before)) => drop(self.file.set_len(before)),
            (Err(_), Err(_)) => {}
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn entry_line(entry: &LogIndexEntry) -> String {
    // The entry has only numbers and short texts, so serialisation cannot fail.
    let mut text = serde_json::to_string(entry).unwrap_or_default();
    // The closing brace of the object is added again after the checksum.
    text.pop();
    let end = checksum_and_line_end(text.as_bytes());
    text + CHECKSUM_SEPARATOR + &end
}
