//! Values of a column as indexes into a dictionary, as in Parquet. A value that thousands of rows share is
//! decoded and tested once.

use crate::rows::filter_rows;
use parquet::errors::{ParquetError, Result as ParquetResult};
use std::sync::Arc;

/// The values of a column in some rows.
#[derive(Clone, Debug)]
pub struct CodedCells<T> {
    dictionary: Arc<[T]>,
    /// For each row, the index of its value in the dictionary. Every index is below the length of the dictionary.
    codes: Vec<u32>,
}

impl<T: PartialEq> PartialEq for CodedCells<T> {
    fn eq(&self, other: &Self) -> bool {
        // Two dictionaries may have the same value at different indexes.
        self.iter().eq(other.iter())
    }
}

impl<T> From<Vec<T>> for CodedCells<T> {
    fn from(values: Vec<T>) -> Self {
        Self { codes: (0..).take(values.len()).collect(), dictionary: values.into() }
    }
}

impl<T> CodedCells<T> {
    /// The value in a row; `None` if there is no such row.
    pub fn get(&self, row: usize) -> Option<&T> {
        self.codes.get(row).map(|&code| &self.dictionary[code as usize])
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.codes.iter().map(|&code| &self.dictionary[code as usize])
    }

    /// For each row, the index of its value in the dictionary.
    pub(crate) fn codes(&self) -> &[u32] {
        &self.codes
    }

    /// Number of values in the dictionary, including values that no row has.
    pub(crate) fn dictionary_length(&self) -> usize {
        self.dictionary.len()
    }

    /// Replaces every value by the result of `map`, which is called once for each value of the dictionary.
    pub(crate) fn map_values<U>(&self, map: impl Fn(&T) -> U) -> CodedCells<U> {
        CodedCells { dictionary: self.dictionary.iter().map(map).collect(), codes: self.codes.clone() }
    }

    /// Removes from `rows` the rows whose value does not pass `is_kept`.
    pub(crate) fn retain_rows(&self, rows: &mut Vec<usize>, is_kept: impl Fn(&T) -> bool) {
        if self.dictionary.len() > rows.len() {
            return filter_rows(rows, |row| self.get(row).is_some_and(&is_kept));
        }
        // Fewer values than rows: each value is tested once.
        let kept: Vec<bool> = self.dictionary.iter().map(is_kept).collect();
        filter_rows(rows, |row| kept[self.codes[row] as usize]);
    }
}

/// Joins the rows of several pages, and their dictionaries.
pub(super) struct DictionaryJoiner<T> {
    /// The dictionaries of the pages, each once, with the index of its first value in the joined dictionary.
    dictionaries: Vec<(Arc<[T]>, usize)>,
    codes: Vec<u32>,
}

impl<T: Clone> DictionaryJoiner<T> {
    pub(super) fn with_capacity(rows: usize) -> Self {
        Self { dictionaries: Vec::new(), codes: Vec::with_capacity(rows) }
    }

    /// Appends rows of a page. `codes` are indexes into `dictionary`; an index outside of it is an error.
    pub(super) fn append_codes(&mut self, dictionary: &Arc<[T]>, codes: &[u32]) -> ParquetResult<()> {
        // The indexes are checked here once, so that no later lookup can fail.
        if codes.iter().any(|&code| code as usize >= dictionary.len()) {
            return Err(ParquetError::General("an index is beyond the end of its dictionary".into()));
        }
        let place = self.add_dictionary_once(dictionary);
        self.codes.extend(codes.iter().map(|code| place + code));
        Ok(())
    }

    /// Adds a dictionary unless it was added before. Returns the index of its first value in the joined dictionary.
    fn add_dictionary_once(&mut self, dictionary: &Arc<[T]>) -> u32 {
        let known = self.dictionaries.iter().find(|(known, _)| Arc::ptr_eq(known, dictionary));
        let place = if let Some((_, place)) = known {
            *place
        } else {
            let behind = self.dictionaries.last().map_or(0, |(last, place)| place + last.len());
            self.dictionaries.push((Arc::clone(dictionary), behind));
            behind
        };
        // The dictionaries for the rows of one chunk have far fewer than 2^32 values.
        u32::try_from(place).unwrap_or(u32::MAX)
    }

    pub(super) fn into_cells(self) -> CodedCells<T> {
        // Nearly all chunks use a single dictionary. No value needs to be copied for them.
        let dictionary = match &self.dictionaries[..] {
            [(only, _)] => Arc::clone(only),
            several => several.iter().flat_map(|(dictionary, _)| dictionary.iter().cloned()).collect(),
        };
        CodedCells { dictionary, codes: self.codes }
    }
}
