//! Reads columns of bytes page by page and keeps their dictionaries: the reader of the library copies a counted reference for each row.

use super::coded::CodedCells;
use super::hybrid::decode_hybrid;
use parquet::basic::{Encoding, Type as Physical};
use parquet::column::page::{Page, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::ColumnChunkMetaData;
use std::sync::Arc;

/// Most rows of a page: writers make pages of about a megabyte, and the rows of this many could be held anyway.
const ROWS_MOST: usize = 1 << 24;

/// A value that columns of bytes hold.
pub(crate) trait ByteValue: Clone + Default {
    /// Reads it from its bytes.
    fn from_value(bytes: &[u8]) -> ParquetResult<Self>;
}

impl<const N: usize> ByteValue for [u8; N]
where
    Self: Default,
{
    fn from_value(bytes: &[u8]) -> ParquetResult<Self> {
        bytes.try_into().map_err(|_| ParquetError::General("an address has the wrong length".into()))
    }
}

impl ByteValue for Box<str> {
    fn from_value(bytes: &[u8]) -> ParquetResult<Self> {
        std::str::from_utf8(bytes).map(Self::from).map_err(|error| ParquetError::General(error.to_string()))
    }
}

/// Returns whether [`PagedColumn`] can read a column: it knows the encodings that nearly all writers use.
pub(crate) fn is_readable(column: &ColumnChunkMetaData) -> bool {
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
    /// Bytes of a value of a fixed length.
    fixed_length: Option<usize>,
    may_be_null: bool,
    dictionary: Arc<[T]>,
    /// The rows of the page that have not been read.
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
        Self {
            pages,
            fixed_length: is_fixed.then_some(length),
            may_be_null: descriptor.max_def_level() > 0,
            dictionary: Arc::from([]),
            current: DecodedPage { dictionary: Arc::from([]), codes: Vec::new(), next: 0 },
        }
    }

    /// Reads the next rows.
    pub(crate) fn read_rows(&mut self, rows: usize) -> ParquetResult<CodedCells<T>> {
        let mut cells = CodedCells::default();
        let mut left = rows;
        while left > 0 {
            let page = self.page_with_rows()?;
            let end = page.codes.len().min(page.next + left);
            cells.append_codes(&page.dictionary, &page.codes[page.next..end])?;
            left -= end - page.next;
            page.next = end;
        }
        Ok(cells)
    }

    /// Passes over the next rows. Whole pages are not decoded.
    pub(crate) fn skip_rows(&mut self, mut rows: usize) -> ParquetResult<()> {
        let page = &mut self.current;
        let here = rows.min(page.codes.len() - page.next);
        page.next += here;
        rows -= here;
        while rows > 0 {
            let ahead = self.pages.peek_next_page()?.ok_or_else(ended)?;
            match ahead.num_rows.or(ahead.num_levels) {
                Some(whole) if !ahead.is_dict && whole <= rows => {
                    self.pages.skip_next_page()?;
                    rows -= whole;
                }
                _ => {
                    let page = self.page_with_rows()?;
                    let here = rows.min(page.codes.len() - page.next);
                    page.next += here;
                    rows -= here;
                }
            }
        }
        Ok(())
    }

    /// The page with the next row.
    fn page_with_rows(&mut self) -> ParquetResult<&mut DecodedPage<T>> {
        while self.current.next == self.current.codes.len() {
            match self.pages.get_next_page()?.ok_or_else(ended)? {
                Page::DictionaryPage { buf, num_values, .. } => {
                    self.dictionary = self.plain_values(&buf, num_values as usize)?.into();
                }
                Page::DataPage { buf, num_values, encoding, .. } => {
                    let rows = num_values as usize;
                    let (levels, values) =
                        if self.may_be_null { split_levels(&buf)? } else { (&[][..], &buf[..]) };
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
                    let (levels, values) = levels.ok_or_else(ended)?;
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
        if rows > ROWS_MOST {
            return Err(ParquetError::General("a page has too many rows".into()));
        }
        let levels = if self.may_be_null { decode_hybrid(levels, 1, rows)? } else { Vec::new() };
        let given = if self.may_be_null { levels.iter().filter(|level| **level == 1).count() } else { rows };
        let (dictionary, codes) = match encoding {
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {
                // A page of nulls only may have no width.
                let (width, packed) = values.split_first().unwrap_or((&0, &[]));
                (Arc::clone(&self.dictionary), decode_hybrid(packed, *width, given)?)
            }
            _ => (self.plain_values(values, given)?.into(), (0..).take(given).collect()),
        };
        if !self.may_be_null {
            return Ok(DecodedPage { dictionary, codes, next: 0 });
        }
        Ok(with_nulls(&dictionary, &codes, &levels))
    }

    /// Reads values that lie one behind the other.
    fn plain_values(&self, mut bytes: &[u8], count: usize) -> ParquetResult<Vec<T>> {
        // Every value has a byte at least, but empty words have four for their length.
        let mut values = Vec::with_capacity(count.min(bytes.len()));
        for _ in 0..count {
            let length = if let Some(length) = self.fixed_length {
                length
            } else {
                let (length, rest) = bytes.split_first_chunk().ok_or_else(ended)?;
                bytes = rest;
                u32::from_le_bytes(*length) as usize
            };
            let (value, rest) = bytes.split_at_checked(length).ok_or_else(ended)?;
            values.push(T::from_value(value)?);
            bytes = rest;
        }
        Ok(values)
    }
}

/// Gives the rows without a value the default, which becomes the last one of the dictionary.
fn with_nulls<T: ByteValue>(dictionary: &[T], codes: &[u32], levels: &[u32]) -> DecodedPage<T> {
    let null = u32::try_from(dictionary.len()).unwrap_or(u32::MAX);
    let mut given = codes.iter().copied();
    // There are as many codes as levels of 1.
    let codes = levels.iter().map(|level| if *level == 1 { given.next().unwrap_or(null) } else { null });
    let codes = codes.collect();
    DecodedPage { dictionary: dictionary.iter().cloned().chain([T::default()]).collect(), codes, next: 0 }
}

/// Splits the levels of a page of the first version from its values: they have their length before them.
fn split_levels(page: &[u8]) -> ParquetResult<(&[u8], &[u8])> {
    let split = page
        .split_first_chunk()
        .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
    split.ok_or_else(ended)
}

fn ended() -> ParquetError {
    ParquetError::General("a column is shorter than the others".into())
}

#[cfg(test)]
mod tests;
