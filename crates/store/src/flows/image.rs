//! A Parquet file that is being made, in memory: nobody can see half of it.

use super::Error;
use super::columns::{LedgerRow, Row};
use super::encode::{self, Table};
use super::files::Partition;
use packetrig_flow::Carried;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::writer::SerializedFileWriter;
use std::fmt;

/// A file with some row groups.
pub(super) struct Image {
    pub(super) table: Table,
    pub(super) partition: Partition,
    writer: SerializedFileWriter<Vec<u8>>,
    /// What the records in it stand for.
    pub(super) carried: Carried,
    /// The same by row group.
    pub(super) groups: Vec<Carried>,
    /// Number of the row group that was last added, over all images: the least is the longest untouched.
    pub(super) touched: u64,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, partition, carried, touched, writer, .. } = self;
        f.debug_struct("Image")
            .field("table", table)
            .field("partition", partition)
            .field("carried", carried)
            .field("touched", touched)
            .field("bytes", &writer.bytes_written())
            .finish()
    }
}

/// A whole file that has yet to be written.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) table: Table,
    pub(super) partition: Partition,
    pub(super) bytes: Vec<u8>,
    pub(super) carried: Carried,
    /// The same by row group, and where these are.
    pub(super) groups: Vec<Carried>,
    pub(super) metadata: ParquetMetaData,
}

impl Image {
    pub(super) fn new(table: Table, partition: Partition) -> Result<Self, Error> {
        let writer = table.writer().map_err(Error::Encode)?;
        Ok(Self { table, partition, writer, carried: Carried::default(), groups: Vec::new(), touched: 0 })
    }

    pub(super) fn add_flows(&mut self, rows: &[Row]) -> Result<(), Error> {
        encode::flows(&mut self.writer, rows).map_err(Error::Encode)
    }

    pub(super) fn add_ledgers(&mut self, rows: &[LedgerRow]) -> Result<(), Error> {
        encode::meter_stats(&mut self.writer, rows).map_err(Error::Encode)
    }

    pub(super) fn bytes(&self) -> usize {
        self.writer.bytes_written()
    }

    pub(super) fn finish(self) -> Result<Finished, Error> {
        let Self { table, partition, mut writer, carried, groups, .. } = self;
        let metadata = writer.finish().map_err(Error::Encode)?;
        let bytes = std::mem::take(writer.inner_mut());
        Ok(Finished { table, partition, bytes, carried, groups, metadata })
    }
}
