//! Joins the rows of several row groups, column by column, into one row group.

use crate::Error;
use crate::encode::WritableTable;
use crate::files::HourPartition;
use crate::row_group::EncodedGroup;
use packetrig_flow::CarriedRecords;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int32Type,
    Int64Type,
};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::RowGroupReader;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};

/// Values of one column; `None` is null.
enum JoinedColumn {
    Flags(Vec<Option<bool>>),
    Narrow(Vec<Option<i32>>),
    Wide(Vec<Option<i64>>),
    Texts(Vec<Option<ByteArray>>),
    Arrays(Vec<Option<FixedLenByteArray>>),
}

/// Rows that were read and are not written yet.
pub(super) struct JoinedRows {
    table: WritableTable,
    count: usize,
    columns: Vec<JoinedColumn>,
}

impl JoinedRows {
    pub(super) const fn new(table: WritableTable) -> Self {
        Self { table, count: 0, columns: Vec::new() }
    }

    pub(super) const fn row_count(&self) -> usize {
        self.count
    }

    /// Appends the rows of a row group. All row groups have the same columns.
    pub(super) fn read_group(&mut self, group: &dyn RowGroupReader) -> Result<()> {
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        for index in 0..group.num_columns() {
            let column = group.get_column_reader(index)?;
            if self.columns.len() == index {
                self.columns.push(JoinedColumn::empty_column_for(&column)?);
            }
            self.columns[index].append_column_values(column, rows)?;
        }
        self.count += rows;
        Ok(())
    }

    /// Encodes the rows as one row group and removes them from memory. Like in all row groups, the rows are
    /// sorted by the first column, a time.
    pub(super) fn take_encoded_group(&mut self) -> std::result::Result<EncodedGroup, Error> {
        let columns = std::mem::take(&mut self.columns);
        let mut order: Vec<usize> = (0..std::mem::take(&mut self.count)).collect();
        if let Some(JoinedColumn::Wide(times)) = columns.first() {
            order.sort_by_key(|row| times[*row]);
        }
        // `compact` counts the records of joined files itself, so this row group counts none.
        let (partition, carried) = (HourPartition(None), CarriedRecords::default());
        EncodedGroup::encode_group(self.table, partition, carried, |file| {
            write_columns(file, columns, &order)
        })
    }
}

fn write_columns(
    file: &mut SerializedFileWriter<Vec<u8>>,
    columns: Vec<JoinedColumn>,
    order: &[usize],
) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns {
        let mut writer = group.next_column()?.ok_or_else(|| {
            ParquetError::General("the schema has fewer columns than the joined files".into())
        })?;
        column.write_values(&mut writer, order)?;
        writer.close()?;
    }
    group.close().map(drop)
}

impl JoinedColumn {
    fn empty_column_for(reader: &ColumnReader) -> Result<Self> {
        Ok(match reader {
            ColumnReader::BoolColumnReader(_) => Self::Flags(Vec::new()),
            ColumnReader::Int32ColumnReader(_) => Self::Narrow(Vec::new()),
            ColumnReader::Int64ColumnReader(_) => Self::Wide(Vec::new()),
            ColumnReader::ByteArrayColumnReader(_) => Self::Texts(Vec::new()),
            ColumnReader::FixedLenByteArrayColumnReader(_) => Self::Arrays(Vec::new()),
            _ => return Err(column_kind_error()),
        })
    }

    fn append_column_values(&mut self, reader: ColumnReader, rows: usize) -> Result<()> {
        match (self, reader) {
            (Self::Flags(values), ColumnReader::BoolColumnReader(reader)) => {
                read_values(reader, rows, values)
            }
            (Self::Narrow(values), ColumnReader::Int32ColumnReader(reader)) => {
                read_values(reader, rows, values)
            }
            (Self::Wide(values), ColumnReader::Int64ColumnReader(reader)) => {
                read_values(reader, rows, values)
            }
            (Self::Texts(values), ColumnReader::ByteArrayColumnReader(reader)) => {
                read_values(reader, rows, values)
            }
            (Self::Arrays(values), ColumnReader::FixedLenByteArrayColumnReader(reader)) => {
                read_values(reader, rows, values)
            }
            _ => Err(column_kind_error()),
        }
    }

    fn write_values(self, writer: &mut SerializedColumnWriter<'_>, order: &[usize]) -> Result<()> {
        match self {
            Self::Flags(values) => write_ordered_values::<BoolType>(writer, &values, order),
            Self::Narrow(values) => write_ordered_values::<Int32Type>(writer, &values, order),
            Self::Wide(values) => write_ordered_values::<Int64Type>(writer, &values, order),
            Self::Texts(values) => write_ordered_values::<ByteArrayType>(writer, &values, order),
            Self::Arrays(values) => write_ordered_values::<FixedLenByteArrayType>(writer, &values, order),
        }
    }
}

fn column_kind_error() -> ParquetError {
    ParquetError::General("a column has a different type than in this version of packetrig".into())
}

/// Appends the next `rows` values of a column to `into`. Fails if the column has fewer.
fn read_values<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: usize,
    into: &mut Vec<Option<T::T>>,
) -> Result<()> {
    let wanted = into.len() + rows;
    let mut values = Vec::new();
    let mut levels = Vec::new();
    while into.len() < wanted {
        values.clear();
        levels.clear();
        let (read, _, _) = reader.read_records(wanted - into.len(), Some(&mut levels), None, &mut values)?;
        if read == 0 {
            return Err(ParquetError::General(
                "a column has fewer values than its row group has rows".into(),
            ));
        }
        let mut values = values.drain(..);
        // Columns that are never null have no definition levels.
        if levels.is_empty() {
            into.extend(values.map(Some));
        } else {
            into.extend(levels.iter().map(|level| if *level > 0 { values.next() } else { None }));
        }
    }
    Ok(())
}

fn write_ordered_values<T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    values: &[Option<T::T>],
    order: &[usize],
) -> Result<()> {
    let levels: Vec<i16> = order.iter().map(|row| i16::from(values[*row].is_some())).collect();
    let ordered: Vec<T::T> = order.iter().filter_map(|row| values[*row].clone()).collect();
    // The writer ignores the levels of columns that are never null.
    writer.typed::<T>().write_batch(&ordered, Some(&levels), None).map(drop)
}
