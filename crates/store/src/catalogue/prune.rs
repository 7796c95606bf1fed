//! Removes runs and methods that the user no longer wants, and keeps results with a pin.
//!
//! The row is removed first, and a note of its directory is written in the same transaction. Then the files
//! are removed, and finally the note. After a crash in between, the result is not listed any more, and the
//! next prune finds the note and removes the remaining files. So a listed result always has its files.
//!
//! Invariant: only [`RunCatalogue::prune_results`] and the `discard` functions remove a result, and only the user asks for them.

use super::{RUN_KIND, RUNS_DIRECTORY, RunCatalogue, StoredSummary};
use crate::catalogue::OPEN_RUN_FILE;
use crate::draft::check_run_id;
use crate::kept::{OWNER_FILE_NAME, find_living_owner, total_bytes_below};
use crate::methods::METHODS_DIRECTORY;
use crate::{Error, disk, migrations};
use packetrig_units::clamp_to_i64;
use rusqlite::{Transaction, TransactionBehavior, params};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::PathBuf;

/// Selects the results to remove: results that match every given criterion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneCriteria {
    /// Number of newest results of each name and kind that stay.
    pub keep: Option<usize>,
    /// Only results that were started before this time, nanoseconds since 1970 (UTC).
    pub before_wall_ns: Option<u64>,
    /// Only results with this name.
    pub name: Option<String>,
}

/// A result that prune removes, or would remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrunedResult {
    pub id: String,
    /// `run`, or the name of the method.
    pub kind: String,
    pub name: String,
    /// When the user started it, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// Bytes of all files of the result.
    pub bytes: u64,
}

/// Outcome of a prune, or of a planned one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PruneOutcome {
    /// Removed results, the oldest first.
    pub removed: Vec<PrunedResult>,
    /// Results that match and stay because they have a pin.
    pub pinned: Vec<String>,
    /// Results that match and stay because they are not complete: nodes have not delivered everything, or a process
    /// still works on them.
    pub incomplete: Vec<String>,
    /// Number of directories that an interrupted prune had left.
    pub finished: u64,
}

impl RunCatalogue {
    /// Lists the results that [`prune_results`](Self::prune_results) would remove now.
    pub fn plan_prune(&self, criteria: &PruneCriteria) -> Result<PruneOutcome, Error> {
        let pins = self.read_pinned_ids()?;
        let mut outcome = PruneOutcome::default();
        for stored in self.select_results_to_prune(criteria)? {
            let id = stored.id().to_owned();
            if pins.contains(&id) {
                outcome.pinned.push(id);
            } else if self.is_incomplete(&stored) {
                outcome.incomplete.push(id);
            } else {
                outcome.removed.push(self.to_pruned_result(&stored)?);
            }
        }
        // The results are listed newest first, but the outcome has the oldest first.
        outcome.removed.reverse();
        // A plan removes nothing, so it counts the directories that the next prune will finish.
        outcome.finished = self.list_pending_removals()?.len() as u64;
        Ok(outcome)
    }

    /// Removes results with all their files, captures too. It never removes a result with a pin, an incomplete one, or late
    /// results. It also finishes an interrupted prune.
    pub fn prune_results(&self, criteria: &PruneCriteria) -> Result<PruneOutcome, Error> {
        let interrupted = self.list_pending_removals()?.len() as u64;
        // The leftovers of an interrupted prune are removed first, because no row names these files any more.
        self.finish_removals()?;
        let mut outcome = PruneOutcome { finished: interrupted, ..self.plan_prune(criteria)? };
        let mut removed = Vec::new();
        for pruned in outcome.removed {
            if self.replace_row_by_removal_note(&pruned)? {
                removed.push(pruned);
            }
        }
        outcome.removed = removed;
        self.finish_removals()?;
        Ok(outcome)
    }

    fn select_results_to_prune(&self, criteria: &PruneCriteria) -> Result<Vec<StoredSummary>, Error> {
        // `list_all_stored_results` lists the newest first, so counting per kind and name finds the newest ones.
        let mut kept: HashMap<(String, String), usize> = HashMap::new();
        let mut found = self.list_all_stored_results()?;
        found.retain(|stored| {
            let place = kept.entry((stored.kind().to_owned(), stored.name().to_owned())).or_default();
            *place += 1;
            let is_beyond = criteria.keep.is_none_or(|keep| *place > keep);
            let is_old = criteria.before_wall_ns.is_none_or(|before| stored.started_wall_ns() < before);
            let is_named = criteria.name.as_deref().is_none_or(|name| name == stored.name());
            is_beyond && is_old && is_named
        });
        Ok(found)
    }

    /// Returns whether results of nodes may still arrive, or a process is working in the directory.
    fn is_incomplete(&self, stored: &StoredSummary) -> bool {
        let directory = self.directory_of(stored);
        directory.join(OPEN_RUN_FILE).exists()
            || find_living_owner(&directory.join(OWNER_FILE_NAME)).is_some()
    }

