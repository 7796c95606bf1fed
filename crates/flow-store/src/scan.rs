//! Reads files of records: only the wanted columns, a few thousand rows at a time.
//!
//! It reads packetrig's files of all versions, and other files with columns of the same names and kinds. A missing column counts as
//! zero, and so does a null. Row groups that cannot have selected rows, according to their statistics, are skipped. In the others, the
//! filter's columns are read first, and the rest only where the filter selects rows.
//!
//! Invariant: memory does not grow with the files.

mod groups;
mod selection;

use super::Error;
use super::cells::ColumnCells;
use super::encode::WritableTable;
use super::filter::FlowFilter;
use super::walk::files_below;
use groups::{GroupPlaces, GroupReader, find_columns};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::statistics::Statistics;
use selection::RowSelection;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Rows read at a time.
const ROWS: usize = 8192;
/// Most threads that read.
const READERS_MOST: usize = 8;
/// Most chunks that each of them reads ahead.
const CHUNKS_AHEAD: usize = 2;

/// Some rows, column by column.
#[derive(Clone, Debug)]
pub struct RowChunk {
    pub rows: usize,
    /// Place of the first row.
    first: RowPlace,
    columns: Vec<(&'static str, ColumnCells)>,
}

/// Place of a row. Places are ordered like the rows of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowPlace {
    /// Index among the files of a scan.
    file: usize,
    group: usize,
    row: usize,
}

impl RowChunk {
    /// The place of a row of the chunk.
    pub(super) const fn row_place(&self, row: usize) -> RowPlace {
        RowPlace { row: self.first.row + row, ..self.first }
    }

    /// The values of a column.
    pub fn column(&self, name: &str) -> &ColumnCells {
        let found = self.columns.iter().find(|(known, _)| *known == name);
        found.map_or(&ColumnCells::Missing, |(_, cells)| cells)
    }
}

/// A span of time for the start of flows: nanoseconds since 1970, `to_ns` exclusive.
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

/// The files of flow records among `places`, which are directories and files; sorted by name within a directory.
pub fn flow_files(places: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    files_of_table(places, WritableTable::Flows)
}

/// The files of ledgers among `places`.
pub(super) fn ledger_files(places: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    files_of_table(places, WritableTable::MeterStats)
}

fn files_of_table(places: &[PathBuf], table: WritableTable) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for place in places {
        if fs::metadata(place).map_err(Error::file("read", place))?.is_dir() {
            let found = files_below(place, &|path| is_visible(path) && is_of_table(path, table))?;
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

fn is_visible(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    !name.starts_with(['.', '_']) && name.ends_with(".parquet")
}

/// Returns whether a file is of this table. Files of ledgers have a name of their own; all others count as records.
fn is_of_table(path: &Path, table: WritableTable) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("meter_stats-") == (table == WritableTable::MeterStats)
}

/// Terms of a scan: its threads, and its end on request.
#[derive(Clone, Copy)]
pub struct ScanTerms<'a> {
    /// Most threads that read.
    pub readers: usize,
    /// Called by the readers before each row group and chunk. If it returns true, the scan ends with [`Error::GivenUp`].
    pub is_given_up: &'a (dyn Fn() -> bool + Sync),
}

impl Default for ScanTerms<'_> {
    fn default() -> Self {
        Self { readers: READERS_MOST, is_given_up: &|| false }
    }
}

impl std::fmt::Debug for ScanTerms<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScanTerms").field("readers", &self.readers).finish_non_exhaustive()
    }
}

/// Called with each chunk and its selected rows. Returns whether to continue.
pub type EachChunk<'a> = dyn FnMut(&RowChunk, &[usize]) -> ControlFlow<()> + 'a;

