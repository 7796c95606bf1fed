//! Finishes files that a killed process left: every row group that is whole on the disk is kept.
//!
//! A hidden file that no process has locked is read block by block. The bytes after the last whole block are
//! usually the unfinished row group, and are cut off. Other unreadable bytes are damage, and stay in place.
//!
//! Invariant: a row group is kept only if its checksums are right. Files of running processes are left alone.

use super::Error;
use super::encode::WritableTable;
use super::files::{ClaimedFile, finished_path_of};
use super::partial::{FinishedFile, finish_claimed_file};
use super::replacement::finish_replacements;
use super::row_group::PARQUET_MAGIC;
use super::walk::files_below;
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use unfinished_file::UnfinishedFile;

mod unfinished_file;

/// Extension that a file gets if it is damaged and has no whole row group.
const DAMAGED_FILE_EXTENSION: &str = "damaged";

/// Result of a recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveredFiles {
    /// Files that were finished.
    pub files: u64,
    /// Flow records in the finished files; rows of ledgers are not counted.
    pub records: u64,
    /// Files that ended in an incomplete row group, whose records are lost. Files without any other
    /// row group count, too.
    pub cut_files: u64,
    /// Bytes of the incomplete row groups on the disk.
    pub cut_bytes: u64,
    /// Damaged parts of files, each with one or more row groups, after a power cut or on a bad disk. Their records are
    /// lost.
    pub damaged_groups: u64,
    /// Damaged files without any whole row group. They stay on the disk, and their names end in `.damaged`.
    pub damaged_files: u64,
    /// Files that could not be finished, with the reason.
    pub failures: Vec<String>,
}

impl RecoveredFiles {
    /// Returns whether the recovery found nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Finishes the files that killed processes left in a directory of records, of a table, or of a partition. Any
/// other directory is an error.
pub fn recover_files(directory: &Path) -> Result<RecoveredFiles, Error> {
    let mut recovered = RecoveredFiles::default();
    let hidden_files = hidden_files(directory)?;
    // Replacements are finished first: nobody must see the replaced files of a killed compaction beside the file
    // that replaced them.
    for table in WritableTable::ALL.map(|table| directory.join(table.name())) {
        if table.is_dir()
            && let Err(error) = finish_replacements(&table)
        {
            recovered.failures.push(error.to_string());
        }
    }
    for hidden in hidden_files {
        // One bad file must not prevent the recovery of the other files.
        if let Err(error) = recover_file(&hidden, &mut recovered) {
            recovered.failures.push(error.to_string());
        }
    }
    Ok(recovered)
}

/// Like [`recover_files`], for a directory into which records will be written: it may be empty or have no tables yet.
pub fn recover_before_writing(directory: &Path) -> Result<RecoveredFiles, Error> {
    match recover_files(directory) {
        Err(Error::Nothing { .. }) => Ok(RecoveredFiles::default()),
        recovered => recovered,
    }
}

/// The hidden files in a directory of records, including files of running processes.
fn hidden_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    let tables = WritableTable::ALL.map(|table| directory.join(table.name()));
    if !is_in_table_directory(directory) && tables.iter().all(|table| !table.is_dir()) {
        // A missing or unreadable directory has its own error, which says more than that there are no records.
        fs::read_dir(directory).map_err(Error::file("read", directory))?;
        return Err(Error::Nothing { path: directory.to_owned() });
    }
    if is_in_table_directory(directory) {
        return files_below(directory, &is_hidden_path);
    }
    for table in tables.iter().filter(|table| table.is_dir()) {
        files.extend(files_below(table, &is_hidden_path)?);
    }
    Ok(files)
}

fn is_hidden_path(path: &Path) -> bool {
    finished_path_of(path).is_some()
}

/// Returns whether a directory is that of a table or of a partition, by its name.
fn is_in_table_directory(directory: &Path) -> bool {
    // The path is resolved first, because `.` or the name of a link does not show what the directory is.
    let name = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let is_partition = name.starts_with("date=") || name.starts_with("hour=");
    is_partition || WritableTable::ALL.iter().any(|table| name == table.name())
}

fn recover_file(hidden: &Path, recovered: &mut RecoveredFiles) -> Result<(), Error> {
    let opened = OpenOptions::new().read(true).write(true).open(hidden);
    let file = match opened {
        // The process that wrote the file has finished it since the directory was read.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(Error::file("open", hidden))?,
    };
    // If another process has locked the file, that process is alive, and the file must not be touched.
    let claimed =
        ClaimedFile::claim_existing_file(file, hidden.to_owned()).map_err(Error::file("lock", hidden))?;
    let Some(claimed) = claimed else { return Ok(()) };
    let unfinished = UnfinishedFile::from_file(&claimed.file).map_err(Error::file("read", hidden))?;
    if let Some(footer) = &unfinished.footer {
        // The damage before a found row group may include the magic at the start of the file, so it is written again.
        claimed.file.write_all_at(&PARQUET_MAGIC, 0).map_err(Error::file("write", hidden))?;
        // The footer in the last block is enough for one row group, unless that block is not at the end.
        let footer = (footer.groups().len() > 1 || unfinished.damaged_groups > 0).then_some(footer);
        if finish_claimed_file(&claimed, unfinished.end, footer)? == FinishedFile::Removed {
            return Ok(());
        }
        recovered.files += 1;
    } else if unfinished.damaged_groups > 0 {
        // The file is renamed, so that the next recovery does not try it again and a person finds it.
        fs::rename(hidden, claimed.path.with_added_extension(DAMAGED_FILE_EXTENSION))
            .map_err(Error::file("rename", hidden))?;
        recovered.damaged_files += 1;
    } else {
        // The file has only the beginning of a row group, so nothing can be kept.
        claimed.remove_hidden_file().map_err(Error::file("remove", hidden))?;
    }
    recovered.damaged_groups += unfinished.damaged_groups;
    if hidden.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".flows")) {
        recovered.records += unfinished.count_rows();
    }
    if unfinished.cut_bytes > 0 {
        recovered.cut_files += 1;
        recovered.cut_bytes += unfinished.cut_bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
