//! The catalogue's rows of test methods.

use super::{RunCatalogue, read_count, require_single_match};
use crate::kept::{OWNER_FILE_NAME, find_living_owner};
use crate::methods::{self, MethodDraft, NewMethod};
use crate::{Error, migrations};
use packetrig_units::clamp_to_i64;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Row, params};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

const METHOD_COLUMNS_SQL: &str = "id, started_wall_ns, name, method, verdict, state, trials, directory";

/// Progress of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MethodState {
    /// The method has begun and not ended: its process is running, or was killed.
    #[serde(rename = "under way")]
    UnderWay,
    /// The method has ended by itself, and its result is final.
    #[serde(rename = "complete")]
    Complete,
    /// The user stopped the method. Its result covers the trials until then, and it can be resumed.
    #[serde(rename = "stopped")]
    Stopped,
}

impl MethodState {
    const ALL: [Self; 3] = [Self::UnderWay, Self::Complete, Self::Stopped];

    /// The name of the state in the catalogue and in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnderWay => "under way",
            Self::Complete => "complete",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for MethodState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromSql for MethodState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::ALL.into_iter().find(|state| state.as_str() == word).ok_or(FromSqlError::InvalidType)
    }
}

/// Summary of a method: its row in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MethodSummary {
    pub id: String,
    /// When the user started it, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// Name that the user gave the method.
    pub name: String,
    /// `rfc2544`, `mlrsearch` and so on.
    pub method: String,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: String,
    pub state: MethodState,
    /// Number of trials in the method's journal.
    pub trials: u64,
    /// Directory of its files.
    pub directory: PathBuf,
}

/// A method that is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnfinishedMethod {
    #[serde(flatten)]
    pub summary: MethodSummary,
    /// Number of the process that runs the method (0 if it cannot be read). If there is none, the
    /// method can be resumed.
    pub process: Option<u32>,
}

impl RunCatalogue {
    /// Begins a method: creates its directory and journal, reserves disk space for its result, and writes its row.
    pub fn begin_method(&self, new: &NewMethod<'_>) -> Result<MethodDraft, Error> {
        MethodDraft::begin_method(self, new)
    }

    /// Continues an incomplete method where another process left it. The prefix `last` means the newest
    /// incomplete method. Only one process at a time can do this: the others get [`Error::MethodUnderWay`].
    pub fn resume_method(&self, prefix: &str) -> Result<(MethodDraft, MethodSummary), Error> {
        let found = if prefix == "last" {
            // Methods are listed in the order of their start.
            let newest = self.list_unfinished_methods()?.pop();
            newest.ok_or(Error::NoUnfinishedMethod)?.summary
        } else {
            self.find_method(prefix)?
        };
        let draft = MethodDraft::reopen_method(self, &found.id)?;
        // The row is read again under the lock, because another process may have completed the method before
        // this one got the lock.
        let found = self.find_method(&found.id)?;
        if found.state == MethodState::Complete {
            return Err(Error::MethodComplete(found.id));
        }
        self.set_method_state(&found.id, MethodState::UnderWay)?;
        Ok((draft, found))
    }

    /// Lists the methods, the newest first, at most `most` of them.
    pub fn list_methods(&self, most: usize) -> Result<Vec<MethodSummary>, Error> {
        let sql = format!(
            "SELECT {METHOD_COLUMNS_SQL} FROM methods ORDER BY started_wall_ns DESC, id DESC LIMIT ?1"
        );
        self.query_methods(&sql, params![clamp_to_i64(most as u64)])
    }

    /// Lists the methods that are not complete, in the order in which they were begun.
    pub fn list_unfinished_methods(&self) -> Result<Vec<UnfinishedMethod>, Error> {
        let sql = format!(
            "SELECT {METHOD_COLUMNS_SQL} FROM methods WHERE state <> 'complete' ORDER BY started_wall_ns, id"
        );
        let found = self.query_methods(&sql, [])?.into_iter();
        Ok(found
            .map(|summary| UnfinishedMethod {
                process: find_living_owner(&summary.directory.join(OWNER_FILE_NAME)),
                summary,
            })
            .collect())
    }

    /// Finds the method with an id that begins with `prefix`. A full id is found even if other ids begin with it.
    pub fn find_method(&self, prefix: &str) -> Result<MethodSummary, Error> {
        require_single_match(prefix, self.find_methods_with_prefix(prefix)?, |summary| &summary.id)
    }

