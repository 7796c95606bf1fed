//! Encodes rows as row groups of Parquet. The schema is built from the lists of columns in `columns`.
//!
//! Numbers keep their width and are marked as unsigned; times are timestamps in nanoseconds; addresses are bytes.

use super::columns::{self, ExporterRow, LedgerRow, REVERSE_ENTERPRISE};
use super::constant_columns::{ConstantColumns, WritableColumn, find_constant_values};
use packetrig_flow::element::{ElementKind, ElementValue};
use packetrig_units::{clamp_to_i64, clamp_to_u32};
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::column::writer::{ColumnWriter, get_typed_column_writer_mut};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type,
};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::sync::Arc;

/// Key of the metadata with the IANA numbers of the columns.
pub(crate) const ELEMENTS_KEY: &str = "packetrig.elements";
/// Compression level of zstd: its default.
const ZSTD_LEVEL: i32 = 3;

/// A table that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WritableTable {
    Flows,
    MeterStats,
}

impl WritableTable {
    pub(super) const ALL: [Self; 2] = [Self::Flows, Self::MeterStats];

    /// The name of the table and of its directory.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::MeterStats => "meter_stats",
        }
    }

    fn build_schema(self) -> Result<TypePtr> {
        let fields = match self {
            Self::Flows => columns::flow_columns()
                .iter()
                .map(|column| {
                    schema_field(column.name, field_id(column.id, column.reverse), column.kind, false)
                })
                .collect::<Result<Vec<_>>>()?,
            Self::MeterStats => columns::ledger_columns()
                .map(|column| schema_field(column.name, None, column.kind, column.optional))
                .collect::<Result<Vec<_>>>()?,
        };
        Ok(Arc::new(Type::group_type_builder(self.name()).with_fields(fields).build()?))
    }

    /// Returns whether a file has the schema that this version of packetrig writes.
    pub(super) fn has_schema(self, schema: &Type) -> bool {
        self.build_schema().is_ok_and(|own| *own == *schema)
    }

    fn writer_properties(self) -> Result<WriterProperties> {
        let mut builder = WriterProperties::builder()
            .set_created_by(concat!("packetrig ", env!("CARGO_PKG_VERSION")).into())
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
            // Page indexes come after all row groups, so a file that grows cannot have them.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_sorting_columns(Some(vec![SortingColumn {
                column_idx: 0,
                descending: false,
                nulls_first: false,
            }]));
        // Nearly all times differ, so a dictionary would not help; their differences compress well.
        for name in ["flowStartNanoseconds", "flowEndNanoseconds", "observationTimeNanoseconds"] {
            let path = ColumnPath::from(name);
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
        // Flow ids are random: neither a dictionary nor differences would shorten them.
        builder = builder.set_column_dictionary_enabled(ColumnPath::from("flowId"), false);
        if self == Self::Flows {
            builder = builder.set_key_value_metadata(Some(vec![elements_metadata()]));
        }
        Ok(builder.build())
    }

    /// Opens a writer for a file in memory. The file has no rows yet.
    pub(crate) fn open_writer(self) -> Result<SerializedFileWriter<Vec<u8>>> {
        SerializedFileWriter::new(Vec::new(), self.build_schema()?, Arc::new(self.writer_properties()?))
    }
}

/// The IANA number of an element as the field's id; `None` if it has no number. The id of a reverse element has the
/// enterprise number of RFC 5103 in the upper 16 bits, so that ids are unique.
pub(crate) fn field_id(id: u16, reverse: bool) -> Option<i32> {
    let enterprise = if reverse { REVERSE_ENTERPRISE << 16 } else { 0 };
    (id > 0).then(|| i32::try_from(enterprise | u32::from(id)).ok()).flatten()
}

