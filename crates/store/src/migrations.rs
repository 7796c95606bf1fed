//! The catalogue's tables, with one step per version. A released step is never changed.

use packetrig_units::clamp_to_u32;
use rusqlite::{Connection, TransactionBehavior};

const MIGRATION_STEPS: &[&str] = &[
    "CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    started_wall_ns INTEGER NOT NULL,
    name TEXT NOT NULL,
    verdict TEXT NOT NULL,
    outcome TEXT NOT NULL,
    plan_sha256 TEXT NOT NULL,
    streams INTEGER NOT NULL,
    sent INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    directory TEXT NOT NULL
) STRICT;
CREATE INDEX runs_by_time ON runs (started_wall_ns);",
    "CREATE TABLE limits (
    kernel TEXT NOT NULL,
    back_end TEXT NOT NULL,
    driver TEXT NOT NULL,
    size INTEGER NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (kernel, back_end, driver, size)
) STRICT;",
    "CREATE TABLE segments (
    run TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    node TEXT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    stored_at INTEGER NOT NULL,
    PRIMARY KEY (run, attempt, node, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE unfinished (
    run TEXT PRIMARY KEY,
    attempt INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    record TEXT NOT NULL,
    plan TEXT NOT NULL,
    directory TEXT NOT NULL,
    begun_at INTEGER NOT NULL
) STRICT;",
    "CREATE TABLE late (
    node TEXT PRIMARY KEY,
    segments INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    refused INTEGER NOT NULL
) STRICT, WITHOUT ROWID;",
    "CREATE TABLE run_parts (
    run TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    node TEXT NOT NULL,
    below INTEGER NOT NULL,
    highest INTEGER NOT NULL,
    end INTEGER,
    PRIMARY KEY (run, attempt, node)
) STRICT, WITHOUT ROWID;
CREATE TABLE run_shares (
    run TEXT NOT NULL,
    node TEXT NOT NULL,
    segments INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    PRIMARY KEY (run, node)
) STRICT, WITHOUT ROWID;
INSERT INTO run_parts SELECT run, attempt, node, 0, MAX(number), MAX(CASE kind WHEN 'end' THEN number END)
    FROM segments GROUP BY run, attempt, node;
INSERT INTO run_shares SELECT run, node, COUNT(*), SUM(MAX(bytes, 4096)), 0
    FROM segments GROUP BY run, node;",
    // Segments of earlier versions have no pack, but a separate file.
    "ALTER TABLE segments ADD COLUMN pack TEXT;
ALTER TABLE segments ADD COLUMN position INTEGER NOT NULL DEFAULT 0;",
    // A removal is a directory inside the store whose row is deleted and whose files may still exist.
    "CREATE TABLE methods (
    id TEXT PRIMARY KEY,
    started_wall_ns INTEGER NOT NULL,
    name TEXT NOT NULL,
    method TEXT NOT NULL,
    verdict TEXT NOT NULL,
    state TEXT NOT NULL,
    trials INTEGER NOT NULL,
    directory TEXT NOT NULL
) STRICT;
CREATE INDEX methods_by_time ON methods (started_wall_ns);
CREATE TABLE pins (
    id TEXT PRIMARY KEY,
    pinned_wall_ns INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE removals (
    directory TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;",
];

/// The version from which the catalogue counts late results.
pub(crate) const LATE_RESULTS_SCHEMA_VERSION: u32 = 4;
/// The version from which the catalogue has methods, pins and removals.
pub(crate) const METHODS_SCHEMA_VERSION: u32 = 7;

/// The newest version of the tables.
pub(crate) fn newest_version() -> u32 {
    clamp_to_u32(MIGRATION_STEPS.len() as u64)
}

/// Reads the version of the tables; 0 for a new catalogue.
pub(crate) fn read_version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Migrates the tables to the newest version. The inner error is the version of a catalogue that is too new.
pub(crate) fn migrate_tables(connection: &mut Connection) -> rusqlite::Result<Result<(), u32>> {
    if read_version(connection)? == newest_version() {
        // Nothing is written here, so that a catalogue on a full disk can still be read.
        return Ok(Ok(()));
    }
    // The transaction is immediate, so that two processes that open a new catalogue take turns. The second then
    // finds it migrated.
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = read_version(&step)?;
    if version > newest_version() {
        return Ok(Err(version));
    }
    // The version is the number of steps that have been made.
    for sql in MIGRATION_STEPS.iter().skip(version as usize) {
        step.execute_batch(sql)?;
    }
    // The version number changes in the same transaction, so that it agrees with the tables after a crash.
    step.pragma_update(None, "user_version", newest_version())?;
    step.commit()?;
    Ok(Ok(()))
}
