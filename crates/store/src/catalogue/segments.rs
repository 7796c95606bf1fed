//! Rows of segments.

use super::Catalogue;
use super::parts::{count_segment, integer};
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
}

impl Catalogue {
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
            let sql =
                "SELECT number FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 ORDER BY number";
            let mut statement = self.connection.prepare(sql)?;
            let read = |row: &rusqlite::Row<'_>| {
                let number: i64 = row.get(0)?;
                Ok(SegmentRow { number: number.unsigned_abs() })
            };
            statement.query_map(params![run.0, attempt, node.0], read)?.collect::<rusqlite::Result<Vec<_>>>()
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
        let insert = || {
            let change = self.connection.unchecked_transaction()?;
            change.prepare_cached(sql)?.execute(row)?;
            count_segment(&change, id, bytes.len(), kind == Kind::End)?;
            change.commit()
        };
        insert().map_err(|source| self.error(source))
    }
}
