//! The catalogue of past runs and of runs under way, in SQLite.

mod late;
mod lock_holder;
mod methods;
mod open;
mod parts;
mod prune;
mod quotas;
mod search;
mod segments;
mod stored;
mod unfinished;

pub use late::{LateResults, MAX_LATE, MAX_LATE_BYTES_OF_NODE};
pub(crate) use lock_holder::describe_lock_holder;
pub use methods::{MethodState, MethodSummary, UnfinishedMethod};
pub(crate) use open::OPEN_RUN_FILE;
pub use parts::{RunQuota, StoredRunShare};
pub use prune::{PruneCriteria, PruneOutcome, PrunedResult};
pub(crate) use quotas::BatchQuotas;
pub use search::{CatalogueEntry, CataloguePage, CatalogueQuery};
pub(crate) use segments::SegmentRow;
pub(crate) use stored::RUN_KIND;
pub use stored::StoredSummary;
pub use unfinished::UnfinishedRun;

use crate::draft::RunDraft;
use crate::files::REPORT_FILE_NAME;
use crate::room::ReportSize;
use crate::{Error, migrations};
use packetrig_report::{RunId, RunReport, SCHEMA_VERSION};
use packetrig_stats::limit::RigLimit;
use packetrig_sys::private_files;
use packetrig_units::clamp_to_i64;
use rusqlite::{Connection, ErrorCode, OpenFlags, Params, Row, RowIndex, ToSql, params};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

/// Longest wait of a writer for another process.
const WRITER_TIMEOUT: Duration = Duration::from_secs(10);
const ATTEMPT_PAUSE: Duration = Duration::from_millis(5);
/// Directory with the directories of runs.
pub(crate) const RUNS_DIRECTORY: &str = "runs";
const RUN_COLUMNS_SQL: &str =
    "id, started_wall_ns, name, verdict, outcome, plan_sha256, streams, sent, lost, directory";

/// The catalogue of a store. Several processes may use it at the same time.
#[derive(Debug)]
pub struct RunCatalogue {
    place: PathBuf,
    connection: Connection,
}

/// Summary of a run that has a report: its row in the catalogue.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RunSummary {
    pub run: RunId,
    /// Time at which the user started the run, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// Name that the user gave the run.
    pub name: String,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: String,
    pub outcome: String,
    /// Hash of the plan's text.
    pub plan_sha256: String,
    pub streams: u64,
    /// Frames sent, over all streams.
    pub sent: u64,
    /// Frames lost, over all streams.
    pub lost: u64,
    /// Directory of its files.
    pub directory: PathBuf,
}

/// Makes the file readable by its owner only, and keeps it open until the process ends: closing a file drops
/// all POSIX locks of the process on it, also those of other connections to the same catalogue.
fn make_file_private(path: &Path) -> std::io::Result<()> {
    static KEPT_FILES: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());
    let mut kept = KEPT_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if !kept.contains_key(path) || !path.exists() {
        kept.insert(path.to_owned(), private_files::open_or_create(path)?);
    }
    Ok(())
}

impl RunCatalogue {
    /// Opens the catalogue in the directory `place`. Creates it if there is none, and migrates an older one.
    pub fn open_or_create(place: &Path) -> Result<Self, Error> {
        let runs = place.join(RUNS_DIRECTORY);
        private_files::create_directories(&runs).map_err(Error::file("create", &runs))?;
        // Directories of earlier versions may be readable by other users. This fails for a directory of
        // another user, which then stays as it is.
        drop(private_files::restrict_path_to_owner(&runs));
        // Rows contain paths of directories. The paths must be absolute, because a later command may have
        // another working directory.
        let place = fs::canonicalize(place).map_err(Error::file("find", place))?;
        let path = place.join("catalogue.sqlite");
        // The file is created here with a private mode, because SQLite gives its write-ahead log and the
        // log's index the mode of this file.
        make_file_private(&path).map_err(Error::file("open", &path))?;
        let mut connection = Connection::open(&path).map_err(Error::catalogue(&path))?;
        enable_write_ahead_log(&connection, WRITER_TIMEOUT).map_err(Error::catalogue(&path))?;
        // With a write-ahead log, NORMAL could lose the last commits in a power cut. A node deletes a segment once its row is
        // committed, so the commit has to last.
        connection.pragma_update(None, "synchronous", "FULL").map_err(Error::catalogue(&path))?;
        match migrations::migrate_tables(&mut connection).map_err(Error::catalogue(&path))? {
            Ok(()) => Ok(Self { place, connection }),
            Err(found) => Err(Error::TooNew { path, found, known: migrations::newest_version() }),
        }
    }

