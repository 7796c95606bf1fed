//! One row group of Parquet, and the footer that makes it a file.
//!
//! In a growing file, each row group is a block: a head with lengths and checksums, the pages, and the footer that a
//! file with only this row group would have. So a killed process leaves whole blocks, each with everything that is
//! needed to read it.
//!
//! ```text
//! PAR1 | head, pages, footer | head, pages, footer | … | footer of all
//! ```
//! Readers use the last footer and ignore the earlier ones.

use super::Error;
use super::checksum::crc32c;
use super::columns::{ExporterRow, LedgerRow};
use super::constant_columns::ConstantColumns;
use super::encode::{self, WritableTable};
use super::files::HourPartition;
use super::sink::sum_carried;
use packetrig_flow::CarriedRecords;
use packetrig_units::clamp_to_usize;
use parquet::errors::Result;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::writer::SerializedFileWriter;
use std::fmt;
use std::ops::Range;

/// First and last bytes of a Parquet file.
pub(super) const PARQUET_MAGIC: [u8; 4] = *b"PAR1";
/// Offset of the row group in a file that is encoded in memory: after the magic.
const FIRST_ROW_GROUP_OFFSET: i64 = 4;

/// An encoded row group that can be placed anywhere in a file.
pub(super) struct EncodedGroup {
    pub(super) table: WritableTable,
    pub(super) partition: HourPartition,
    pub(super) carried: CarriedRecords,
    /// True if it has records of meters of a group, see [`GroupWriter`](super::group_writer::GroupWriter).
    pub(super) is_of_meters: bool,
    pages: Vec<u8>,
    /// Metadata of a file with only this row group, which begins after [`PARQUET_MAGIC`].
    metadata: ParquetMetaData,
}

impl fmt::Debug for EncodedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, partition, carried, pages, .. } = self;
        f.debug_struct("EncodedGroup")
            .field("table", table)
            .field("partition", partition)
            .field("carried", carried)
            .field("bytes", &pages.len())
            .finish_non_exhaustive()
    }
}

/// A row group that is encoded for one offset in a file.
pub(super) struct EncodedBlock {
    pub(super) block: Vec<u8>,
    pub(super) footer: FileFooter,
}

/// The start of a block: lengths and checksums of its pages and its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowGroupBlockHead {
    pub(super) pages: u64,
    pub(super) footer: u64,
    pub(super) pages_checksum: u32,
    pub(super) footer_checksum: u32,
}

impl RowGroupBlockHead {
    pub(super) const ENCODED_BYTES: usize = 24;

    fn to_bytes(self) -> Vec<u8> {
        let lengths = [self.pages.to_le_bytes(), self.footer.to_le_bytes()];
        let checksums = [self.pages_checksum.to_le_bytes(), self.footer_checksum.to_le_bytes()];
        [lengths.as_flattened(), checksums.as_flattened()].concat()
    }

    pub(super) fn from_bytes(bytes: [u8; Self::ENCODED_BYTES]) -> Self {
        Self {
            pages: u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])),
            footer: u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 + byte])),
            pages_checksum: u32::from_le_bytes(std::array::from_fn(|byte| bytes[16 + byte])),
            footer_checksum: u32::from_le_bytes(std::array::from_fn(|byte| bytes[20 + byte])),
        }
    }
}

/// The content of a file's footer.
#[derive(Clone, Debug)]
pub(super) struct FileFooter {
    /// Schema and other metadata. The number of rows in it is that of one row group only.
    file: FileMetaData,
    groups: Vec<RowGroupMetaData>,
}

impl EncodedGroup {
    pub(super) fn from_flows(
        partition: HourPartition,
        rows: &[ExporterRow],
        constant: &mut ConstantColumns,
    ) -> std::result::Result<Self, Error> {
        let carried = sum_carried(rows.iter().map(|row| &row.record));
        let is_of_meters = rows.iter().any(|row| row.record.is_of_group());
        let group = Self::encode_group(WritableTable::Flows, partition, carried, |file| {
            encode::append_flows(file, rows, constant)
        })?;
        Ok(Self { is_of_meters, ..group })
    }

    pub(super) fn from_ledgers(
        partition: HourPartition,
        rows: &[LedgerRow],
    ) -> std::result::Result<Self, Error> {
        Self::encode_group(WritableTable::MeterStats, partition, CarriedRecords::default(), |file| {
            encode::append_meter_stats(file, rows)
        })
    }

    pub(super) fn encode_group(
        table: WritableTable,
        partition: HourPartition,
        carried: CarriedRecords,
        write: impl FnOnce(&mut SerializedFileWriter<Vec<u8>>) -> Result<()>,
    ) -> std::result::Result<Self, Error> {
        let FileInMemory { metadata, bytes: mut pages } =
            FileInMemory::encode_file(table, write).map_err(Error::Encode)?;
        // Only the pages are kept. The footer depends on the offset of the pages in a file, so it is made later.
        let end = metadata.row_groups().iter().map(|group| pages_range(group).end).max().unwrap_or(0);
        pages.truncate(clamp_to_usize(end));
        pages.drain(..PARQUET_MAGIC.len().min(pages.len()));
        Ok(Self { table, partition, carried, is_of_meters: false, pages, metadata })
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.pages.len()
    }

