//! The sink for files: Parquet, in Hive partitions of hours.
//!
//! Rows wait in memory until there are enough for a row group. Then they are sorted by the start of their flows, and
//! each row is written to the file of the hour in which its flow began. A file grows on the disk under a hidden name,
//! row group by row group, and gets its final name when it is large or old enough. So memory holds the rows of one row
//! group, and a process that is killed loses no more ([`super::recover`]). If a write fails, row groups wait and are
//! tried again; if too many wait, the newest are dropped and counted as lost. A file whose next row group does not fit
//! on the disk is finished with the row groups that it has.
//!
//! Invariant: records count as [`SinkRecordCounts::stored`] once their file has its final name, and until then
//! as [`SinkRecordCounts::waiting`] or [`SinkRecordCounts::lost`].

use super::columns::{ExporterRow, LedgerRow};
use super::constant_columns::ConstantColumns;
use super::files::{HourPartition, PartitionedHours};
use super::group_writer::GroupWriter;
use super::retention::DirectoryRetention;
use super::row_group::EncodedGroup;
use super::sink::sum_carried;
use super::{Error, RecordExporter, RecordSink, SinkRecordCounts};
use packetrig_flow::{FlowRecord, MeterLedger};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos, RetentionLimits};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Maximum number of hours that the waiting rows are split into; rows of other hours go into the partition of the
/// unknown hour. So flows with random times cannot fill the disk with directories.
const MAX_HOURS: usize = 256;
/// Maximum number of ledger rows that wait for a file.
const MAX_LEDGERS: usize = 3600;
/// At least this many rows become row groups after [`MAX_GROUP_AGE`], before there are [`ParquetOptions::group_rows`].
/// Fewer rows are not worth a row group: its footer takes as many bytes as a thousand rows.
const MIN_TIMED_GROUP_ROWS: usize = 4096;
/// Maximum time that [`MIN_TIMED_GROUP_ROWS`] rows wait, because a process that is killed loses waiting rows.
const MAX_GROUP_AGE: Nanos = Nanos::from_secs(1);

/// Options of the sink for files.
#[derive(Clone, Debug)]
pub struct ParquetOptions {
    /// The directory, which is created if necessary.
    pub directory: PathBuf,
    /// Number of rows of a row group; they are sorted together.
    pub group_rows: usize,
    /// A file is finished when it has this many bytes.
    pub file_bytes: usize,
    /// All files are finished when the oldest record that is in no finished file has waited this long.
    pub file_age: Nanos,
    /// Maximum number of bytes of row groups that wait because writing them failed.
    pub waiting_bytes: usize,
    /// True if only hours near the present have their own partitions. Needed for live records, because
    /// exporters choose the times of their records.
    pub is_live: bool,
    /// Limits beyond which the oldest files of the directory are removed.
    pub limits: RetentionLimits,
}

impl ParquetOptions {
    /// The defaults: row groups of 65,536 rows, files of 32 MiB or one minute, and at most 256 MiB
    /// of waiting row groups.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            group_rows: 1 << 16,
            file_bytes: 32 << 20,
            file_age: Nanos::from_secs(60),
            waiting_bytes: 256 << 20,
            is_live: false,
            limits: RetentionLimits::default(),
        }
    }
}

#[derive(Debug)]
pub struct ParquetSink {
    options: ParquetOptions,
    rows: Vec<ExporterRow>,
    ledgers: Vec<LedgerRow>,
    constant: ConstantColumns,
    writer: GroupWriter,
    retention: DirectoryRetention,
    /// When the oldest of `rows` arrived.
    rows_since: Option<MonoTime>,
    /// When the oldest row that is in no finished file arrived.
    since: Option<MonoTime>,
}

impl ParquetSink {
    /// Creates a sink for a directory, and creates the directory if necessary.
    pub fn new(options: ParquetOptions) -> Result<Self, Error> {
        let directory = &options.directory;
        packetrig_sys::private_files::create_directories(directory)
            .map_err(Error::file("create", directory))?;
        let writer = GroupWriter::new(directory.clone(), options.file_bytes, options.waiting_bytes);
        let retention = DirectoryRetention::new(directory, options.limits);
        Ok(Self {
            options,
            rows: Vec::new(),
            ledgers: Vec::new(),
            constant: ConstantColumns::default(),
            writer,
            retention,
            rows_since: None,
            since: None,
        })
    }

