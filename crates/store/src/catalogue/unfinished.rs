//! Runs under way, stored so that another process can resume them after a crash.

use super::{RunCatalogue, read_count};
use crate::Error;
use crate::draft::RunDraft;
use crate::room::ReportSize;
use packetrig_report::RunId;
use packetrig_units::clamp_to_i64;
use rusqlite::{OptionalExtension as _, Row, params};
use std::path::PathBuf;

/// A run that has begun and has no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedRun {
    pub run: RunId,
    /// Number of its current attempt.
    pub attempt: u32,
    pub epoch: u64,
    /// State of the run as JSON, as its controller publishes it on the fabric.
    pub record: String,
    pub plan: String,
    /// Directory of the run's files so far. [`RunCatalogue::begin_resumable_run`] ignores it and chooses the directory.
    pub directory: PathBuf,
    /// Time at which the run began, nanoseconds since 1970 (UTC).
    pub begun_at: u64,
}

impl RunCatalogue {
    /// Begins a run that another process can resume: like [`RunCatalogue::begin_run`], but with a
    /// row from the beginning.
    pub fn begin_resumable_run(
        &self,
        unfinished: &UnfinishedRun,
        size: ReportSize,
    ) -> Result<RunDraft, Error> {
        // If the row cannot be written, dropping the draft removes the directory.
        let draft = self.begin_run(unfinished.run.clone(), size)?;
        let runs = self.place.join("runs");
        // The directory must survive a power cut before a row names it.
        crate::disk::sync_directory(&runs).map_err(Error::file("sync", &runs))?;
        let sql = "INSERT INTO unfinished (run, attempt, epoch, record, plan, directory, begun_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let row = params![
            unfinished.run.0,
            unfinished.attempt,
            clamp_to_i64(unfinished.epoch),
            unfinished.record,
            unfinished.plan,
            draft.partial_directory().to_string_lossy(),
            clamp_to_i64(unfinished.begun_at),
        ];
        self.connection.execute(sql, row).map_err(|source| self.catalogue_error(source))?;
        // The row names the directory from now on, so dropping the draft must not remove it.
        Ok(draft.keep_directory_on_drop())
    }

    /// Stores the current state of a run. Fails if the run has ended or was removed.
    pub fn store_unfinished_state(
        &self,
        run: &RunId,
        attempt: u32,
        epoch: u64,
        record: &str,
    ) -> Result<(), Error> {
        let sql = "UPDATE unfinished SET attempt = ?2, epoch = ?3, record = ?4 WHERE run = ?1";
        let row = params![run.0, attempt, clamp_to_i64(epoch), record];
        // Without a row, the run has ended, or another process has removed it.
        match self.connection.execute(sql, row).map_err(|source| self.catalogue_error(source))? {
            0 => Err(Error::NotUnfinished(run.clone())),
            _ => Ok(()),
        }
    }

    /// Lists the runs that have begun and have no report, in the order in which they were begun.
    pub fn unfinished_runs(&self) -> Result<Vec<UnfinishedRun>, Error> {
        let sql = "SELECT run, attempt, epoch, record, plan, directory, begun_at FROM unfinished
             ORDER BY begun_at, run";
        self.query_rows(sql, [], read_unfinished_run)
    }

    /// Directory of the files of a run without a report; `None` if no such run has a row.
    pub(crate) fn unfinished_directory(&self, run: &RunId) -> Result<Option<PathBuf>, Error> {
        let sql = "SELECT directory FROM unfinished WHERE run = ?1";
        let found = self.connection.query_row(sql, params![run.0], |row| row.get::<_, String>(0)).optional();
        found.map(|found| found.map(PathBuf::from)).map_err(|source| self.catalogue_error(source))
    }

    /// Continues a run where another process left it. The caller must make sure that no other process does the same.
    pub fn resume_run(&self, run: &RunId) -> Result<(RunDraft, UnfinishedRun), Error> {
        let found = self.unfinished_runs()?.into_iter().find(|unfinished| unfinished.run == *run);
        let found = found.ok_or_else(|| Error::NotUnfinished(run.clone()))?;
        Ok((RunDraft::reopen_run(self, &found)?, found))
    }

    /// Removes the row of a run that will have no report.
    pub(crate) fn delete_unfinished_run(&self, run: &RunId) -> Result<(), Error> {
        let done = self.connection.execute("DELETE FROM unfinished WHERE run = ?1", params![run.0]);
        done.map(drop).map_err(|source| self.catalogue_error(source))
    }
}

fn read_unfinished_run(row: &Row<'_>) -> rusqlite::Result<UnfinishedRun> {
    Ok(UnfinishedRun {
        run: RunId(row.get(0)?),
        attempt: row.get(1)?,
        epoch: read_count(row, 2)?,
        record: row.get(3)?,
        plan: row.get(4)?,
        directory: PathBuf::from(row.get::<_, String>(5)?),
        begun_at: read_count(row, 6)?,
    })
}
