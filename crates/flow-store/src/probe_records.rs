//! Records of probes as a Parquet table. A timestamp has two columns, its lower and upper bound, in nanoseconds of the
//! monotonic clock. The planned time, and the middle of a timestamp by a device's clock, have one column each. Flags
//! are one text. The header is JSON in the file's metadata.

use packetrig_probe::header::ProbeHeader;
use packetrig_probe::{DepartureStage, ProbeRecord, ProbeStamp, StampClock};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use std::sync::Arc;

/// A failure to encode records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("cannot encode probe records as Parquet: {0}; this is a bug in packetrig")]
    Table(#[from] parquet::errors::ParquetError),
    /// A header that cannot be written as JSON.
    #[error("cannot encode the header of probe records as JSON: {0}; this is a bug in packetrig")]
    Json(#[from] serde_json::Error),
}

/// Key of the header in the file's metadata.
const PROBE_HEADER_METADATA_KEY: &str = "packetrig.probe.header";
const ZSTD_LEVEL: i32 = 3;
/// Maximum number of rows of a row group.
const ROWS_PER_GROUP: usize = 1 << 16;

type NumberColumn = fn(&ProbeRecord) -> Option<u64>;

const NUMBER_COLUMNS: [(&str, NumberColumn); 5] = [
    ("number", |record| Some(record.number.into())),
    ("train", |record| Some(record.train.into())),
    ("length", |record| Some(record.length.into())),
    ("planned_ns", |record| Some(record.planned.as_nanos())),
    ("wire_device_clock_ns", |record| {
        let wire = record.departures.iter().find(|departure| departure.stage == DepartureStage::Wire)?;
        // Times of a device's clock cannot be compared with the other times, so they have their own column.
        matches!(wire.stamp.clock, StampClock::Device(_)).then(|| wire.stamp.middle())
    }),
];

type StampColumn = fn(&ProbeRecord) -> Option<ProbeStamp>;

/// Timestamps; each becomes two columns.
const STAMP_COLUMNS: [(&str, StampColumn); 8] = [
    ("handed_over", |record| record.handed_over),
    ("released", |record| record.released),
    ("queue", |record| record.departure_stamp(DepartureStage::Queue)),
    ("capture", |record| record.departure_stamp(DepartureStage::Capture)),
    ("driver", |record| record.departure_stamp(DepartureStage::Driver)),
    ("far_arrival", |record| record.far_arrival),
    ("far_departure", |record| record.far_departure),
    ("answered", |record| record.answered),
];

type TextColumn = fn(&ProbeRecord) -> serde_json::Value;

const TEXT_COLUMNS: [(&str, TextColumn); 2] = [
    ("kind", |record| serde_json::json!(record.kind)),
    ("flags", |record| {
        // Flags have the same names as in JSON.
        let names = record.flags.iter().map(|flag| serde_json::json!(flag));
        let names: Vec<_> = names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        names.join(",").into()
    }),
];

/// Encodes a header and records as the content of a Parquet file.
pub fn encode_parquet(header: &ProbeHeader, records: &[ProbeRecord]) -> Result<Vec<u8>, Error> {
    let properties = WriterProperties::builder()
        .set_created_by(concat!("packetrig ", env!("CARGO_PKG_VERSION")).into())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_key_value_metadata(Some(vec![KeyValue::new(
            PROBE_HEADER_METADATA_KEY.to_owned(),
            serde_json::to_string(header)?,
        )]));
    let schema = Arc::new(build_schema()?);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build()))?;
    // Row groups of a bounded size, so that a reader need not hold the whole file.
    for rows in records.chunks(ROWS_PER_GROUP) {
        let mut group = file.next_row_group()?;
        write_columns(&mut group, rows)?;
        group.close()?;
    }
    Ok(file.into_inner()?)
}

fn build_schema() -> Result<Type, Error> {
    let mut fields = Vec::new();
    for (name, _) in NUMBER_COLUMNS {
        fields.push(Arc::new(number_type(name)?));
    }
    for (name, _) in STAMP_COLUMNS {
        fields.push(Arc::new(number_type(&format!("{name}_lo_ns"))?));
        fields.push(Arc::new(number_type(&format!("{name}_hi_ns"))?));
    }
    for (name, _) in TEXT_COLUMNS {
        fields.push(Arc::new(text_type(name)?));
    }
    Ok(Type::group_type_builder("probes").with_fields(fields).build()?)
}

fn number_type(name: &str) -> Result<Type, Error> {
    Ok(Type::primitive_type_builder(name, Physical::INT64)
        // A time that was not taken is null, because zero would be a time.
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::integer(64, false)))
        .build()?)
}

fn text_type(name: &str) -> Result<Type, Error> {
    Ok(Type::primitive_type_builder(name, Physical::BYTE_ARRAY)
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::String))
        .build()?)
}

// Writes the columns in the order of `build_schema`.
fn write_columns(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    rows: &[ProbeRecord],
) -> Result<(), Error> {
    for (_, of) in NUMBER_COLUMNS {
        write_numbers(group, rows.iter().map(of))?;
    }
    for (_, of) in STAMP_COLUMNS {
        write_numbers(group, rows.iter().map(|row| of(row).map(|stamp| stamp.lo)))?;
        write_numbers(group, rows.iter().map(|row| of(row).map(|stamp| stamp.hi)))?;
    }
    for (_, of) in TEXT_COLUMNS {
        let values: Vec<ByteArray> =
            rows.iter().map(|row| ByteArray::from(of(row).as_str().unwrap_or_default())).collect();
        if let Some(mut column) = group.next_column()? {
            column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            column.close()?;
        }
    }
    Ok(())
}

fn write_numbers(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: impl Iterator<Item = Option<u64>> + Clone,
) -> Result<(), Error> {
    // Definition levels: 1 for a value, 0 for null. Nulls have no entry among the values.
    let levels: Vec<i16> = values.clone().map(|value| value.is_some().into()).collect();
    let values: Vec<i64> = values.flatten().map(u64::cast_signed).collect();
    if let Some(mut column) = group.next_column()? {
        column.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
        column.close()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
