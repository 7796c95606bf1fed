//! A summary of a log from its index alone. This is cheap for logs of any size, and possible while the log grows.

use super::index::{LogFileEntry, LogIndexEntry};
use super::keeper::is_log_running;
use super::{Error, INDEX_FILE_NAME, file_error};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Summary of a log's index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// Interface of the newest log in this directory.
    pub interface: Option<String>,
    /// Start time of the newest log and, if it ended in order, its end time; nanoseconds since 1970.
    pub began_ns: Option<u64>,
    pub ended_ns: Option<u64>,
    /// True if a process logs into this directory now.
    pub is_growing: bool,
    /// Complete files that were not removed, by number.
    pub files: BTreeMap<u64, LogFileEntry>,
    pub removed_files: u64,
    pub removed_frames: u64,
}

/// Follows the index of a log. Each call reads only the lines that were added since the previous call.
#[derive(Debug)]
pub struct LogFollower {
    directory: PathBuf,
    /// Inode of the index file. A log that begins writes a new file.
    inode: u64,
    /// Number of bytes of the index that were read.
    read: u64,
    summary: LogSummary,
}

impl LogFollower {
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), inode: 0, read: 0, summary: LogSummary::default() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads new lines of the index and returns the current summary.
    pub fn read_summary(&mut self) -> Result<&LogSummary, Error> {
        // This is checked before and after reading, so that a log that ends or begins meanwhile does not look
        // as if it had been killed.
        let was_held = is_log_running(&self.directory);
        self.read_new_lines()?;
        self.summary.is_growing = was_held || is_log_running(&self.directory);
        Ok(&self.summary)
    }

    fn read_new_lines(&mut self) -> Result<(), Error> {
        let path = self.directory.join(INDEX_FILE_NAME);
        let mut file = File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::NoIndex(self.directory.clone()),
            _ => file_error("read", &path)(error),
        })?;
        let now = file.metadata().map_err(file_error("read", &path))?;
        // A new or shorter file is another index, so the summary starts again.
        if now.ino() != self.inode || now.len() < self.read {
            *self = Self { inode: now.ino(), ..Self::new(&self.directory) };
        }
        file.seek(SeekFrom::Start(self.read)).map_err(file_error("read", &path))?;
        for line in BufReader::new(file).split(b'\n') {
            let mut line = line.map_err(file_error("read", &path))?;
            // `split` removes the line end, but `read` counts all bytes of the file.
            line.push(b'\n');
            // A partial line is still being written, or a crash left it.
            if self.read + line.len() as u64 > now.len() {
                break;
            }
            // The checksum is not compared here: the check of a log does that.
            let entry = serde_json::from_slice(&line).map_err(|error| Error::Damaged {
                path: path.clone(),
                why: format!("the line at byte {}: {error}", self.read),
            })?;
            self.read += line.len() as u64;
            self.summary.apply_entry(entry);
        }
        Ok(())
    }
}

impl LogSummary {
    fn apply_entry(&mut self, entry: LogIndexEntry) {
        match entry {
            LogIndexEntry::Before { files, frames, .. } => self.count_removed(files, frames),
            LogIndexEntry::Began { at_ns, interface, .. } => {
                self.interface = Some(interface);
                (self.began_ns, self.ended_ns) = (Some(at_ns), None);
            }
            LogIndexEntry::File(file) => drop(self.files.insert(file.file, file)),
            LogIndexEntry::Removed { file, frames, .. } => {
                self.files.remove(&file);
                self.count_removed(1, frames);
            }
            LogIndexEntry::Ended { at_ns } => self.ended_ns = Some(at_ns),
        }
    }

    fn count_removed(&mut self, files: u64, frames: u64) {
        self.removed_files += files;
        self.removed_frames += frames;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LogIndex, LoggedDirection, RemovalReason};
    use super::*;

    fn file(file: u64) -> LogIndexEntry {
        LogIndexEntry::File(LogFileEntry { file, frames: 10 * file, ..LogFileEntry::default() })
    }

    fn began(at_ns: u64) -> LogIndexEntry {
        LogIndexEntry::Began {
            at_ns,
            interface: "eth1".into(),
            file: 1,
            frame: 0,
            numbers: Default::default(),
            direction: LoggedDirection::In,
        }
    }

    #[test]
    fn summary_counts_removed_files_and_newest_log_start() {
        let directory = tempfile::tempdir().unwrap();
        let why = RemovalReason::Size;
        let removed = LogIndexEntry::Removed { at_ns: 7, file: 3, frames: 30, why };
        let before = LogIndexEntry::Before { last_file: 2, files: 2, frames: 5 };
        let entries =
            [before, file(3), file(4), began(5), LogIndexEntry::Ended { at_ns: 6 }, began(9), removed];
        drop(LogIndex::create_with_entries(directory.path(), &entries).unwrap());
        let mut follower = LogFollower::new(directory.path());
        let summary = follower.read_summary().unwrap();
        assert_eq!(summary.files.keys().copied().collect::<Vec<_>>(), [4]);
        assert_eq!((summary.removed_files, summary.removed_frames), (3, 35));
        assert_eq!((summary.began_ns, summary.ended_ns, summary.is_growing), (Some(9), None, false));
        assert_eq!(summary.interface.as_deref(), Some("eth1"));
    }

    #[test]
    fn log_follower_reads_additions_and_follows_new_index() {
        let directory = tempfile::tempdir().unwrap();
        let mut index = LogIndex::create_with_entries(directory.path(), &[began(1), file(1)]).unwrap();
        let mut follower = LogFollower::new(directory.path());
        assert_eq!(follower.read_summary().unwrap().files.len(), 1);
        index.add_entry(&file(2));
        assert_eq!(follower.read_summary().unwrap().files.len(), 2);
        let path = index.path().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"what\": \"fi")).unwrap();
        assert_eq!(follower.read_summary().unwrap().files.len(), 2, "half a line");
        std::fs::write(&path, format!("{text}{{\"what\": \"ended\", \"at_ns\": 7}}\n")).unwrap();
        assert_eq!(follower.read_summary().unwrap().ended_ns, Some(7));
        drop(LogIndex::create_with_entries(directory.path(), &[began(8), file(5)]).unwrap());
        let summary = follower.read_summary().unwrap();
        assert_eq!((summary.files.keys().copied().collect::<Vec<_>>(), summary.ended_ns), (vec![5], None));
    }

    #[test]
    fn a_directory_without_an_index_is_no_log() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(LogFollower::new(directory.path()).read_summary(), Err(Error::NoIndex(_))));
    }
}