    /// Makes row groups of all waiting rows and ledgers.
    fn make_all_row_groups(&mut self) -> Result<(), Error> {
        // With rows sorted by start, the statistics of a row group have narrow bounds: queries for a time
        // span skip most row groups.
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by_key(|row| row.record.first_ns());
        let RowsByHour { hours, rest } = rows_by_hour(&rows, self.partitioned_hours());
        let mut done = Ok(());
        for (partition, rows) in hours {
            done = self.add_flows(partition, rows).and(done);
        }
        if !rest.is_empty() {
            done = self.add_flows(HourPartition(None), &rest).and(done);
        }
        // The memory of a row group's rows is reused.
        rows.clear();
        self.rows = rows;
        self.rows_since = None;
        self.make_ledger_row_groups().and(done)
    }

    fn add_flows(&mut self, partition: HourPartition, rows: &[ExporterRow]) -> Result<(), Error> {
        let group = EncodedGroup::from_flows(partition, rows, &mut self.constant)
            // These rows are not in `self.rows` any more, so they are counted as lost here.
            .inspect_err(|_| self.writer.kept.count_lost(sum_carried(rows.iter().map(|row| &row.record))))?;
        self.writer.add_group(group);
        Ok(())
    }

    fn make_ledger_row_groups(&mut self) -> Result<(), Error> {
        let mut ledgers = std::mem::take(&mut self.ledgers);
        let hours = self.partitioned_hours();
        let partition = |row: &LedgerRow| hours.partition_or_unknown(row.at_ns);
        // The sort is stable: rows of one partition stay in their order, and become one row group even if they arrived mixed.
        ledgers.sort_by_key(partition);
        let mut done = Ok(());
        for rows in ledgers.chunk_by(|a, b| partition(a) == partition(b)) {
            match EncodedGroup::from_ledgers(partition(&rows[0]), rows) {
                Ok(group) => self.writer.add_group(group),
                // Ledgers are cumulative, so the next ledger makes up for a lost one.
                Err(error) => done = Err(error),
            }
        }
        done
    }

    fn partitioned_hours(&self) -> PartitionedHours {
        if self.options.is_live {
            PartitionedHours::around_now(clock::wall_clock_ns())
        } else {
            PartitionedHours::ALL
        }
    }

    /// Makes row groups of all rows, and makes the next attempt finish all files.
    fn end_all_files(&mut self) -> Result<(), Error> {
        let grouped = self.make_all_row_groups();
        self.writer.finish_files_at_next_attempt();
        self.since = None;
        grouped
    }

    /// Makes room on the disk for the waiting row groups, and writes them unless their retry is not due yet.
    fn write_due_groups_and_finish_files(&mut self) -> Result<(), Error> {
        let has_room = self.make_disk_room();
        self.writer.write_due_groups_and_finish_files().and(has_room)
    }

    /// Removes old files, so that the waiting row groups fit within the retention limits.
    fn make_disk_room(&mut self) -> Result<(), Error> {
        // Before the first tick the time is not known, so zero is used. The time only decides when the
        // files are scanned again.
        let now = self.writer.now.unwrap_or_default();
        let done = self.retention.make_disk_room(self.writer.disk_bytes_of_waiting_groups(), now);
        self.writer.kept.removed = self.retention.removed;
        done
    }

    /// Returns whether [`MIN_TIMED_GROUP_ROWS`] rows wait and the oldest has waited for [`MAX_GROUP_AGE`].
    fn is_group_due(&self, now: MonoTime) -> bool {
        self.rows.len() >= MIN_TIMED_GROUP_ROWS
            && self.rows_since.is_some_and(|since| now.since(since) >= MAX_GROUP_AGE)
    }
}

impl PartitionedHours {
    /// The partition of the hour in which the flow of a row began.
    fn partition_of_row(self, row: &ExporterRow) -> HourPartition {
        self.partition_or_unknown(row.record.first_ns())
    }
}

/// Rows by the hour in which their flows began.
struct RowsByHour<'a> {
    hours: Vec<(HourPartition, &'a [ExporterRow])>,
    /// Rows of hours that have no partition of their own. If there are more than [`MAX_HOURS`] other hours, also the
    /// rows of the smallest of these.
    rest: Vec<ExporterRow>,
}

