//! Reads byte columns page by page and keeps their dictionaries. The reader of the `parquet` library would clone a
//! reference-counted value for each row.

use super::coded::{CodedCells, DictionaryJoiner};
use super::hybrid::decode_hybrid;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ColumnChunkMetaData;
use std::sync::Arc;

/// Maximum number of rows of a page. Writers make pages of about a megabyte, which have far fewer rows; the limit
/// bounds the memory that a damaged page can take.
const MAX_ROWS: usize = 1 << 24;

/// A type of values that byte columns have: IP addresses, MAC addresses or texts.
pub(crate) trait ByteValue: Clone + Default {
    /// Decodes the value from its bytes.
    fn from_bytes(bytes: &[u8]) -> ParquetResult<Self>;
}

impl<const N: usize> ByteValue for [u8; N]
where
    Self: Default,
{
    fn from_bytes(bytes: &[u8]) -> ParquetResult<Self> {
        bytes.try_into().map_err(|_| {
            ParquetError::General(format!("the length of an address is {} instead of {N} bytes", bytes.len()))
        })
    }
}

impl ByteValue for Box<str> {
    fn from_bytes(bytes: &[u8]) -> ParquetResult<Self> {
        std::str::from_utf8(bytes)
            .map(Self::from)
            .map_err(|error| ParquetError::General(format!("a text is not valid UTF-8: {error}")))
    }
}

/// Returns whether [`PagedColumn`] can read a column: a byte column that is not nested, in the encodings that
/// nearly all writers use.
pub(crate) fn is_column_readable(column: &ColumnChunkMetaData) -> bool {
    let descriptor = column.column_descr();
    let is_bytes =
        matches!(descriptor.physical_type(), Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY);
    let known = [Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY, Encoding::PLAIN_DICTIONARY];
    is_bytes
        && descriptor.max_def_level() <= 1
        && column.encodings().all(|encoding| known.contains(&encoding))
}

/// A column of a row group, read from the start to the end.
pub(crate) struct PagedColumn<T> {
    pages: Box<dyn PageReader>,
    /// Length of each value in bytes; `None` if each value is stored after its own length.
    fixed_length: Option<usize>,
    /// True if the column may have nulls. The last value of each dictionary is then the default value, which
    /// stands for a null.
    may_be_null: bool,
    dictionary: Arc<[T]>,
    /// The page that is being read; its rows from `next` on have not been read.
    current: DecodedPage<T>,
}

struct DecodedPage<T> {
    dictionary: Arc<[T]>,
    codes: Vec<u32>,
    next: usize,
}

impl<T: ByteValue> PagedColumn<T> {
    pub(crate) fn new(pages: Box<dyn PageReader>, column: &ColumnChunkMetaData) -> Self {
        let descriptor = column.column_descr();
        let is_fixed = descriptor.physical_type() == Physical::FIXED_LEN_BYTE_ARRAY;
        let length = usize::try_from(descriptor.type_length()).unwrap_or(0);
        let may_be_null = descriptor.max_def_level() > 0;
        Self {
            pages,
            fixed_length: is_fixed.then_some(length),
            may_be_null,
            // Pages that have only nulls may come without a dictionary page.
            dictionary: to_dictionary(Vec::new(), may_be_null),
            current: DecodedPage { dictionary: Arc::from([]), codes: Vec::new(), next: 0 },
        }
    }

    /// Reads the next rows. Fails if the column has fewer rows left.
    pub(crate) fn read_rows(&mut self, rows: usize) -> ParquetResult<CodedCells<T>> {
        let mut joiner = DictionaryJoiner::with_capacity(rows);
        let mut left = rows;
        while left > 0 {
            let page = self.load_page_with_rows()?;
            let end = page.codes.len().min(page.next + left);
            joiner.append_codes(&page.dictionary, &page.codes[page.next..end])?;
            left -= end - page.next;
            page.next = end;
        }
        Ok(joiner.into_cells())
    }

    /// Skips the next rows. Fails if the column has fewer rows left. A page that is skipped as a whole is not decoded.
    pub(crate) fn skip_rows(&mut self, mut rows: usize) -> ParquetResult<()> {
        let page = &mut self.current;
        let here = rows.min(page.codes.len() - page.next);
        page.next += here;
        rows -= here;
        while rows > 0 {
            let ahead = self.pages.peek_next_page()?.ok_or_else(unexpected_end_error)?;
            match ahead.num_rows.or(ahead.num_levels) {
                Some(whole) if !ahead.is_dict && whole <= rows => {
                    self.pages.skip_next_page()?;
                    rows -= whole;
                }
                _ => {
                    let page = self.load_page_with_rows()?;
                    let here = rows.min(page.codes.len() - page.next);
                    page.next += here;
                    rows -= here;
                }
            }
        }
        Ok(())
    }

