//! Reading files of records: the columns that are wanted, some thousand rows at a time.
//!
//! Files of ours are read, also of earlier versions, and others with columns of the same names and kinds; a column that a file
//! lacks is zero, and so is a value that is null. Row groups whose statistics say that nothing in them is asked for are passed
//! over; of the others, what the filter looks at is read first, and the rest only where it keeps a row.
//!
//! Invariant: memory does not grow with the files.

use super::Error;
use super::cells::{self, Cells};
use super::columns::columns;
use super::encode::Table;
use super::filter::Filter;
use packetrig_flow::element::Kind;
use parquet::column::reader::ColumnReader;
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

/// Some rows, column by column.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// How many.
    pub rows: usize,
    columns: Vec<(&'static str, Cells)>,
}

impl Chunk {
    /// The values of a column.
    pub fn column(&self, name: &str) -> &Cells {
        let found = self.columns.iter().find(|(known, _)| *known == name);
        found.map_or(&Cells::Missing, |(_, cells)| cells)
    }
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

/// What is done with the rows of a chunk that a filter keeps. Stops when it says so.
pub type EachChunk<'a> = dyn FnMut(&Chunk, &[usize]) -> ControlFlow<()> + 'a;

/// Gives the rows that a filter keeps, chunk by chunk, with the filter's columns and the wanted ones, until told to stop.
pub fn scan(
    files: &[PathBuf],
    filter: &Filter,
    wanted: &[&'static str],
    each: &mut EachChunk<'_>,
) -> Result<(), Error> {
    let of_filter = filter.columns();
    let others: Vec<_> = wanted.iter().copied().filter(|name| !of_filter.contains(name)).collect();
    for path in files {
        let file = open(path)?;
        let request = ScanRequest {
            filter,
            of_filter: places(path, &file, &of_filter)?,
            others: places(path, &file, &others)?,
        };
        for index in 0..file.num_row_groups() {
            let group = file.get_row_group(index).map_err(Error::damaged(path))?;
            if !filter.may_keep(group.metadata()) {
                continue;
            }
            let flow = read_group(&*group, &request, each).map_err(Error::damaged(path))?;
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

/// First and last start of a flow in a row group, but for those that are null.
fn start_of(group: &RowGroupMetaData) -> Option<(u64, u64)> {
    let Statistics::Int64(range) = starts(group)?.statistics()? else { return None };
    Some((u64::try_from(*range.min_opt()?).ok()?, u64::try_from(*range.max_opt()?).ok()?))
}

fn starts(group: &RowGroupMetaData) -> Option<&ColumnChunkMetaData> {
    group.columns().iter().find(|column| column.column_path().parts() == ["flowStartNanoseconds"])
}

/// What is read of a file.
struct ScanRequest<'a> {
    filter: &'a Filter,
    /// What the filter looks at.
    of_filter: Vec<ColumnPlace>,
    /// What is wanted beside it.
    others: Vec<ColumnPlace>,
}

/// Where in a file a column is, if it has it, and of what kind it is to be.
#[derive(Clone, Copy, Debug)]
struct ColumnPlace {
    name: &'static str,
    index: Option<usize>,
    kind: Kind,
}

/// Where in the file the wanted columns are. A file with none of the columns that make a record is not one of ours.
fn places(
    path: &Path,
    file: &SerializedFileReader<File>,
    wanted: &[&'static str],
) -> Result<Vec<ColumnPlace>, Error> {
    let foreign = |why: String| Error::Foreign { path: path.to_owned(), why };
    let schema = file.metadata().file_metadata().schema_descr();
    let find = |name: &str| schema.columns().iter().position(|column| column.path().parts() == [name]);
    for name in ["flowStartNanoseconds", "packetDeltaCount"] {
        if find(name).is_none() {
            return Err(foreign(format!("there is no column {name}")));
        }
    }
    let place = |&name: &&'static str| {
        let kind =
            columns().iter().find(|column| column.name == name).map_or(Kind::Word, |column| column.kind);
        ColumnPlace { name, index: find(name), kind }
    };
    let places: Vec<_> = wanted.iter().map(place).collect();
    for ColumnPlace { name, index, kind } in &places {
        let objection = index.and_then(|index| cells::objection(&schema.column(index), *kind));
        if let Some(why) = objection {
            return Err(foreign(format!("column {name} {why}")));
        }
    }
    Ok(places)
}

/// The columns of a row group, and how many rows none of them was read of yet.
struct ColumnsReader {
    columns: Vec<(ColumnPlace, Option<ColumnReader>)>,
    behind: usize,
}

impl ColumnsReader {
    fn open(group: &dyn RowGroupReader, places: &[ColumnPlace]) -> ParquetResult<Self> {
        let reader = |place: &ColumnPlace| {
            let reader = place.index.map(|index| group.get_column_reader(index)).transpose()?;
            Ok((*place, reader))
        };
        Ok(Self { columns: places.iter().map(reader).collect::<ParquetResult<_>>()?, behind: 0 })
    }

    /// Adds the values of the next rows to a chunk.
    fn read(&mut self, chunk: &mut Chunk) -> ParquetResult<()> {
        let behind = std::mem::take(&mut self.behind);
        for (place, reader) in &mut self.columns {
            let cells = match reader {
                Some(reader) => {
                    if behind > 0 {
                        cells::skip(reader, behind)?;
                    }
                    cells::read(reader, place.kind, chunk.rows)?
                }
                None => Cells::Missing,
            };
            chunk.columns.push((place.name, cells));
        }
        Ok(())
    }
}

fn read_group(
    group: &dyn RowGroupReader,
    request: &ScanRequest<'_>,
    each: &mut EachChunk<'_>,
) -> ParquetResult<ControlFlow<()>> {
    let mut of_filter = ColumnsReader::open(group, &request.of_filter)?;
    let mut others = ColumnsReader::open(group, &request.others)?;
    let mut left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
    while left > 0 {
        let mut chunk = Chunk { rows: left.min(ROWS), columns: Vec::new() };
        left -= chunk.rows;
        of_filter.read(&mut chunk)?;
        let rows = request.filter.rows(&chunk);
        if rows.is_empty() {
            others.behind += chunk.rows;
            continue;
        }
        others.read(&mut chunk)?;
        if each(&chunk, &rows).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
