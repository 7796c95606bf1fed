//! Rows as row groups of Parquet: the schema from the tables of columns, values through the low-level writers.
//!
//! Numbers keep their width and that they are unsigned; times are timestamps of nanoseconds; addresses are bytes.

use super::columns::{self, LedgerRow, REVERSE_ENTERPRISE, SourcedRow};
use packetrig_flow::element::{ElementKind, ElementValue};
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type,
};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::sync::Arc;

/// Where the file says what its columns are at IANA.
pub(crate) const ELEMENTS_KEY: &str = "packetrig.elements";
/// Level of zstd: the usual one.
const LEVEL: i32 = 3;

/// A table that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WritableTable {
    Flows,
    MeterStats,
}

impl WritableTable {
    pub(super) const ALL: [Self; 2] = [Self::Flows, Self::MeterStats];

    /// The name of its directory.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::MeterStats => "meter_stats",
        }
    }

    fn schema(self) -> Result<TypePtr> {
        let fields = match self {
            Self::Flows => columns::columns()
                .iter()
                .map(|column| field(column.name, field_id(column.id, column.reverse), column.kind, false))
                .collect::<Result<Vec<_>>>()?,
            Self::MeterStats => columns::ledger_columns()
                .map(|column| field(column.name, None, column.kind, column.optional))
                .collect::<Result<Vec<_>>>()?,
        };
        Ok(Arc::new(Type::group_type_builder(self.name()).with_fields(fields).build()?))
    }

    fn properties(self) -> Result<WriterProperties> {
        let mut builder = WriterProperties::builder()
            .set_created_by(concat!("packetrig ", env!("CARGO_PKG_VERSION")).into())
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(LEVEL)?))
            // Indexes of pages lie behind all row groups: a file that grows has none.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_sorting_columns(Some(vec![SortingColumn {
                column_idx: 0,
                descending: false,
                nulls_first: false,
            }]));
        // Nearly every value is another one: differences pack better than a dictionary.
        for name in ["flowStartNanoseconds", "flowEndNanoseconds", "observationTimeNanoseconds"] {
            let path = ColumnPath::from(name);
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        builder = builder.set_column_dictionary_enabled(ColumnPath::from("flowId"), false);
        if self == Self::Flows {
            builder = builder.set_key_value_metadata(Some(vec![elements()]));
        }
        Ok(builder.build())
    }

    /// A file in memory, without rows.
    pub(crate) fn writer(self) -> Result<SerializedFileWriter<Vec<u8>>> {
        SerializedFileWriter::new(Vec::new(), self.schema()?, Arc::new(self.properties()?))
    }
}

/// The number of an element as the field's id; a reverse element's has its enterprise in front (RFC 5103), so ids are unique.
pub(crate) fn field_id(id: u16, reverse: bool) -> Option<i32> {
    let enterprise = if reverse { REVERSE_ENTERPRISE << 16 } else { 0 };
    (id > 0).then(|| i32::try_from(enterprise | u32::from(id)).ok()).flatten()
}

/// Names and numbers at IANA of all columns.
fn elements() -> KeyValue {
    let elements: Vec<_> = columns::columns()
        .iter()
        .map(|column| {
            let enterprise = if column.reverse { REVERSE_ENTERPRISE } else { 0 };
            let id = (column.id > 0).then_some(column.id);
            serde_json::json!({"name": column.name, "id": id, "enterprise": enterprise})
        })
        .collect();
    KeyValue::new(ELEMENTS_KEY.to_owned(), serde_json::Value::from(elements).to_string())
}

fn field(name: &str, id: Option<i32>, kind: ElementKind, optional: bool) -> Result<TypePtr> {
    let (physical, logical, length) = match kind {
        ElementKind::Unsigned(64) => (Physical::INT64, Some(LogicalType::integer(64, false)), 0),
        ElementKind::Unsigned(bits) => {
            (Physical::INT32, Some(LogicalType::integer(i8::try_from(bits).unwrap_or(32), false)), 0)
        }
        // UTC, but not marked as an instant: of those, DuckDB keeps microseconds only, and shows them in the session's time zone.
        ElementKind::Time => (Physical::INT64, Some(LogicalType::timestamp(false, TimeUnit::NANOS)), 0),
        ElementKind::Address => (Physical::FIXED_LEN_BYTE_ARRAY, None, 16),
        ElementKind::Mac => (Physical::FIXED_LEN_BYTE_ARRAY, None, 6),
        // A text, as not every reader knows Parquet's kind for JSON.
        ElementKind::Word | ElementKind::Fields => (Physical::BYTE_ARRAY, Some(LogicalType::String), 0),
        ElementKind::Flag => (Physical::BOOLEAN, None, 0),
    };
    let repetition = if optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let mut builder = Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical)
        .with_id(id);
    if length > 0 {
        builder = builder.with_length(length);
    }
    builder.build().map(Arc::new)
}

