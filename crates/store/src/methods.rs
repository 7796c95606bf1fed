//! A test method in the store: its directory, its journal and its result.
//!
//! ```text
//! <store>/methods/<id>/journal.jsonl      the requested test, then each trial, each as one line of JSON
//! <store>/methods/<id>/result.json …      the result as JSON, CSV, JUnit, Markdown and text
//! <store>/methods/<id>/owner              contains the number of the process at work, which locks the file while it lives
//! ```
//! A method has a row from its beginning, so that a user can find and resume it after a crash. A line of the
//! journal is on the disk before the next trial begins. When the method ends, its files are written first and
//! its row is changed last: a row that says `complete` has all files of its result.

use crate::catalogue::{MethodState, RunCatalogue};
use crate::draft::check_run_id;
use crate::kept::{DirectoryOwnership, OWNER_FILE_NAME, find_living_owner};
use crate::room::{ReportSize, ReportSpaceReservation};
use crate::{Error, disk};
use packetrig_method::journal::{self, MethodJournal, MethodJournalEntry};
use packetrig_sys::private_files;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Directory of all methods in a store.
pub(crate) const METHODS_DIRECTORY: &str = "methods";
/// Name of a method's journal.
pub const JOURNAL_FILE_NAME: &str = "journal.jsonl";
/// Name of the result's file, JSON. Its member `figures` has the values that `report diff` compares.
pub const RESULT_FILE_NAME: &str = "result.json";
/// Name of the file with the result as CSV.
pub const RESULT_CSV_FILE: &str = "result.csv";
/// Name of the file with the result as JUnit XML.
pub const RESULT_JUNIT_FILE: &str = "junit.xml";
/// Name of the file with the result as Markdown.
pub const RESULT_MARKDOWN_FILE: &str = "result.md";
/// Name of the file with the result as tables for a terminal.
pub const RESULT_TEXT_FILE: &str = "result.txt";

/// Description of a method that is to begin.
#[derive(Clone, Copy, Debug)]
pub struct NewMethod<'a> {
    /// Letters, digits, `-` and `_`.
    pub id: &'a str,
    /// When the user started it, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// Name that the user gave the method.
    pub name: &'a str,
    /// `rfc2544`, `mlrsearch` and so on.
    pub method: &'a str,
    /// First line of the journal: everything that is needed to resume the method.
    pub head: &'a serde_json::Value,
}

/// Outcome of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodOutcome<'a> {
    /// [`MethodState::Complete`], or [`MethodState::Stopped`] if it can be resumed.
    pub state: MethodState,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: &'a str,
    /// Files of the result, each with its name and its text.
    pub files: &'a [(&'a str, &'a str)],
}

/// A method under way. If it is dropped without [`MethodDraft::finish_method`], it stays under way and can be resumed.
#[derive(Debug)]
pub struct MethodDraft {
    id: String,
    directory: PathBuf,
    journal: File,
    /// Length in bytes of the complete lines that are synced to the disk.
    journal_bytes: u64,
    trials: u64,
    room: ReportSpaceReservation,
    _owner: DirectoryOwnership,
}

