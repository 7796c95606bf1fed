//! The values of a column in some rows of a file.
//!
//! A null is read as the zero value of its kind: 0, `false`, an empty word or an address of zeros.
//!
//! Invariant: the number of values equals the number of requested rows, except for [`ColumnCells::Missing`].

mod coded;
mod hybrid;
mod pages;

pub use coded::CodedCells;

use packetrig_flow::element::{ElementKind, ElementValue};
use pages::{ByteValue, PagedColumn};
use parquet::basic::{LogicalType, TimeUnit, Type as Physical};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::RowGroupReader;
use parquet::schema::types::ColumnDescriptor;
use std::borrow::Cow;

/// The values of a column in some rows.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnCells {
    /// The file has no such column.
    Missing,
    Numbers(Vec<u64>),
    Addresses(CodedCells<[u8; 16]>),
    Macs(CodedCells<[u8; 6]>),
    Words(CodedCells<Box<str>>),
    Flags(Vec<bool>),
}

impl ColumnCells {
    /// Collects the values of a column of this kind. A value of another kind becomes the zero value of `kind`.
    pub(super) fn from_values<'a>(kind: ElementKind, values: impl Iterator<Item = ElementValue<'a>>) -> Self {
        match kind {
            ElementKind::Unsigned(_) | ElementKind::Time => Self::Numbers(
                values
                    .map(|value| if let ElementValue::Number(number) = value { number } else { 0 })
                    .collect(),
            ),
            ElementKind::Flag => Self::Flags(values.map(|value| value == ElementValue::Flag(true)).collect()),
            ElementKind::Address => Self::Addresses(values.map(address_of_value).collect::<Vec<_>>().into()),
            ElementKind::Mac => Self::Macs(values.map(mac_of_value).collect::<Vec<_>>().into()),
            ElementKind::Word | ElementKind::Fields => {
                Self::Words(values.map(word_of_value).collect::<Vec<_>>().into())
            }
        }
    }

    /// The number in a row, or 1 for a flag that is set; 0 if the row has neither.
    pub fn number_at(&self, row: usize) -> u64 {
        match self {
            Self::Numbers(values) => values.get(row).copied().unwrap_or(0),
            Self::Flags(values) => u64::from(values.get(row).copied().unwrap_or(false)),
            _ => 0,
        }
    }

    /// Returns a column of numbers with all its rows. Any other column becomes `rows` numbers: 1 for each flag that is
    /// set, 0 for anything else.
    pub(super) fn numbers_of_first_rows(&self, rows: usize) -> Cow<'_, [u64]> {
        match self {
            Self::Numbers(values) => Cow::Borrowed(values),
            _ => Cow::Owned((0..rows).map(|row| self.number_at(row)).collect()),
        }
    }

    /// For each row, the index of its value in a dictionary, and the length of the dictionary; `None` if the column has
    /// numbers or flags.
    pub(super) fn codes(&self) -> Option<(&[u32], usize)> {
        match self {
            Self::Addresses(cells) => Some((cells.codes(), cells.dictionary_length())),
            Self::Macs(cells) => Some((cells.codes(), cells.dictionary_length())),
            Self::Words(cells) => Some((cells.codes(), cells.dictionary_length())),
            Self::Missing | Self::Numbers(_) | Self::Flags(_) => None,
        }
    }

    /// The address in a row; all zeros if the row has none.
    pub fn address_at(&self, row: usize) -> [u8; 16] {
        if let Self::Addresses(cells) = self { cells.get(row).copied().unwrap_or_default() } else { [0; 16] }
    }

    /// The MAC address in a row; all zeros if the row has none.
    pub fn mac_at(&self, row: usize) -> [u8; 6] {
        if let Self::Macs(cells) = self { cells.get(row).copied().unwrap_or_default() } else { [0; 6] }
    }

    /// The word in a row; empty if the row has none.
    pub fn word_at(&self, row: usize) -> &str {
        if let Self::Words(cells) = self { cells.get(row).map_or("", |word| word) } else { "" }
    }
}

const fn address_of_value(value: ElementValue<'_>) -> [u8; 16] {
    if let ElementValue::Address(bytes) = value { bytes } else { [0; 16] }
}

const fn mac_of_value(value: ElementValue<'_>) -> [u8; 6] {
    if let ElementValue::Mac(bytes) = value { bytes } else { [0; 6] }
}

/// The text of a word. The fields of `otherFields` become JSON, as in files; without fields the text is empty.
fn word_of_value(value: ElementValue<'_>) -> Box<str> {
    match value {
        ElementValue::Word(word) => word.into(),
        ElementValue::Fields(fields) if !fields.is_empty() => {
            let mut text = String::new();
            fields.append_json(&mut text);
            text.into()
        }
        _ => Box::default(),
    }
}

