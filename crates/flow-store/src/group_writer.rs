//! Writes row groups into files, and keeps row groups in memory if writing them fails.
//!
//! Invariant: a row group waits in memory, is in exactly one file, or is dropped and counted as lost; memory is
//! bounded. Only row groups that are in no file wait, so a failure to finish a file affects no row group.

use super::encode::WritableTable;
use super::files::{HourPartition, PartitionedHours};
use super::partial::{FinishedFile, PartialFile};
use super::retry_timer::RetryTimer;
use super::row_group::EncodedGroup;
use super::{Error, SinkRecordCounts};
use packetrig_units::MonoTime;
use std::collections::VecDeque;
use std::path::PathBuf;

/// Maximum number of files that grow at the same time: for both tables, one file for each hour around now and one
/// without an hour. So records of these hours that arrive mixed do not end files before they are large or old enough.
const MAX_GROWING_FILES: usize = 2 * (PartitionedHours::NEAR_HOURS + 1);
/// Maximum number of files that may wait for their footer or their name.
const MAX_UNFINISHED_FILES: usize = 16;

/// Upper bound for the footer bytes of a row group: the footer of its block, and its part of the file's footer.
const MAX_ROW_GROUP_FOOTER_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct GroupWriter {
    pub(super) directory: PathBuf,
    /// A file is finished when it has this many bytes.
    pub(super) file_bytes: u64,
    /// Maximum number of bytes of row groups that wait because writing them failed.
    pub(super) waiting_bytes: usize,
    pub(super) kept: SinkRecordCounts,
    pub(super) now: Option<MonoTime>,
    waiting: VecDeque<EncodedGroup>,
    growing: Vec<PartialFile>,
    /// Files that get no more row groups, and wait for their footer or name.
    unfinished: Vec<PartialFile>,
    is_ending: bool,
    added: u64,
    /// When to try again to write row groups.
    group_retry: RetryTimer,
    /// When to try again to finish files. It is separate, so that a file that can never be finished holds up no row group.
    finish_retry: RetryTimer,
    /// The first failure to finish a file in this pass.
    finish_failure: Option<Error>,
}

impl GroupWriter {
    pub(super) fn new(directory: PathBuf, file_bytes: usize, waiting_bytes: usize) -> Self {
        Self {
            directory,
            file_bytes: file_bytes as u64,
            waiting_bytes,
            kept: SinkRecordCounts::default(),
            now: None,
            waiting: VecDeque::new(),
            growing: Vec::new(),
            unfinished: Vec::new(),
            is_ending: false,
            added: 0,
            group_retry: RetryTimer::default(),
            finish_retry: RetryTimer::default(),
            finish_failure: None,
        }
    }

    pub(super) fn has_growing_files(&self) -> bool {
        !self.growing.is_empty()
    }

    pub(super) fn add_group(&mut self, group: EncodedGroup) {
        self.waiting.push_back(group);
    }

    /// Makes the next attempt finish all files, after it has tried to write the waiting row groups.
    pub(super) fn finish_files_at_next_attempt(&mut self) {
        self.is_ending = true;
    }

    /// Writes row groups and finishes files. After a failure, either of the two is skipped until its retry is due.
    pub(super) fn write_due_groups_and_finish_files(&mut self) -> Result<(), Error> {
        let may_write = self.group_retry.is_due(self.now);
        let may_finish = self.finish_retry.is_due(self.now);
        self.write_groups_and_finish_files(may_write, may_finish)
    }

    /// Tries to write all row groups and to finish files, even if a retry is not due yet. Returns the first failure.
    pub(super) fn write_all_groups_and_finish_files(&mut self) -> Result<(), Error> {
        self.write_groups_and_finish_files(true, true)
    }

    fn write_groups_and_finish_files(&mut self, may_write: bool, may_finish: bool) -> Result<(), Error> {
        if may_finish {
            // Earlier files are finished before row groups are written, so that a file that ends in this pass
            // is not tried twice.
            self.retry_unfinished_files();
        }
        let mut written = Ok(());
        if may_write {
            written = self.write_groups();
            // Each pass counts one failure, however many row groups could not be written.
            self.kept.failures += u64::from(written.is_err());
            self.group_retry.schedule_after_attempt(written.is_ok(), self.now);
        }
        // Row groups that still wait will begin new files, so the next pass finishes files again, until none waits.
        if self.is_ending {
            self.finish_growing_files();
            self.is_ending = !self.waiting.is_empty();
        }
        self.abandon_excess_row_groups();
        let finished = self.finish_failure.take().map_or(Ok(()), Err);
        if may_finish || finished.is_err() {
            self.kept.failures += u64::from(finished.is_err());
            self.finish_retry.schedule_after_attempt(finished.is_ok(), self.now);
        }
        written.and(finished)
    }

