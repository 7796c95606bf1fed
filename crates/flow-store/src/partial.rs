//! A file of records that grows on the disk under a hidden name, row group by row group.
//!
//! Before each row group is written, disk space for the row group and for the footer is reserved, so that a file can be
//! finished even when the disk has become full. The file is locked while this process writes it; [`super::recover`]
//! finishes files that no process has locked.
//!
//! Invariant: up to `end` the file has only whole blocks.

use super::Error;
use super::encode::WritableTable;
use super::files::{self, ClaimedFile, HourPartition, NameOnDisk};
use super::row_group::{EncodedGroup, FileFooter, PARQUET_MAGIC};
use packetrig_flow::CarriedRecords;
use packetrig_sys::disk::{self, reserve_space_beyond};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

#[derive(Debug)]
pub(super) struct PartialFile {
    pub(super) table: WritableTable,
    pub(super) partition: HourPartition,
    pub(super) carried: CarriedRecords,
    /// Number of the row group that was added last, counted over all files: the file with the smallest number has not
    /// grown for the longest time.
    pub(super) touched: u64,
    claimed: ClaimedFile,
    end: u64,
    footer: Option<FileFooter>,
    /// Upper bound of the footer's size: the sum of the footers of the single row groups.
    footer_bytes: u64,
}

impl PartialFile {
    /// Begins a file with a row group. If that fails, no file is left.
    pub(super) fn begin_file(directory: &Path, group: &EncodedGroup) -> Result<Self, Error> {
        let claimed = files::claim_next_file(directory, group.table, group.partition)?;
        let mut file = Self::without_groups(group.table, group.partition, claimed);
        let begun = file.write_bytes(&PARQUET_MAGIC).and_then(|()| file.append_group(group));
        if begun.is_err() {
            // The likely cause is a full disk, so the incomplete file is removed. If that fails, too, the next recovery removes it.
            drop(file.claimed.remove_hidden_file());
        }
        begun.map(|()| file)
    }

    /// Begins a file that was claimed already, without a row group.
    pub(super) fn begin_empty_file(table: WritableTable, claimed: ClaimedFile) -> Result<Self, Error> {
        let mut file = Self::without_groups(table, HourPartition(None), claimed);
        file.write_bytes(&PARQUET_MAGIC)?;
        Ok(file)
    }

    fn without_groups(table: WritableTable, partition: HourPartition, claimed: ClaimedFile) -> Self {
        let carried = CarriedRecords::default();
        Self { table, partition, carried, touched: 0, claimed, end: 0, footer: None, footer_bytes: 0 }
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.end
    }

    /// Number of rows in all row groups of the file.
    pub(super) fn row_count(&self) -> u64 {
        let groups = self.footer.iter().flat_map(FileFooter::groups);
        groups.map(|group| group.num_rows().max(0).unsigned_abs()).sum()
    }

    /// Writes the row groups to the disk, so that finishing the file takes little time.
    pub(super) fn sync_data(&self) -> Result<(), Error> {
        self.claimed.file.sync_all().map_err(self.file_error("write"))
    }

    /// Adds a row group. If that fails, the file stays as it was.
    pub(super) fn append_group(&mut self, group: &EncodedGroup) -> Result<(), Error> {
        // The block is encoded for this very offset, because the metadata has absolute offsets.
        let placed = group.encode_block_at(self.end).map_err(Error::Encode)?;
        // The bytes of the block without its pages: the head and the footer.
        let footer_bytes = self.footer_bytes + (placed.block.len() - group.page_bytes()) as u64;
        // The footers of the blocks together are longer than their joint footer, so the file can always be finished.
        let wanted = placed.block.len() as u64 + footer_bytes;
        reserve_space_beyond(&self.claimed.file, self.end, wanted).map_err(self.file_error("write"))?;
        // If the write fails, `end` is unchanged: bytes beyond `end` are overwritten later, or
        // `finish_claimed_file` cuts them off.
        self.write_bytes(&placed.block)?;
        self.footer_bytes = footer_bytes;
        self.carried.add_records(group.carried);
        match &mut self.footer {
            Some(footer) => footer.append_groups(placed.footer),
            none => *none = Some(placed.footer),
        }
        Ok(())
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // `end` moves only after the whole write, so a failed write leaves the file as it was.
        self.claimed.file.write_all_at(bytes, self.end).map_err(self.file_error("write"))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    fn file_error(&self, what: &'static str) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::file(what, self.claimed.hidden.clone())
    }

    /// Writes the footer and renames the file. After an error, the call may be repeated.
    pub(super) fn try_finish_file(&self) -> Result<FinishedFile, Error> {
        // Each block already ends with a footer of its own. In a file with one row group, this is also the
        // footer of the file, so no other footer is written.
        let footer = self.footer.as_ref().filter(|footer| footer.groups().len() > 1);
        finish_claimed_file(&self.claimed, self.end, footer)
    }

    /// The error for the records of a file that was removed.
    pub(super) fn removed_error(&self) -> Error {
        self.file_error("finish")(io::Error::new(
            ErrorKind::NotFound,
            "the file was removed, or another process renamed it",
        ))
    }
}

/// Result of finishing a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinishedFile {
    Stored {
        bytes: u64,
    },
    /// The file has neither its hidden name nor its final one, so another attempt is useless.
    Removed,
}