/// Returns why a column of a file cannot be read as values of this kind; `None` if it can be read.
pub(super) fn find_kind_mismatch(column: &ColumnDescriptor, kind: ElementKind) -> Option<&'static str> {
    if column.max_rep_level() > 0 {
        return Some("is a repeated column");
    }
    // Files of other programs may store addresses as plain byte arrays; byte arrays that are marked as text
    // are not addresses.
    let is_word = column.logical_type_ref() == Some(&LogicalType::String);
    let fits = match (kind, column.physical_type()) {
        (ElementKind::Address, Physical::FIXED_LEN_BYTE_ARRAY) => column.type_length() == 16,
        (ElementKind::Mac, Physical::FIXED_LEN_BYTE_ARRAY) => column.type_length() == 6,
        (ElementKind::Address | ElementKind::Mac, Physical::BYTE_ARRAY) => !is_word,
        (ElementKind::Unsigned(_) | ElementKind::Time, Physical::INT64)
        | (ElementKind::Unsigned(_), Physical::INT32)
        | (ElementKind::Word | ElementKind::Fields, Physical::BYTE_ARRAY)
        | (ElementKind::Flag, Physical::BOOLEAN) => true,
        _ => false,
    };
    match column.logical_type_ref() {
        Some(LogicalType::Timestamp(time)) if time.unit != TimeUnit::NANOS => {
            Some("has timestamps that are not in nanoseconds")
        }
        _ => (!fits).then_some("has a different type than in packetrig's files"),
    }
}

/// Reads the rows of a column of a row group, from the start to the end.
pub(super) enum CellReader {
    Addresses(PagedColumn<[u8; 16]>),
    Macs(PagedColumn<[u8; 6]>),
    Words(PagedColumn<Box<str>>),
    /// Numbers, flags, and byte columns with rare encodings. The reader of the `parquet` library reads them.
    Library(Box<ColumnReader>, ElementKind),
}

impl CellReader {
    /// Opens a column. `kind` is the kind of its values.
    pub(super) fn open_column(
        group: &dyn RowGroupReader,
        index: usize,
        kind: ElementKind,
    ) -> ParquetResult<Self> {
        let column = group.metadata().column(index);
        if !pages::is_column_readable(column) {
            return Ok(Self::Library(Box::new(group.get_column_reader(index)?), kind));
        }
        let pages = group.get_column_page_reader(index)?;
        Ok(match kind {
            ElementKind::Address => Self::Addresses(PagedColumn::new(pages, column)),
            ElementKind::Mac => Self::Macs(PagedColumn::new(pages, column)),
            _ => Self::Words(PagedColumn::new(pages, column)),
        })
    }

    /// Skips the next rows. Fails if the column has fewer rows left.
    pub(super) fn skip_rows(&mut self, rows: usize) -> ParquetResult<()> {
        match self {
            Self::Addresses(column) => column.skip_rows(rows),
            Self::Macs(column) => column.skip_rows(rows),
            Self::Words(column) => column.skip_rows(rows),
            Self::Library(reader, _) => skip_values(reader, rows),
        }
    }

    /// Reads the next rows. Fails if the column has fewer rows left.
    pub(super) fn read_rows(&mut self, rows: usize) -> ParquetResult<ColumnCells> {
        Ok(match self {
            Self::Addresses(column) => ColumnCells::Addresses(column.read_rows(rows)?),
            Self::Macs(column) => ColumnCells::Macs(column.read_rows(rows)?),
            Self::Words(column) => ColumnCells::Words(column.read_rows(rows)?),
            Self::Library(reader, kind) => read_cells(reader, *kind, rows)?,
        })
    }
}

fn skip_values(reader: &mut ColumnReader, rows: usize) -> ParquetResult<()> {
    let passed = match reader {
        ColumnReader::BoolColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int32ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int64ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::Int96ColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FloatColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::DoubleColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::ByteArrayColumnReader(reader) => reader.skip_records(rows),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => reader.skip_records(rows),
    };
    // Without this check the columns would get out of step, and a row would mix values of different records.
    if passed? < rows {
        return Err(ParquetError::General("a column is shorter than the other columns".into()));
    }
    Ok(())
}

