//! Reads files of records: only the wanted columns, a few thousand rows at a time.
//!
//! A scan reads packetrig's files of all versions, and other files with columns of the same names and kinds. A missing
//! column counts as zero, and so does a null. Row groups that cannot have selected rows, according to their statistics,
//! are skipped. In the remaining row groups, the filter's columns are read first; the other columns are read only where
//! the filter selects rows.
//!
//! Invariant: memory does not grow with the size of the files.

mod groups;
mod readers;
mod selection;

use super::Error;
use super::cells::ColumnCells;
use super::columns::{ExporterRow, FlowColumn, flow_columns};
use super::encode::WritableTable;
use super::filter::FlowFilter;
use super::replacement::{is_replacement_note, remove_replaced_files_from_list};
use super::table_lock::TableReadLocks;
use super::walk::files_below;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::statistics::Statistics;
use readers::{PortionSink, ScanRequest, ScanStopReason};
use selection::RowSelection;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::{ControlFlow, Deref};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Maximum number of rows that are read at a time, as one chunk.
const ROWS_PER_READ: usize = 8192;
/// Maximum number of threads that read.
const MAX_READERS: usize = 8;
/// Maximum number of chunks that each reading thread reads ahead.
const MAX_CHUNKS_AHEAD: usize = 2;

/// Some rows, column by column.
#[derive(Clone, Debug)]
pub struct RowChunk {
    pub rows: usize,
    /// Position of the first row.
    first: RowPlace,
    columns: Vec<(&'static str, ColumnCells)>,
}

/// Position of a row in the files of a scan. Positions are ordered like the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowPlace {
    /// Index among the files of a scan.
    file: usize,
    group: usize,
    row: usize,
}

impl RowChunk {
    /// Makes a chunk of records that are not in a file, with some of their columns.
    pub(super) fn from_rows(rows: &[ExporterRow], columns: &[&'static str]) -> Self {
        let columns = columns.iter().map(|&name| {
            let column = flow_columns().iter().find(|column| column.name == name);
            (name, column.map_or(ColumnCells::Missing, |column| column_cells(column, rows)))
        });
        let columns = columns.collect();
        Self { rows: rows.len(), first: RowPlace { file: 0, group: 0, row: 0 }, columns }
    }

    /// The position of a row of the chunk.
    pub(super) const fn row_place(&self, row: usize) -> RowPlace {
        RowPlace { row: self.first.row + row, ..self.first }
    }

    /// The values of a column; [`ColumnCells::Missing`] if the chunk does not have it.
    pub fn column(&self, name: &str) -> &ColumnCells {
        let found = self.columns.iter().find(|(known, _)| *known == name);
        found.map_or(&ColumnCells::Missing, |(_, cells)| cells)
    }
}

fn column_cells(column: &FlowColumn, rows: &[ExporterRow]) -> ColumnCells {
    ColumnCells::from_values(column.kind, rows.iter().map(|row| column.value_in_row(row)))
}

/// A time span for the start of flows, in nanoseconds since 1970; `to_ns` is exclusive. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpan {
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
}

impl TimeSpan {
    /// Returns whether a time is in the span.
    pub fn contains(&self, at_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| at_ns >= from) && self.to_ns.is_none_or(|to| at_ns < to)
    }
}

/// A list of files. While the list exists, no compaction replaces the files; retention may still remove some.
#[derive(Debug, Default)]
pub struct ListedFiles {
    paths: Vec<PathBuf>,
    /// Held until the files are read.
    locks: TableReadLocks,
}

impl ListedFiles {
    /// Adds the files of another list.
    pub fn append_listed_files(&mut self, more: Self) {
        self.paths.extend(more.paths);
        self.locks.add_locks(more.locks);
    }

    /// Removes the files for which `is_kept` returns false from the list.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&PathBuf) -> bool) {
        self.paths.retain(is_kept);
    }
}

impl Deref for ListedFiles {
    type Target = [PathBuf];

    fn deref(&self) -> &[PathBuf] {
        &self.paths
    }
}

