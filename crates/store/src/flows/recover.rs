//! Finishing the files of a process that was killed: every row group that is whole on the disk comes back.
//!
//! A hidden file that nobody has locked is read block by block. What lies behind the last whole block is the row group that was being
//! written, and is cut off.
//!
//! Invariant: a row group is kept only if its checksums are right. Files of processes that live are left alone.

use super::Error;
use super::checksum::{continue_crc32c, crc32c};
use super::encode::Table;
use super::files::{ClaimedFile, named};
use super::partial::{FinishedFile, finish};
use super::row_group::{BlockHead, FileFooter, MAGIC};
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Directories below one another: more than any partition has.
const DEPTH: usize = 4;
/// Bytes that the footer of one row group has at most; ours have about ten thousand.
const FOOTER_MOST: u64 = 1 << 20;
/// Length and magic, which end a footer.
const FOOTER_END: usize = 8;
/// Bytes that are read at a time.
const WINDOW: usize = 1 << 18;

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
    /// Row groups that a power cut or a bad disk damaged; their records are lost.
    pub damaged_groups: u64,
    /// Files that could not be finished, and why.
    pub failures: Vec<String>,
}

impl RecoveredFiles {
    /// Whether there was nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Finishes what killed processes left in a directory of records.
pub fn recover(directory: &Path) -> Result<RecoveredFiles, Error> {
    let mut recovered = RecoveredFiles::default();
    for hidden in left_behind(directory)? {
        if let Err(error) = recover_file(&hidden, &mut recovered) {
            recovered.failures.push(error.to_string());
        }
    }
    Ok(recovered)
}

/// The hidden files in a directory of records, also those of processes that live.
fn left_behind(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for table in [Table::Flows, Table::MeterStats] {
        let below = directory.join(table.name());
        if fs::symlink_metadata(&below).is_ok_and(|facts| facts.is_dir()) {
            walk(&below, DEPTH, &mut files)?;
        }
    }
    files.sort();
    Ok(files)
}

fn walk(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(directory).map_err(Error::file("read", directory))? {
        let entry = entry.map_err(Error::file("read", directory))?;
        let kind = entry.file_type().map_err(Error::file("read", directory))?;
        let path = entry.path();
        if kind.is_dir() && depth > 0 {
            walk(&path, depth - 1, files)?;
        } else if kind.is_file() && named(&path).is_some() {
            files.push(path);
        }
    }
    Ok(())
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
        let footer = (footer.groups().len() > 1).then_some(footer);
        if finish(&claimed, remains.end, footer)? == FinishedFile::Removed {
            return Ok(());
        }
        recovered.files += 1;
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

/// What is whole in a file that was not finished.
#[derive(Debug, Default)]
struct FileRemains {
    /// Where the last whole row group's block ends.
    end: u64,
    /// Of the whole row groups, if there are any.
    footer: Option<FileFooter>,
    damaged_groups: u64,
    /// Bytes behind the last block that are no footer of the file.
    cut_bytes: u64,
}

impl FileRemains {
    fn read(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let mut remains = Self::default();
        let mut at = MAGIC.len() as u64;
        while let Some(block) = BlockOnDisk::read(file, at, length)? {
            at = block.end;
            if block.has_whole_pages {
                remains.end = at;
                match &mut remains.footer {
                    Some(footer) => footer.add(block.footer),
                    none => *none = Some(block.footer),
                }
            } else {
                remains.damaged_groups += 1;
            }
        }
        if length > at && !ends_with_footer(file, at, length)? {
            remains.cut_bytes = length - at;
        }
        Ok(remains)
    }

    fn rows(&self) -> u64 {
        let groups = self.footer.iter().flat_map(FileFooter::groups);
        groups.map(|group: &RowGroupMetaData| u64::try_from(group.num_rows()).unwrap_or(0)).sum()
    }
}

/// A block whose footer is whole.
struct BlockOnDisk {
    footer: FileFooter,
    has_whole_pages: bool,
    end: u64,
}

impl BlockOnDisk {
    /// The block behind so many bytes, if its footer is there and is right.
    fn read(file: &File, at: u64, length: u64) -> io::Result<Option<Self>> {
        let pages_at = at + BlockHead::BYTES as u64;
        if pages_at > length {
            return Ok(None);
        }
        let mut head = [0; BlockHead::BYTES];
        file.read_exact_at(&mut head, at)?;
        let head = BlockHead::decode(head);
        let footer_at = pages_at.checked_add(head.pages);
        let end =
            footer_at.and_then(|footer_at| footer_at.checked_add(head.footer)).filter(|&end| end <= length);
        let (Some(footer_at), Some(end)) = (footer_at, end) else { return Ok(None) };
        if head.footer > FOOTER_MOST || head.footer < FOOTER_END as u64 {
            return Ok(None);
        }
        let mut footer = vec![0; usize::try_from(head.footer).unwrap_or(0)];
        file.read_exact_at(&mut footer, footer_at)?;
        if crc32c(&footer) != head.footer_checksum {
            return Ok(None);
        }
        let metadata = ParquetMetaDataReader::decode_metadata(&footer[..footer.len() - FOOTER_END]);
        let Ok(metadata) = metadata else { return Ok(None) };
        let has_whole_pages = checksum(file, pages_at, head.pages)? == head.pages_checksum;
        Ok(Some(Self { footer: FileFooter::of(&metadata), has_whole_pages, end }))
    }
}

/// The checksum of so many bytes of a file.
fn checksum(file: &File, mut at: u64, bytes: u64) -> io::Result<u32> {
    let mut window = vec![0; WINDOW];
    let end = at + bytes;
    let mut checksum = 0;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW);
        file.read_exact_at(&mut window[..wanted], at)?;
        checksum = continue_crc32c(checksum, &window[..wanted]);
        at += wanted as u64;
    }
    Ok(checksum)
}

/// Whether what lies between is the footer of the whole file: its process was killed before it could give the file its name.
fn ends_with_footer(file: &File, from: u64, length: u64) -> io::Result<bool> {
    let Some(footer) = (length - from).checked_sub(FOOTER_END as u64) else { return Ok(false) };
    let mut end = [0; FOOTER_END];
    file.read_exact_at(&mut end, length - FOOTER_END as u64)?;
    let (said, magic) = end.split_at(FOOTER_END - MAGIC.len());
    Ok(magic == MAGIC && u32::try_from(footer).is_ok_and(|footer| said == footer.to_le_bytes()))
}

#[cfg(test)]
mod tests;
