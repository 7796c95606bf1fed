//! The catalogue's rows of segments: where each segment is stored, and the commit of a batch.

use super::parts::count_segment;
use super::quotas::BatchQuotas;
use super::{RunCatalogue, read_count};
use crate::Error;
use crate::batch::SegmentToCatalogue;
use crate::packs::SegmentLocation;
use crate::segments::StoreOutcome;
use crate::spool::SegmentKind;
use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use packetrig_units::{clamp_to_i64, clamp_to_usize};
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

/// Number and location of a stored segment of a node.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRow {
    pub(crate) number: u64,
    pub(crate) place: SegmentLocation,
}

/// The row of a segment, found by its id.
#[derive(Clone, Debug)]
pub(crate) struct ListedSegment {
    pub(crate) sha256: String,
    pub(crate) place: SegmentLocation,
}

impl RunCatalogue {
    /// Number of capture segments of a run.
    pub(crate) fn count_capture_segments(&self, run: &RunId) -> Result<u64, Error> {
        let sql = "SELECT COUNT(*) FROM segments WHERE run = ?1 AND kind = ?2";
        let found =
            self.connection.query_row(sql, params![run.0, SegmentKind::Capture.as_str()], |row| row.get(0));
        found.map(i64::unsigned_abs).map_err(|source| self.catalogue_error(source))
    }

    /// Lists the stored segments of a node in one attempt of a run, in the order of their numbers.
    pub(crate) fn list_segment_rows(
        &self,
        run: &RunId,
        attempt: u32,
        node: &NodeName,
    ) -> Result<Vec<SegmentRow>, Error> {
        let sql = "SELECT number, pack, position, bytes FROM segments
             WHERE run = ?1 AND attempt = ?2 AND node = ?3 ORDER BY number";
        self.query_rows(sql, params![run.0, attempt, node.0], |row| {
            Ok(SegmentRow { number: read_count(row, 0)?, place: read_segment_place(row)? })
        })
    }

    /// Finds the row of a segment; `None` if it has none.
    pub(crate) fn find_listed_segment(&self, id: &SegmentId) -> Result<Option<ListedSegment>, Error> {
        let sql = "SELECT sha256, pack, position, bytes FROM segments
             WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
        let key = params![id.run.0, id.attempt, id.node.0, clamp_to_i64(id.number)];
        // These columns are the primary key, so there is at most one row.
        let mut found = self.query_rows(sql, key, |row| {
            Ok(ListedSegment { sha256: row.get(0)?, place: read_segment_place(row)? })
        })?;
        Ok(found.pop())
    }

    /// Commits segments whose bytes are on the disk, together with the quotas of their batch. Returns for each whether
    /// it was new or stored before; `None` if another process has meanwhile stored the id with other bytes.
    pub(crate) fn commit_written_segments(
        &self,
        segments: &[SegmentToCatalogue<'_>],
        quotas: &BatchQuotas,
        at: u64,
    ) -> Result<Vec<Option<StoreOutcome>>, Error> {
        if segments.is_empty() && !quotas.is_changed() {
            return Ok(Vec::new());
        }
        self.commit_segments(segments, quotas, at).map_err(|source| self.catalogue_error(source))
    }

    fn commit_segments(
        &self,
        segments: &[SegmentToCatalogue<'_>],
        quotas: &BatchQuotas,
        at: u64,
    ) -> rusqlite::Result<Vec<Option<StoreOutcome>>> {
        // An immediate transaction takes the write lock at its beginning. A transaction that begins with a
        // read could fail with SQLITE_BUSY at its first write, without waiting.
        let change = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let listed = segments.iter().map(|segment| insert_segment_row(&change, segment, at));
        // An error drops the transaction, which undoes all of it.
        let listed = listed.collect::<rusqlite::Result<Vec<_>>>()?;
        // The counts change in the same transaction, so that no crash leaves a count without its segments.
        quotas.write_counts(&change)?;
        change.commit()?;
        #[cfg(test)]
        crate::disk::tests::record_sync(&self.place.join("catalogue.sqlite"));
        Ok(listed)
    }

    /// Returns whether a row names this pack.
    pub(crate) fn is_pack_listed(&self, pack: &str) -> Result<bool, Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM segments WHERE pack = ?1)";
        self.connection
            .query_row(sql, params![pack], |row| row.get(0))
            .map_err(|source| self.catalogue_error(source))
    }
}

fn read_segment_place(row: &Row<'_>) -> rusqlite::Result<SegmentLocation> {
    Ok(SegmentLocation {
        pack: row.get("pack")?,
        position: read_count(row, "position")?,
        length: read_count(row, "bytes")?,
    })
}

fn insert_segment_row(
    change: &Connection,
    segment: &SegmentToCatalogue<'_>,
    at: u64,
) -> rusqlite::Result<Option<StoreOutcome>> {
    let SegmentToCatalogue { id, kind, sha256, place, .. } = segment;
    // The file was lost and is written again: only its place changes, because it was already counted.
    if segment.has_row {
        let sql = "UPDATE segments SET pack = ?5, position = ?6
             WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
        let row = params![
            id.run.0,
            id.attempt,
            id.node.0,
            clamp_to_i64(id.number),
            place.pack,
            clamp_to_i64(place.position)
        ];
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
        clamp_to_i64(id.number),
        kind.as_str(),
        clamp_to_i64(place.length),
        sha256,
        clamp_to_i64(at),
        place.pack,
        clamp_to_i64(place.position)
    ];
    if change.prepare_cached(sql)?.execute(row)? == 1 {
        count_segment(change, id, clamp_to_usize(place.length), *kind == SegmentKind::End)?;
        return Ok(Some(StoreOutcome::New));
    }
    // Another process has stored this segment first. The same bytes count as a repeat; other bytes are
    // refused.
    let sql = "SELECT 1 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4 AND sha256 = ?5";
    let row = params![id.run.0, id.attempt, id.node.0, clamp_to_i64(id.number), sha256];
    Ok(change.prepare_cached(sql)?.exists(row)?.then_some(StoreOutcome::Again))
}
