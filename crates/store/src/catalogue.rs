//! Past runs and runs under way, in SQLite.

mod late;
mod open;
mod parts;
mod quotas;
mod segments;
mod unfinished;

pub use late::{LateResults, MOST_LATE, MOST_LATE_OF_NODE};
pub(crate) use open::OPEN;
pub use parts::{RunQuota, RunShare};
pub(crate) use quotas::BatchQuotas;
pub(crate) use segments::SegmentRow;
pub use unfinished::UnfinishedRun;

use crate::draft::RunDraft;
use crate::files::REPORT;
use crate::room::ReportSize;
use crate::{Error, migrations};
use packetrig_fleet::RunId;
use packetrig_fleet::report::{RunReport, SCHEMA_VERSION};
use packetrig_stats::limit::RigLimit;
use packetrig_sys::private_files;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, params};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, thread};

/// How long a writer waits for another.
const PATIENCE: Duration = Duration::from_secs(10);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(5);
const COLUMNS: &str =
    "id, started_wall_ns, name, verdict, outcome, plan_sha256, streams, sent, lost, directory";

/// See the module. Several processes may use one catalogue at once.
#[derive(Debug)]
pub struct RunCatalogue {
    place: PathBuf,
    connection: Connection,
}

/// A run as listed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RunSummary {
    pub run: RunId,
    /// When it was asked for, nanoseconds since 1970 (UTC).
    pub started_wall_ns: u64,
    /// What the user calls it.
    pub name: String,
    /// PASS, FAIL or INCONCLUSIVE.
    pub verdict: String,
    pub outcome: String,
    /// Hash of its plan.
    pub plan_sha256: String,
    pub streams: u64,
    /// Frames sent, over all streams.
    pub sent: u64,
    /// Frames lost, over all streams.
    pub lost: u64,
    /// Where its files are.
    pub directory: PathBuf,
}

impl RunCatalogue {
    /// Opens the catalogue in `place`, making it if there is none.
    pub fn open(place: &Path) -> Result<Self, Error> {
        let runs = place.join("runs");
        private_files::create_directories(&runs).map_err(Error::file("create", &runs))?;
        // An earlier version let others in. A directory of another user stays as it is.
        private_files::tighten(&runs).unwrap_or(());
        // Directories are named in rows: the name must hold wherever the next command is given.
        let place = fs::canonicalize(place).map_err(Error::file("find", place))?;
        let path = place.join("catalogue.sqlite");
        let error = |source| Error::Catalogue { path: path.clone(), source };
        // SQLite gives its other files the mode of this one.
        private_files::open_or_create(&path).map_err(Error::file("open", &path))?;
        let mut connection = Connection::open(&path).map_err(error)?;
        write_ahead(&connection, PATIENCE).map_err(error)?;
        // A row that was committed survives a power cut.
        connection.pragma_update(None, "synchronous", "FULL").map_err(error)?;
        match migrations::apply(&mut connection).map_err(error)? {
            Ok(()) => Ok(Self { place, connection }),
            Err(found) => Err(Error::TooNew { path, found, known: migrations::newest() }),
        }
    }

    /// Opens the catalogue in `place` for reading, creating nothing; `None` if there is none. A directory that cannot be
    /// written is no obstacle.
    pub fn open_to_read(place: &Path) -> Result<Option<Self>, Error> {
        let path = place.join("catalogue.sqlite");
        if !path.try_exists().map_err(Error::file("find", &path))? {
            return Ok(None);
        }
        match Self::open(place) {
            Err(Error::File { .. } | Error::Catalogue { .. }) => Self::open_read_only(place).map(Some),
            opened => opened.map(Some),
        }
    }

