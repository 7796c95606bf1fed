//! A finished file taken apart into files of one row group each.
//!
//! Where the disk has no room for the whole file, it may have room for some of them. Nothing is encoded again: the bytes of a row
//! group stay, and a footer of its own says where they are now.

use super::Error;
use super::image::Finished;
use parquet::errors::Result;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};

/// What Parquet files begin with.
const MAGIC: [u8; 4] = *b"PAR1";
/// Where the first row group begins.
const FIRST: i64 = 4;

/// The row groups of a file, each as a file.
pub(super) fn row_groups(file: &Finished) -> std::result::Result<Vec<Finished>, Error> {
    let groups = file.metadata.row_groups().iter().zip(&file.groups);
    let alone = groups.map(|(group, carried)| {
        let (bytes, metadata) = alone(file, group).map_err(Error::Encode)?;
        Ok(Finished {
            table: file.table,
            partition: file.partition,
            bytes,
            carried: *carried,
            groups: vec![*carried],
            metadata,
        })
    });
    alone.collect()
}

/// A row group as a file, and its footer.
fn alone(file: &Finished, group: &RowGroupMetaData) -> Result<(Vec<u8>, ParquetMetaData)> {
    let ranges = group.columns().iter().map(ColumnChunkMetaData::byte_range);
    let start = ranges.clone().map(|(start, _)| start).min().unwrap_or(0);
    let end = ranges.map(|(start, length)| start + length).max().unwrap_or(0);
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    let content = file.bytes.get(place(start)..place(end)).unwrap_or_default();
    let by = start.cast_signed() - FIRST;
    let columns = group.columns().iter().map(|column| moved(column, by)).collect::<Result<_>>()?;
    let group = group.clone().into_builder().set_column_metadata(columns).set_ordinal(0).build()?;
    let of_file = file.metadata.file_metadata();
    let file_metadata = FileMetaData::new(
        of_file.version(),
        group.num_rows(),
        of_file.created_by().map(str::to_owned),
        of_file.key_value_metadata().cloned(),
        of_file.schema_descr_ptr(),
        of_file.column_orders().cloned(),
    );
    let metadata = ParquetMetaData::new(file_metadata, vec![group]);
    let mut bytes = [&MAGIC[..], content].concat();
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish()?;
    Ok((bytes, metadata))
}

/// A column that lies so many bytes nearer to the beginning. Indexes of pages are behind all row groups and are left there.
fn moved(column: &ColumnChunkMetaData, by: i64) -> Result<ColumnChunkMetaData> {
    let moved = column.clone().into_builder();
    moved
        .set_data_page_offset(column.data_page_offset() - by)
        .set_dictionary_page_offset(column.dictionary_page_offset().map(|at| at - by))
        .set_index_page_offset(None)
        .set_column_index_offset(None)
        .set_column_index_length(None)
        .set_offset_index_offset(None)
        .set_offset_index_length(None)
        .build()
}
