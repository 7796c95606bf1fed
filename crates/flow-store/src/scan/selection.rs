//! Selections of rows to read: rows that a filter selects, or rows at known positions.

use super::{RowChunk, RowPlace};
use crate::filter::FlowFilter;
use parquet::file::metadata::RowGroupMetaData;

#[derive(Clone, Copy, Debug)]
pub(super) enum RowSelection<'a> {
    Filter(&'a FlowFilter),
    Rows(&'a [RowPlace]),
}

impl RowSelection<'_> {
    /// The columns that the selection needs.
    pub(super) fn needed_columns(self) -> Vec<&'static str> {
        match self {
            Self::Filter(filter) => filter.needed_columns(),
            Self::Rows(_) => Vec::new(),
        }
    }

    pub(super) fn may_have_file(self, file: usize) -> bool {
        let first = RowPlace { file, group: 0, row: 0 };
        let next = RowPlace { file: file + 1, ..first };
        self.may_have_rows(first, next)
    }

    /// Returns whether the row group whose first row is at `first` may have selected rows.
    pub(super) fn may_have_group(self, metadata: &RowGroupMetaData, first: RowPlace) -> bool {
        match self {
            Self::Filter(filter) => filter.may_select_rows_of(metadata),
            Self::Rows(_) => self.may_have_rows(first, RowPlace { group: first.group + 1, ..first }),
        }
    }

    fn may_have_rows(self, first: RowPlace, next: RowPlace) -> bool {
        match self {
            Self::Filter(_) => true,
            Self::Rows(rows) => !row_places_between(rows, first, next).is_empty(),
        }
    }

    /// The selected rows of a chunk.
    pub(super) fn select_rows(self, chunk: &RowChunk) -> Vec<usize> {
        match self {
            Self::Filter(filter) => filter.select_rows(chunk),
            Self::Rows(rows) => {
                let rows = row_places_between(rows, chunk.row_place(0), chunk.row_place(chunk.rows));
                rows.iter().map(|place| place.row - chunk.first.row).collect()
            }
        }
    }
}

/// The positions from `first` to before `next`. Uses binary search, since positions are in order.
fn row_places_between(rows: &[RowPlace], first: RowPlace, next: RowPlace) -> &[RowPlace] {
    let start = rows.partition_point(|place| *place < first);
    let end = rows.partition_point(|place| *place < next);
    rows.get(start..end).unwrap_or_default()
}