/// Gives the rows that a filter selects, chunk by chunk, with the filter's columns and the wanted ones, until `each` stops. Several
/// threads read and filter, but chunks are given in the order of files and rows.
pub fn scan_records(
    files: &[PathBuf],
    filter: &FlowFilter,
    wanted: &[&'static str],
    each: &mut EachChunk<'_>,
) -> Result<(), Error> {
    scan_with(&ScanTerms::default(), files, filter, wanted, each)
}

/// Like [`scan_records`], on other terms.
pub(super) fn scan_with(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    filter: &FlowFilter,
    wanted: &[&'static str],
    each: &mut EachChunk<'_>,
) -> Result<(), Error> {
    scan_selection(terms, files, RowSelection::Filter(filter), wanted, each)
}

/// Like [`scan_records`], for rows at known places, which are in order.
pub(super) fn scan_rows(
    files: &[PathBuf],
    rows: &[RowPlace],
    wanted: &[&'static str],
    each: &mut EachChunk<'_>,
) -> Result<(), Error> {
    scan_selection(&ScanTerms::default(), files, RowSelection::Rows(rows), wanted, each)
}

fn scan_selection(
    terms: &ScanTerms<'_>,
    files: &[PathBuf],
    selection: RowSelection<'_>,
    wanted: &[&'static str],
    each: &mut EachChunk<'_>,
) -> Result<(), Error> {
    let of_filter = selection.needed_columns();
    // Columns of the filter are read anyway: reading them again would decode them twice.
    let others = wanted.iter().copied().filter(|name| !of_filter.contains(name)).collect();
    let request = ScanRequest { terms, files, selection, of_filter, others };
    let readers = thread::available_parallelism().map_or(1, usize::from).min(terms.readers).max(1);
    // Readers that are ahead wait at their bounded channels. When `in_order` returns, its receivers are dropped, and the readers end at
    // their next send.
    thread::scope(|scope| {
        let shares = (0..readers).map(|number| {
            let (sender, receiver) = sync_channel(CHUNKS_AHEAD);
            let share = ScanShare { number, of: readers, sender };
            let request = &request;
            scope.spawn(move || share.read_portions(request));
            receiver
        });
        deliver_in_order(&shares.collect::<Vec<_>>(), each)
    })
}

/// Passes on the messages of the readers: one portion of each reader in turn, until none is left.
fn deliver_in_order(shares: &[Receiver<ReaderDelivery>], each: &mut EachChunk<'_>) -> Result<(), Error> {
    // Portion n is read by reader n modulo their number, so taking turns gives the order of the files.
    for share in shares.iter().cycle() {
        loop {
            match share.recv() {
                Ok(ReaderDelivery::Rows(chunk, rows)) => {
                    if each(&chunk, &rows).is_break() {
                        return Ok(());
                    }
                }
                Ok(ReaderDelivery::Failed(error)) => return Err(*error),
                Ok(ReaderDelivery::PortionEnd) => break,
                // The channel is closed, so this reader had no portion in this turn, and neither have those after it.
                Err(_) => return Ok(()),
            }
        }
    }
    Ok(())
}

/// The input of a scan, shared by its readers.
struct ScanRequest<'a> {
    terms: &'a ScanTerms<'a>,
    files: &'a [PathBuf],
    selection: RowSelection<'a>,
    /// Columns that the filter needs.
    of_filter: Vec<&'static str>,
    /// Other columns that are wanted.
    others: Vec<&'static str>,
}

impl ScanRequest<'_> {
    fn demand_wanted(&self) -> Result<(), Error> {
        if (self.terms.is_given_up)() { Err(Error::GivenUp) } else { Ok(()) }
    }
}

/// A message of a reader thread.
enum ReaderDelivery {
    Rows(RowChunk, Vec<usize>),
    Failed(Box<Error>),
    /// The end of a portion: a file, or a row group if there is only one file.
    PortionEnd,
}

/// One of several readers. It reads every `of`th portion, starting with `number`.
struct ScanShare {
    number: usize,
    of: usize,
    sender: SyncSender<ReaderDelivery>,
}

/// The receiver has ended the scan.
struct ReaderUnwanted;

impl ScanShare {
    fn read_portions(&self, request: &ScanRequest<'_>) {
        // All readers count the portions alike, so they need no coordination.
        let mut portions = 0;
        for (file, path) in request.files.iter().enumerate() {
            // A single file is shared by row groups. Several are shared as whole files, so that each is opened only once.
            let has_portion_groups = request.files.len() == 1;
            if !has_portion_groups && !self.is_mine(&mut portions) {
                continue;
            }
            let read = self.read_file(file, path, request, has_portion_groups.then_some(&mut portions));
            let sent = match read {
                Ok(()) if has_portion_groups => Ok(()),
                Ok(()) => self.send_delivery(ReaderDelivery::PortionEnd),
                Err(ReadEnd::Failed(error)) => self.send_delivery(ReaderDelivery::Failed(Box::new(error))),
                Err(ReadEnd::Unwanted) => Err(ReaderUnwanted),
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// Returns whether the next portion belongs to this reader.
    fn is_mine(&self, portions: &mut usize) -> bool {
        *portions += 1;
        (*portions - 1) % self.of == self.number
    }

    fn send_delivery(&self, delivery: ReaderDelivery) -> Result<(), ReaderUnwanted> {
        self.sender.send(delivery).map_err(|_| ReaderUnwanted)
    }

    /// Reads a file, or this reader's portions of it.
    fn read_file(
        &self,
        number: usize,
        path: &Path,
        request: &ScanRequest<'_>,
        mut portions: Option<&mut usize>,
    ) -> Result<(), ReadEnd> {
        if !request.selection.may_have_file(number) {
            return Ok(());
        }
        // A file that was removed since the list was made is no error: collectors remove old ones at any time.
        let Some(file) = open_if_there(path)? else { return Ok(()) };
        let places = GroupPlaces {
            selection: request.selection,
            of_filter: find_columns(path, &file, &request.of_filter)?,
            others: find_columns(path, &file, &request.others)?,
        };
        for index in 0..file.num_row_groups() {
            if portions.as_deref_mut().is_some_and(|portions| !self.is_mine(portions)) {
                continue;
            }
            request.demand_wanted()?;
            let group = file.get_row_group(index).map_err(Error::damaged_file(path))?;
            let first = RowPlace { file: number, group: index, row: 0 };
            if request.selection.may_have_group(group.metadata(), first) {
                self.read_group(path, &*group, first, &places, request)?;
            }
            // Sent after a skipped group, too: the receiver counts portions, not groups with rows.
            if portions.is_some() {
                self.send_delivery(ReaderDelivery::PortionEnd)?;
            }
        }
        Ok(())
    }

    fn read_group(
        &self,
        path: &Path,
        group: &dyn RowGroupReader,
        first: RowPlace,
        places: &GroupPlaces<'_>,
        request: &ScanRequest<'_>,
    ) -> Result<(), ReadEnd> {
        let mut reader = GroupReader::open_group(group, first, places).map_err(Error::damaged_file(path))?;
        while let Some((chunk, rows)) =
            reader.next_chunk(places.selection).map_err(Error::damaged_file(path))?
        {
            request.demand_wanted()?;
            self.send_delivery(ReaderDelivery::Rows(chunk, rows))?;
        }
        Ok(())
    }
}

/// Reason why a reader stops before the end.
enum ReadEnd {
    Failed(Error),
    Unwanted,
}

impl From<Error> for ReadEnd {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ReaderUnwanted> for ReadEnd {
    fn from(_: ReaderUnwanted) -> Self {
        Self::Unwanted
    }
}

/// The first and last start of a flow in all files, according to their statistics.
pub fn flow_start_range(files: &[PathBuf]) -> Result<Option<(u64, u64)>, Error> {
    let mut whole: Option<(u64, u64)> = None;
    for path in files {
        // Only footers are read, so this is fast for any number of records.
        let Some(file) = open_if_there(path)? else { continue };
        for (first, last) in file.metadata().row_groups().iter().filter_map(start_of) {
            whole = Some(match whole {
                Some((earliest, latest)) => (earliest.min(first), latest.max(last)),
                None => (first, last),
            });
        }
    }
    Ok(whole)
}

/// `None` if it has been removed since it was found, as files that are too old are.
fn open_if_there(path: &Path) -> Result<Option<SerializedFileReader<File>>, Error> {
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
fn start_of(group: &RowGroupMetaData) -> Option<(u64, u64)> {
    let Statistics::Int64(range) = start_column(group)?.statistics()? else { return None };
    Some((u64::try_from(*range.min_opt()?).ok()?, u64::try_from(*range.max_opt()?).ok()?))
}

fn start_column(group: &RowGroupMetaData) -> Option<&ColumnChunkMetaData> {
    group.columns().iter().find(|column| column.column_path().parts() == ["flowStartNanoseconds"])
}

#[cfg(test)]
mod tests;
