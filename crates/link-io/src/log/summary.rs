//! A log in short, from its index alone: cheap for logs of any size, and possible while the log grows.

use super::Error;
use super::index::{FileEntry, IndexEntry, LogIndex};
use super::keeper::is_held;
use std::collections::BTreeMap;
use std::path::Path;

/// What the index of a log says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// Where the newest log in this directory captures.
    pub interface: Option<String>,
    /// When it began and, if it ended in order, when that was; nanoseconds since 1970.
    pub began_ns: Option<u64>,
    pub ended_ns: Option<u64>,
    /// Whether a process logs into this directory now.
    pub is_growing: bool,
    /// Complete files that were not removed, by number.
    pub files: BTreeMap<u64, FileEntry>,
    pub removed_files: u64,
    pub removed_frames: u64,
}

/// Reads the index of a log.
pub fn summarise(directory: &Path) -> Result<LogSummary, Error> {
    let entries = LogIndex::read(directory)?;
    if entries.is_empty() {
        return Err(Error::NoIndex(directory.to_owned()));
    }
    let mut summary = LogSummary::default();
    for entry in entries {
        summary.take_in(entry);
    }
    summary.is_growing = is_held(directory);
    Ok(summary)
}

impl LogSummary {
    fn take_in(&mut self, entry: IndexEntry) {
        match entry {
            IndexEntry::Before { files, frames, .. } => self.removed(files, frames),
            IndexEntry::Began { at_ns, interface, .. } => {
                self.interface = Some(interface);
                (self.began_ns, self.ended_ns) = (Some(at_ns), None);
            }
            IndexEntry::File(file) => drop(self.files.insert(file.file, file)),
            IndexEntry::Removed { file, frames, .. } => {
                self.files.remove(&file);
                self.removed(1, frames);
            }
            IndexEntry::Ended { at_ns } => self.ended_ns = Some(at_ns),
        }
    }

    fn removed(&mut self, files: u64, frames: u64) {
        self.removed_files += files;
        self.removed_frames += frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(file: u64) -> IndexEntry {
        IndexEntry::File(FileEntry { file, frames: 10 * file, ..FileEntry::default() })
    }

    fn began(at_ns: u64) -> IndexEntry {
        IndexEntry::Began { at_ns, interface: "eth1".into(), file: 1, frame: 0, numbers: Default::default() }
    }

    #[test]
    fn removed_files_are_counted_and_only_the_newest_log_counts_as_begun() {
        let directory = tempfile::tempdir().unwrap();
        let why = super::super::RemovalReason::Size;
        let removed = IndexEntry::Removed { at_ns: 7, file: 3, frames: 30, why };
        let before = IndexEntry::Before { last_file: 2, files: 2, frames: 5 };
        let entries = [before, file(3), file(4), began(5), IndexEntry::Ended { at_ns: 6 }, began(9), removed];
        drop(LogIndex::renew(directory.path(), &entries).unwrap());
        let summary = summarise(directory.path()).unwrap();
        assert_eq!(summary.files.keys().copied().collect::<Vec<_>>(), [4]);
        assert_eq!((summary.removed_files, summary.removed_frames), (3, 35));
        assert_eq!((summary.began_ns, summary.ended_ns, summary.is_growing), (Some(9), None, false));
        assert_eq!(summary.interface.as_deref(), Some("eth1"));
    }

    #[test]
    fn a_directory_without_an_index_is_no_log() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(summarise(directory.path()), Err(Error::NoIndex(_))));
    }
}
