//! Reading a row group: what the filter looks at first, the rest only where rows are selected.

use super::selection::RowSelection;
use super::{ROWS, RowChunk, RowPlace};
use crate::flows::Error;
use crate::flows::cells::{self, ColumnCells};
use crate::flows::columns::columns;
use packetrig_flow::element::ElementKind;
use parquet::column::reader::ColumnReader;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use std::fs::File;
use std::path::Path;

/// What is read of the row groups of a file.
pub(super) struct GroupPlaces<'a> {
    pub(super) selection: RowSelection<'a>,
    pub(super) of_filter: Vec<ColumnPlace>,
    pub(super) others: Vec<ColumnPlace>,
}

/// Where in a file a column is, if it has it, and of what kind it is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnPlace {
    name: &'static str,
    index: Option<usize>,
    kind: ElementKind,
}

/// Where in the file the wanted columns are. A file with none of the columns that make a record is not one of ours.
pub(super) fn places(
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
        let kind = columns()
            .iter()
            .find(|column| column.name == name)
            .map_or(ElementKind::Word, |column| column.kind);
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
    fn read(&mut self, chunk: &mut RowChunk) -> ParquetResult<()> {
        let behind = std::mem::take(&mut self.behind);
        for (place, reader) in &mut self.columns {
            let cells = match reader {
                Some(reader) => {
                    if behind > 0 {
                        cells::skip(reader, behind)?;
                    }
                    cells::read(reader, place.kind, chunk.rows)?
                }
                None => ColumnCells::Missing,
            };
            chunk.columns.push((place.name, cells));
        }
        Ok(())
    }
}

/// A row group while it is read.
pub(super) struct GroupReader {
    of_filter: ColumnsReader,
    others: ColumnsReader,
    left: usize,
    next: RowPlace,
}

impl GroupReader {
    pub(super) fn open(
        group: &dyn RowGroupReader,
        first: RowPlace,
        places: &GroupPlaces<'_>,
    ) -> ParquetResult<Self> {
        Ok(Self {
            next: first,
            of_filter: ColumnsReader::open(group, &places.of_filter)?,
            others: ColumnsReader::open(group, &places.others)?,
            left: usize::try_from(group.metadata().num_rows()).unwrap_or(0),
        })
    }

    /// The next chunk of which rows are selected, and these.
    pub(super) fn next(
        &mut self,
        selection: RowSelection<'_>,
    ) -> ParquetResult<Option<(RowChunk, Vec<usize>)>> {
        while self.left > 0 {
            let mut chunk = RowChunk { rows: self.left.min(ROWS), first: self.next, columns: Vec::new() };
            self.left -= chunk.rows;
            self.next.row += chunk.rows;
            self.of_filter.read(&mut chunk)?;
            let rows = selection.rows(&chunk);
            if rows.is_empty() {
                self.others.behind += chunk.rows;
                continue;
            }
            self.others.read(&mut chunk)?;
            return Ok(Some((chunk, rows)));
        }
        Ok(None)
    }
}
