//! Progress of each node's part of a run: its stored segments, and the disk space that they take.
//!
//! Progress and space have separate rows, so that the cost of one more segment does not grow with the
//! number of stored ones.
//!
//! Invariant: a row here is changed in the same transaction as the segments that it counts.

use super::{RunCatalogue, read_count};
use crate::Error;
use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use packetrig_units::clamp_to_i64;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

/// A smaller segment counts as this many bytes, so that many tiny segments use up a limit, too.
const MIN_SEGMENT_BYTES: u64 = 4096;
/// Bytes that a run under way leaves free on the disk, for its report and for other runs.
const RUN_RESERVED_DISK_BYTES: u64 = 128 << 20;
/// Number of bytes of a run that a node may always store, even if little space is left for the other nodes.
const ALWAYS_ALLOWED_BYTES: u64 = 64 << 20;

/// Limits on the data that one node may store of a run under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunQuota {
    /// Bytes on the disk, of all attempts.
    pub bytes: u64,
    /// Segments, of all attempts.
    pub segments: u64,
}

impl Default for RunQuota {
    fn default() -> Self {
        Self { bytes: 64 << 30, segments: 1 << 18 }
    }
}

/// Stored data of a node's part in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredRunShare {
    /// Number of stored segments.
    pub segments: u64,
    /// Bytes of these segments; each counts as at least 4096.
    pub bytes: u64,
    /// How many times a segment was refused. The node keeps a refused segment and sends it again.
    pub refused: u64,
}

/// Decision about one more segment of a run under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentAdmission {
    Admitted,
    /// The node has used up its share of the run, which all attempts of the run have in common.
    BeyondShare,
    /// The disk has no space for the segment now, which may change at any time.
    NoRoom,
}

impl RunQuota {
    /// Decides whether a node that has stored `share` may store `bytes` more, with `free` bytes left on the disk. A node may
    /// have three quarters of the sum of its own bytes and the free bytes; the remaining quarter is for the other nodes.
    pub(super) fn admit_segment(self, share: StoredRunShare, bytes: usize, free: u64) -> SegmentAdmission {
        let after = share.bytes.saturating_add(counted_segment_bytes(bytes));
        // The fixed limits come first, because free space does not affect them.
        if share.segments >= self.segments || after > self.bytes {
            return SegmentAdmission::BeyondShare;
        }
        // The counts of a node are small. They are stored as long as the disk accepts them, because a report
        // without them is worthless.
        if after <= ALWAYS_ALLOWED_BYTES {
            return SegmentAdmission::Admitted;
        }
        let usable = free.saturating_sub(RUN_RESERVED_DISK_BYTES);
        if counted_segment_bytes(bytes) > usable {
            return SegmentAdmission::NoRoom;
        }
        // The share counts what the node has stored already: otherwise a node could take three quarters again and again.
        let fair = share.bytes.saturating_add(usable) / 4 * 3;
        if after <= fair { SegmentAdmission::Admitted } else { SegmentAdmission::BeyondShare }
    }
}

pub(super) fn counted_segment_bytes(bytes: usize) -> u64 {
    (bytes as u64).max(MIN_SEGMENT_BYTES)
}

/// Progress of a node's part of a run and attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PartProgressRow {
    /// The lowest segment number that is not stored.
    below: u64,
    /// The highest number that is stored.
    highest: u64,
    /// Number of the part's End segment; `None` until it is stored.
    end: Option<u64>,
}

impl RunCatalogue {
    /// Returns the lowest segment number of a node's part that is not stored; all lower numbers are.
    pub fn watermark(&self, run: &RunId, attempt: u32, node: &NodeName) -> Result<u64, Error> {
        let id = SegmentId { run: run.clone(), attempt, node: node.clone(), number: 0 };
        let part = self.read_part_progress(&id).map_err(|source| self.catalogue_error(source))?;
        Ok(part.below)
    }

    /// Returns whether all segments of a node's part up to its End are stored, and no segment after the End.
    pub fn is_part_complete(&self, run: &RunId, attempt: u32, node: &NodeName) -> Result<bool, Error> {
        let id = SegmentId { run: run.clone(), attempt, node: node.clone(), number: 0 };
        let part = self.read_part_progress(&id).map_err(|source| self.catalogue_error(source))?;
        // No segment follows an End, so a part with a segment number above that of its End is never complete.
        Ok(part.end == Some(part.highest) && part.below == part.highest.saturating_add(1))
    }

    /// Returns whether another node with segments in this run and attempt has a name that begins with this
    /// name and `-`, or whether this name begins with the name of such a node and `-`.
    pub(crate) fn has_similar_node_name(
        &self,
        run: &RunId,
        attempt: u32,
        node: &NodeName,
    ) -> Result<bool, Error> {
        has_node_with_prefix_name(&self.connection, run, attempt, node)
            .map_err(|source| self.catalogue_error(source))
    }

    /// Lists each attempt and node of a run of which segments are stored.
    pub(crate) fn list_stored_parts(&self, run: &RunId) -> Result<Vec<(u32, NodeName)>, Error> {
        let sql = "SELECT attempt, node FROM run_parts WHERE run = ?1 ORDER BY attempt, node";
        self.query_rows(sql, params![run.0], |row| Ok((row.get(0)?, NodeName(row.get(1)?))))
    }

    /// Reads how much a node has stored of a run, in all attempts together; zeros if nothing.
    pub fn read_stored_run_share(&self, run: &RunId, node: &NodeName) -> Result<StoredRunShare, Error> {
        let sql = "SELECT segments, bytes, refused FROM run_shares WHERE run = ?1 AND node = ?2";
        // Both columns are the key, so there is at most one row.
        let mut shares = self.query_rows(sql, params![run.0, node.0], |row| {
            Ok(StoredRunShare {
                segments: read_count(row, 0)?,
                bytes: read_count(row, 1)?,
                refused: read_count(row, 2)?,
            })
        })?;
        Ok(shares.pop().unwrap_or_default())
    }

