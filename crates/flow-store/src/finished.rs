//! Finds the finished files that packetrig wrote in a directory of records: their sizes and the times
//! of their latest records.
//!
//! The bytes of other files are only counted: packetrig never removes or rewrites them.

use super::Error;
use super::encode::WritableTable;
use super::files::is_finished_name;
use super::scan::open_parquet;
use super::walk::files_below;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::FileReader as _;
use parquet::file::statistics::Statistics;
use std::collections::{HashMap, VecDeque};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Beginning of the name of the writer in the footer of packetrig's files.
const WRITER_NAME_PREFIX: &str = "packetrig ";

/// Facts about a finished file that packetrig wrote, from its footer and from the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FinishedFileFacts {
    pub(super) path: PathBuf,
    pub(super) table: WritableTable,
    pub(super) bytes: u64,
    pub(super) rows: u64,
    /// Time of the latest record, or the modification time of the file if that is earlier, in nanoseconds since 1970.
    /// Exporters choose the times of their records: a time far in the future must not keep a file for ever.
    pub(super) latest_ns: u64,
    identity: FileIdentity,
}

/// Properties of a file. If they are unchanged, its footer need not be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    inode: u64,
    bytes: u64,
    pub(super) modified_ns: u64,
}

impl FileIdentity {
    pub(super) fn from_metadata(facts: &Metadata) -> Self {
        let modified = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            inode: facts.ino(),
            bytes: facts.len(),
            modified_ns: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// The files of a directory of records at the last scan.
#[derive(Debug, Default)]
pub(super) struct FinishedFiles {
    /// Finished files of packetrig, in the order of their latest records, the oldest first.
    pub(super) files: VecDeque<FinishedFileFacts>,
    /// Bytes of all other files: growing files, damaged files, and files of other programs.
    pub(super) other_bytes: u64,
}

impl FinishedFiles {
    /// Scans the directory again. The footers of files that have not changed since the last scan are not read again.
    pub(super) fn rescan(&mut self, directory: &Path) -> Result<(), Error> {
        let mut known: HashMap<PathBuf, FinishedFileFacts> =
            self.files.drain(..).map(|file| (file.path.clone(), file)).collect();
        self.other_bytes = 0;
        let mut files = Vec::new();
        for table in WritableTable::ALL {
            let place = directory.join(table.name());
            if !place.is_dir() {
                continue;
            }
            for path in files_below(&place, &|_| true)? {
                // The file was removed since it was listed, so it takes no disk space.
                let Ok(facts) = fs::symlink_metadata(&path) else { continue };
                let identity = FileIdentity::from_metadata(&facts);
                let before = known.remove(&path).filter(|file| file.identity == identity);
                match before.or_else(|| FinishedFileFacts::read_footer(&path, table, identity)) {
                    Some(file) => files.push(file),
                    None => self.other_bytes = self.other_bytes.saturating_add(facts.len()),
                }
            }
        }
        // Files with equal times are sorted by name, so that the order is the same each time.
        files.sort_by(|a, b| (a.latest_ns, &a.path).cmp(&(b.latest_ns, &b.path)));
        self.files = files.into();
        Ok(())
    }

    /// Bytes of all files.
    pub(super) fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(self.other_bytes, u64::saturating_add)
    }
}

impl FinishedFileFacts {
    /// Reads the facts of a file from its footer. `None` if the file is unfinished or damaged, or packetrig
    /// did not write it.
    fn read_footer(path: &Path, table: WritableTable, identity: FileIdentity) -> Option<Self> {
        if !is_finished_name(path, table) {
            return None;
        }
        let file = open_parquet(path).ok()?;
        let metadata = file.metadata();
        if !was_written_by_packetrig(metadata) {
            return None;
        }
        let latest_ns = latest_time(metadata, table).unwrap_or(u64::MAX).min(identity.modified_ns);
        Some(Self {
            path: path.to_owned(),
            table,
            bytes: identity.bytes,
            rows: u64::try_from(metadata.file_metadata().num_rows()).unwrap_or(0),
            latest_ns,
            identity,
        })
    }

    /// Number of flow records; ledgers are not counted.
    pub(super) fn flow_records(&self) -> u64 {
        if self.table == WritableTable::Flows { self.rows } else { 0 }
    }

    /// Time at which the file was written, nanoseconds since 1970.
    pub(super) const fn modified_ns(&self) -> u64 {
        self.identity.modified_ns
    }

    /// Returns whether the file still exists and has not changed.
    pub(super) fn is_unchanged(&self) -> bool {
        fs::symlink_metadata(&self.path)
            .is_ok_and(|facts| FileIdentity::from_metadata(&facts) == self.identity)
    }
}

pub(super) fn was_written_by_packetrig(metadata: &ParquetMetaData) -> bool {
    metadata.file_metadata().created_by().is_some_and(|writer| writer.starts_with(WRITER_NAME_PREFIX))
}

/// The latest end of a flow, or the time of the latest ledger, from the statistics of all row groups.
fn latest_time(metadata: &ParquetMetaData, table: WritableTable) -> Option<u64> {
    let name = match table {
        WritableTable::Flows => "flowEndNanoseconds",
        WritableTable::MeterStats => "observationTimeNanoseconds",
    };
    let of_group = |columns: &[ColumnChunkMetaData]| {
        let column = columns.iter().find(|column| column.column_path().parts() == [name])?;
        let Statistics::Int64(range) = column.statistics()? else { return None };
        u64::try_from(*range.max_opt()?).ok()
    };
    metadata.row_groups().iter().filter_map(|group| of_group(group.columns())).max()
}