/// Metadata with IANA's names and numbers of all columns.
fn elements_metadata() -> KeyValue {
    let elements: Vec<_> = columns::flow_columns()
        .iter()
        .map(|column| {
            let enterprise = if column.reverse { REVERSE_ENTERPRISE } else { 0 };
            let id = (column.id > 0).then_some(column.id);
            serde_json::json!({"name": column.name, "id": id, "enterprise": enterprise})
        })
        .collect();
    KeyValue::new(ELEMENTS_KEY.to_owned(), serde_json::Value::from(elements).to_string())
}

fn schema_field(name: &str, id: Option<i32>, kind: ElementKind, optional: bool) -> Result<TypePtr> {
    let repetition = if optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let mut builder = Type::primitive_type_builder(name, physical_type(kind))
        .with_repetition(repetition)
        .with_logical_type(logical_type(kind))
        .with_id(id);
    match kind {
        ElementKind::Address => builder = builder.with_length(16),
        ElementKind::Mac => builder = builder.with_length(6),
        _ => {}
    }
    builder.build().map(Arc::new)
}

const fn physical_type(kind: ElementKind) -> Physical {
    match kind {
        ElementKind::Unsigned(64) | ElementKind::Time => Physical::INT64,
        ElementKind::Unsigned(_) => Physical::INT32,
        ElementKind::Address | ElementKind::Mac => Physical::FIXED_LEN_BYTE_ARRAY,
        ElementKind::Word | ElementKind::Fields => Physical::BYTE_ARRAY,
        ElementKind::Flag => Physical::BOOLEAN,
    }
}

fn logical_type(kind: ElementKind) -> Option<LogicalType> {
    match kind {
        // Elements have 8, 16, 32 or 64 bits.
        ElementKind::Unsigned(bits) => Some(LogicalType::integer(bits.cast_signed(), false)),
        // Times are UTC, but not marked as adjusted to UTC: DuckDB keeps only microseconds of marked times, and shows them in
        // the time zone of the session.
        ElementKind::Time => Some(LogicalType::timestamp(false, TimeUnit::NANOS)),
        // A plain text, because not every reader supports Parquet's type for JSON.
        ElementKind::Word | ElementKind::Fields => Some(LogicalType::String),
        ElementKind::Address | ElementKind::Mac | ElementKind::Flag => None,
    }
}

/// Appends flow rows as one row group. `constant` caches encoded columns for the next row groups.
pub(crate) fn append_flows(
    file: &mut SerializedFileWriter<Vec<u8>>,
    rows: &[ExporterRow],
    constant: &mut ConstantColumns,
) -> Result<()> {
    let schema = file.schema_descr().columns().to_vec();
    let properties = Arc::clone(file.properties());
    let mut group = file.next_row_group()?;
    let columns = columns::flow_columns();
    let values = find_constant_values(columns, rows);
    for (index, ((column, described), value)) in columns.iter().zip(schema).zip(values).enumerate() {
        if let Some(value) = value {
            let properties = Arc::clone(&properties);
            let written = WritableColumn { index, kind: column.kind, schema: described, properties };
            constant.append_column(&mut group, written, value, rows.len())?;
        } else {
            let values = rows.iter().map(|row| Some(column.value_in_row(row)));
            write_column(&mut group, column.kind, false, values)?;
        }
    }
    group.close().map(drop)
}

/// Appends ledger rows as one row group.
pub(crate) fn append_meter_stats(file: &mut SerializedFileWriter<Vec<u8>>, rows: &[LedgerRow]) -> Result<()> {
    let mut group = file.next_row_group()?;
    for column in columns::ledger_columns() {
        write_column(&mut group, column.kind, column.optional, rows.iter().map(|row| (column.value)(row)))?;
    }
    group.close().map(drop)
}

fn write_column<'a>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    kind: ElementKind,
    optional: bool,
    values: impl Iterator<Item = Option<ElementValue<'a>>> + Clone,
) -> Result<()> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("the schema has fewer columns than the rows".into()))?;
    // Definition levels of a flat optional column: 1 for a value, 0 for null. The values themselves are written without nulls.
    let levels: Option<Vec<i16>> = optional.then(|| values.clone().map(|v| i16::from(v.is_some())).collect());
    write_values(column.untyped(), kind, values.flatten(), levels.as_deref())?;
    column.close()
}

