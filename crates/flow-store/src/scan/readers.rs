//! The reading threads. A scan is divided into portions: whole files, or row groups if there is only one file. The
//! threads take turns: of n threads, each one reads every n-th portion.

use super::groups::{GroupReader, RequestedGroupColumns, find_columns};
use super::selection::RowSelection;
use super::{RowChunk, RowPlace, ScanTerms, open_file_if_exists};
use crate::Error;
use parquet::file::reader::{FileReader, RowGroupReader};
use std::path::{Path, PathBuf};

/// The input of a scan, shared by its readers.
pub(super) struct ScanRequest<'a> {
    terms: &'a ScanTerms<'a>,
    files: &'a [PathBuf],
    selection: RowSelection<'a>,
    /// Columns that the filter needs.
    of_filter: Vec<&'static str>,
    /// Other columns that are wanted.
    others: Vec<&'static str>,
}

impl<'a> ScanRequest<'a> {
    pub(super) fn new(
        terms: &'a ScanTerms<'a>,
        files: &'a [PathBuf],
        selection: RowSelection<'a>,
        wanted: &[&'static str],
    ) -> Self {
        let of_filter = selection.needed_columns();
        // Columns of the filter are read anyway: reading them again would decode them twice.
        let others = wanted.iter().copied().filter(|name| !of_filter.contains(name)).collect();
        Self { terms, files, selection, of_filter, others }
    }

    /// Divides the portions among the readers.
    pub(super) fn shares(&self) -> impl Iterator<Item = ScanReaderNumber> {
        let of = self.terms.reader_count();
        (0..of).map(move |number| ScanReaderNumber { number, of })
    }

    fn check_not_given_up(&self) -> Result<(), Error> {
        if (self.terms.is_given_up)() { Err(Error::GivenUp) } else { Ok(()) }
    }
}

/// Receives the rows that a reader has read.
pub(super) trait PortionSink {
    fn accept_rows(&mut self, chunk: RowChunk, rows: Vec<usize>) -> Result<(), ScanStopReason>;

    /// Ends a portion: a file, or a row group if there is only one file.
    fn end_portion(&mut self) -> Result<(), ScanStopReason>;
}

/// Reason why a reader stops before the end.
pub(super) enum ScanStopReason {
    Failed(Error),
    /// Nobody wants the rows any more.
    Unwanted,
}

impl From<Error> for ScanStopReason {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// One of several readers. It reads every `of`th portion, starting with `number`.
pub(super) struct ScanReaderNumber {
    number: usize,
    of: usize,
}

impl ScanReaderNumber {
    pub(super) fn read_portions(
        &self,
        request: &ScanRequest<'_>,
        sink: &mut impl PortionSink,
    ) -> Result<(), ScanStopReason> {
        // All readers count the portions alike, so they need no coordination.
        let mut portions = 0;
        for (file, path) in request.files.iter().enumerate() {
            // The readers divide a single file by row groups. Several files are not divided, so that each
            // is opened only once.
            if request.files.len() == 1 {
                self.read_file(file, path, request, Some(&mut portions), sink)?;
            } else if self.count_portion_and_check_ours(&mut portions) {
                self.read_file(file, path, request, None, sink)?;
                sink.end_portion()?;
            }
        }
        Ok(())
    }

    /// Counts the next portion. Returns whether it belongs to this reader.
    fn count_portion_and_check_ours(&self, portions: &mut usize) -> bool {
        *portions += 1;
        (*portions - 1) % self.of == self.number
    }

    /// Reads a file, or this reader's portions of it.
    fn read_file(
        &self,
        number: usize,
        path: &Path,
        request: &ScanRequest<'_>,
        mut portions: Option<&mut usize>,
        sink: &mut impl PortionSink,
    ) -> Result<(), ScanStopReason> {
        if !request.selection.may_have_file(number) {
            return Ok(());
        }
        // A file that was removed since the list was made is no error: collectors remove old files at any time.
        let Some(file) = open_file_if_exists(path)? else { return Ok(()) };
        let places = RequestedGroupColumns {
            selection: request.selection,
            of_filter: find_columns(path, &file, &request.of_filter)?,
            others: find_columns(path, &file, &request.others)?,
        };
        for index in 0..file.num_row_groups() {
            if portions.as_deref_mut().is_some_and(|portions| !self.count_portion_and_check_ours(portions)) {
                continue;
            }
            request.check_not_given_up()?;
            let group = file.get_row_group(index).map_err(Error::damaged_file(path))?;
            let first = RowPlace { file: number, group: index, row: 0 };
            if request.selection.may_have_group(group.metadata(), first) {
                read_group(path, &*group, first, &places, request, sink)?;
            }
            // A skipped group is a portion, too: all row groups are counted, not only those with rows.
            if portions.is_some() {
                sink.end_portion()?;
            }
        }
        Ok(())
    }
}

fn read_group(
    path: &Path,
    group: &dyn RowGroupReader,
    first: RowPlace,
    places: &RequestedGroupColumns<'_>,
    request: &ScanRequest<'_>,
    sink: &mut impl PortionSink,
) -> Result<(), ScanStopReason> {
    let mut reader = GroupReader::open_group(group, first, places).map_err(Error::damaged_file(path))?;
    while let Some((chunk, rows)) = reader.next_chunk(places.selection).map_err(Error::damaged_file(path))? {
        request.check_not_given_up()?;
        sink.accept_rows(chunk, rows)?;
    }
    Ok(())
}