fn read_cells(reader: &mut ColumnReader, kind: ElementKind, rows: usize) -> ParquetResult<ColumnCells> {
    Ok(match reader {
        ColumnReader::BoolColumnReader(reader) => ColumnCells::Flags(read_values(reader, rows, Ok)?),
        // Parquet stores unsigned numbers in signed types, so the bits are read as an unsigned number.
        ColumnReader::Int32ColumnReader(reader) => {
            ColumnCells::Numbers(read_numbers(reader, rows, |value| u64::from(value.cast_unsigned()))?)
        }
        ColumnReader::Int64ColumnReader(reader) => {
            ColumnCells::Numbers(read_numbers(reader, rows, i64::cast_unsigned)?)
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            read_bytes(reader, kind, rows, |value: &ByteArray| value.data())?
        }
        ColumnReader::FixedLenByteArrayColumnReader(reader) => {
            read_bytes(reader, kind, rows, |value: &FixedLenByteArray| value.data())?
        }
        // `find_kind_mismatch` has refused these types when the file was opened.
        ColumnReader::Int96ColumnReader(_) => return Err(unsupported_type_error(Physical::INT96)),
        ColumnReader::FloatColumnReader(_) => return Err(unsupported_type_error(Physical::FLOAT)),
        ColumnReader::DoubleColumnReader(_) => return Err(unsupported_type_error(Physical::DOUBLE)),
    })
}

/// Reads the next rows of a byte column as values of `kind`. A null is read as the zero value.
fn read_bytes<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    kind: ElementKind,
    rows: usize,
    bytes: impl Fn(&T::T) -> &[u8],
) -> ParquetResult<ColumnCells> {
    Ok(match kind {
        ElementKind::Address => ColumnCells::Addresses(
            read_values(reader, rows, |value| ByteValue::from_bytes(bytes(&value)))?.into(),
        ),
        ElementKind::Mac => {
            ColumnCells::Macs(read_values(reader, rows, |value| ByteValue::from_bytes(bytes(&value)))?.into())
        }
        _ => ColumnCells::Words(
            read_values(reader, rows, |value| ByteValue::from_bytes(bytes(&value)))?.into(),
        ),
    })
}

/// Reads the next rows of a number column. A null is read as zero.
fn read_numbers<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    convert: impl Fn(T::T) -> u64,
) -> ParquetResult<Vec<u64>> {
    let NonNullValues { given, levels } = read_column_values(reader, rows)?;
    // The column has no nulls. This common case needs no check per row.
    if levels.is_empty() {
        return Ok(given.into_iter().map(convert).collect());
    }
    insert_defaults_for_nulls(given.into_iter().map(|value| Ok(convert(value))), &levels)
}

/// Reads the next rows. A null is read as the default value.
fn read_values<T: DataType, V: Default>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    convert: impl Fn(T::T) -> ParquetResult<V>,
) -> ParquetResult<Vec<V>> {
    let NonNullValues { given, levels } = read_column_values(reader, rows)?;
    let given = given.into_iter().map(convert);
    // A column that cannot have nulls has no definition levels.
    if levels.is_empty() { given.collect() } else { insert_defaults_for_nulls(given, &levels) }
}

/// The values of a column that are not null. `levels` has 1 for each row with a value and 0 for each null; it is empty
/// if the column cannot have nulls.
struct NonNullValues<T> {
    given: Vec<T>,
    levels: Vec<i16>,
}

fn read_column_values<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
) -> ParquetResult<NonNullValues<T::T>> {
    // `rows` is at most the size of a chunk, so a wrong count in a file cannot use more memory.
    let mut given = Vec::with_capacity(rows);
    let mut levels = Vec::new();
    let mut found = 0;
    // One call reads at most to the end of a page.
    while found < rows {
        let read = reader.read_records(rows - found, Some(&mut levels), None, &mut given)?.0;
        // The column has fewer values than rows. Without this check the loop would not end.
        if read == 0 {
            return Err(ParquetError::General("a column is shorter than the other columns".into()));
        }
        found += read;
    }
    Ok(NonNullValues { given, levels })
}

/// Inserts the default value for each null. `given` has the values that are not null.
fn insert_defaults_for_nulls<V: Default>(
    mut given: impl Iterator<Item = ParquetResult<V>>,
    levels: &[i16],
) -> ParquetResult<Vec<V>> {
    levels
        .iter()
        .map(
            |&level| {
                if level == 0 { Ok(V::default()) } else { given.next().unwrap_or_else(missing_value_error) }
            },
        )
        .collect()
}

fn missing_value_error<V>() -> ParquetResult<V> {
    Err(ParquetError::General("a column has fewer values than its definition levels state".into()))
}

fn unsupported_type_error(physical: Physical) -> ParquetError {
    ParquetError::General(format!("a column has type {physical}, which no column of flow records has"))
}