    /// Opens the catalogue in the directory `place` for reading; `None` if there is none. An older catalogue is
    /// migrated if this process may write it, but the directory need not be writable.
    pub fn open_to_read(place: &Path) -> Result<Option<Self>, Error> {
        let path = place.join("catalogue.sqlite");
        if !path.try_exists().map_err(Error::file("find", &path))? {
            return Ok(None);
        }
        // The catalogue is opened for writing first, because only then can a catalogue of an earlier version
        // be migrated.
        match Self::open_or_create(place) {
            // A directory without write permission is no error for a reader, but a catalogue that is too new
            // is one.
            Err(Error::File { .. } | Error::Catalogue { .. } | Error::CatalogueBusy { .. }) => {
                Self::open_read_only(place).map(Some)
            }
            opened => opened.map(Some),
        }
    }

    /// Opens a catalogue that this process may not write.
    fn open_read_only(place: &Path) -> Result<Self, Error> {
        let place = fs::canonicalize(place).map_err(Error::file("find", place))?;
        let path = place.join("catalogue.sqlite");
        // Even readers write to the index of the write-ahead log, unless `immutable=1` promises that the file does not change.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        // The path is part of a URI here, in which these characters have a meaning.
        let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let connection = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags)
            .map_err(Error::catalogue(&path))?;
        let found = migrations::read_version(&connection).map_err(Error::catalogue(&path))?;
        if found > migrations::newest_version() {
            return Err(Error::TooNew { path, found, known: migrations::newest_version() });
        }
        Ok(Self { place, connection })
    }

    /// Begins a run: creates its directory and reserves disk space for its report.
    pub fn begin_run(&self, run: RunId, size: ReportSize) -> Result<RunDraft, Error> {
        RunDraft::new(self, run, size)
    }

    /// Stores a finished run at once, and returns its directory.
    pub fn store_finished_run(&self, report: &RunReport, document: &str) -> Result<PathBuf, Error> {
        // The report is written immediately, so no other write can take its space before.
        let size = ReportSize { document_bytes: document.len() as u64, ..ReportSize::default() };
        self.begin_run(report.run.clone(), size)?.commit_run(self, &mut report.clone(), document)
    }

    /// Lists the runs, the newest first, at most `most` of them.
    pub fn list_runs(&self, most: usize) -> Result<Vec<RunSummary>, Error> {
        let sql =
            format!("SELECT {RUN_COLUMNS_SQL} FROM runs ORDER BY started_wall_ns DESC, id DESC LIMIT ?1");
        self.query_rows(&sql, params![clamp_to_i64(most as u64)], read_run_summary)
    }

    /// Finds the run with an id that begins with `prefix`, or otherwise the newest run with this name. A full
    /// id is found even if other ids begin with it.
    pub fn find_run(&self, prefix: &str) -> Result<RunSummary, Error> {
        let mut found = self.find_runs_with_prefix(prefix)?;
        if found.is_empty() {
            found = self.find_newest_run_named(prefix)?;
        }
        require_single_match(prefix, found, |summary| &summary.run.0)
    }

    fn find_newest_run_named(&self, name: &str) -> Result<Vec<RunSummary>, Error> {
        let sql = format!(
            "SELECT {RUN_COLUMNS_SQL} FROM runs WHERE name = ?1 ORDER BY started_wall_ns DESC LIMIT 1"
        );
        self.query_rows(&sql, params![name], read_run_summary)
    }

    fn find_runs_with_prefix(&self, prefix: &str) -> Result<Vec<RunSummary>, Error> {
        // LIKE is not used: an id may contain `_`, which LIKE treats as any character.
        let sql =
            format!("SELECT {RUN_COLUMNS_SQL} FROM runs WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id");
        self.query_rows(&sql, params![prefix], read_run_summary)
    }

    /// Finds a run as [`Self::find_run`] does, and reads its report.
    pub fn load_report(&self, prefix: &str) -> Result<(RunSummary, RunReport), Error> {
        let summary = self.find_run(prefix)?;
        let report = read_report(&summary.directory.join(REPORT_FILE_NAME))?;
        Ok((summary, report))
    }

    /// Stores a measured limit of the rig. It replaces an older limit with the same kernel, back end, driver and
    /// frame size.
    pub fn store_limit(&self, limit: &RigLimit) -> Result<(), Error> {
        let value =
            serde_json::to_string(limit).map_err(Error::damaged_file(self.place.join("catalogue.sqlite")))?;
        let row = params![limit.kernel, limit.back_end.name(), limit.driver, limit.size, value];
        let sql = "INSERT OR REPLACE INTO limits (kernel, back_end, driver, size, value) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.connection.execute(sql, row).map(drop).map_err(|source| self.catalogue_error(source))
    }

    /// Reads the limits of the rig that were measured on this kernel release.
    pub fn read_rig_limits_of_kernel(&self, kernel: &str) -> Result<Vec<RigLimit>, Error> {
        let mut limits = self.read_all_rig_limits()?;
        limits.retain(|limit| limit.kernel == kernel);
        Ok(limits)
    }

    /// Reads the limits of the rig that were measured on any kernel release.
    pub fn read_all_rig_limits(&self) -> Result<Vec<RigLimit>, Error> {
        let sql = "SELECT value FROM limits ORDER BY back_end, driver, size, kernel";
        let texts: Vec<String> = self.query_rows(sql, params![], |row| row.get(0))?;
        // A limit that an older version stored in another form is skipped; calibration measures it again.
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    pub(crate) fn run_directory(&self, run: &RunId) -> PathBuf {
        self.place.join(RUNS_DIRECTORY).join(&run.0)
    }

    /// Commits a run: writes its row, and deletes its row among the runs under way.
    pub(crate) fn insert_run(&self, report: &RunReport, directory: &Path) -> Result<(), Error> {
        let sql =
            format!("INSERT INTO runs ({RUN_COLUMNS_SQL}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
        let sent: u64 =
            report.streams.iter().filter_map(|stream| stream.sent.as_ref()).map(|sent| sent.frames).sum();
        let row = params![
            report.run.0,
            clamp_to_i64(report.started_wall_ns),
            report.name,
            report.verdict.as_str(),
            report.outcome.state().to_string(),
            report.plan_sha256.as_str(),
            clamp_to_i64(report.streams.len() as u64),
            clamp_to_i64(sent),
            clamp_to_i64(report.lost.total),
            directory.to_string_lossy(),
        ];
        self.insert_finished(&sql, row, &report.run).map_err(|source| self.catalogue_error(source))
    }

    // Both changes are one transaction, so that a run is either under way or listed, never both and never
    // neither.
    fn insert_finished(&self, sql: &str, row: &[&dyn ToSql], run: &RunId) -> rusqlite::Result<()> {
        let step = self.connection.unchecked_transaction()?;
        step.execute(sql, row)?;
        step.execute("DELETE FROM unfinished WHERE run = ?1", params![run.0])?;
        step.commit()
    }

    /// Returns whether the run with exactly this id has a row.
    pub(crate) fn is_listed(&self, id: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1)";
        let found = self.connection.query_row(sql, params![id], |row| row.get(0));
        found.map_err(|source| self.catalogue_error(source))
    }

    /// Makes every write fail, as a full disk does.
    #[cfg(test)]
    pub(crate) fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).expect("a pragma of a connection");
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    /// Runs a query and returns all its rows.
    fn query_rows<T>(
        &self,
        sql: &str,
        parameters: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        read_rows(&self.connection, sql, parameters, read).map_err(|source| self.catalogue_error(source))
    }

    /// Returns whether the catalogue has only the tables of an earlier version. This happens if it was opened for
    /// reading only, and so was not migrated.
    fn is_older_than(&self, version: u32) -> bool {
        migrations::read_version(&self.connection).is_ok_and(|found| found < version)
    }

    fn catalogue_error(&self, source: rusqlite::Error) -> Error {
        Error::catalogue(self.place.join("catalogue.sqlite"))(source)
    }
}

