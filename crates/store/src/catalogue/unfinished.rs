//! Runs under way, so that whoever comes after a crash finds them.

use super::RunCatalogue;
use crate::Error;
use crate::draft::RunDraft;
use crate::room::ReportSize;
use packetrig_fleet::RunId;
use rusqlite::{OptionalExtension as _, Row, params};
use std::path::PathBuf;

/// A run that has begun and has no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedRun {
    pub run: RunId,
    /// The attempt it is at.
    pub attempt: u32,
    pub epoch: u64,
    /// Its record, as the fabric has it; JSON.
    pub record: String,
    pub plan: String,
    /// Where its files are so far. Whoever begins one may leave this empty.
    pub directory: PathBuf,
    /// When it was begun, nanoseconds since 1970 (UTC).
    pub begun_at: u64,
}

impl RunCatalogue {
    /// Begins a run that can be resumed by another process: like [`RunCatalogue::begin`], with a row.
    pub fn begin_unfinished(&self, unfinished: &UnfinishedRun, size: ReportSize) -> Result<RunDraft, Error> {
        // Should the row fail, the directory goes with the draft.
        let draft = self.begin(unfinished.run.clone(), size)?;
        let runs = self.place.join("runs");
        crate::disk::sync(&runs).map_err(Error::file("sync", &runs))?;
        let sql = "INSERT INTO unfinished (run, attempt, epoch, record, plan, directory, begun_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let integer = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let row = params![
            unfinished.run.0,
            unfinished.attempt,
            integer(unfinished.epoch),
            unfinished.record,
            unfinished.plan,
            draft.partial_directory().to_string_lossy(),
            integer(unfinished.begun_at),
        ];
        self.connection.execute(sql, row).map_err(|source| self.error(source))?;
        Ok(draft.stay())
    }

    /// Notes how far it is.
    pub fn note_unfinished(&self, run: &RunId, attempt: u32, epoch: u64, record: &str) -> Result<(), Error> {
        let sql = "UPDATE unfinished SET attempt = ?2, epoch = ?3, record = ?4 WHERE run = ?1";
        let row = params![run.0, attempt, i64::try_from(epoch).unwrap_or(i64::MAX), record];
        match self.connection.execute(sql, row).map_err(|source| self.error(source))? {
            0 => Err(Error::NotUnfinished(run.clone())),
            _ => Ok(()),
        }
    }

    /// Runs that have begun and have no report, in the order they were begun.
    pub fn unfinished(&self) -> Result<Vec<UnfinishedRun>, Error> {
        let rows = || {
            let sql = "SELECT run, attempt, epoch, record, plan, directory, begun_at FROM unfinished
                 ORDER BY begun_at, run";
            let mut statement = self.connection.prepare(sql)?;
            statement.query_map([], unfinished)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// Where the files of a run are that has begun and has no report.
    pub(crate) fn unfinished_directory(&self, run: &RunId) -> Result<Option<PathBuf>, Error> {
        let sql = "SELECT directory FROM unfinished WHERE run = ?1";
        let found = self.connection.query_row(sql, params![run.0], |row| row.get::<_, String>(0)).optional();
        found.map(|found| found.map(PathBuf::from)).map_err(|source| self.error(source))
    }

    /// Takes up a run where another process left it. Only one may.
    pub fn resume(&self, run: &RunId) -> Result<(RunDraft, UnfinishedRun), Error> {
        let found = self.unfinished()?.into_iter().find(|unfinished| unfinished.run == *run);
        let found = found.ok_or_else(|| Error::NotUnfinished(run.clone()))?;
        Ok((RunDraft::reopen(self, &found)?, found))
    }

    /// It will have no report.
    pub(crate) fn forget_unfinished(&self, run: &RunId) -> Result<(), Error> {
        let done = self.connection.execute("DELETE FROM unfinished WHERE run = ?1", params![run.0]);
        done.map(drop).map_err(|source| self.error(source))
    }
}

fn unfinished(row: &Row<'_>) -> rusqlite::Result<UnfinishedRun> {
    let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    Ok(UnfinishedRun {
        run: RunId(row.get(0)?),
        attempt: row.get(1)?,
        epoch: count(2)?,
        record: row.get(3)?,
        plan: row.get(4)?,
        directory: PathBuf::from(row.get::<_, String>(5)?),
        begun_at: count(6)?,
    })
}