impl MethodDraft {
    pub(crate) fn begin_method(catalogue: &RunCatalogue, new: &NewMethod<'_>) -> Result<Self, Error> {
        check_run_id(new.id)?;
        let directory = catalogue.method_directory(new.id);
        let methods = catalogue.place().join(METHODS_DIRECTORY);
        disk::create_directories_below(catalogue.place(), &methods)
            .map_err(Error::file("create", &methods))?;
        // If two processes begin a method with the same id, only one of them can create the directory.
        match private_files::create_directory(&directory) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Error::Taken(new.id.to_owned()));
            }
            Err(error) => return Err(Error::file("create", directory)(error)),
        }
        let draft = Self::begin_method_in_directory(catalogue, new, directory.clone());
        if draft.is_err() {
            // The journal has no trial. The error matters more than a directory that cannot be removed.
            drop(fs::remove_dir_all(&directory));
        }
        draft
    }

    fn begin_method_in_directory(
        catalogue: &RunCatalogue,
        new: &NewMethod<'_>,
        directory: PathBuf,
    ) -> Result<Self, Error> {
        let mut draft = Self::open_directory(new.id, directory)?;
        let head = journal::to_json_line(new.head).map_err(Error::damaged_file(draft.journal_path()))?;
        draft.append_line(&head)?;
        // The names of the journal and of the directory must survive a power cut before a row names them.
        for directory in [Some(draft.directory.as_path()), draft.directory.parent()].into_iter().flatten() {
            disk::sync_directory(directory).map_err(Error::file("sync", directory))?;
        }
        catalogue.insert_method(new, &draft.directory)?;
        Ok(draft)
    }

    /// Reopens a method as another process left it.
    pub(crate) fn reopen_method(catalogue: &RunCatalogue, id: &str) -> Result<Self, Error> {
        let mut draft = Self::open_directory(id, catalogue.method_directory(id))?;
        // The unfinished line is removed only under the lock of `open_directory`, because the other process
        // must not be writing.
        draft.cut_unfinished_line()?;
        Ok(draft)
    }

    fn open_directory(id: &str, directory: PathBuf) -> Result<Self, Error> {
        let owner =
            DirectoryOwnership::try_take_ownership(&directory).map_err(Error::file("lock", &directory))?;
        if !owner.has_lock() {
            let process = find_living_owner(&directory.join(OWNER_FILE_NAME)).unwrap_or(0);
            return Err(Error::MethodUnderWay { id: id.to_owned(), process });
        }
        let room = ReportSpaceReservation::reserve_space_in(&directory, ReportSize::default())?;
        let path = directory.join(JOURNAL_FILE_NAME);
        let journal = private_files::open_to_append(&path).map_err(Error::file("open", &path))?;
        Ok(Self { id: id.to_owned(), directory, journal, journal_bytes: 0, trials: 0, room, _owner: owner })
    }

    /// Removes a last line that was not written to its end, because the process was killed. The next line must
    /// not be joined to it.
    fn cut_unfinished_line(&mut self) -> Result<(), Error> {
        let path = self.journal_path();
        let bytes = fs::read(&path).map_err(Error::file("read", &path))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.journal.set_len(whole as u64).map_err(Error::file("shorten", &path))?;
        self.journal_bytes = whole as u64;
        self.trials = count_lines(&bytes).saturating_sub(1);
        Ok(())
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// Directory of the method's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Number of trials in the journal.
    pub const fn trials(&self) -> u64 {
        self.trials
    }

    fn journal_path(&self) -> PathBuf {
        self.directory.join(JOURNAL_FILE_NAME)
    }

    /// Reads the journal from the disk. `H` is the type of its first line.
    pub fn read_journal<H: DeserializeOwned>(&self) -> Result<MethodJournal<H>, Error> {
        let path = self.journal_path();
        let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        journal::parse_journal(&text).map_err(|source| Error::DamagedJournal { path, source })
    }

    /// Adds a trial to the journal. Once this returns, the trial survives a power cut.
    pub fn append_trial(&mut self, entry: &MethodJournalEntry) -> Result<(), Error> {
        let line = journal::to_json_line(entry).map_err(Error::damaged_file(self.journal_path()))?;
        self.append_line(&line)?;
        self.trials += 1;
        Ok(())
    }

    fn append_line(&mut self, line: &str) -> Result<(), Error> {
        // The line is written with one call, so that a killed process leaves either the whole line or a line
        // without an end.
        let written = self.journal.write_all(line.as_bytes()).and_then(|()| self.journal.sync_data());
        if let Err(error) = written {
            // The next line must not be joined to the part that was written. If this fails too, resuming cuts the part off.
            drop(self.journal.set_len(self.journal_bytes));
            return Err(Error::file("write", self.journal_path())(error));
        }
        // The length is updated only after the sync, because a failure of the next line cuts the file back to
        // this length.
        self.journal_bytes += line.len() as u64;
        Ok(())
    }

    /// Writes the files of the result, then the row. Returns the directory. If it fails, the method stays under way with all its
    /// trials, and can be resumed.
    pub fn finish_method(
        mut self,
        catalogue: &RunCatalogue,
        outcome: &MethodOutcome<'_>,
    ) -> Result<PathBuf, Error> {
        match self.store_result(catalogue, outcome) {
            Ok(()) => Ok(self.directory.clone()),
            Err(source) => Err(Error::MethodNotStored {
                id: self.id.clone(),
                directory: self.directory.clone(),
                source: Box::new(source),
            }),
        }
    }

    fn store_result(&mut self, catalogue: &RunCatalogue, outcome: &MethodOutcome<'_>) -> Result<(), Error> {
        self.room.release_file_space();
        let (result, others): (Vec<_>, Vec<_>) =
            outcome.files.iter().partition(|(name, _)| *name == RESULT_FILE_NAME);
        // The result is written last, so that a directory with a result has all other files, too.
        for (name, text) in others.into_iter().chain(result) {
            check_file_name(name)?;
            let path = self.directory.join(name);
            disk::write_whole_file(&self.directory, name, text.as_bytes())
                .map_err(Error::file("write", path))?;
        }
        self.room.release_row_space(&self.directory);
        catalogue.end_method(&self.id, outcome.state, outcome.verdict, self.trials)?;
        if outcome.state == MethodState::Complete {
            // The lock itself is held until this draft is dropped.
            DirectoryOwnership::remove_owner_file(&self.directory);
        }
        Ok(())
    }

    /// Ends a method without a result. A method without trials is removed; any other stays and can be
    /// resumed. Returns whether it stays.
    pub fn end_without_result(self, catalogue: &RunCatalogue) -> Result<bool, Error> {
        if self.trials > 0 {
            return Ok(true);
        }
        self.remove_method(catalogue).map(|()| false)
    }

    /// Removes the method with its trials.
    pub(crate) fn remove_method(mut self, catalogue: &RunCatalogue) -> Result<(), Error> {
        self.room = ReportSpaceReservation::default();
        // The row is removed first: a row without a journal could neither be resumed nor shown.
        catalogue.delete_method(&self.id)?;
        fs::remove_dir_all(&self.directory).map_err(Error::file("remove", &self.directory))
    }
}

/// Returns the number of trials in the journal of a method; 0 if it cannot be read.
pub(crate) fn count_trials(directory: &Path) -> u64 {
    // The first line is the head, not a trial.
    fs::read(directory.join(JOURNAL_FILE_NAME)).map_or(0, |bytes| count_lines(&bytes).saturating_sub(1))
}

fn count_lines(bytes: &[u8]) -> u64 {
    // Bytes after the last line break are not a complete line.
    bytes.split(|byte| *byte == b'\n').count().saturating_sub(1) as u64
}

/// Refuses file names that are unsafe as a part of a path, and the names of files that the store uses itself.
fn check_file_name(name: &str) -> Result<(), Error> {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    // A file of the result must replace neither the journal nor the lock.
    let is_own = [JOURNAL_FILE_NAME, OWNER_FILE_NAME].contains(&name);
    if name.is_empty() || name.starts_with('.') || !is_plain || is_own {
        return Err(Error::BadFileName(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
