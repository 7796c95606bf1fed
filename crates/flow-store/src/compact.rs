//! Compaction: small finished files of one hour become one larger file, with row groups of full size.
//!
//! Only files that packetrig wrote with the columns of this version are joined. Their rows are read and written again,
//! sorted by start time within each row group. The new file replaces the old ones in one step (`super::replacement`),
//! so queries and writers may use the directory during a compaction.
//!
//! Invariant: every row of the joined files is in the new file, and the old files are removed only after the new one
//! is on the disk.

mod rows;
#[cfg(test)]
mod tests;

use super::Error;
use super::encode::WritableTable;
use super::files::{ClaimedFile, claim_file_in};
use super::finished::{FinishedFileFacts, FinishedFiles};
use super::partial::{FinishedFile, PartialFile};
use super::progress::read_oldest_note_time;
use super::replacement::{self, ReplacementNote};
use super::row_group::EncodedGroup;
use super::scan::open_parquet;
use super::table_lock::lock_table_exclusively;
use super::walk::files_below;
use packetrig_sys::private_files;
use parquet::file::reader::FileReader as _;
use parquet::file::serialized_reader::SerializedFileReader;
use rows::JoinedRows;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A row group ends when it has at least this many rows, as in new files of large collectors.
const ROWS_PER_GROUP: usize = 1 << 16;

/// Result of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompactedFiles {
    /// Files that were joined, and their bytes.
    pub joined_files: u64,
    pub joined_bytes: u64,
    /// The files that replaced them, and their bytes.
    pub new_files: u64,
    pub new_bytes: u64,
    /// Flow records in the new files; rows of ledgers are not counted.
    pub records: u64,
    /// Small files that were not joined because they are too new. If a collector is killed, the next collector counts
    /// the rows of its newest files, so these files must not change.
    pub recent_files: u64,
    /// Small files with other columns, usually because another version of packetrig wrote them. Files that cannot
    /// be opened count, too.
    pub other_files: u64,
    /// Sets of files that were not joined: a file changed or disappeared meanwhile, or an interrupted compaction of the
    /// same hour is not finished. The files stay as they are.
    pub abandoned: u64,
    /// Reasons why sets of files could not be joined.
    pub failures: Vec<String>,
}

/// Joins the small files of a directory of records into files of at most about `file_bytes`. Stops before the next set
/// of files when `is_given_up` returns true.
pub fn compact_files(
    directory: &Path,
    file_bytes: u64,
    is_given_up: &dyn Fn() -> bool,
) -> Result<CompactedFiles, Error> {
    // A directory that cannot be read must not look like one without files.
    fs::read_dir(directory).map_err(Error::file("read", directory))?;
    let mut compacted = CompactedFiles::default();
    let tables = WritableTable::ALL.map(|table| (table, directory.join(table.name())));
    if tables.iter().all(|(_, place)| !place.is_dir()) {
        return Err(Error::Nothing { path: directory.to_owned() });
    }
    for (_, place) in tables.iter().filter(|(_, place)| place.is_dir()) {
        // The work of a killed compaction is finished first, unless a query is reading. In that case, the code
        // below leaves the hours of that compaction alone.
        replacement::finish_replacements(place)?;
    }
    // Collectors note their progress in the directory. After a collector was killed, the next one counts the rows of
    // files that are newer than the note. So files newer than the oldest note must stay as they are.
    let settled_ns = read_oldest_note_time(directory)?.unwrap_or(u64::MAX);
    let mut found = FinishedFiles::default();
    found.rescan(directory)?;
    for ((table, partition), files) in group_files_by_partition(found) {
        let (settled, recent): (Vec<_>, Vec<_>) =
            small_files(files, file_bytes).into_iter().partition(|file| file.modified_ns() <= settled_ns);
        compacted.recent_files += recent.len() as u64;
        let joinable = select_files_with_current_columns(settled, table, &mut compacted);
        for batch in batch_files(joinable, file_bytes) {
            // The check comes between two sets: each set is replaced as a whole, or not at all.
            if is_given_up() {
                return Ok(compacted);
            }
            let set = PartitionFileSet {
                table,
                place: directory.join(table.name()),
                partition: &partition,
                files: &batch,
            };
            // One bad file must not prevent joining the other files.
            if let Err(error) = set.join_files(&mut compacted, &mut |_| true) {
                compacted.failures.push(error.to_string());
            }
        }
    }
    Ok(compacted)
}

