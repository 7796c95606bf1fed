//! Encodes columns that have the same value in all rows of a row group.
//!
//! Most columns of flow records are constant: no VLAN, no tunnel, one exporter. The encoder of Parquet looks at each
//! value several times, for statistics and for the dictionary. So the encoded column is cached. It is copied into the
//! next row group if that has the same value and the same number of rows, which is usual in a busy sink.
//!
//! Invariant: a copied column has the same bytes as a newly encoded one.

use super::columns::{ExporterRow, FlowColumn};
use super::encode::write_values;
use bytes::Bytes;
use packetrig_flow::element::{ElementKind, ElementValue};
use parquet::column::writer::{ColumnCloseResult, get_column_writer};
use parquet::errors::Result;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use std::fmt;

/// Number of rows that are compared before the next column is: about 25 KiB.
const ROWS_PER_COMPARISON: usize = 64;

/// Cache with the last constant encoding of each column of a table, by the position of the column.
#[derive(Default)]
pub(crate) struct ConstantColumns {
    encoded: Vec<Option<ConstantColumn>>,
}

struct ConstantColumn {
    value: ElementValue<'static>,
    rows: usize,
    pages: Bytes,
    close: ColumnCloseResult,
}

impl fmt::Debug for ConstantColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstantColumns").field("columns", &self.encoded.len()).finish_non_exhaustive()
    }
}

/// Description of a column that is to be written.
pub(crate) struct WritableColumn {
    /// Position of the column in the table.
    pub(crate) index: usize,
    pub(crate) kind: ElementKind,
    pub(crate) schema: ColumnDescPtr,
    pub(crate) properties: WriterPropertiesPtr,
}

impl ConstantColumns {
    /// Appends a column with `value` in all `rows` rows to the row group.
    pub(crate) fn append_column(
        &mut self,
        group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
        column: WritableColumn,
        value: ElementValue<'static>,
        rows: usize,
    ) -> Result<()> {
        let index = column.index;
        if self.encoded.len() <= index {
            self.encoded.resize_with(index + 1, || None);
        }
        let known = self.encoded[index].take().filter(|known| known.value == value && known.rows == rows);
        let encoded = known.map_or_else(|| ConstantColumn::encode(column, value, rows), Ok)?;
        let done = group.append_column(&encoded.pages, encoded.close.clone());
        self.encoded[index] = Some(encoded);
        done
    }
}

impl ConstantColumn {
    fn encode(column: WritableColumn, value: ElementValue<'static>, rows: usize) -> Result<Self> {
        let WritableColumn { kind, schema, properties, .. } = column;
        let mut pages = TrackedWrite::new(Vec::new());
        let mut writer =
            get_column_writer(schema, properties, Box::new(SerializedPageWriter::new(&mut pages)));
        write_values(&mut writer, kind, std::iter::repeat_n(value, rows), None)?;
        let close = writer.close()?;
        Ok(Self { value, rows, pages: Bytes::from(pages.into_inner()?), close })
    }
}

/// For each column, the value that all rows have; `None` if they differ or there are no rows. The fields of `otherFields`
/// nearly always differ, so that column is constant only if no row has such fields. The value is then an empty word.
pub(crate) fn find_constant_values(
    columns: &[FlowColumn],
    rows: &[ExporterRow],
) -> Vec<Option<ElementValue<'static>>> {
    let Some(first) = rows.first() else { return vec![None; columns.len()] };
    let values = columns.iter().map(|column| to_static_value(column.value_in_row(first)));
    let mut constant: Vec<_> = values.collect();
    // All columns of a few rows, and not all rows of a column: the rows of a group do not fit into a cache, and each
    // column would fetch them again.
    for rows in rows.chunks(ROWS_PER_COMPARISON) {
        for (column, constant) in columns.iter().zip(&mut constant) {
            let value = constant.take();
            *constant =
                value.filter(|value| rows.iter().all(|row| is_value(column.value_in_row(row), *value)));
        }
    }
    constant
}

/// Returns whether a value is this one. That is asked for each value of a row, so it compares numbers and not bytes where
/// it can.
fn is_value(value: ElementValue<'_>, constant: ElementValue<'static>) -> bool {
    match (value, constant) {
        (ElementValue::Number(value), ElementValue::Number(constant)) => value == constant,
        (ElementValue::Address(value), ElementValue::Address(constant)) => {
            u128::from_ne_bytes(value) == u128::from_ne_bytes(constant)
        }
        (ElementValue::Mac(value), ElementValue::Mac(constant)) => value == constant,
        // Words are packetrig's own: equal ones usually are the same text, and most are empty.
        (ElementValue::Word(value), ElementValue::Word(constant)) => {
            value.len() == constant.len()
                && (value.is_empty() || std::ptr::eq(value, constant) || value == constant)
        }
        (ElementValue::Flag(value), ElementValue::Flag(constant)) => value == constant,
        (value, constant) => to_static_value(value) == Some(constant),
    }
}

fn to_static_value(value: ElementValue<'_>) -> Option<ElementValue<'static>> {
    Some(match value {
        ElementValue::Number(number) => ElementValue::Number(number),
        ElementValue::Address(address) => ElementValue::Address(address),
        ElementValue::Mac(mac) => ElementValue::Mac(mac),
        ElementValue::Word(word) => ElementValue::Word(word),
        ElementValue::Flag(flag) => ElementValue::Flag(flag),
        ElementValue::Fields(fields) if fields.is_empty() => ElementValue::Word(""),
        ElementValue::Fields(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::columns::ExporterRow;
    use crate::encode::{WritableTable, append_flows};
    use crate::sample::{foreign_record, record};
    use crate::{RecordExporter, constant_columns::ConstantColumns};

    fn file(known: &mut ConstantColumns, rows: &[ExporterRow]) -> Vec<u8> {
        let mut file = WritableTable::Flows.open_writer().unwrap();
        append_flows(&mut file, rows, known).unwrap();
        file.finish().unwrap();
        std::mem::take(file.inner_mut())
    }

    #[test]
    fn copied_columns_have_the_bytes_of_encoded_ones() {
        let mut known = ConstantColumns::default();
        for (number, count) in [(1, 500), (1, 500), (2, 500), (1, 499), (1, 500)] {
            for foreign in [false, true] {
                let mut record = if foreign { foreign_record(number) } else { record(number) };
                let rows: Vec<_> = (0..count)
                    .map(|source_port| {
                        record.key.source_port = source_port;
                        ExporterRow { record: record.clone(), source: RecordExporter::default() }
                    })
                    .collect();
                assert!(
                    file(&mut known, &rows) == file(&mut ConstantColumns::default(), &rows),
                    "{number} {count}"
                );
            }
        }
    }
}