/// Returns the element whose id is exactly `prefix`, or else the only element. Fails if there are several
/// elements or none.
fn require_single_match<T>(prefix: &str, mut found: Vec<T>, id: impl Fn(&T) -> &str) -> Result<T, Error> {
    if let Some(exact) = found.iter().position(|one| id(one) == prefix) {
        return Ok(found.swap_remove(exact));
    }
    let count = found.len();
    match found.pop() {
        None => Err(Error::Unknown(prefix.to_owned())),
        Some(only) if count == 1 => Ok(only),
        Some(last) => {
            Err(Error::Ambiguous { prefix: prefix.to_owned(), count, example: id(&last).to_owned() })
        }
    }
}

fn read_rows<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    // Cached, because the same few statements run for each segment.
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(parameters, read)?;
    rows.collect()
}

// Counts are stored clamped to `i64`, so none is negative.
fn read_count(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}

/// Turns on the write-ahead log, with which readers and a writer do not wait for each other. From then on
/// SQLite waits for other writers.
///
/// SQLite waits by itself (`busy_timeout`), except where it would wait while it holds a lock. The change to
/// WAL is such a place, and two processes that create a catalogue may meet there. So this function repeats
/// the change itself. SQLite's own wait is off meanwhile: otherwise each attempt could also wait inside
/// SQLite, and the times would add up.
fn enable_write_ahead_log(connection: &Connection, timeout: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    retry_while_busy(timeout, || connection.pragma_update(None, "journal_mode", "WAL"))?;
    connection.busy_timeout(timeout)
}