fn rows_by_hour(sorted: &[ExporterRow], partitioned: PartitionedHours) -> RowsByHour<'_> {
    let mut hours: BTreeMap<HourPartition, &[ExporterRow]> = BTreeMap::new();
    let mut rest: Vec<ExporterRow> = Vec::new();
    for rows in sorted.chunk_by(|a, b| partitioned.partition_of_row(a) == partitioned.partition_of_row(b)) {
        match partitioned.partition_of_row(&rows[0]) {
            HourPartition(None) => rest.extend_from_slice(rows),
            // Rows are sorted by time, so each hour is one chunk and nothing is replaced here.
            hour => drop(hours.insert(hour, rows)),
        }
    }
    if hours.len() > MAX_HOURS {
        let mut sizes: Vec<_> = hours.iter().map(|(partition, rows)| (rows.len(), *partition)).collect();
        // The smallest hours lose their partition: that moves the fewest rows.
        sizes.sort_unstable();
        for (_, partition) in &sizes[..sizes.len() - MAX_HOURS] {
            rest.extend_from_slice(hours.remove(partition).unwrap_or_default());
        }
    }
    // Rows of several hours were joined, and each row group must be sorted by its first column.
    rest.sort_by_key(|row| row.record.first_ns());
    RowsByHour { hours: hours.into_iter().collect(), rest }
}

impl RecordSink for ParquetSink {
    fn write_records(&mut self, records: &[FlowRecord], source: RecordExporter) -> Result<(), Error> {
        let mut done = Ok(());
        self.writer.kept.count_offered(records);
        for record in records {
            self.rows.push(ExporterRow { record: record.clone(), source });
            if self.rows.len() >= self.options.group_rows {
                done = self.make_all_row_groups().and(done);
                done = self.write_due_groups_and_finish_files().and(done);
            }
        }
        // A time that is already set stays, so it is the time of the oldest row.
        self.since = self.since.or(self.writer.now);
        self.rows_since = self.rows_since.or(self.writer.now);
        done
    }

    fn write_ledger(
        &mut self,
        ledger: &MeterLedger,
        source: RecordExporter,
        at_ns: u64,
    ) -> Result<(), Error> {
        self.ledgers.push(LedgerRow { at_ns, source, ledger: *ledger });
        self.since = self.since.or(self.writer.now);
        if self.ledgers.len() < MAX_LEDGERS {
            return Ok(());
        }
        self.make_ledger_row_groups().and_then(|()| self.write_due_groups_and_finish_files())
    }

    fn on_tick(&mut self, now: MonoTime) -> Result<(), Error> {
        self.writer.now = Some(now);
        // A file that grows must be finished in time, even if no more rows come.
        let waits = !(self.rows.is_empty() && self.ledgers.is_empty()) || self.writer.has_growing_files();
        let since = *self.since.get_or_insert(now);
        // Rows that arrived before the first tick have no time: they count from now.
        if !self.rows.is_empty() {
            self.rows_since.get_or_insert(now);
        }
        let mut done = Ok(());
        if !waits {
            self.since = None;
        } else if now.since(since) >= self.options.file_age {
            done = self.end_all_files();
        } else if self.is_group_due(now) {
            // All hours are written: a killed process must lose only the records that arrived last. A record of a group
            // of meters states what was stored before it, so a restarted collector would never ask again for a lost
            // record of another hour.
            done = self.make_all_row_groups();
        }
        self.write_due_groups_and_finish_files().and(done)
    }

    fn flush_records(&mut self) -> Result<(), Error> {
        let ended = self.end_all_files();
        let has_room = self.make_disk_room();
        self.writer.write_all_groups_and_finish_files().and(ended).and(has_room)
    }

    fn close_sink(&mut self) -> (SinkRecordCounts, Result<(), Error>) {
        let done = self.flush_records();
        // The counts are final after this: everything that still waits counts as lost.
        self.writer.abandon_unstored_records();
        (self.writer.kept, done)
    }

    fn kept_counts(&self) -> SinkRecordCounts {
        self.writer.kept
    }
}

impl Drop for ParquetSink {
    fn drop(&mut self) {
        // Records must not be lost if the caller did not call `close_sink`. No caller can receive an error here.
        drop(self.flush_records());
    }
}

#[cfg(test)]
mod tests;
