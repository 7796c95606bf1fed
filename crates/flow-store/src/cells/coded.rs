//! Values of a column as numbers in a dictionary, as Parquet stores them. A value that thousands of rows share is decoded and
//! tested once.

use crate::rows::keep_rows;
use parquet::errors::{ParquetError, Result as ParquetResult};
use std::sync::Arc;

/// The values of a column in some rows.
#[derive(Clone, Debug)]
pub struct CodedCells<T> {
    dictionary: Arc<[T]>,
    /// Places in the dictionary. All are within it.
    codes: Vec<u32>,
}

impl<T> Default for CodedCells<T> {
    fn default() -> Self {
        Self { dictionary: Arc::from([]), codes: Vec::new() }
    }
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

    /// Removes the rows whose value is not kept.
    pub(crate) fn retain_rows(&self, rows: &mut Vec<usize>, is_kept: impl Fn(&T) -> bool) {
        if self.dictionary.len() > rows.len() {
            return keep_rows(rows, |row| self.get(row).is_some_and(&is_kept));
        }
        // Fewer values than rows: each value is tested once.
        let kept: Vec<bool> = self.dictionary.iter().map(is_kept).collect();
        keep_rows(rows, |row| kept[self.codes[row] as usize]);
    }
}

impl<T: Clone> CodedCells<T> {
    /// Appends rows of a page.
    pub(super) fn append_codes(&mut self, dictionary: &Arc<[T]>, codes: &[u32]) -> ParquetResult<()> {
        // Checked here once, so that no lookup can fail.
        if codes.iter().any(|&code| code as usize >= dictionary.len()) {
            return Err(ParquetError::General("a value is not in its dictionary".into()));
        }
        if self.codes.is_empty() {
            self.dictionary = Arc::clone(dictionary);
        }
        if Arc::ptr_eq(&self.dictionary, dictionary) {
            self.codes.extend_from_slice(codes);
            return Ok(());
        }
        // A page without a dictionary follows one that has it. That happens once in a column, where its dictionary became too large.
        let behind = u32::try_from(self.dictionary.len()).unwrap_or(u32::MAX);
        self.dictionary = self.dictionary.iter().chain(dictionary.iter()).cloned().collect();
        self.codes.extend(codes.iter().map(|code| behind + code));
        Ok(())
    }
}