    /// Reads a catalogue to which nobody here can write. SQLite needs to write for its write-ahead log unless it is told that
    /// the file does not change.
    fn open_read_only(place: &Path) -> Result<Self, Error> {
        let place = fs::canonicalize(place).map_err(Error::file("find", place))?;
        let path = place.join("catalogue.sqlite");
        let error = |source| Error::Catalogue { path: path.clone(), source };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
        let connection =
            Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags).map_err(error)?;
        let found = migrations::version(&connection).map_err(error)?;
        if found > migrations::newest() {
            return Err(Error::TooNew { path, found, known: migrations::newest() });
        }
        Ok(Self { place, connection })
    }

    /// Begins a run: a directory for what it writes while it goes on, with room set aside for its report.
    pub fn begin(&self, run: RunId, size: ReportSize) -> Result<RunDraft, Error> {
        RunDraft::new(self, run, size)
    }

    /// Stores a finished run in one go; returns its directory.
    pub fn record(&self, report: &RunReport, document: &str) -> Result<PathBuf, Error> {
        let size = ReportSize { document_bytes: document.len() as u64, ..ReportSize::default() };
        self.begin(report.run.clone(), size)?.commit(self, &mut report.clone(), document)
    }

    /// The newest runs first, at most `most`.
    pub fn list(&self, most: usize) -> Result<Vec<RunSummary>, Error> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let sql = format!("SELECT {COLUMNS} FROM runs ORDER BY started_wall_ns DESC, id DESC LIMIT ?1");
        self.query(&sql, params![most])
    }

    /// The run whose id begins with `prefix`; an id that is given in full is found even if others begin with it.
    pub fn find(&self, prefix: &str) -> Result<RunSummary, Error> {
        let sql = format!("SELECT {COLUMNS} FROM runs WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id");
        let mut found = self.query(&sql, params![prefix])?;
        if let Some(exact) = found.iter().position(|summary| summary.run.0 == prefix) {
            return Ok(found.swap_remove(exact));
        }
        match (found.pop(), found.len()) {
            (None, _) => Err(Error::Unknown(prefix.to_owned())),
            (Some(only), 0) => Ok(only),
            (Some(last), others) => {
                Err(Error::Ambiguous { prefix: prefix.to_owned(), count: others + 1, example: last.run.0 })
            }
        }
    }

    /// The report of the run whose id begins with `prefix`.
    pub fn show(&self, prefix: &str) -> Result<(RunSummary, RunReport), Error> {
        let summary = self.find(prefix)?;
        let report = read_report(&summary.directory.join(REPORT))?;
        Ok((summary, report))
    }

    /// Keeps a limit of the rig, in place of an older one of the same kind.
    pub fn keep_limit(&self, limit: &RigLimit) -> Result<(), Error> {
        let damaged = |source| Error::Damaged { path: self.place.join("catalogue.sqlite"), source };
        let value = serde_json::to_string(limit).map_err(damaged)?;
        let row = params![limit.kernel, limit.back_end.name(), limit.driver, limit.size, value];
        let sql = "INSERT OR REPLACE INTO limits (kernel, back_end, driver, size, value) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.connection.execute(sql, row).map(drop).map_err(|source| self.error(source))
    }

    /// The limits measured on this kernel.
    pub fn limits(&self, kernel: &str) -> Result<Vec<RigLimit>, Error> {
        let rows = || {
            let sql = "SELECT value FROM limits WHERE kernel = ?1 ORDER BY back_end, driver, size";
            let mut statement = self.connection.prepare(sql)?;
            statement.query_map(params![kernel], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()
        };
        let texts = rows().map_err(|source| self.error(source))?;
        // One that an older version wrote in another form is as good as none: it is measured again.
        Ok(texts.iter().filter_map(|text| serde_json::from_str(text).ok()).collect())
    }

    pub(crate) fn directory(&self, run: &RunId) -> PathBuf {
        self.place.join("runs").join(&run.0)
    }

    /// The commit of a run.
    pub(crate) fn insert(&self, report: &RunReport, directory: &Path) -> Result<(), Error> {
        let sql = format!("INSERT INTO runs ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
        let integer = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let sent =
            report.streams.iter().filter_map(|stream| stream.sent.as_ref()).map(|sent| sent.frames).sum();
        let row = params![
            report.run.0,
            integer(report.started_wall_ns),
            report.name,
            report.verdict.word(),
            report.outcome.state().to_string(),
            report.plan_sha256.as_str(),
            integer(u64::try_from(report.streams.len()).unwrap_or(u64::MAX)),
            integer(sent),
            integer(report.lost.total),
            directory.to_string_lossy(),
        ];
        let commit = || {
            // At once: a run is under way or listed, never both, never neither.
            let step = self.connection.unchecked_transaction()?;
            step.execute(&sql, row)?;
            step.execute("DELETE FROM unfinished WHERE run = ?1", params![report.run.0])?;
            step.commit()
        };
        commit().map_err(|source| self.error(source))
    }

    /// Whether there is a row of the run with exactly this id.
    pub(crate) fn is_listed(&self, id: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM runs WHERE id = ?1)";
        let found = self.connection.query_row(sql, params![id], |row| row.get(0));
        found.map_err(|source| self.error(source))
    }

    /// As a full disk does.
    #[cfg(test)]
    pub(crate) fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).expect("a pragma of a connection");
    }

    pub(crate) fn place(&self) -> &Path {
        &self.place
    }

    fn query(&self, sql: &str, parameters: impl rusqlite::Params) -> Result<Vec<RunSummary>, Error> {
        let rows = || {
            let mut statement = self.connection.prepare(sql)?;
            statement.query_map(parameters, summary)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    fn error(&self, source: rusqlite::Error) -> Error {
        Error::Catalogue { path: self.place.join("catalogue.sqlite"), source }
    }
}

/// Turns on the write-ahead log, with which readers and a writer do not wait for each other, and has SQLite wait for other
/// writers from then on.
///
/// SQLite waits by itself (`busy_timeout`) except where it would have to wait while holding a lock; the first change to WAL is
/// such a place: two that make a new catalogue meet there. So the waiting is ours alone: were it SQLite's, too, in its other places, it
/// would come on top of ours in every attempt.
fn write_ahead(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    in_turn(patience, || connection.pragma_update(None, "journal_mode", "WAL"))?;
    connection.busy_timeout(patience)
}

/// Tries again while another process has its turn.
fn in_turn<T>(patience: Duration, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let mut waited = Duration::ZERO;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && waited < patience => thread::sleep(BETWEEN_ATTEMPTS),
            outcome => return outcome,
        }
        waited += BETWEEN_ATTEMPTS;
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
}

fn summary(row: &Row<'_>) -> rusqlite::Result<RunSummary> {
    let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    Ok(RunSummary {
        run: RunId(row.get(0)?),
        started_wall_ns: count(1)?,
        name: row.get(2)?,
        verdict: row.get(3)?,
        outcome: row.get(4)?,
        plan_sha256: row.get(5)?,
        streams: count(6)?,
        sent: count(7)?,
        lost: count(8)?,
        directory: PathBuf::from(row.get::<_, String>(9)?),
    })
}

/// Only the version, to tell a newer report from a damaged one.
#[derive(serde::Deserialize)]
struct ReportVersion {
    schema_version: u32,
}

fn read_report(path: &Path) -> Result<RunReport, Error> {
    let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
    let damaged = |source| Error::Damaged { path: path.to_owned(), source };
    let ReportVersion { schema_version: found } = serde_json::from_str(&text).map_err(damaged)?;
    if found > SCHEMA_VERSION {
        return Err(Error::TooNew { path: path.to_owned(), found, known: SCHEMA_VERSION });
    }
    serde_json::from_str(&text).map_err(damaged)
}

#[cfg(test)]
mod tests;
