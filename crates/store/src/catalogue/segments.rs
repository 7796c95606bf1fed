//! Rows of segments.

use super::Catalogue;
use crate::Error;
use crate::segments::Parcel;
use crate::spool::Kind;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::{NodeName, RunId};
use rusqlite::{OptionalExtension as _, params};

/// A segment that is stored.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRow {
    pub(crate) number: u64,
    pub(crate) is_end: bool,
}

impl Catalogue {
    /// The first number of a node's part in a run that is not stored.
    pub fn watermark(&self, run: &RunId, attempt: u32, node: &NodeName) -> Result<u64, Error> {
        // The end of the row of numbers that begins at 0.
        let sql = "SELECT COALESCE(MIN(number) + 1, 0) FROM segments AS here
             WHERE run = ?1 AND attempt = ?2 AND node = ?3
             AND EXISTS (SELECT 1 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = 0)
             AND NOT EXISTS (SELECT 1 FROM segments
                 WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = here.number + 1)";
        let found = self.connection.query_row(sql, params![run.0, attempt, node.0], |row| row.get(0));
        found.map(i64::unsigned_abs).map_err(|source| self.error(source))
    }

    /// The nodes that sent something of a run and attempt.
    pub fn senders(&self, run: &RunId, attempt: u32) -> Result<Vec<NodeName>, Error> {
        let rows = || {
            let sql = "SELECT DISTINCT node FROM segments WHERE run = ?1 AND attempt = ?2 ORDER BY node";
            let mut statement = self.connection.prepare(sql)?;
            statement
                .query_map(params![run.0, attempt], |row| Ok(NodeName(row.get(0)?)))?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// Every attempt and node of a run of which something is stored.
    pub(crate) fn parts(&self, run: &RunId) -> Result<Vec<(u32, NodeName)>, Error> {
        let rows = || {
            let sql = "SELECT DISTINCT attempt, node FROM segments WHERE run = ?1 ORDER BY attempt, node";
            let mut statement = self.connection.prepare(sql)?;
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, NodeName(row.get(1)?)));
            statement.query_map(params![run.0], read)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// How many pieces of captures are stored of a run.
    pub(crate) fn captured_segments(&self, run: &RunId) -> Result<u64, Error> {
        let sql = "SELECT COUNT(*) FROM segments WHERE run = ?1 AND kind = ?2";
        let found = self.connection.query_row(sql, params![run.0, Kind::Capture.word()], |row| row.get(0));
        found.map(i64::unsigned_abs).map_err(|source| self.error(source))
    }

    /// What is stored of a node, in order.
    pub(crate) fn segments(
        &self,
        run: &RunId,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Vec<SegmentRow>, Error> {
        let rows = || {
            let sql = "SELECT number, kind = ?4 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 ORDER BY number";
            let mut statement = self.connection.prepare(sql)?;
            let read = |row: &rusqlite::Row<'_>| {
                let number: i64 = row.get(0)?;
                Ok(SegmentRow { number: number.unsigned_abs(), is_end: row.get(1)? })
            };
            statement
                .query_map(params![run.0, attempt, node.0, Kind::End.word()], read)?
                .collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// The checksum it is stored with.
    pub(crate) fn segment_hash(&self, id: &SegmentId) -> Result<Option<String>, Error> {
        let sql = "SELECT sha256 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
        let key = params![id.run.0, id.attempt, id.node.0, integer(id.number)];
        let found = self.connection.query_row(sql, key, |row| row.get(0)).optional();
        found.map_err(|source| self.error(source))
    }

    /// The commit of a segment.
    pub(crate) fn insert_segment(&self, parcel: Parcel<'_>, kind: Kind, sha256: &str) -> Result<(), Error> {
        let Parcel { id, bytes, at } = parcel;
        let sql = "INSERT INTO segments (run, attempt, node, number, kind, bytes, sha256, stored_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        let row = params![
            id.run.0,
            id.attempt,
            id.node.0,
            integer(id.number),
            kind.word(),
            size,
            sha256,
            integer(at)
        ];
        self.connection.execute(sql, row).map(drop).map_err(|source| self.error(source))
    }
}

/// As SQLite has them; numbers beyond are refused by its key, not wrapped.
fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