    /// Returns the page with the next row. Reads and decodes the next page if all rows of the current
    /// one have been read.
    fn load_page_with_rows(&mut self) -> ParquetResult<&mut DecodedPage<T>> {
        while self.current.next == self.current.codes.len() {
            match self.pages.get_next_page()?.ok_or_else(unexpected_end_error)? {
                Page::DictionaryPage { buf, num_values, .. } => {
                    let values = self.decode_plain_values(&buf, num_values as usize)?;
                    self.dictionary = to_dictionary(values, self.may_be_null);
                }
                Page::DataPage { buf, num_values, encoding, .. } => {
                    let rows = num_values as usize;
                    let (levels, values) =
                        if self.may_be_null { split_page_levels(&buf)? } else { (&[][..], &buf[..]) };
                    self.current = self.decode_page(levels, values, rows, encoding)?;
                }
                Page::DataPageV2 {
                    buf,
                    num_values,
                    encoding,
                    def_levels_byte_len,
                    rep_levels_byte_len,
                    ..
                } => {
                    let behind = rep_levels_byte_len as usize;
                    let levels = buf
                        .get(behind..)
                        .and_then(|rest| rest.split_at_checked(def_levels_byte_len as usize));
                    let (levels, values) = levels.ok_or_else(unexpected_end_error)?;
                    self.current = self.decode_page(levels, values, num_values as usize, encoding)?;
                }
            }
        }
        Ok(&mut self.current)
    }

    fn decode_page(
        &self,
        levels: &[u8],
        values: &[u8],
        rows: usize,
        encoding: Encoding,
    ) -> ParquetResult<DecodedPage<T>> {
        if rows > MAX_ROWS {
            return Err(ParquetError::General("a page has too many rows".into()));
        }
        let levels = if self.may_be_null { decode_hybrid(levels, 1, rows)? } else { Vec::new() };
        let given = if self.may_be_null { levels.iter().filter(|level| **level == 1).count() } else { rows };
        let (dictionary, codes) = match encoding {
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                // The first byte is the bit width of the indexes. A page that has only nulls may lack it.
                let (width, packed) = values.split_first().unwrap_or((&0, &[]));
                (Arc::clone(&self.dictionary), decode_hybrid(packed, *width, given)?)
            }
            _ => {
                let values = self.decode_plain_values(values, given)?;
                (to_dictionary(values, self.may_be_null), (0..).take(given).collect())
            }
        };
        let codes = if self.may_be_null { insert_null_codes(&dictionary, codes, &levels) } else { codes };
        Ok(DecodedPage { dictionary, codes, next: 0 })
    }

    /// Decodes values in the encoding PLAIN: one directly after the other.
    fn decode_plain_values(&self, mut bytes: &[u8], count: usize) -> ParquetResult<Vec<T>> {
        // Every value takes at least one byte: even before an empty word there are four bytes with its length. So the
        // size of the page bounds the allocation.
        let mut values = Vec::with_capacity(count.min(bytes.len()));
        for _ in 0..count {
            let length = if let Some(length) = self.fixed_length {
                length
            } else {
                let (length, rest) = bytes.split_first_chunk().ok_or_else(unexpected_end_error)?;
                bytes = rest;
                u32::from_le_bytes(*length) as usize
            };
            let (value, rest) = bytes.split_at_checked(length).ok_or_else(unexpected_end_error)?;
            values.push(T::from_bytes(value)?);
            bytes = rest;
        }
        Ok(values)
    }
}

/// Makes a dictionary of the values. If the column may have nulls, the default value comes last and stands for nulls.
fn to_dictionary<T: ByteValue>(mut values: Vec<T>, may_be_null: bool) -> Arc<[T]> {
    if may_be_null {
        values.push(T::default());
    }
    values.into()
}

/// Inserts a code for each null: the index of the last value of the dictionary.
fn insert_null_codes<T>(dictionary: &[T], codes: Vec<u32>, levels: &[u32]) -> Vec<u32> {
    let null = u32::try_from(dictionary.len() - 1).unwrap_or(u32::MAX);
    let mut given = codes.into_iter();
    // The number of codes equals the number of levels with the value 1.
    levels.iter().map(|level| if *level == 1 { given.next().unwrap_or(null) } else { null }).collect()
}

/// Splits a data page of version 1 into its definition levels, which are stored after their length, and its values.
fn split_page_levels(page: &[u8]) -> ParquetResult<(&[u8], &[u8])> {
    let split = page
        .split_first_chunk()
        .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
    split.ok_or_else(unexpected_end_error)
}

fn unexpected_end_error() -> ParquetError {
    ParquetError::General("a column or one of its pages ends too early".into())
}

#[cfg(test)]
mod tests;
