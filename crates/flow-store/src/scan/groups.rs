//! Reads a row group: first the filter's columns, then the other columns, but only where rows are selected.

use super::selection::RowSelection;
use super::{ROWS_PER_READ, RowChunk, RowPlace};
use crate::Error;
use crate::cells::{self, CellReader, ColumnCells};
use crate::columns::flow_columns;
use packetrig_flow::element::ElementKind;
use packetrig_units::clamp_to_usize;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::SchemaDescriptor;
use std::fs::File;
use std::path::Path;

/// The columns that are read from the row groups of a file.
pub(super) struct RequestedGroupColumns<'a> {
    pub(super) selection: RowSelection<'a>,
    pub(super) of_filter: Vec<RequestedColumn>,
    pub(super) others: Vec<RequestedColumn>,
}

/// A wanted column: its index in the file, if the file has it, and the kind that it must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedColumn {
    name: &'static str,
    index: Option<usize>,
    kind: ElementKind,
}

/// Finds the wanted columns in a file. A file without the basic columns of a record is refused.
pub(super) fn find_columns(
    path: &Path,
    file: &SerializedFileReader<File>,
    wanted: &[&'static str],
) -> Result<Vec<RequestedColumn>, Error> {
    let schema = file.metadata().file_metadata().schema_descr();
    // Any Parquet file may lie in the directory. Missing columns count as zero, so its rows
    // would look like empty flows.
    for name in ["flowStartNanoseconds", "packetDeltaCount"] {
        if column_index(schema, name).is_none() {
            return Err(foreign_file_error(path, format!("there is no column {name}")));
        }
    }
    let places: Vec<_> = wanted
        .iter()
        .map(|&name| RequestedColumn {
            name,
            index: column_index(schema, name),
            kind: column_kind_or_word(name),
        })
        .collect();
    for RequestedColumn { name, index, kind } in &places {
        let objection = index.and_then(|index| cells::find_kind_mismatch(&schema.column(index), *kind));
        if let Some(why) = objection {
            return Err(foreign_file_error(path, format!("column {name} {why}")));
        }
    }
    Ok(places)
}

fn foreign_file_error(path: &Path, why: String) -> Error {
    Error::Foreign { path: path.to_owned(), why }
}

fn column_index(schema: &SchemaDescriptor, name: &str) -> Option<usize> {
    schema.columns().iter().position(|column| column.path().parts() == [name])
}

/// Kind of the column's values; a word for a column that is not of the flow table.
fn column_kind_or_word(name: &str) -> ElementKind {
    flow_columns().iter().find(|column| column.name == name).map_or(ElementKind::Word, |column| column.kind)
}

/// Some columns of a row group. `behind` is the number of rows that must be skipped before the next rows are read.
struct ColumnsReader {
    columns: Vec<(RequestedColumn, Option<CellReader>)>,
    behind: usize,
}

impl ColumnsReader {
    fn open_columns(group: &dyn RowGroupReader, places: &[RequestedColumn]) -> ParquetResult<Self> {
        let mut columns = Vec::with_capacity(places.len());
        for place in places {
            let open = |index| CellReader::open_column(group, index, place.kind);
            let reader = place.index.map(open).transpose()?;
            columns.push((*place, reader));
        }
        Ok(Self { columns, behind: 0 })
    }

    /// Adds the values of the next rows to a chunk.
    fn append_next_rows(&mut self, chunk: &mut RowChunk) -> ParquetResult<()> {
        let behind = std::mem::take(&mut self.behind);
        for (place, reader) in &mut self.columns {
            let cells = match reader {
                Some(reader) => {
                    if behind > 0 {
                        reader.skip_rows(behind)?;
                    }
                    reader.read_rows(chunk.rows)?
                }
                None => ColumnCells::Missing,
            };
            chunk.columns.push((place.name, cells));
        }
        Ok(())
    }
}

/// Reads a row group chunk by chunk.
pub(super) struct GroupReader {
    of_filter: ColumnsReader,
    others: ColumnsReader,
    left: usize,
    next: RowPlace,
}

impl GroupReader {
    pub(super) fn open_group(
        group: &dyn RowGroupReader,
        first: RowPlace,
        places: &RequestedGroupColumns<'_>,
    ) -> ParquetResult<Self> {
        Ok(Self {
            next: first,
            of_filter: ColumnsReader::open_columns(group, &places.of_filter)?,
            others: ColumnsReader::open_columns(group, &places.others)?,
            left: clamp_to_usize(group.metadata().num_rows().max(0).unsigned_abs()),
        })
    }

    /// Returns the next chunk with selected rows, and these rows; `None` after the last chunk.
    pub(super) fn next_chunk(
        &mut self,
        selection: RowSelection<'_>,
    ) -> ParquetResult<Option<(RowChunk, Vec<usize>)>> {
        while self.left > 0 {
            let mut chunk =
                RowChunk { rows: self.left.min(ROWS_PER_READ), first: self.next, columns: Vec::new() };
            self.left -= chunk.rows;
            // Positions count all rows of the group, also those that are not selected.
            self.next.row += chunk.rows;
            self.of_filter.append_next_rows(&mut chunk)?;
            let rows = selection.select_rows(&chunk);
            if rows.is_empty() {
                // The other columns skip these rows later, at their next read: then whole pages need not be decoded.
                self.others.behind += chunk.rows;
                continue;
            }
            self.others.append_next_rows(&mut chunk)?;
            return Ok(Some((chunk, rows)));
        }
        Ok(None)
    }
}
