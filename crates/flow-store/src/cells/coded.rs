//! Values of a column as numbers in a dictionary, as Parquet stores them. A value that thousands of rows
//! share is decoded and tested once.

use crate::rows::filter_rows;
use parquet::errors::{ParquetError, Result as ParquetResult};
use std::sync::Arc;

/// The values of a column in some rows.
#[derive(Clone, Debug)]
pub struct CodedCells<T> {
    dictionary: Arc<[T]>,
    /// Places in the dictionary. All are within it.
    codes: Vec<u32>,
}

impl<T: PartialEq> PartialEq for CodedCells<T> {
    fn eq(&self, other: &Self) -> bool {
        // Equal values may have different numbers in other dictionaries.
        self.iter().eq(other.iter())
    }
}

impl<T> From<Vec<T>> for CodedCells<T> {
    fn from(values: Vec<T>) -> Self {
        Self { codes: (0..).take(values.len()).collect(), dictionary: values.into() }
    }
}

impl<T> CodedCells<T> {
    /// The value in a row.
    pub fn get(&self, row: usize) -> Option<&T> {
        self.codes.get(row).map(|&code| &self.dictionary[code as usize])
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.codes.iter().map(|&code| &self.dictionary[code as usize])
    }

    /// Values of the dictionary, whether rows have them or not.
    pub(crate) fn dictionary_length(&self) -> usize {
        self.dictionary.len()
    }

    /// Makes something of each value of the dictionary, once.
    pub(crate) fn map_values<U>(&self, map: impl Fn(&T) -> U) -> CodedCells<U> {
        CodedCells { dictionary: self.dictionary.iter().map(map).collect(), codes: self.codes.clone() }
    }

    /// Removes the rows with a value that the filter does not keep.
    pub(crate) fn retain_rows(&self, rows: &mut Vec<usize>, is_kept: impl Fn(&T) -> bool) {
        if self.dictionary.len() > rows.len() {
            return filter_rows(rows, |row| self.get(row).is_some_and(&is_kept));
        }
        // Fewer values than rows: each value is tested once.
        let kept: Vec<bool> = self.dictionary.iter().map(is_kept).collect();
        filter_rows(rows, |row| kept[self.codes[row] as usize]);
    }
}

/// Joins the rows of several pages.
pub(super) struct DictionaryJoiner<T> {
    /// The dictionaries of the pages, each once, with its place in the joined one.
    dictionaries: Vec<(Arc<[T]>, usize)>,
    codes: Vec<u32>,
}

impl<T: Clone> DictionaryJoiner<T> {
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self { dictionaries: Vec::new(), codes: Vec::with_capacity(rows) }
    }

    /// Appends rows of a page.
    pub(super) fn append_codes(&mut self, dictionary: &Arc<[T]>, codes: &[u32]) -> ParquetResult<()> {
        // The range is checked here once, so that no lookup can fail.
        if codes.iter().any(|&code| code as usize >= dictionary.len()) {
            return Err(ParquetError::General("a value is not in its dictionary".into()));
        }
        let place = self.place_of(dictionary);
        self.codes.extend(codes.iter().map(|code| place + code));
        Ok(())
    }

    fn place_of(&mut self, dictionary: &Arc<[T]>) -> u32 {
        let known = self.dictionaries.iter().find(|(known, _)| Arc::ptr_eq(known, dictionary));
        let place = if let Some((_, place)) = known {
            *place
        } else {
            let behind = self.dictionaries.last().map_or(0, |(last, place)| place + last.len());
            self.dictionaries.push((Arc::clone(dictionary), behind));
            behind
        };
        // The rows of a chunk and one dictionary of a page: far below 2^32.
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    pub(super) fn into_cells(self) -> CodedCells<T> {
        // Nearly all chunks have the one dictionary of their column, and nothing is copied.
        let dictionary = match &self.dictionaries[..] {
            [(only, _)] => Arc::clone(only),
            several => several.iter().flat_map(|(dictionary, _)| dictionary.iter().cloned()).collect(),
        };
        CodedCells { dictionary, codes: self.codes }
    }
}