type Partitions = BTreeMap<(WritableTable, PathBuf), Vec<FinishedFileFacts>>;

fn group_files_by_partition(found: FinishedFiles) -> Partitions {
    let mut partitions = Partitions::new();
    for file in found.files {
        let partition = file.path.parent().unwrap_or(&file.path).to_owned();
        partitions.entry((file.table, partition)).or_default().push(file);
    }
    partitions
}

/// Returns the files that are worth joining: files of at most half of `file_bytes`. Rewriting larger
/// files would gain little.
fn small_files(files: Vec<FinishedFileFacts>, file_bytes: u64) -> Vec<FinishedFileFacts> {
    files.into_iter().filter(|file| file.bytes <= file_bytes / 2).collect()
}

fn select_files_with_current_columns(
    files: Vec<FinishedFileFacts>,
    table: WritableTable,
    compacted: &mut CompactedFiles,
) -> Vec<FinishedFileFacts> {
    let (same, other): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| {
        // A file that cannot be opened, for example because it was removed since, counts as another file.
        let opened = open_parquet(&file.path);
        opened.is_ok_and(|file| table.has_schema(file.metadata().file_metadata().schema()))
    });
    compacted.other_files += other.len() as u64;
    same
}

/// Makes sets of at least two files, each set of at most `file_bytes`. Files whose times are close go
/// into the same set.
fn batch_files(files: Vec<FinishedFileFacts>, file_bytes: u64) -> Vec<Vec<FinishedFileFacts>> {
    let mut all = Vec::new();
    let mut batch: Vec<FinishedFileFacts> = Vec::new();
    let mut bytes = 0;
    for file in files {
        // The limit applies to the bytes that are read. The joined file is often smaller, and may be joined
        // again with later files.
        if bytes + file.bytes > file_bytes {
            all.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += file.bytes;
        batch.push(file);
    }
    all.push(batch);
    // A set of one file would only be copied.
    all.retain(|batch| batch.len() > 1);
    all
}

/// Steps after which a test can interrupt the replacement, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplacementStep {
    Written,
    Noted,
    Named,
}

/// Files of one partition that are to be joined into one file.
struct PartitionFileSet<'a> {
    table: WritableTable,
    /// Directory of the table.
    place: PathBuf,
    partition: &'a Path,
    files: &'a [FinishedFileFacts],
}

