//! Row groups on their way into files: those that wait, and the files that grow.
//!
//! Invariant: a row group waits in memory, is in a file without a name, or is stored; memory is bounded.

use super::encode::Table;
use super::files::Partition;
use super::partial::PartialFile;
use super::row_group::EncodedGroup;
use super::{Error, Kept};
use packetrig_units::{MonoTime, Nanos};
use std::collections::VecDeque;
use std::path::PathBuf;

/// Files that grow at the same time. Flows of neighbouring hours come mixed, those of many hours do not.
const OPEN_MOST: usize = 4;
/// Files that may wait for their footer or their name.
const UNFINISHED_MOST: usize = 16;
/// Wait before another attempt, doubled each time.
const FIRST_WAIT: Nanos = Nanos::from_secs(1);
const LONGEST_WAIT: Nanos = Nanos::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(super) struct GroupWriter {
    pub(super) directory: PathBuf,
    /// A file is finished when it has so many bytes.
    pub(super) file_bytes: u64,
    /// Bytes of row groups that may wait for a disk that refuses them.
    pub(super) waiting_bytes: usize,
    pub(super) kept: Kept,
    pub(super) now: Option<MonoTime>,
    waiting: VecDeque<EncodedGroup>,
    growing: Vec<PartialFile>,
    /// They get no more row groups.
    unfinished: Vec<PartialFile>,
    is_ending: bool,
    added: u64,
    /// After a failure: when to try again, and how long to wait after the next.
    again: Option<(MonoTime, Nanos)>,
}

impl GroupWriter {
    pub(super) fn new(directory: PathBuf, file_bytes: usize, waiting_bytes: usize) -> Self {
        Self {
            directory,
            file_bytes: file_bytes as u64,
            waiting_bytes,
            kept: Kept::default(),
            now: None,
            waiting: VecDeque::new(),
            growing: Vec::new(),
            unfinished: Vec::new(),
            is_ending: false,
            added: 0,
            again: None,
        }
    }

    pub(super) fn has_growing(&self) -> bool {
        !self.growing.is_empty()
    }

    pub(super) fn add(&mut self, group: EncodedGroup) {
        self.waiting.push_back(group);
    }

    /// Has the next attempt finish all files, with the row groups that wait now.
    pub(super) fn end_files(&mut self) {
        self.is_ending = true;
    }

    /// Writes what waits, unless a failure was too short ago.
    pub(super) fn place(&mut self) -> Result<(), Error> {
        let may = self.again.is_none_or(|(at, _)| self.now.is_none_or(|now| now >= at));
        if may { self.place_now() } else { Ok(()) }
    }

    /// Writes what waits, and finishes files as far as the disk lets it. The first failure is told.
    pub(super) fn place_now(&mut self) -> Result<(), Error> {
        let mut placed = Ok(());
        while placed.is_ok() && !self.waiting.is_empty() {
            placed = self.place_first();
        }
        if self.is_ending {
            self.unfinished.append(&mut self.growing);
            self.is_ending = !self.waiting.is_empty();
        }
        let finished = self.finish_files();
        self.shed();
        let done = placed.and(finished);
        match &done {
            Ok(()) => self.again = None,
            Err(_) => self.note_failure(),
        }
        done
    }

    fn note_failure(&mut self) {
        self.kept.failures += 1;
        let wait = self.again.map_or(FIRST_WAIT, |(_, wait)| wait);
        let doubled = Nanos::new((wait.as_u64() * 2).min(LONGEST_WAIT.as_u64()));
        let now = self.now.unwrap_or(MonoTime::from_nanos(0));
        self.again = Some((MonoTime::from_nanos(now.as_nanos() + wait.as_u64()), doubled));
    }

    /// Writes the row group that has waited longest.
    fn place_first(&mut self) -> Result<(), Error> {
        let Some(group) = self.waiting.pop_front() else { return Ok(()) };
        let index = self.growing_file(group.table, group.partition);
        let placed = match index {
            Some(index) => self.append(index, &group),
            None => self.begin(&group),
        };
        match placed {
            Ok(()) => Ok(()),
            Err(Error::Encode(error)) => {
                self.kept.lose(group.carried);
                Err(Error::Encode(error))
            }
            Err(error) => {
                // What the file has is finished; the row group begins another as soon as there is room.
                if let Some(index) = index {
                    let file = self.growing.swap_remove(index);
                    self.unfinished.push(file);
                }
                self.waiting.push_front(group);
                Err(error)
            }
        }
    }

    fn growing_file(&self, table: Table, partition: Partition) -> Option<usize> {
        self.growing.iter().position(|file| file.table == table && file.partition == partition)
    }

    fn append(&mut self, index: usize, group: &EncodedGroup) -> Result<(), Error> {
        self.growing[index].append(group)?;
        self.touch(index);
        self.finish_files()
    }

    fn begin(&mut self, group: &EncodedGroup) -> Result<(), Error> {
        if self.growing.len() >= OPEN_MOST {
            let longest = (0..self.growing.len()).min_by_key(|&index| self.growing[index].touched);
            let ended = longest.map(|index| self.growing.swap_remove(index));
            self.unfinished.extend(ended);
        }
        let begun = PartialFile::begin(&self.directory, group).map(|file| self.growing.push(file));
        if begun.is_ok() {
            self.touch(self.growing.len() - 1);
        }
        self.finish_files().and(begun)
    }

    /// Notes that a file has grown; one that is large enough gets no more.
    fn touch(&mut self, index: usize) {
        self.added += 1;
        let file = &mut self.growing[index];
        file.touched = self.added;
        if file.bytes() >= self.file_bytes {
            let file = self.growing.swap_remove(index);
            self.unfinished.push(file);
        }
    }

    /// Gives files their names, as far as the disk lets it.
    fn finish_files(&mut self) -> Result<(), Error> {
        let mut done = Ok(());
        for file in std::mem::take(&mut self.unfinished) {
            match file.finish() {
                Ok(bytes) => {
                    self.kept.store(file.carried);
                    self.kept.file_bytes += bytes;
                }
                Err(error) => {
                    done = done.and(Err(error));
                    self.unfinished.push(file);
                }
            }
        }
        done
    }

    /// Bytes of the row groups that wait.
    pub(super) fn waiting_memory(&self) -> usize {
        self.waiting.iter().map(EncodedGroup::bytes).sum()
    }

    /// Gives up the newest row groups that wait beyond the bound, and the newest files that cannot be finished.
    fn shed(&mut self) {
        let mut waiting = self.waiting_memory();
        while waiting > self.waiting_bytes {
            let Some(group) = self.waiting.pop_back() else { break };
            waiting -= group.bytes();
            self.kept.lose(group.carried);
        }
        while self.unfinished.len() > UNFINISHED_MOST {
            let Some(file) = self.unfinished.pop() else { break };
            self.kept.lose(file.carried);
        }
    }

    /// Gives up what could not be stored. Files without a name stay for the next recovery.
    pub(super) fn give_up(&mut self) {
        for group in self.waiting.drain(..) {
            self.kept.lose(group.carried);
        }
        for file in self.growing.drain(..).chain(self.unfinished.drain(..)) {
            self.kept.lose(file.carried);
        }
    }
}