pub(super) fn write_values<'a>(
    column: &mut ColumnWriter<'_>,
    kind: ElementKind,
    values: impl Iterator<Item = ElementValue<'a>>,
    levels: Option<&[i16]>,
) -> Result<()> {
    match kind {
        ElementKind::Unsigned(64) => {
            let values: Vec<i64> = values.map(|value| number_or_zero(value).cast_signed()).collect();
            get_typed_column_writer_mut::<Int64Type>(column).write_batch(&values, levels, None)?
        }
        ElementKind::Time => {
            // A timestamp is signed: times after 2262 become the last possible one.
            let values: Vec<i64> = values.map(|value| clamp_to_i64(number_or_zero(value))).collect();
            get_typed_column_writer_mut::<Int64Type>(column).write_batch(&values, levels, None)?
        }
        ElementKind::Unsigned(_) => {
            let values: Vec<i32> = values.map(narrow_to_i32).collect();
            get_typed_column_writer_mut::<Int32Type>(column).write_batch(&values, levels, None)?
        }
        ElementKind::Address | ElementKind::Mac => {
            let values = encode_addresses(values, if kind == ElementKind::Mac { 6 } else { 16 });
            get_typed_column_writer_mut::<FixedLenByteArrayType>(column).write_batch(&values, levels, None)?
        }
        ElementKind::Word => get_typed_column_writer_mut::<ByteArrayType>(column).write_batch(
            &encode_words(values),
            levels,
            None,
        )?,
        ElementKind::Fields => get_typed_column_writer_mut::<ByteArrayType>(column).write_batch(
            &encode_json_objects(values),
            levels,
            None,
        )?,
        ElementKind::Flag => {
            let values: Vec<bool> = values.map(|value| value == ElementValue::Flag(true)).collect();
            get_typed_column_writer_mut::<BoolType>(column).write_batch(&values, levels, None)?
        }
    };
    Ok(())
}

/// The number of a value; 0 for another kind of value. That cannot happen: a test of `flow::element` makes sure that
/// values have the kind of their element.
fn number_or_zero(value: ElementValue<'_>) -> u64 {
    if let ElementValue::Number(number) = value { number } else { 0 }
}

fn narrow_to_i32(value: ElementValue<'_>) -> i32 {
    // Parquet has no unsigned physical type: the bits of the number are stored in a signed one.
    clamp_to_u32(number_or_zero(value)).cast_signed()
}

/// Encodes addresses of `length` bytes. One allocation holds them all, and each result is a slice of it.
fn encode_addresses<'a>(
    values: impl Iterator<Item = ElementValue<'a>>,
    length: usize,
) -> Vec<FixedLenByteArray> {
    let mut bytes = Vec::new();
    for value in values {
        match value {
            ElementValue::Address(address) => bytes.extend(address),
            ElementValue::Mac(mac) => bytes.extend(mac),
            _ => bytes.extend(std::iter::repeat_n(0, length)),
        }
    }
    // `length` is 6 or 16, so this is no division by zero.
    let count = bytes.len() / length;
    let all = ByteArray::from(bytes);
    (0..count).map(|index| all.slice(index * length, length).into()).collect()
}

/// Encodes words. A series of equal words is allocated once, because words repeat often.
fn encode_words<'a>(values: impl Iterator<Item = ElementValue<'a>>) -> Vec<ByteArray> {
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

/// Encodes fields as JSON objects. If there are no fields, as in most records, the text is empty.
fn encode_json_objects<'a>(values: impl Iterator<Item = ElementValue<'a>>) -> Vec<ByteArray> {
    // Clones share these bytes, so an empty text allocates nothing.
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