/// Lists the files of flow records in `places`, which are directories and files. The files of a directory are sorted.
pub fn list_flow_files(places: &[PathBuf]) -> Result<ListedFiles, Error> {
    list_files_of_table(places, WritableTable::Flows)
}

/// Lists the files of ledgers in `places`, which are directories and files.
pub(super) fn list_ledger_files(places: &[PathBuf]) -> Result<ListedFiles, Error> {
    list_files_of_table(places, WritableTable::MeterStats)
}

fn list_files_of_table(places: &[PathBuf], table: WritableTable) -> Result<ListedFiles, Error> {
    let mut locks = TableReadLocks::default();
    loop {
        let paths = list_files(places, table)?;
        // A listed file may have been replaced before its table was locked, so the files are listed again.
        if !locks.lock_tables_of(&paths) {
            return Ok(ListedFiles { paths, locks });
        }
    }
}

fn list_files(places: &[PathBuf], table: WritableTable) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for place in places {
        if fs::metadata(place).map_err(Error::file("read", place))?.is_dir() {
            let is_wanted =
                |path: &Path| is_replacement_note(path) || is_visible_path(path) && is_of_table(path, table);
            let (notes, mut found): (Vec<_>, Vec<_>) =
                files_below(place, &is_wanted)?.into_iter().partition(|path| is_replacement_note(path));
            // The notes of a killed compaction tell which files a newer one replaces.
            remove_replaced_files_from_list(&mut found, &notes);
            // A directory may have no ledgers: not every meter sends them.
            if found.is_empty() && table == WritableTable::Flows {
                return Err(Error::Nothing { path: place.clone() });
            }
            files.extend(found);
        } else if is_of_table(place, table) {
            files.push(place.clone());
        }
    }
    Ok(files)
}

fn is_visible_path(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with(['.', '_']) && name.ends_with(".parquet")
}

/// Returns whether a file belongs to this table. Files of ledgers have a separate name; all other files count as records.
fn is_of_table(path: &Path, table: WritableTable) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("meter_stats-") == (table == WritableTable::MeterStats)
}

/// Limits of a scan: its number of threads, and a check that can end it.
#[derive(Clone, Copy)]
pub struct ScanTerms<'a> {
    /// Maximum number of threads that read.
    pub readers: usize,
    /// Called by the readers before each row group and chunk. If it returns true, the scan ends with [`Error::GivenUp`].
    pub is_given_up: &'a (dyn Fn() -> bool + Sync),
}

impl ScanTerms<'_> {
    /// The number of threads that read.
    pub(super) fn reader_count(&self) -> usize {
        thread::available_parallelism().map_or(1, usize::from).min(self.readers).max(1)
    }
}

impl Default for ScanTerms<'_> {
    fn default() -> Self {
        Self { readers: MAX_READERS, is_given_up: &|| false }
    }
}

impl std::fmt::Debug for ScanTerms<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScanTerms").field("readers", &self.readers).finish_non_exhaustive()
    }
}

/// Called with each chunk and its selected rows. Returns whether to continue.
pub type ChunkCallback<'a> = dyn FnMut(&RowChunk, &[usize]) -> ControlFlow<()> + 'a;