    /// Encodes the block of this row group for the offset `start` of a file.
    pub(super) fn encode_block_at(&self, start: u64) -> Result<EncodedBlock> {
        // The pages move by this many bytes: from their offset in memory, after the magic, to their offset in the
        // file, after the block's head.
        let by = (start + RowGroupBlockHead::ENCODED_BYTES as u64).cast_signed() - FIRST_ROW_GROUP_OFFSET;
        let groups = self.metadata.row_groups().iter().map(|group| shift_group_offsets(group, by));
        let footer = FileFooter {
            file: self.metadata.file_metadata().clone(),
            groups: groups.collect::<Result<_>>()?,
        };
        let encoded = footer.encode_footer()?;
        let head = RowGroupBlockHead {
            pages: self.pages.len() as u64,
            footer: encoded.len() as u64,
            pages_checksum: crc32c(&self.pages),
            footer_checksum: crc32c(&encoded),
        };
        Ok(EncodedBlock { block: [&head.to_bytes()[..], &self.pages, &encoded].concat(), footer })
    }
}

struct FileInMemory {
    metadata: ParquetMetaData,
    bytes: Vec<u8>,
}

impl FileInMemory {
    fn encode_file(
        table: WritableTable,
        write: impl FnOnce(&mut SerializedFileWriter<Vec<u8>>) -> Result<()>,
    ) -> Result<Self> {
        // The library can only write whole files, so each row group is encoded as a separate file.
        let mut file = table.open_writer()?;
        write(&mut file)?;
        let metadata = file.finish()?;
        Ok(Self { metadata, bytes: std::mem::take(file.inner_mut()) })
    }
}

impl FileFooter {
    /// Makes a footer from the metadata of a file.
    pub(super) fn from_metadata(metadata: &ParquetMetaData) -> Self {
        Self { file: metadata.file_metadata().clone(), groups: metadata.row_groups().to_vec() }
    }

    pub(super) fn groups(&self) -> &[RowGroupMetaData] {
        &self.groups
    }

    /// Appends the row groups of another footer.
    pub(super) fn append_groups(&mut self, other: Self) {
        self.groups.extend(other.groups);
    }

    /// The bytes of the footer: metadata, their length, magic.
    pub(super) fn encode_footer(&self) -> Result<Vec<u8>> {
        let file = FileMetaData::new(
            self.file.version(),
            // `file` is the metadata of a single row group, so the rows are counted from zero.
            self.groups.iter().map(RowGroupMetaData::num_rows).sum(),
            self.file.created_by().map(str::to_owned),
            self.file.key_value_metadata().cloned(),
            self.file.schema_descr_ptr(),
            self.file.column_orders().cloned(),
        );
        // Each row group was encoded as the only one of its file, with ordinal 0.
        let numbered = (0..)
            .zip(&self.groups)
            .map(|(ordinal, group)| group.clone().into_builder().set_ordinal(ordinal).build());
        let metadata = ParquetMetaData::new(file, numbered.collect::<Result<_>>()?);
        let mut bytes = Vec::new();
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish()?;
        Ok(bytes)
    }
}

/// The range of a row group's pages in its file.
pub(super) fn pages_range(group: &RowGroupMetaData) -> Range<u64> {
    let ranges = group.columns().iter().map(ColumnChunkMetaData::byte_range);
    let start = ranges.clone().map(|(start, _)| start).min().unwrap_or(0);
    // The numbers may come from a damaged file, so the sum must not overflow.
    start..ranges.map(|(start, length)| start.saturating_add(length)).max().unwrap_or(0)
}

/// The metadata of a row group that is moved by `by` bytes.
fn shift_group_offsets(group: &RowGroupMetaData, by: i64) -> Result<RowGroupMetaData> {
    let columns =
        group.columns().iter().map(|column| shift_column_offsets(column, by)).collect::<Result<_>>()?;
    group
        .clone()
        .into_builder()
        .set_column_metadata(columns)
        .set_file_offset(FIRST_ROW_GROUP_OFFSET + by)
        .build()
}

// Offsets of page indexes are removed: growing files have no page indexes.
fn shift_column_offsets(column: &ColumnChunkMetaData, by: i64) -> Result<ColumnChunkMetaData> {
    column
        .clone()
        .into_builder()
        .set_data_page_offset(column.data_page_offset() + by)
        .set_dictionary_page_offset(column.dictionary_page_offset().map(|at| at + by))
        .set_index_page_offset(None)
        .set_column_index_offset(None)
        .set_column_index_length(None)
        .set_offset_index_offset(None)
        .set_offset_index_length(None)
        .build()
}
