//! Locks of the directories of tables. Readers share the lock while they read. Compaction holds the lock
//! alone while one file replaces several.
//!
//! So a reader never sees a record both in the old and the new file, or in neither. The lock is on the directory itself
//! and ends with the process. Writers of new files and removal of old ones do not need it.

use super::encode::WritableTable;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Number of directory levels from a file up to its table: hour, day, table.
const LEVELS_BELOW_TABLE: usize = 3;

/// Shared locks of the tables that a reader reads.
#[derive(Debug, Default)]
pub(super) struct TableReadLocks(BTreeMap<PathBuf, Option<File>>);

impl TableReadLocks {
    pub(super) fn add_locks(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Locks the tables of these files that are not locked yet. Returns whether a lock is new: files that were listed
    /// before may have been replaced since.
    pub(super) fn lock_tables_of(&mut self, files: &[PathBuf]) -> bool {
        let mut has_new = false;
        let mut last = None;
        for file in files {
            // Files of one hour are listed together, so for most of them the table is already known.
            let parent = file.parent();
            if parent == last {
                continue;
            }
            last = parent;
            let Some(table) = table_directory_of(file) else { continue };
            if let Entry::Vacant(place) = self.0.entry(table) {
                has_new = true;
                // Without locks in the file system there is no compaction either, because compaction needs the lock.
                let opened = File::open(place.key());
                place.insert(opened.and_then(|opened| opened.lock_shared().map(|()| opened)).ok());
            }
        }
        has_new
    }
}

/// Waits for the readers of a table, and locks it exclusively until the returned file is dropped.
pub(super) fn lock_table_exclusively(table: &Path) -> io::Result<File> {
    let opened = File::open(table)?;
    opened.lock()?;
    Ok(opened)
}

/// Like [`lock_table_exclusively`]; `None` if another process holds a lock of the table, or if it cannot be locked.
pub(super) fn try_lock_table_exclusively(table: &Path) -> Option<File> {
    let opened = File::open(table).ok()?;
    opened.try_lock().ok()?;
    Some(opened)
}

/// The directory of the table that a file belongs to.
fn table_directory_of(file: &Path) -> Option<PathBuf> {
    // The path is resolved first: a partition that was given as `.` does not show its name.
    let parent =
        file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let parent = parent.canonicalize().ok()?;
    let table = parent.ancestors().take(LEVELS_BELOW_TABLE).find(|place| {
        WritableTable::ALL.iter().any(|table| place.file_name().is_some_and(|name| name == table.name()))
    });
    // A table that is a link to another disk may have another name there: then the day's directory shows where it is.
    let of_partition = || {
        let is_day =
            |place: &&Path| place.file_name().is_some_and(|name| name.to_string_lossy().starts_with("date="));
        parent.ancestors().take(LEVELS_BELOW_TABLE).find(is_day)?.parent()
    };
    table.or_else(of_partition).map(Path::to_owned)
}