    /// Reads the progress of the part that `id` belongs to; zeros if no segment of it is stored.
    fn read_part_progress(&self, id: &SegmentId) -> rusqlite::Result<PartProgressRow> {
        Ok(find_part_progress(&self.connection, id)?.unwrap_or_default())
    }
}

fn has_node_with_prefix_name(
    connection: &Connection,
    run: &RunId,
    attempt: u32,
    node: &NodeName,
) -> rusqlite::Result<bool> {
    // `.` follows `-` in ASCII, so the range contains all names that begin with this name and `-`.
    let longer = "SELECT 1 FROM run_parts
         WHERE run = ?1 AND attempt = ?2 AND node >= ?3 || '-' AND node < ?3 || '.'";
    if connection.prepare_cached(longer)?.exists(params![run.0, attempt, node.0])? {
        return Ok(true);
    }
    let sql = "SELECT 1 FROM run_parts WHERE run = ?1 AND attempt = ?2 AND node = ?3";
    // The reverse case: this name begins with the other name and `-`.
    let mut shorter = connection.prepare_cached(sql)?;
    for (end, _) in node.0.match_indices('-') {
        if shorter.exists(params![run.0, attempt, &node.0[..end]])? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn find_part_progress(connection: &Connection, id: &SegmentId) -> rusqlite::Result<Option<PartProgressRow>> {
    let sql = "SELECT below, highest, end FROM run_parts WHERE run = ?1 AND attempt = ?2 AND node = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row(params![id.run.0, id.attempt, id.node.0], read_part_row).optional()
}

fn read_part_row(row: &Row<'_>) -> rusqlite::Result<PartProgressRow> {
    let end: Option<i64> = row.get(2)?;
    Ok(PartProgressRow {
        below: read_count(row, 0)?,
        highest: read_count(row, 1)?,
        end: end.map(i64::unsigned_abs),
    })
}

/// Updates the progress and the share of the node after the row of a segment was inserted.
pub(super) fn count_segment(
    connection: &Connection,
    id: &SegmentId,
    bytes: usize,
    is_end: bool,
) -> rusqlite::Result<()> {
    // The value is read inside the transaction that writes it back, so that no other process can count in between.
    let mut part = find_part_progress(connection, id)?.unwrap_or_default();
    part.highest = part.highest.max(id.number);
    if is_end {
        // A journal has one End. If a faulty node sends several, the highest one counts.
        part.end = part.end.max(Some(id.number));
    }
    // Segments may arrive in any order. The loop passes each number only once in the life of the part, so it
    // is cheap on average.
    while is_segment_stored(connection, id, part.below)? {
        part.below += 1;
    }
    let sql = "INSERT OR REPLACE INTO run_parts (run, attempt, node, below, highest, end)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let end = part.end.map(clamp_to_i64);
    connection.prepare_cached(sql)?.execute(params![
        id.run.0,
        id.attempt,
        id.node.0,
        clamp_to_i64(part.below),
        clamp_to_i64(part.highest),
        end
    ])?;
    let sql = "INSERT INTO run_shares (run, node, segments, bytes, refused) VALUES (?1, ?2, 1, ?3, 0)
         ON CONFLICT (run, node) DO UPDATE SET segments = segments + 1, bytes = bytes + excluded.bytes";
    connection.prepare_cached(sql)?.execute(params![
        id.run.0,
        id.node.0,
        clamp_to_i64(counted_segment_bytes(bytes))
    ])?;
    Ok(())
}

fn is_segment_stored(connection: &Connection, id: &SegmentId, number: u64) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
    connection.prepare_cached(sql)?.exists(params![id.run.0, id.attempt, id.node.0, clamp_to_i64(number)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn share(bytes: u64, segments: u64) -> StoredRunShare {
        StoredRunShare { segments, bytes, refused: 0 }
    }

    #[test]
    fn node_quota_leaves_room_for_other_nodes() {
        use SegmentAdmission::{Admitted, BeyondShare, NoRoom};
        let quota = RunQuota { bytes: 10 * GIB, segments: 100 };
        let plenty = 1 << 50;
        assert_eq!(quota.admit_segment(share(0, 99), 1000, plenty), Admitted);
        assert_eq!(quota.admit_segment(share(0, 100), 1000, plenty), BeyondShare, "segments");
        assert_eq!(quota.admit_segment(share(10 * GIB - MIN_SEGMENT_BYTES, 1), 1, plenty), Admitted);
        assert_eq!(
            quota.admit_segment(share(10 * GIB - MIN_SEGMENT_BYTES, 1), 5000, plenty),
            BeyondShare,
            "bytes"
        );
        assert_eq!(quota.admit_segment(share(2 * GIB, 1), 1000, GIB + RUN_RESERVED_DISK_BYTES), Admitted);
        assert_eq!(
            quota.admit_segment(share(3 * GIB, 1), 1000, GIB + RUN_RESERVED_DISK_BYTES),
            BeyondShare,
            "a quarter is for the others"
        );
        assert_eq!(
            quota.admit_segment(share(ALWAYS_ALLOWED_BYTES - MIN_SEGMENT_BYTES, 1), 1, 0),
            Admitted,
            "the disk itself says when it is full"
        );
        assert_eq!(
            quota.admit_segment(share(ALWAYS_ALLOWED_BYTES, 1), 1, RUN_RESERVED_DISK_BYTES),
            NoRoom,
            "which may change"
        );
    }
}