    pub(super) fn find_methods_with_prefix(&self, prefix: &str) -> Result<Vec<MethodSummary>, Error> {
        let sql = format!(
            "SELECT {METHOD_COLUMNS_SQL} FROM methods WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id"
        );
        self.query_methods(&sql, params![prefix])
    }

    pub(super) fn find_newest_method_named(&self, name: &str) -> Result<Vec<MethodSummary>, Error> {
        let sql = format!(
            "SELECT {METHOD_COLUMNS_SQL} FROM methods WHERE name = ?1 ORDER BY started_wall_ns DESC LIMIT 1"
        );
        self.query_methods(&sql, params![name])
    }

    /// Removes a method that is not complete, with its trials. Refused while its process is running.
    pub fn discard_method(&self, prefix: &str) -> Result<MethodSummary, Error> {
        let found = self.find_method(prefix)?;
        let draft = MethodDraft::reopen_method(self, &found.id)?;
        // The row is read again under the lock, as when a method is resumed.
        let found = self.find_method(&found.id)?;
        if found.state == MethodState::Complete {
            return Err(Error::MethodComplete(found.id));
        }
        // The method is removed under the draft's lock, so that no other process can resume the method in
        // between.
        draft.remove_method(self)?;
        Ok(found)
    }

    fn query_methods(
        &self,
        sql: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<Vec<MethodSummary>, Error> {
        if self.is_older_than(migrations::METHODS_SCHEMA_VERSION) {
            return Ok(Vec::new());
        }
        let mut found = self.query_rows(sql, parameters, read_method_summary)?;
        // The row of an unfinished method was written at its last change of state, so the trials are counted
        // in its journal.
        for method in found.iter_mut().filter(|method| method.state != MethodState::Complete) {
            method.trials = methods::count_trials(&method.directory);
        }
        Ok(found)
    }

    pub(crate) fn method_directory(&self, id: &str) -> PathBuf {
        self.place.join(methods::METHODS_DIRECTORY).join(id)
    }

    pub(crate) fn insert_method(&self, new: &NewMethod<'_>, directory: &Path) -> Result<(), Error> {
        let sql =
            format!("INSERT INTO methods ({METHOD_COLUMNS_SQL}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7)");
        let row = params![
            new.id,
            clamp_to_i64(new.started_wall_ns),
            new.name,
            new.method,
            // A method that never ends keeps this verdict.
            "INCONCLUSIVE",
            MethodState::UnderWay.as_str(),
            directory.to_string_lossy(),
        ];
        self.connection.execute(&sql, row).map(drop).map_err(|source| self.catalogue_error(source))
    }

    /// Stores the state, the verdict and the number of trials of a method that has ended or was stopped.
    pub(crate) fn end_method(
        &self,
        id: &str,
        state: MethodState,
        verdict: &str,
        trials: u64,
    ) -> Result<(), Error> {
        let sql = "UPDATE methods SET state = ?2, verdict = ?3, trials = ?4 WHERE id = ?1";
        let row = params![id, state.as_str(), verdict, clamp_to_i64(trials)];
        self.connection.execute(sql, row).map(drop).map_err(|source| self.catalogue_error(source))
    }

    fn set_method_state(&self, id: &str, state: MethodState) -> Result<(), Error> {
        let sql = "UPDATE methods SET state = ?2 WHERE id = ?1";
        self.connection
            .execute(sql, params![id, state.as_str()])
            .map(drop)
            .map_err(|source| self.catalogue_error(source))
    }

    pub(crate) fn delete_method(&self, id: &str) -> Result<(), Error> {
        let sql = "DELETE FROM methods WHERE id = ?1";
        self.connection.execute(sql, params![id]).map(drop).map_err(|source| self.catalogue_error(source))
    }
}

fn read_method_summary(row: &Row<'_>) -> rusqlite::Result<MethodSummary> {
    Ok(MethodSummary {
        id: row.get(0)?,
        started_wall_ns: read_count(row, 1)?,
        name: row.get(2)?,
        method: row.get(3)?,
        verdict: row.get(4)?,
        state: row.get(5)?,
        trials: read_count(row, 6)?,
        directory: PathBuf::from(row.get::<_, String>(7)?),
    })
}