/// Tries again while another process holds the database, for at most `timeout`.
fn retry_while_busy<T>(
    timeout: Duration,
    mut attempt: impl FnMut() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut waited = Duration::ZERO;
    loop {
        match attempt() {
            Err(error) if is_busy_error(&error) && waited < timeout => thread::sleep(ATTEMPT_PAUSE),
            outcome => return outcome,
        }
        // Only the pauses are counted, because an attempt itself does not wait.
        waited += ATTEMPT_PAUSE;
    }
}

fn is_busy_error(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

fn read_run_summary(row: &Row<'_>) -> rusqlite::Result<RunSummary> {
    Ok(RunSummary {
        run: RunId(row.get(0)?),
        started_wall_ns: read_count(row, 1)?,
        name: row.get(2)?,
        verdict: row.get(3)?,
        outcome: row.get(4)?,
        plan_sha256: row.get(5)?,
        streams: read_count(row, 6)?,
        sent: read_count(row, 7)?,
        lost: read_count(row, 8)?,
        directory: PathBuf::from(row.get::<_, String>(9)?),
    })
}

/// Only the version of a report, which distinguishes a newer report from a damaged one.
#[derive(serde::Deserialize)]
struct ReportVersion {
    schema_version: u32,
}

fn read_report(path: &Path) -> Result<RunReport, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let ReportVersion { schema_version: found } =
        serde_json::from_str(&text).map_err(Error::damaged_file(path))?;
    if found > SCHEMA_VERSION {
        return Err(Error::TooNew { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    serde_json::from_str(&text).map_err(Error::damaged_file(path))
}

#[cfg(test)]
mod tests;