    /// Writes the waiting row groups. After a failure, row groups of the same partition keep waiting; row
    /// groups of other partitions are still written.
    ///
    /// Row groups with records of groups of meters are an exception: once one of them has to wait, all later ones
    /// wait, too. A restarted collector assumes that all records of a flow are stored up to the last stored one. So
    /// the records that a killed collector has not written must be the last ones that arrived.
    fn write_groups(&mut self) -> Result<(), Error> {
        let mut written = Ok(());
        let mut refused = Vec::new();
        let mut is_meters_refused = false;
        for group in std::mem::take(&mut self.waiting) {
            // Row groups of one partition are written in the order in which they came.
            let place = (group.table, group.partition);
            if refused.contains(&place) || is_meters_refused && group.is_of_meters {
                is_meters_refused |= group.is_of_meters;
                self.waiting.push_back(group);
                continue;
            }
            let Err(error) = self.write_group(&group) else { continue };
            // A row group that cannot be encoded would fail again, so it does not wait.
            if matches!(error, Error::Encode(_)) {
                self.kept.count_lost(group.carried);
            } else {
                refused.push(place);
                is_meters_refused |= group.is_of_meters;
                self.waiting.push_back(group);
            }
            written = written.and(Err(error));
        }
        written
    }

    /// Writes a row group into the file of its partition. An error concerns this row group only; a failure to finish a
    /// file is kept in `finish_failure`.
    fn write_group(&mut self, group: &EncodedGroup) -> Result<(), Error> {
        let mut file = match self.take_growing_file(group.table, group.partition) {
            None => PartialFile::begin_file(&self.directory, group)?,
            Some(mut file) => match file.append_group(group) {
                Ok(()) => file,
                Err(error) => {
                    // The file is finished with its current rows. The row group starts a new file once
                    // it can be written.
                    self.finish_file(file);
                    return Err(error);
                }
            },
        };
        self.added += 1;
        // `added` is a counter and not a time, so that files that grow within one tick still have an order.
        file.touched = self.added;
        self.keep_growing_file(file);
        Ok(())
    }

    fn take_growing_file(&mut self, table: WritableTable, partition: HourPartition) -> Option<PartialFile> {
        let index = self.growing.iter().position(|file| file.table == table && file.partition == partition);
        index.map(|index| self.growing.swap_remove(index))
    }

    /// Keeps a file open for more row groups, or finishes it if it is large enough. If too many files are open,
    /// finishes the one that has not grown for the longest time.
    fn keep_growing_file(&mut self, file: PartialFile) {
        if file.bytes() >= self.file_bytes {
            self.finish_file(file);
            return;
        }
        self.growing.push(file);
        if self.growing.len() > MAX_GROWING_FILES {
            let oldest = (0..self.growing.len()).min_by_key(|&index| self.growing[index].touched);
            let oldest = self.growing.swap_remove(oldest.unwrap_or(0));
            self.finish_file(oldest);
        }
    }

    fn finish_growing_files(&mut self) {
        for file in std::mem::take(&mut self.growing) {
            self.finish_file(file);
        }
    }

    /// Tries again to finish the files that could not be finished before.
    fn retry_unfinished_files(&mut self) {
        for file in std::mem::take(&mut self.unfinished) {
            self.finish_file(file);
        }
    }

    /// Finishes a file, or keeps it for another attempt.
    fn finish_file(&mut self, file: PartialFile) {
        // Records count as stored only here: before the file has its name, a power cut could still lose it.
        let failure = match file.try_finish_file() {
            Ok(FinishedFile::Stored { bytes }) => {
                self.kept.count_stored_records(file.carried);
                self.kept.file_bytes += bytes;
                return;
            }
            Ok(FinishedFile::Removed) => {
                self.kept.count_lost(file.carried);
                file.removed_error()
            }
            Err(error) => {
                self.unfinished.push(file);
                self.abandon_excess_unfinished_files();
                error
            }
        };
        self.finish_failure.get_or_insert(failure);
    }

    /// Bytes of encoded row groups that could not be written to a file yet.
    pub(super) fn waiting_page_bytes(&self) -> usize {
        self.waiting.iter().map(EncodedGroup::page_bytes).sum()
    }

    /// Upper bound for the bytes that the waiting row groups will take on the disk, with their footers.
    pub(super) fn disk_bytes_of_waiting_groups(&self) -> u64 {
        let footers = self.waiting.len() as u64 * MAX_ROW_GROUP_FOOTER_BYTES;
        footers.saturating_add(self.waiting_page_bytes() as u64)
    }

    /// Drops the newest waiting row groups until the rest fits into `waiting_bytes`. Counts their records as lost.
    fn abandon_excess_row_groups(&mut self) {
        let mut waiting = self.waiting_page_bytes();
        while waiting > self.waiting_bytes {
            // The oldest row groups stay, so that the lost rows are one span of time and not several.
            let Some(group) = self.waiting.pop_back() else { break };
            waiting -= group.page_bytes();
            self.kept.count_lost(group.carried);
        }
    }

    /// Counts the records of the newest unfinished files as lost, if there are more than [`MAX_UNFINISHED_FILES`] such
    /// files. The next recovery may finish these files.
    fn abandon_excess_unfinished_files(&mut self) {
        while self.unfinished.len() > MAX_UNFINISHED_FILES {
            let Some(file) = self.unfinished.pop() else { break };
            self.kept.count_lost(file.carried);
        }
    }

    /// Counts all records that could not be stored as lost. Unfinished files stay on the disk for the next recovery.
    pub(super) fn abandon_unstored_records(&mut self) {
        for group in self.waiting.drain(..) {
            self.kept.count_lost(group.carried);
        }
        for file in self.growing.drain(..).chain(self.unfinished.drain(..)) {
            self.kept.count_lost(file.carried);
        }
    }
}
