//! Rows of segments.

use super::RunCatalogue;
use super::parts::{count_segment, integer};
use super::quotas::BatchQuotas;
use crate::Error;
use crate::batch::SegmentToList;
use crate::packs::SegmentPlace;
use crate::segments::StoreOutcome;
use crate::spool::SegmentKind;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::{NodeName, RunId};
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};

/// A segment that is stored.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRow {
    pub(crate) number: u64,
    pub(crate) place: SegmentPlace,
}

/// What is known of a segment that has a row.
#[derive(Clone, Debug)]
pub(crate) struct ListedSegment {
    pub(crate) sha256: String,
    pub(crate) place: SegmentPlace,
}

impl RunCatalogue {
    /// How many pieces of captures are stored of a run.
    pub(crate) fn captured_segments(&self, run: &RunId) -> Result<u64, Error> {
        let sql = "SELECT COUNT(*) FROM segments WHERE run = ?1 AND kind = ?2";
        let found =
            self.connection.query_row(sql, params![run.0, SegmentKind::Capture.word()], |row| row.get(0));
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
            let sql = "SELECT number, pack, position, bytes FROM segments
                 WHERE run = ?1 AND attempt = ?2 AND node = ?3 ORDER BY number";
            let mut statement = self.connection.prepare_cached(sql)?;
            let read = |row: &Row<'_>| {
                Ok(SegmentRow { number: row.get::<_, i64>(0)?.unsigned_abs(), place: place(row)? })
            };
            statement.query_map(params![run.0, attempt, node.0], read)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// What its row says of a segment.
    pub(crate) fn listed_segment(&self, id: &SegmentId) -> Result<Option<ListedSegment>, Error> {
        let sql = "SELECT sha256, pack, position, bytes FROM segments
             WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
        let find = || {
            let key = params![id.run.0, id.attempt, id.node.0, integer(id.number)];
            let read = |row: &Row<'_>| Ok(ListedSegment { sha256: row.get(0)?, place: place(row)? });
            self.connection.prepare_cached(sql)?.query_row(key, read).optional()
        };
        find().map_err(|source| self.error(source))
    }

    /// The commit of segments that are on the disk, and of what was counted with them. For each whether it was there before; `None` if
    /// somebody else has stored it meanwhile, with other bytes.
    pub(crate) fn list_segments(
        &self,
        segments: &[SegmentToList<'_>],
        quotas: &BatchQuotas,
        at: u64,
    ) -> Result<Vec<Option<StoreOutcome>>, Error> {
        if segments.is_empty() && !quotas.is_changed() {
            return Ok(Vec::new());
        }
        let list = || {
            let change = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
            let listed = segments.iter().map(|segment| list_segment(&change, segment, at));
            let listed = listed.collect::<rusqlite::Result<Vec<_>>>()?;
            quotas.note(&change)?;
            change.commit()?;
            #[cfg(test)]
            crate::disk::tests::note_sync(&self.place.join("catalogue.sqlite"));
            Ok(listed)
        };
        list().map_err(|source| self.error(source))
    }

    /// Whether a row names this pack.
    pub(crate) fn is_pack_listed(&self, pack: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM segments WHERE pack = ?1)";
        self.connection.query_row(sql, params![pack], |row| row.get(0)).map_err(|source| self.error(source))
    }
}

fn place(row: &Row<'_>) -> rusqlite::Result<SegmentPlace> {
    let count = |column: &str| row.get::<_, i64>(column).map(i64::unsigned_abs);
    Ok(SegmentPlace { pack: row.get("pack")?, position: count("position")?, length: count("bytes")? })
}

fn list_segment(
    change: &Connection,
    segment: &SegmentToList<'_>,
    at: u64,
) -> rusqlite::Result<Option<StoreOutcome>> {
    let SegmentToList { id, kind, sha256, place, .. } = segment;
    if segment.has_row {
        let sql = "UPDATE segments SET pack = ?5, position = ?6
             WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
        let row =
            params![id.run.0, id.attempt, id.node.0, integer(id.number), place.pack, integer(place.position)];
        change.prepare_cached(sql)?.execute(row)?;
        return Ok(Some(StoreOutcome::Again));
    }
    let sql =
        "INSERT INTO segments (run, attempt, node, number, kind, bytes, sha256, stored_at, pack, position)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT DO NOTHING";
    let row = params![
        id.run.0,
        id.attempt,
        id.node.0,
        integer(id.number),
        kind.word(),
        integer(place.length),
        sha256,
        integer(at),
        place.pack,
        integer(place.position)
    ];
    if change.prepare_cached(sql)?.execute(row)? == 1 {
        let bytes = usize::try_from(place.length).unwrap_or(usize::MAX);
        count_segment(change, id, bytes, *kind == SegmentKind::End)?;
        return Ok(Some(StoreOutcome::New));
    }
    let sql = "SELECT 1 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4 AND sha256 = ?5";
    let row = params![id.run.0, id.attempt, id.node.0, integer(id.number), sha256];
    Ok(change.prepare_cached(sql)?.exists(row)?.then_some(StoreOutcome::Again))
}
