//! The sink of files: Parquet in a Hive partition of hours.
//!
//! Rows wait until there are enough for a row group, are sorted by the start of their flow and go into the file of the hour in which
//! it began. Files grow in memory and are written whole when they are large or old enough. A disk that refuses stops nothing:
//! whole files wait, up to a bound, and are tried again; beyond it they are given up and counted. Where a disk has no room for a
//! file, its row groups become files of their own, and those that fit are stored.
//!
//! Invariant: what is on the disk is whole; what is not is in [`Kept::waiting`] or [`Kept::lost`].

use super::columns::{LedgerRow, Row};
use super::encode::Table;
use super::files::{self, Partition};
use super::image::{Finished, Image};
use super::sink::carried;
use super::{Error, Kept, RecordSink, Source, split};
use packetrig_flow::{Carried, FlowRecord, Ledger};
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;

/// Files that grow at the same time. Flows of neighbouring hours come mixed, those of many hours do not.
const OPEN_MOST: usize = 4;
/// Hours that the rows of one row group may go to; the others' rows go where the hour is not known. Flows with times drawn
/// from nowhere cost files, not a disk full of directories.
const HOURS_MOST: usize = 256;
/// Ledger rows that wait for a file.
const LEDGERS_MOST: usize = 3600;
/// Wait before another attempt, doubled each time.
const FIRST_WAIT: Nanos = Nanos::from_secs(1);
const LONGEST_WAIT: Nanos = Nanos::from_secs(30);

/// How files are made.
#[derive(Clone, Debug)]
pub struct ParquetOptions {
    /// Where; made if it is not there.
    pub directory: PathBuf,
    /// Rows of a row group, which are sorted together.
    pub group_rows: usize,
    /// A file is closed when it has so many bytes.
    pub file_bytes: usize,
    /// A file is closed when its first record is that old.
    pub file_age: Nanos,
    /// Bytes of finished files that may wait for a disk that refuses them.
    pub waiting_bytes: usize,
}

impl ParquetOptions {
    /// The usual ones: 64 Ki rows, 32 MiB, a minute, 256 MiB.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            group_rows: 1 << 16,
            file_bytes: 32 << 20,
            file_age: Nanos::from_secs(60),
            waiting_bytes: 256 << 20,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct ParquetSink {
    options: ParquetOptions,
    rows: Vec<Row>,
    ledgers: Vec<LedgerRow>,
    open: Vec<Image>,
    finished: VecDeque<Finished>,
    kept: Kept,
    groups: u64,
    now: Option<MonoTime>,
    /// When the oldest of what is not in a finished file came.
    since: Option<MonoTime>,
    /// After a failure: when to try again, and how long to wait after the next.
    again: Option<(MonoTime, Nanos)>,
}

impl ParquetSink {
    /// A sink into a directory, which is made.
    pub fn new(options: ParquetOptions) -> Result<Self, Error> {
        let directory = &options.directory;
        packetrig_sys::private_files::create_directories(directory)
            .map_err(Error::file("create", directory))?;
        Ok(Self {
            options,
            rows: Vec::new(),
            ledgers: Vec::new(),
            open: Vec::new(),
            finished: VecDeque::new(),
            kept: Kept::default(),
            groups: 0,
            now: None,
            since: None,
            again: None,
        })
    }

    /// Makes row groups of the waiting rows.
    fn group(&mut self) -> Result<(), Error> {
        let mut rows = std::mem::take(&mut self.rows);
        rows.sort_by_key(|row| row.record.first_ns());
        let (hours, rest) = by_hour(&rows);
        let mut done = Ok(());
        for (partition, rows) in hours {
            done = self.add_flows(partition, rows).and(done);
        }
        if !rest.is_empty() {
            done = self.add_flows(Partition(None), &rest).and(done);
        }
        let ledgers = std::mem::take(&mut self.ledgers);
        for rows in ledgers.chunk_by(|a, b| Partition::of(a.at_ns) == Partition::of(b.at_ns)) {
            let partition = Partition::of(rows[0].at_ns);
            let carried = Carried::default();
            done = self.add(Table::MeterStats, partition, carried, |image| image.add_ledgers(rows)).and(done);
        }
        rows.clear();
        self.rows = rows;
        done
    }

    fn add_flows(&mut self, partition: Partition, rows: &[Row]) -> Result<(), Error> {
        let carried = carried(rows.iter().map(|row| &row.record));
        self.add(Table::Flows, partition, carried, |image| image.add_flows(rows))
    }

    fn add(
        &mut self,
        table: Table,
        partition: Partition,
        carried: Carried,
        rows: impl FnOnce(&mut Image) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let is_it = |image: &Image| image.table == table && image.partition == partition;
        let index = if let Some(index) = self.open.iter().position(is_it) {
            index
        } else {
            self.make_room();
            self.open.push(Image::new(table, partition).inspect_err(|_| self.kept.lose(carried))?);
            self.open.len() - 1
        };
        self.groups += 1;
        let image = &mut self.open[index];
        image.touched = self.groups;
        image.carried.add(carried);
        image.groups.push(carried);
        if let Err(error) = rows(image) {
            // A file that could not be continued cannot be ended either.
            let image = self.open.swap_remove(index);
            self.kept.lose(image.carried);
            return Err(error);
        }
        if image.bytes() >= self.options.file_bytes { self.seal(index) } else { Ok(()) }
    }