/// Appends flow rows as one row group.
pub(crate) fn flows(file: &mut SerializedFileWriter<Vec<u8>>, rows: &[SourcedRow]) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns::columns() {
        write(&mut group, column.kind, false, rows.iter().map(|row| Some(column.value(row))))?;
    }
    group.close().map(drop)
}

/// Appends ledger rows as one row group.
pub(crate) fn meter_stats(file: &mut SerializedFileWriter<Vec<u8>>, rows: &[LedgerRow]) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns::ledger_columns() {
        write(&mut group, column.kind, column.optional, rows.iter().map(|row| (column.value)(row)))?;
    }
    group.close().map(drop)
}

fn write<'a>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    kind: ElementKind,
    optional: bool,
    values: impl Iterator<Item = Option<ElementValue<'a>>> + Clone,
) -> Result<()> {
    let missing = || ParquetError::General("fewer columns than the schema has".into());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    let levels: Option<Vec<i16>> = optional.then(|| values.clone().map(|v| i16::from(v.is_some())).collect());
    write_values(&mut column, kind, values.flatten(), levels.as_deref())?;
    column.close()
}

fn write_values<'a>(
    column: &mut SerializedColumnWriter<'_>,
    kind: ElementKind,
    values: impl Iterator<Item = ElementValue<'a>>,
    levels: Option<&[i16]>,
) -> Result<()> {
    match kind {
        ElementKind::Unsigned(64) => {
            let values: Vec<i64> = values.map(|value| number(value).cast_signed()).collect();
            column.typed::<Int64Type>().write_batch(&values, levels, None)?
        }
        ElementKind::Time => {
            let values: Vec<i64> =
                values.map(|value| i64::try_from(number(value)).unwrap_or(i64::MAX)).collect();
            column.typed::<Int64Type>().write_batch(&values, levels, None)?
        }
        ElementKind::Unsigned(_) => {
            let values: Vec<i32> = values.map(narrow).collect();
            column.typed::<Int32Type>().write_batch(&values, levels, None)?
        }
        ElementKind::Address | ElementKind::Mac => {
            let values = fixed(values, if kind == ElementKind::Mac { 6 } else { 16 });
            column.typed::<FixedLenByteArrayType>().write_batch(&values, levels, None)?
        }
        ElementKind::Word => column.typed::<ByteArrayType>().write_batch(&words(values), levels, None)?,
        ElementKind::Fields => column.typed::<ByteArrayType>().write_batch(&objects(values), levels, None)?,
        ElementKind::Flag => {
            let values: Vec<bool> = values.map(|value| value == ElementValue::Flag(true)).collect();
            column.typed::<BoolType>().write_batch(&values, levels, None)?
        }
    };
    Ok(())
}

/// `flow::element`'s own test holds that values are of their kind.
fn number(value: ElementValue<'_>) -> u64 {
    if let ElementValue::Number(number) = value { number } else { 0 }
}

fn narrow(value: ElementValue<'_>) -> i32 {
    u32::try_from(number(value)).unwrap_or(u32::MAX).cast_signed()
}

/// All values in one allocation, and a view of each.
fn fixed<'a>(values: impl Iterator<Item = ElementValue<'a>>, length: usize) -> Vec<FixedLenByteArray> {
    let mut bytes = Vec::new();
    for value in values {
        match value {
            ElementValue::Address(address) => bytes.extend(address),
            ElementValue::Mac(mac) => bytes.extend(mac),
            _ => bytes.extend(std::iter::repeat_n(0, length)),
        }
    }
    let count = bytes.len() / length;
    let all = ByteArray::from(bytes);
    (0..count).map(|index| all.slice(index * length, length).into()).collect()
}

/// Words repeat: each is made once in a row.
fn words<'a>(values: impl Iterator<Item = ElementValue<'a>>) -> Vec<ByteArray> {
    let mut last = ("", ByteArray::from(""));
    values
        .map(|value| {
            let word = if let ElementValue::Word(word) = value { word } else { "" };
            if word != last.0 {
                last = (word, ByteArray::from(word));
            }
            last.1.clone()
        })
        .collect()
}

/// Objects of JSON; nothing where there are no fields, which is what most records have.
fn objects<'a>(values: impl Iterator<Item = ElementValue<'a>>) -> Vec<ByteArray> {
    let nothing = ByteArray::from("");
    let mut text = String::new();
    values
        .map(|value| match value {
            ElementValue::Fields(fields) if !fields.is_empty() => {
                text.clear();
                fields.append_json(&mut text);
                ByteArray::from(text.as_str())
            }
            _ => nothing.clone(),
        })
        .collect()
}
