//! Finishing the files of a process that was killed: every row group that is whole on the disk comes back.
//!
//! A hidden file that nobody has locked is read block by block. What lies behind the last whole block is usually the row group that
//! was being written, and is cut off. Anything else that cannot be read is damage: it stays where it is.
//!
//! Invariant: a row group is kept only if its checksums are right. Files of processes that live are left alone.

use super::Error;
use super::encode::WritableTable;
use super::files::{ClaimedFile, named};
use super::partial::{FinishedFile, finish};
use super::row_group::MAGIC;
use super::walk::files_below;
use remains::FileRemains;
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

mod remains;

/// Ends the name of a file in which no row group is whole, and which is no beginning of one either.
const DAMAGED: &str = "damaged";

/// What was found of processes that were killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecoveredFiles {
    /// Files that were finished.
    pub files: u64,
    /// Records in them, of flows; ledgers are not counted.
    pub records: u64,
    /// Files, also of those with nothing else in them, that ended in a row group that was not whole; its records are lost.
    pub cut_files: u64,
    /// Bytes of these row groups.
    pub cut_bytes: u64,
    /// Row groups, or places where there must have been some, that a power cut or a bad disk damaged; their records are lost.
    pub damaged_groups: u64,
    /// Files with nothing but damage; they are kept, and their names end in `.damaged`.
    pub damaged_files: u64,
    /// Files that could not be finished, and why.
    pub failures: Vec<String>,
}

impl RecoveredFiles {
    /// Whether there was nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Finishes what killed processes left in a directory of records, of a table, or of a partition. A directory with nothing of the
/// kind is an error.
pub fn recover(directory: &Path) -> Result<RecoveredFiles, Error> {
    let mut recovered = RecoveredFiles::default();
    for hidden in left_behind(directory)? {
        if let Err(error) = recover_file(&hidden, &mut recovered) {
            recovered.failures.push(error.to_string());
        }
    }
    Ok(recovered)
}

/// The same before new records are written into it: there may be nothing yet.
pub fn recover_before_writing(directory: &Path) -> Result<RecoveredFiles, Error> {
    match recover(directory) {
        Err(Error::Nothing { .. }) => Ok(RecoveredFiles::default()),
        recovered => recovered,
    }
}

/// The hidden files in a directory of records, also those of processes that live.
fn left_behind(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let is_hidden = |path: &Path| named(path).is_some();
    let mut files = Vec::new();
    let tables = WritableTable::ALL.map(|table| directory.join(table.name()));
    if !is_part_of_table(directory) && tables.iter().all(|table| !table.is_dir()) {
        fs::read_dir(directory).map_err(Error::file("read", directory))?;
        return Err(Error::Nothing { path: directory.to_owned() });
    }
    if is_part_of_table(directory) {
        return files_below(directory, &is_hidden);
    }
    for table in tables.iter().filter(|table| table.is_dir()) {
        files.extend(files_below(table, &is_hidden)?);
    }
    Ok(files)
}

/// Whether it is the directory of a table, or a partition of one, by its name.
fn is_part_of_table(directory: &Path) -> bool {
    let name = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let name = name.file_name().unwrap_or_default().to_string_lossy();
    let is_partition = name.starts_with("date=") || name.starts_with("hour=");
    is_partition || WritableTable::ALL.iter().any(|table| name == table.name())
}

fn recover_file(hidden: &Path, recovered: &mut RecoveredFiles) -> Result<(), Error> {
    let opened = OpenOptions::new().read(true).write(true).open(hidden);
    let file = match opened {
        // Its process has finished it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(Error::file("open", hidden))?,
    };
    let claimed = ClaimedFile::take(file, hidden.to_owned()).map_err(Error::file("lock", hidden))?;
    let Some(claimed) = claimed else { return Ok(()) };
    let remains = FileRemains::read(&claimed.file).map_err(Error::file("read", hidden))?;
    if let Some(footer) = &remains.footer {
        // Row groups have been found behind damage: it may be there.
        claimed.file.write_all_at(&MAGIC, 0).map_err(Error::file("write", hidden))?;
        let footer = (footer.groups().len() > 1 || remains.damaged_groups > 0).then_some(footer);
        if finish(&claimed, remains.end, footer)? == FinishedFile::Removed {
            return Ok(());
        }
        recovered.files += 1;
    } else if remains.damaged_groups > 0 {
        fs::rename(hidden, claimed.path.with_added_extension(DAMAGED))
            .map_err(Error::file("rename", hidden))?;
        recovered.damaged_files += 1;
    } else {
        claimed.remove().map_err(Error::file("remove", hidden))?;
    }
    recovered.damaged_groups += remains.damaged_groups;
    if hidden.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".flows")) {
        recovered.records += remains.rows();
    }
    if remains.cut_bytes > 0 {
        recovered.cut_files += 1;
        recovered.cut_bytes += remains.cut_bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