    fn make_room(&mut self) {
        while self.open.len() >= OPEN_MOST {
            let longest = (0..self.open.len()).min_by_key(|&index| self.open[index].touched);
            drop(longest.map(|index| self.seal(index)));
        }
    }

    /// Ends a file; it waits to be written.
    fn seal(&mut self, index: usize) -> Result<(), Error> {
        let image = self.open.swap_remove(index);
        let carried = image.carried;
        match image.finish() {
            Ok(finished) => {
                self.finished.push_back(finished);
                Ok(())
            }
            Err(error) => {
                self.kept.lose(carried);
                Err(error)
            }
        }
    }

    /// Writes finished files, unless a failure was too short ago.
    fn place(&mut self) -> Result<(), Error> {
        let may = self.again.is_none_or(|(at, _)| self.now.is_none_or(|now| now >= at));
        let placed = if may { self.place_now() } else { Ok(()) };
        self.shed();
        placed
    }

    fn place_now(&mut self) -> Result<(), Error> {
        while let Some(file) = self.finished.front() {
            match files::place(&self.options.directory, file.table, file.partition, &file.bytes) {
                Ok(_) => {
                    self.kept.store(file.carried);
                    self.kept.file_bytes += file.bytes.len() as u64;
                    self.finished.pop_front();
                    self.again = None;
                }
                Err(error) if error.is_no_room() && file.groups.len() > 1 => {
                    self.kept.failures += 1;
                    let groups = split::row_groups(file)?;
                    self.finished.pop_front();
                    for group in groups.into_iter().rev() {
                        self.finished.push_front(group);
                    }
                }
                Err(error) => {
                    self.kept.failures += 1;
                    let wait = self.again.map_or(FIRST_WAIT, |(_, wait)| wait);
                    let doubled = Nanos::new((wait.as_u64() * 2).min(LONGEST_WAIT.as_u64()));
                    let now = self.now.unwrap_or(MonoTime::from_nanos(0));
                    self.again = Some((MonoTime::from_nanos(now.as_nanos() + wait.as_u64()), doubled));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Gives up the newest files that wait beyond the bound.
    fn shed(&mut self) {
        let mut waiting: usize = self.finished.iter().map(|file| file.bytes.len()).sum();
        while waiting > self.options.waiting_bytes {
            let Some(file) = self.finished.pop_back() else { return };
            waiting -= file.bytes.len();
            self.kept.lose(file.carried);
        }
    }

    /// Ends every file that has rows.
    fn seal_all(&mut self) -> Result<(), Error> {
        let mut done = self.group();
        while !self.open.is_empty() {
            done = self.seal(0).and(done);
        }
        self.since = None;
        done
    }
}

/// Rows by the hour in which their flows began; those of more than [`HOURS_MOST`] hours, the emptiest, together.
fn by_hour(sorted: &[Row]) -> (Vec<(Partition, &[Row])>, Vec<Row>) {
    let hour = |row: &Row| Partition::of(row.record.first_ns());
    let mut hours: BTreeMap<Partition, &[Row]> =
        sorted.chunk_by(|a, b| hour(a) == hour(b)).map(|rows| (hour(&rows[0]), rows)).collect();
    let mut rest: Vec<Row> = Vec::new();
    if hours.len() > HOURS_MOST {
        let mut sizes: Vec<_> = hours.iter().map(|(partition, rows)| (rows.len(), *partition)).collect();
        sizes.sort_unstable();
        for (_, partition) in &sizes[..sizes.len() - HOURS_MOST] {
            rest.extend_from_slice(hours.remove(partition).unwrap_or_default());
        }
        rest.sort_by_key(|row| row.record.first_ns());
    }
    (hours.into_iter().collect(), rest)
}

impl RecordSink for ParquetSink {
    fn write(&mut self, records: &[FlowRecord], source: Source) -> Result<(), Error> {
        let mut done = Ok(());
        self.kept.offer(records);
        for record in records {
            self.rows.push(Row { record: record.clone(), source });
            if self.rows.len() >= self.options.group_rows {
                done = self.group().and(done);
                done = self.place().and(done);
            }
        }
        self.since = self.since.or(self.now);
        done
    }

    fn ledger(&mut self, ledger: &Ledger, source: Source, at_ns: u64) -> Result<(), Error> {
        self.ledgers.push(LedgerRow { at_ns, source, ledger: *ledger });
        self.since = self.since.or(self.now);
        if self.ledgers.len() >= LEDGERS_MOST { self.group().and_then(|()| self.place()) } else { Ok(()) }
    }

    fn tick(&mut self, now: MonoTime) -> Result<(), Error> {
        self.now = Some(now);
        let waits = !(self.rows.is_empty() && self.ledgers.is_empty() && self.open.is_empty());
        let since = *self.since.get_or_insert(now);
        let mut done = Ok(());
        if !waits {
            self.since = None;
        } else if now.since(since) >= self.options.file_age {
            done = self.seal_all();
        }
        self.place().and(done)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let sealed = self.seal_all();
        let placed = self.place_now();
        self.shed();
        sealed.and(placed)
    }

    fn close(&mut self) -> (Kept, Result<(), Error>) {
        let done = self.flush();
        for file in self.finished.drain(..) {
            self.kept.lose(file.carried);
        }
        (self.kept, done)
    }

    fn kept(&self) -> Kept {
        self.kept
    }
}

impl Drop for ParquetSink {
    fn drop(&mut self) {
        // Whoever dropped it without closing it has no ear for errors.
        drop(self.flush());
    }
}

#[cfg(test)]
mod tests;