/// Finishes a file whose last block ends at `end`: writes `footer` there, cuts off the rest, and renames the file.
/// Without `footer`, the footer in the last block is the footer of the file.
///
/// Each step may be repeated. A file that was renamed in an earlier attempt only has its directory synced.
pub(super) fn finish_claimed_file(
    claimed: &ClaimedFile,
    end: u64,
    footer: Option<&FileFooter>,
) -> Result<FinishedFile, Error> {
    let footer = footer.map_or(Ok(Vec::new()), FileFooter::encode_footer).map_err(Error::Encode)?;
    // A failed write may have left more bytes than this; they are cut off below.
    let bytes = end + footer.len() as u64;
    let ClaimedFile { file, hidden, path } = claimed;
    if claimed.name_on_disk().map_err(Error::file("look for", hidden))? == NameOnDisk::Hidden {
        file.write_all_at(&footer, end)
            .and_then(|()| file.set_len(bytes))
            .and_then(|()| file.sync_all())
            .map_err(Error::file("write", hidden))?;
        // NotFound means that another process has renamed or removed the file; the check below finds this.
        match fs::rename(hidden, path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::file("rename", hidden)(error));
            }
            _ => {}
        }
    }
    if claimed.name_on_disk().map_err(Error::file("look for", path))? != NameOnDisk::Finished {
        return Ok(FinishedFile::Removed);
    }
    disk::sync_directory(path.parent().unwrap_or(path))
        .map_err(Error::file("sync the directory of", path))?;
    Ok(FinishedFile::Stored { bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordExporter;
    use crate::columns::ExporterRow;
    use crate::constant_columns::ConstantColumns;
    use crate::sample::records;

    fn partial(directory: &Path) -> PartialFile {
        let rows: Vec<_> = records(10)
            .into_iter()
            .map(|record| ExporterRow { record, source: RecordExporter::default() })
            .collect();
        let group =
            EncodedGroup::from_flows(HourPartition(None), &rows, &mut ConstantColumns::default()).unwrap();
        let mut file = PartialFile::begin_file(directory, &group).unwrap();
        file.append_group(&group).unwrap();
        file
    }

    #[test]
    fn renamed_file_is_finished_by_next_attempt() {
        let directory = tempfile::tempdir().unwrap();
        let file = partial(directory.path());
        let first = file.try_finish_file().unwrap();
        let bytes = fs::metadata(&file.claimed.path).unwrap().len();
        assert_eq!(first, FinishedFile::Stored { bytes });
        assert_eq!(file.try_finish_file().unwrap(), first);
    }

    #[test]
    fn removed_partial_file_is_not_retried() {
        let directory = tempfile::tempdir().unwrap();
        let file = partial(directory.path());
        fs::remove_file(&file.claimed.hidden).unwrap();
        fs::write(&file.claimed.hidden, "another process's").unwrap();
        assert_eq!(file.try_finish_file().unwrap(), FinishedFile::Removed);
        assert_eq!(fs::read_to_string(&file.claimed.hidden).unwrap(), "another process's");
        assert!(!file.claimed.path.exists());
        assert!(file.removed_error().to_string().contains("removed"));
    }
}