    fn to_pruned_result(&self, stored: &StoredSummary) -> Result<PrunedResult, Error> {
        let directory = self.directory_of(stored);
        let bytes = total_bytes_below(&directory).map_err(Error::file("read", &directory))?;
        Ok(PrunedResult {
            id: stored.id().to_owned(),
            kind: stored.kind().to_owned(),
            name: stored.name().to_owned(),
            started_wall_ns: stored.started_wall_ns(),
            bytes,
        })
    }

    /// Directory of a result, from its id and not from its row: a damaged row must not lead out of the store.
    fn directory_of(&self, stored: &StoredSummary) -> PathBuf {
        match stored {
            StoredSummary::Run(run) => self.run_directory(&run.run),
            StoredSummary::Method(method) => self.method_directory(&method.id),
        }
    }

    /// Replaces the row by a note that its directory is to be removed, in one transaction. Returns `false` if
    /// the result was pinned meanwhile, or if another process has removed it.
    fn replace_row_by_removal_note(&self, pruned: &PrunedResult) -> Result<bool, Error> {
        // The id becomes part of a path in the note.
        check_run_id(&pruned.id)?;
        self.replace_row_in_transaction(pruned).map_err(|source| self.catalogue_error(source))
    }

    fn replace_row_in_transaction(&self, pruned: &PrunedResult) -> rusqlite::Result<bool> {
        let (table, place) =
            if pruned.kind == RUN_KIND { ("runs", RUNS_DIRECTORY) } else { ("methods", METHODS_DIRECTORY) };
        // The transaction takes the write lock at its beginning, so that no pin can be set between the check
        // and the deletion.
        let step = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let sql = format!("DELETE FROM {table} WHERE id = ?1 AND id NOT IN (SELECT id FROM pins)");
        if step.execute(&sql, params![pruned.id])? == 0 {
            return Ok(false);
        }
        // Only runs have rows in these tables. The rows are removed in the same transaction, so that the id
        // counts as unknown afterwards.
        for table in ["segments", "run_parts", "run_shares"] {
            step.execute(&format!("DELETE FROM {table} WHERE run = ?1"), params![pruned.id])?;
        }
        let directory = format!("{place}/{}", pruned.id);
        step.execute("INSERT OR REPLACE INTO removals (directory) VALUES (?1)", params![directory])?;
        step.commit()?;
        Ok(true)
    }

    /// Directories whose row is removed; their files may still exist.
    fn list_pending_removals(&self) -> Result<Vec<String>, Error> {
        if self.is_older_than(migrations::METHODS_SCHEMA_VERSION) {
            return Ok(Vec::new());
        }
        self.query_rows("SELECT directory FROM removals ORDER BY directory", [], |row| row.get(0))
    }

    /// Returns whether a prune has begun to remove the run.
    pub(crate) fn is_being_removed(&self, id: &str) -> Result<bool, Error> {
        Ok(self.list_pending_removals()?.contains(&format!("{RUNS_DIRECTORY}/{id}")))
    }

    fn finish_removals(&self) -> Result<(), Error> {
        for noted in self.list_pending_removals()? {
            let (place, id) = noted.split_once('/').unwrap_or_default();
            // The note is a path from a database file: a damaged one must not remove anything outside the store.
            if [RUNS_DIRECTORY, METHODS_DIRECTORY].contains(&place) && check_run_id(id).is_ok() {
                let parent = self.place.join(place);
                match fs::remove_dir_all(parent.join(id)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::file("remove", parent.join(id))(error));
                    }
                    _ => {}
                }
                // The note says that files may still exist, so it is deleted only when their removal is
                // synced to the disk.
                disk::sync_directory(&parent).map_err(Error::file("sync", &parent))?;
            }
            let done = self.connection.execute("DELETE FROM removals WHERE directory = ?1", params![noted]);
            done.map_err(|source| self.catalogue_error(source))?;
        }
        Ok(())
    }

    /// Ids of results that prune never removes.
    pub fn read_pinned_ids(&self) -> Result<BTreeSet<String>, Error> {
        if self.is_older_than(migrations::METHODS_SCHEMA_VERSION) {
            return Ok(BTreeSet::new());
        }
        Ok(self.query_rows("SELECT id FROM pins", [], |row| row.get(0))?.into_iter().collect())
    }

    /// Keeps the run or method with this id from being pruned. Returns whether it had no pin before.
    pub fn pin_result(&self, id: &str, now_wall_ns: u64) -> Result<bool, Error> {
        let sql = "INSERT OR IGNORE INTO pins (id, pinned_wall_ns) VALUES (?1, ?2)";
        let done = self.connection.execute(sql, params![id, clamp_to_i64(now_wall_ns)]);
        done.map(|changed| changed > 0).map_err(|source| self.catalogue_error(source))
    }

    /// Removes the pin of the run or method with this id. Returns whether it had a pin.
    pub fn unpin_result(&self, id: &str) -> Result<bool, Error> {
        let done = self.connection.execute("DELETE FROM pins WHERE id = ?1", params![id]);
        done.map(|changed| changed > 0).map_err(|source| self.catalogue_error(source))
    }
}

#[cfg(test)]
mod tests;
