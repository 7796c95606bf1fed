//! Reading files of records: the columns that are wanted, some thousand rows at a time.
//!
//! Files of ours are read, and others with columns of the same names and kinds; a column that a file lacks is zero, and so is a
//! value that is null. Row groups whose statistics say that nothing is in the wanted time are passed over.
//!
//! Invariant: memory does not grow with the files.

use super::Error;
use super::cells::{self, Cells};
use super::columns::columns;
use super::encode::Table;
use packetrig_flow::element::Kind;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::statistics::Statistics;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Rows read at a time.
const ROWS: usize = 8192;
/// Directories below one another: more than any partition has.
const DEPTH: usize = 16;

/// Some rows, column by column in the order in which columns were asked for.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// How many.
    pub rows: usize,
    /// Their values.
    pub columns: Vec<Cells>,
}

/// Times between which rows are wanted, by the start of their flows: nanoseconds since 1970, the second exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Not before.
    pub from_ns: Option<u64>,
    /// Before.
    pub to_ns: Option<u64>,
}

impl Span {
    /// Whether a time is in it.
    pub fn has(&self, at_ns: u64) -> bool {
        self.from_ns.is_none_or(|from| at_ns >= from) && self.to_ns.is_none_or(|to| at_ns < to)
    }

    /// Whether some time from `first` to `last` is in it.
    fn meets(&self, (first, last): (u64, u64)) -> bool {
        self.from_ns.is_none_or(|from| last >= from) && self.to_ns.is_none_or(|to| first < to)
    }
}

/// The files of flow records in directories and among files, in order of their names.
pub fn flow_files(places: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    files_of(places, Table::Flows)
}

/// The files of ledgers.
pub(super) fn ledger_files(places: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    files_of(places, Table::MeterStats)
}

fn files_of(places: &[PathBuf], table: Table) -> Result<Vec<PathBuf>, Error> {
    let mut files = Vec::new();
    for place in places {
        let before = files.len();
        if fs::metadata(place).map_err(Error::file("read", place))?.is_dir() {
            walk(place, table, DEPTH, &mut files)?;
            files[before..].sort();
            if files.len() == before && table == Table::Flows {
                return Err(Error::Nothing { path: place.clone() });
            }
        } else if is_of(place, table) {
            files.push(place.clone());
        }
    }
    Ok(files)
}

fn walk(directory: &Path, table: Table, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    for entry in fs::read_dir(directory).map_err(Error::file("read", directory))? {
        let entry = entry.map_err(Error::file("read", directory))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(Error::file("read", directory))?);
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_hidden = name.starts_with(['.', '_']);
        if kind.is_dir() && !is_hidden && depth > 0 {
            walk(&path, table, depth - 1, files)?;
        } else if kind.is_file() && !is_hidden && name.ends_with(".parquet") && is_of(&path, table) {
            files.push(path);
        }
    }
    Ok(())
}

/// Ledgers are told by their files' names; every other file is taken for records.
fn is_of(path: &Path, table: Table) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("meter_stats-") == (table == Table::MeterStats)
}

/// Gives the wanted columns of all rows, chunk by chunk, until told to stop.
pub fn scan(
    files: &[PathBuf],
    wanted: &[&str],
    span: Span,
    each: &mut dyn FnMut(&Chunk) -> ControlFlow<()>,
) -> Result<(), Error> {
    for path in files {
        let file = open(path)?;
        let columns = places(path, &file, wanted)?;
        for index in 0..file.num_row_groups() {
            let group = file.get_row_group(index).map_err(Error::damaged(path))?;
            if !may_meet(span, group.metadata()) {
                continue;
            }
            let flow = read_group(&*group, &columns, each).map_err(Error::damaged(path))?;
            if flow.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The first and last start of a flow in all files, as far as their statistics say.
pub fn range(files: &[PathBuf]) -> Result<Option<(u64, u64)>, Error> {
    let mut whole: Option<(u64, u64)> = None;
    for path in files {
        for (first, last) in open(path)?.metadata().row_groups().iter().filter_map(start_of) {
            let (a, b) = whole.unwrap_or((first, last));
            whole = Some((a.min(first), b.max(last)));
        }
    }
    Ok(whole)
}

pub(super) fn open(path: &Path) -> Result<SerializedFileReader<File>, Error> {
    let file = File::open(path).map_err(Error::file("read", path))?;
    SerializedFileReader::new(file).map_err(Error::damaged(path))
}

/// Whether a row of a row group may be in the span, as far as its statistics say. They leave out starts that are null.
fn may_meet(span: Span, group: &RowGroupMetaData) -> bool {
    let Some(column) = starts(group) else { return true };
    let has_null = column.column_descr().max_def_level() > 0
        && column.statistics().and_then(Statistics::null_count_opt) != Some(0);
    start_of(group).is_none_or(|range| span.meets(range)) || has_null && span.has(0)
}

/// First and last start of a flow in a row group, but for those that are null.
fn start_of(group: &RowGroupMetaData) -> Option<(u64, u64)> {
    let Statistics::Int64(range) = starts(group)?.statistics()? else { return None };
    Some((u64::try_from(*range.min_opt()?).ok()?, u64::try_from(*range.max_opt()?).ok()?))
}

fn starts(group: &RowGroupMetaData) -> Option<&ColumnChunkMetaData> {
    group.columns().iter().find(|column| column.column_path().parts() == ["flowStartNanoseconds"])
}

/// Where in a file a column is, and of what kind it is to be.
#[derive(Clone, Copy, Debug)]
struct Place {
    index: usize,
    kind: Kind,
}

/// Where in the file the wanted columns are. A file with none of the columns that make a record is not one of ours.
fn places(
    path: &Path,
    file: &SerializedFileReader<File>,
    wanted: &[&str],
) -> Result<Vec<Option<Place>>, Error> {
    let foreign = |why: String| Error::Foreign { path: path.to_owned(), why };
    let schema = file.metadata().file_metadata().schema_descr();
    let find = |name: &str| schema.columns().iter().position(|column| column.path().parts() == [name]);
    for name in ["flowStartNanoseconds", "packetDeltaCount"] {
        if find(name).is_none() {
            return Err(foreign(format!("there is no column {name}")));
        }
    }
    let place = |name: &&str| {
        let kind = columns().iter().find(|column| column.name == *name)?.kind;
        Some(Place { index: find(name)?, kind })
    };
    let places: Vec<_> = wanted.iter().map(place).collect();
    for place in places.iter().flatten() {
        let column = schema.column(place.index);
        if let Some(why) = cells::objection(&column, place.kind) {
            return Err(foreign(format!("column {} {why}", column.name())));
        }
    }
    Ok(places)
}

fn read_group(
    group: &dyn RowGroupReader,
    columns: &[Option<Place>],
    each: &mut dyn FnMut(&Chunk) -> ControlFlow<()>,
) -> ParquetResult<ControlFlow<()>> {
    let open = |place: &Option<Place>| {
        place.map(|place| Ok((group.get_column_reader(place.index)?, place.kind))).transpose()
    };
    let mut readers = columns.iter().map(open).collect::<ParquetResult<Vec<_>>>()?;
    let mut left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    while left > 0 {
        let rows = left.min(ROWS);
        let columns = readers.iter_mut().map(|reader| match reader {
            Some((reader, kind)) => cells::read(reader, *kind, rows),
            None => Ok(Cells::Missing),
        });
        let chunk = Chunk { rows, columns: columns.collect::<ParquetResult<_>>()? };
        if each(&chunk).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        left -= rows;
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