/// Calls `each` with the rows that a filter selects, chunk by chunk, with the filter's columns and the wanted ones,
/// until it stops. Several threads read and filter, but `each` gets the chunks in the order of files and rows.
pub fn scan_records(
    files: &[PathBuf],
    filter: &FlowFilter,
    wanted: &[&'static str],
    each: &mut ChunkCallback<'_>,
) -> Result<(), Error> {
    scan_selection(files, RowSelection::Filter(filter), wanted, each)
}

/// Like [`scan_records`], but the reading threads call `map` for each chunk, and `each` gets the results.
pub fn map_records<T: Send>(
    files: &[PathBuf],
    filter: &FlowFilter,
    wanted: &[&'static str],
    map: impl Fn(&RowChunk, &[usize]) -> T + Sync,
    each: &mut dyn FnMut(T) -> ControlFlow<()>,
) -> Result<(), Error> {
    map_selection(files, RowSelection::Filter(filter), wanted, |chunk, rows| map(&chunk, &rows), each)
}

/// Like [`scan_records`], for rows at known positions, which are in order.
pub(super) fn scan_rows(
    files: &[PathBuf],
    rows: &[RowPlace],
    wanted: &[&'static str],
    each: &mut ChunkCallback<'_>,
) -> Result<(), Error> {
    scan_selection(files, RowSelection::Rows(rows), wanted, each)
}

fn scan_selection(
    files: &[PathBuf],
    selection: RowSelection<'_>,
    wanted: &[&'static str],
    each: &mut ChunkCallback<'_>,
) -> Result<(), Error> {
    let both = |chunk: RowChunk, rows: Vec<usize>| (chunk, rows);
    map_selection(files, selection, wanted, both, &mut |(chunk, rows)| each(&chunk, &rows))
}

fn map_selection<T: Send>(
    files: &[PathBuf],
    selection: RowSelection<'_>,
    wanted: &[&'static str],
    map: impl Fn(RowChunk, Vec<usize>) -> T + Sync,
    each: &mut dyn FnMut(T) -> ControlFlow<()>,
) -> Result<(), Error> {
    let terms = ScanTerms::default();
    let request = ScanRequest::new(&terms, files, selection, wanted);
    // Readers that are ahead wait at their bounded channels. When `deliver_in_order` returns, its receivers are dropped, and the readers
    // end at their next send.
    thread::scope(|scope| {
        let shares = request.shares().map(|share| {
            let (sender, receiver) = sync_channel(MAX_CHUNKS_AHEAD);
            let (request, map) = (&request, &map);
            scope.spawn(move || {
                let mut sink = PortionSender { sender: &sender, map };
                if let Err(ScanStopReason::Failed(error)) = share.read_portions(request, &mut sink) {
                    // If the receiver is gone, nobody needs the error either.
                    drop(sender.send(ReaderMessage::Failed(Box::new(error))));
                }
            });
            receiver
        });
        deliver_in_order(&shares.collect::<Vec<_>>(), each)
    })
}

/// Calls `count` with the rows that a filter selects. Several threads do this, each with its own counter. Returns
/// the counters. Which rows a counter gets depends on the number of threads.
pub(super) fn count_records<C: Send>(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    filter: &FlowFilter,
    wanted: &[&'static str],
    new_counter: impl Fn() -> C,
    count: impl Fn(&mut C, &RowChunk, &[usize]) + Sync,
) -> Result<Vec<C>, Error> {
    let request = ScanRequest::new(terms, files, RowSelection::Filter(filter), wanted);
    let has_failed = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers = request.shares().map(|share| {
            let mut portions =
                PortionCounter { counter: new_counter(), count: &count, has_failed: &has_failed };
            let request = &request;
            scope.spawn(move || {
                let read = share.read_portions(request, &mut portions);
                portions.has_failed.fetch_or(read.is_err(), Ordering::Relaxed);
                read.map(|()| portions.counter)
            })
        });
        // All threads are started before the first one is joined.
        let readers: Vec<_> = readers.collect();
        let counted =
            readers.into_iter().map(|reader| reader.join().unwrap_or_else(|panic| resume_unwind(panic)));
        let mut counters = Vec::new();
        let mut failed = None;
        for counter in counted {
            match counter {
                Ok(counter) => counters.push(counter),
                Err(ScanStopReason::Failed(error)) => failed = failed.or(Some(error)),
                // Another reader has failed.
                Err(ScanStopReason::Unwanted) => {}
            }
        }
        failed.map_or(Ok(counters), Err)
    })
}

/// Passes on the messages of the readers: one portion of each reader in turn, until none is left.
fn deliver_in_order<T>(
    shares: &[Receiver<ReaderMessage<T>>],
    each: &mut dyn FnMut(T) -> ControlFlow<()>,
) -> Result<(), Error> {
    // Portion n is read by reader n modulo their number, so taking turns gives the order of the files.
    for share in shares.iter().cycle() {
        loop {
            match share.recv() {
                Ok(ReaderMessage::Chunk(chunk)) => {
                    if each(chunk).is_break() {
                        return Ok(());
                    }
                }
                Ok(ReaderMessage::Failed(error)) => return Err(*error),
                Ok(ReaderMessage::PortionEnd) => break,
                // The channel is closed, so this reader had no portion in this turn, and neither have those after it.
                Err(_) => return Ok(()),
            }
        }
    }
    Ok(())
}

/// A message of a reader thread.
enum ReaderMessage<T> {
    Chunk(T),
    Failed(Box<Error>),
    /// See [`PortionSink::end_portion`].
    PortionEnd,
}

/// Sends the chunks to the thread that brings them into order.
struct PortionSender<'a, T, F> {
    sender: &'a SyncSender<ReaderMessage<T>>,
    map: &'a F,
}

impl<T, F: Fn(RowChunk, Vec<usize>) -> T> PortionSink for PortionSender<'_, T, F> {
    fn accept_rows(&mut self, chunk: RowChunk, rows: Vec<usize>) -> Result<(), ScanStopReason> {
        self.sender.send(ReaderMessage::Chunk((self.map)(chunk, rows))).map_err(|_| ScanStopReason::Unwanted)
    }

    fn end_portion(&mut self) -> Result<(), ScanStopReason> {
        self.sender.send(ReaderMessage::PortionEnd).map_err(|_| ScanStopReason::Unwanted)
    }
}

/// Counts the rows on the reader's own thread.
struct PortionCounter<'a, C, F> {
    counter: C,
    count: &'a F,
    has_failed: &'a AtomicBool,
}

impl<C, F: Fn(&mut C, &RowChunk, &[usize])> PortionSink for PortionCounter<'_, C, F> {
    fn accept_rows(&mut self, chunk: RowChunk, rows: Vec<usize>) -> Result<(), ScanStopReason> {
        // If one reader fails, the counters of the other readers are dropped, so the other readers stop, too.
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(ScanStopReason::Unwanted);
        }
        (self.count)(&mut self.counter, &chunk, &rows);
        Ok(())
    }

    fn end_portion(&mut self) -> Result<(), ScanStopReason> {
        Ok(())
    }
}

