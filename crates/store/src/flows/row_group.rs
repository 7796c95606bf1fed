//! One row group of Parquet, and the footer that makes a file of it.
//!
//! In a file that grows, each row group is a block: a head with lengths and checksums, the pages, and the footer of a file with this row
//! group alone. A process that is killed leaves whole blocks, each with all that is needed to read it.
//!
//! ```text
//! PAR1 | head, pages, footer | head, pages, footer | … | footer of all
//! ```
//! Readers follow the last footer and do not notice the others.

use super::Error;
use super::checksum::crc32c;
use super::columns::{LedgerRow, SourcedRow};
use super::encode::{self, WritableTable};
use super::files::HourPartition;
use super::sink::carried;
use packetrig_flow::CarriedRecords;
use parquet::errors::Result;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::writer::SerializedFileWriter;
use std::fmt;
use std::ops::Range;

/// What Parquet files begin and end with.
pub(super) const MAGIC: [u8; 4] = *b"PAR1";
/// Where the row group of a file that is made in memory begins: behind the magic.
const FIRST: i64 = 4;
/// A row group as it will be in a file.
pub(super) struct EncodedGroup {
    pub(super) table: WritableTable,
    pub(super) partition: HourPartition,
    /// What the records in it stand for.
    pub(super) carried: CarriedRecords,
    pages: Vec<u8>,
    /// Of a file with this row group alone, which begins behind [`MAGIC`].
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

/// A row group at its place in a file.
pub(super) struct PlacedGroup {
    pub(super) block: Vec<u8>,
    pub(super) footer: FileFooter,
}

/// What a block begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockHead {
    pub(super) pages: u64,
    pub(super) footer: u64,
    pub(super) pages_checksum: u32,
    pub(super) footer_checksum: u32,
}

impl BlockHead {
    pub(super) const BYTES: usize = 24;

    fn encode(self) -> Vec<u8> {
        let lengths = [self.pages.to_le_bytes(), self.footer.to_le_bytes()];
        let checksums = [self.pages_checksum.to_le_bytes(), self.footer_checksum.to_le_bytes()];
        [lengths.as_flattened(), checksums.as_flattened()].concat()
    }

    pub(super) fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let (lengths, checksums) = bytes.split_at(16);
        let length = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| lengths[at * 8 + byte]));
        let checksum = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| checksums[at * 4 + byte]));
        Self {
            pages: length(0),
            footer: length(1),
            pages_checksum: checksum(0),
            footer_checksum: checksum(1),
        }
    }
}

/// What the footer of a file says.
#[derive(Clone, Debug)]
pub(super) struct FileFooter {
    /// Schema and the rest; the number of rows is that of one row group.
    file: FileMetaData,
    groups: Vec<RowGroupMetaData>,
}

impl EncodedGroup {
    pub(super) fn of_flows(
        partition: HourPartition,
        rows: &[SourcedRow],
    ) -> std::result::Result<Self, Error> {
        let carried = carried(rows.iter().map(|row| &row.record));
        Self::encode(WritableTable::Flows, partition, carried, |file| encode::flows(file, rows))
    }

    pub(super) fn of_ledgers(
        partition: HourPartition,
        rows: &[LedgerRow],
    ) -> std::result::Result<Self, Error> {
        Self::encode(WritableTable::MeterStats, partition, CarriedRecords::default(), |file| {
            encode::meter_stats(file, rows)
        })
    }

    fn encode(
        table: WritableTable,
        partition: HourPartition,
        carried: CarriedRecords,
        write: impl FnOnce(&mut SerializedFileWriter<Vec<u8>>) -> Result<()>,
    ) -> std::result::Result<Self, Error> {
        let alone = || {
            let mut file = table.writer()?;
            write(&mut file)?;
            let metadata = file.finish()?;
            Ok((metadata, std::mem::take(file.inner_mut())))
        };
        let (metadata, mut pages) = alone().map_err(Error::Encode)?;
        let end = metadata.row_groups().iter().map(|group| place_of(group).end).max().unwrap_or(0);
        pages.truncate(usize::try_from(end).unwrap_or(usize::MAX));
        pages.drain(..MAGIC.len().min(pages.len()));
        Ok(Self { table, partition, carried, pages, metadata })
    }

    pub(super) fn bytes(&self) -> usize {
        self.pages.len()
    }

    /// The block of it behind so many bytes of a file.
    pub(super) fn at(&self, start: u64) -> Result<PlacedGroup> {
        let by = (start + BlockHead::BYTES as u64).cast_signed() - FIRST;
        let groups = self.metadata.row_groups().iter().map(|group| moved(group, by));
        let footer = FileFooter {
            file: self.metadata.file_metadata().clone(),
            groups: groups.collect::<Result<_>>()?,
        };
        let encoded = footer.encode()?;
        let head = BlockHead {
            pages: self.pages.len() as u64,
            footer: encoded.len() as u64,
            pages_checksum: crc32c(&self.pages),
            footer_checksum: crc32c(&encoded),
        };
        Ok(PlacedGroup { block: [&head.encode()[..], &self.pages, &encoded].concat(), footer })
    }
}

impl FileFooter {
    /// Of the metadata of a file.
    pub(super) fn of(metadata: &ParquetMetaData) -> Self {
        Self { file: metadata.file_metadata().clone(), groups: metadata.row_groups().to_vec() }
    }

    pub(super) fn groups(&self) -> &[RowGroupMetaData] {
        &self.groups
    }

    /// Appends the row groups of another.
    pub(super) fn add(&mut self, other: Self) {
        self.groups.extend(other.groups);
    }

    /// The end of a file with its row groups: metadata, their length, magic.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let file = FileMetaData::new(
            self.file.version(),
            self.groups.iter().map(RowGroupMetaData::num_rows).sum(),
            self.file.created_by().map(str::to_owned),
            self.file.key_value_metadata().cloned(),
            self.file.schema_descr_ptr(),
            self.file.column_orders().cloned(),
        );
        let numbered = (0..)
            .zip(&self.groups)
            .map(|(ordinal, group)| group.clone().into_builder().set_ordinal(ordinal).build());
        let metadata = ParquetMetaData::new(file, numbered.collect::<Result<_>>()?);
        let mut bytes = Vec::new();
        ParquetMetaDataWriter::new(&mut bytes, &metadata).finish()?;
        Ok(bytes)
    }
}

/// Where the pages of a row group are in its file.
pub(super) fn place_of(group: &RowGroupMetaData) -> Range<u64> {
    let ranges = group.columns().iter().map(ColumnChunkMetaData::byte_range);
    let start = ranges.clone().map(|(start, _)| start).min().unwrap_or(0);
    start..ranges.map(|(start, length)| start.saturating_add(length)).max().unwrap_or(0)
}

/// A row group that lies so many bytes farther from the beginning. Indexes of pages are not kept.
fn moved(group: &RowGroupMetaData, by: i64) -> Result<RowGroupMetaData> {
    let column = |column: &ColumnChunkMetaData| {
        let moved = column.clone().into_builder();
        moved
            .set_data_page_offset(column.data_page_offset() + by)
            .set_dictionary_page_offset(column.dictionary_page_offset().map(|at| at + by))
            .set_index_page_offset(None)
            .set_column_index_offset(None)
            .set_column_index_length(None)
            .set_offset_index_offset(None)
            .set_offset_index_length(None)
            .build()
    };
    let columns = group.columns().iter().map(column).collect::<Result<_>>()?;
    group.clone().into_builder().set_column_metadata(columns).set_file_offset(FIRST + by).build()
}