impl PartitionFileSet<'_> {
    /// Writes the new file and replaces the old ones with it. After each step, `goes_on` decides whether to continue.
    fn join_files(
        &self,
        compacted: &mut CompactedFiles,
        goes_on: &mut dyn FnMut(ReplacementStep) -> bool,
    ) -> Result<(), Error> {
        // An empty file under the usual hidden name reserves the number. The rows go into a file with another hidden
        // name, because a recovery would finish the reserved file if it had content.
        let reserved = claim_file_in(self.partition, self.table)?;
        let hidden = replacement::merging_file_path(&reserved.path);
        let joined = self.write_new_file(&reserved, &hidden);
        let done = match joined {
            Ok(Some(new)) => self.replace_files(&new, &reserved.path, compacted, goes_on),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        // A file that changed in the meantime is no failure: the next call joins the files that exist then.
        if !matches!(done, Ok(true)) {
            compacted.abandoned += u64::from(done.is_ok());
            drop(fs::remove_file(&hidden));
        }
        // Another process may have removed the reserved file already, as an empty leftover.
        drop(reserved.remove_hidden_file());
        done.map(drop)
    }

    /// Writes and syncs the joined file. Returns `None` if one of the old files has changed or is gone.
    fn write_new_file(&self, reserved: &ClaimedFile, hidden: &Path) -> Result<Option<PartialFile>, Error> {
        let file = private_files::create_new_private_file(hidden).map_err(Error::file("create", hidden))?;
        file.lock().map_err(Error::file("lock", hidden))?;
        let claimed = ClaimedFile { file, hidden: hidden.to_owned(), path: reserved.path.clone() };
        let mut new = PartialFile::begin_empty_file(self.table, claimed)?;
        let mut rows = JoinedRows::new(self.table);
        for facts in self.files {
            // Retention or a recovery may have removed or replaced the file since it was listed.
            if !facts.is_unchanged() {
                return Ok(None);
            }
            let file = open_parquet(&facts.path)?;
            append_rows(&file, &facts.path, &mut rows, &mut new)?;
        }
        append_group(&mut rows, &mut new)?;
        new.sync_data()?;
        Ok(Some(new))
    }

    /// Replaces the old files with the new file. Returns false if one of the old files has changed, or if an
    /// interrupted compaction has left a note.
    fn replace_files(
        &self,
        new: &PartialFile,
        path: &Path,
        compacted: &mut CompactedFiles,
        goes_on: &mut dyn FnMut(ReplacementStep) -> bool,
    ) -> Result<bool, Error> {
        let rows: u64 = self.files.iter().map(|file| file.rows).sum();
        if new.row_count() != rows {
            let why = format!("the joined file has {} rows, but the old files have {rows}", new.row_count());
            return Err(Error::Damaged { path: path.to_owned(), why });
        }
        let names = self.files.iter().filter_map(|file| file.path.file_name()?.to_str().map(str::to_owned));
        let note = ReplacementNote {
            files: names.collect(),
            modified_ns: self.files.iter().map(FinishedFileFacts::modified_ns).max().unwrap_or(0),
        };
        // From here on no reader is active, and none can start: so no reader sees old files beside the new one.
        let _alone = lock_table_exclusively(&self.place).map_err(Error::file("lock", &self.place))?;
        // A note was left by an interrupted compaction that is not finished yet: a query held the table when this call tried
        // to finish it, or the interruption came later. The new file of that compaction repeats rows of other files in this
        // partition, so joining any of these files could store rows twice.
        if !files_below(self.partition, &replacement::is_replacement_note)?.is_empty() {
            return Ok(false);
        }
        // Retention in another process may have removed some files. Their rows must not come back with the new file.
        if !self.files.iter().all(FinishedFileFacts::is_unchanged) || !goes_on(ReplacementStep::Written) {
            return Ok(false);
        }
        replacement::write_replacement_note(path, &note)?;
        if !goes_on(ReplacementStep::Noted) {
            return Ok(true);
        }
        let FinishedFile::Stored { bytes } = new.try_finish_file()? else { return Ok(false) };
        if !goes_on(ReplacementStep::Named) {
            return Ok(true);
        }
        replacement::delete_replaced_files(path, &note)?;
        compacted.joined_files += self.files.len() as u64;
        compacted.joined_bytes += self.files.iter().map(|file| file.bytes).sum::<u64>();
        compacted.new_files += 1;
        compacted.new_bytes += bytes;
        compacted.records += if self.table == WritableTable::Flows { rows } else { 0 };
        Ok(true)
    }
}

fn append_rows(
    file: &SerializedFileReader<File>,
    path: &Path,
    rows: &mut JoinedRows,
    new: &mut PartialFile,
) -> Result<(), Error> {
    for index in 0..file.num_row_groups() {
        let group = file.get_row_group(index).map_err(Error::damaged_file(path))?;
        rows.read_group(&*group).map_err(Error::damaged_file(path))?;
        if rows.row_count() >= ROWS_PER_GROUP {
            append_group(rows, new)?;
        }
    }
    Ok(())
}

fn append_group(rows: &mut JoinedRows, new: &mut PartialFile) -> Result<(), Error> {
    if rows.row_count() == 0 {
        return Ok(());
    }
    let group: EncodedGroup = rows.take_encoded_group()?;
    new.append_group(&group)
}