/// The first and last start of a flow in all files, according to their statistics. Row groups without statistics do not
/// count.
pub fn read_flow_start_range(files: &[PathBuf]) -> Result<Option<(u64, u64)>, Error> {
    let mut whole: Option<(u64, u64)> = None;
    for path in files {
        // Only footers are read, so this is fast for any number of records.
        let Some(file) = open_file_if_exists(path)? else { continue };
        for (first, last) in file.metadata().row_groups().iter().filter_map(group_start_range) {
            whole = Some(match whole {
                Some((earliest, latest)) => (earliest.min(first), latest.max(last)),
                None => (first, last),
            });
        }
    }
    Ok(whole)
}

/// Opens a file; `None` if it was removed since it was listed, for example because it was too old.
pub(super) fn open_file_if_exists(path: &Path) -> Result<Option<SerializedFileReader<File>>, Error> {
    match open_parquet(path) {
        Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

pub(super) fn open_parquet(path: &Path) -> Result<SerializedFileReader<File>, Error> {
    let file = File::open(path).map_err(Error::file("read", path))?;
    SerializedFileReader::new(file).map_err(Error::damaged_file(path))
}

/// First and last start of a flow in a row group, not counting nulls.
fn group_start_range(group: &RowGroupMetaData) -> Option<(u64, u64)> {
    let Statistics::Int64(range) = start_column(group)?.statistics()? else { return None };
    Some((u64::try_from(*range.min_opt()?).ok()?, u64::try_from(*range.max_opt()?).ok()?))
}

fn start_column(group: &RowGroupMetaData) -> Option<&ColumnChunkMetaData> {
    group.columns().iter().find(|column| column.column_path().parts() == ["flowStartNanoseconds"])
}

#[cfg(test)]
mod tests;
