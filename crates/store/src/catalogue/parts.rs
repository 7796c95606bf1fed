//! How far the parts of a run are, and how much each node takes of the disk with them.
//!
//! Both are kept beside the segments, so that one more segment costs the same however many are stored.
//!
//! Invariant: a row here is changed in the same transaction as the segments that it counts.

use super::RunCatalogue;
use crate::Error;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::{NodeName, RunId};
use rusqlite::{Connection, OptionalExtension as _, params};

/// What the smallest segment takes on the disk, with its name.
const LEAST: u64 = 4096;
/// What the run under way leaves free on the disk, for its report and for what comes after it.
const KEEP_FREE: u64 = 128 << 20;
/// A node may store this much of a run however little the others would have left.
const ALWAYS: u64 = 64 << 20;

/// How much one node may store of a run under way.
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

/// What a node has stored of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunShare {
    /// Segments that are stored.
    pub segments: u64,
    /// Room they take on the disk.
    pub bytes: u64,
    /// How often one was refused. The node has it still and sends it again.
    pub refused: u64,
}

/// What becomes of one more segment of the run under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentAdmission {
    Admitted,
    /// Its node has used up its share. Another attempt will not change that.
    BeyondShare,
    /// The disk has no room for it now, which may change at any time.
    NoRoom,
}

impl RunQuota {
    /// Whether a node that has stored `share` may store so much more, with `free` bytes left on the disk. Of what it has and
    /// what is free together, it leaves a quarter to the others.
    pub(super) fn admit(self, share: RunShare, bytes: usize, free: u64) -> SegmentAdmission {
        let after = share.bytes.saturating_add(on_disk(bytes));
        if share.segments >= self.segments || after > self.bytes {
            return SegmentAdmission::BeyondShare;
        }
        // A node's counts are small. While the disk takes them they are stored, because a report without them is worth nothing.
        if after <= ALWAYS {
            return SegmentAdmission::Admitted;
        }
        let usable = free.saturating_sub(KEEP_FREE);
        if on_disk(bytes) > usable {
            return SegmentAdmission::NoRoom;
        }
        let fair = share.bytes.saturating_add(usable) / 4 * 3;
        if after <= fair { SegmentAdmission::Admitted } else { SegmentAdmission::BeyondShare }
    }
}

pub(super) fn on_disk(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).max(LEAST)
}

/// How far a node's part of a run and attempt is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PartRow {
    /// The first number that is not stored.
    below: u64,
    /// The highest number that is stored.
    highest: u64,
    /// The number of its End.
    end: Option<u64>,
}

impl RunCatalogue {
    /// The first number of a node's part in a run that is not stored.
    pub fn watermark(&self, run: &RunId, attempt: u32, node: &NodeName) -> Result<u64, Error> {
        let id = SegmentId { run: run.clone(), attempt, node: node.clone(), number: 0 };
        let part = self.part(&id).map_err(|source| self.error(source))?;
        Ok(part.below)
    }

    /// Whether everything of a node's part up to its End is stored, and nothing beyond.
    pub fn is_part_whole(&self, run: &RunId, attempt: u32, node: &NodeName) -> Result<bool, Error> {
        let id = SegmentId { run: run.clone(), attempt, node: node.clone(), number: 0 };
        let part = self.part(&id).map_err(|source| self.error(source))?;
        Ok(part.end == Some(part.highest) && part.below == part.highest.saturating_add(1))
    }

    /// Whether another node that sent something of a run and attempt has a name that begins with this one and `-`, or the other
    /// way round.
    pub(crate) fn has_similar_sender(
        &self,
        run: &RunId,
        attempt: u32,
        node: &NodeName,
    ) -> Result<bool, Error> {
        let find = || {
            // `.` is the character after `-`.
            let longer = "SELECT 1 FROM run_parts
                 WHERE run = ?1 AND attempt = ?2 AND node >= ?3 || '-' AND node < ?3 || '.'";
            if self.connection.prepare_cached(longer)?.exists(params![run.0, attempt, node.0])? {
                return Ok(true);
            }
            let sql = "SELECT 1 FROM run_parts WHERE run = ?1 AND attempt = ?2 AND node = ?3";
            let mut shorter = self.connection.prepare_cached(sql)?;
            for (end, _) in node.0.match_indices('-') {
                if shorter.exists(params![run.0, attempt, &node.0[..end]])? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        find().map_err(|source| self.error(source))
    }

    /// Every attempt and node of a run of which something is stored.
    pub(crate) fn parts(&self, run: &RunId) -> Result<Vec<(u32, NodeName)>, Error> {
        let rows = || {
            let sql = "SELECT attempt, node FROM run_parts WHERE run = ?1 ORDER BY attempt, node";
            let mut statement = self.connection.prepare(sql)?;
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, NodeName(row.get(1)?)));
            statement.query_map(params![run.0], read)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// What a node has stored of a run, in all attempts.
    pub fn run_share(&self, run: &RunId, node: &NodeName) -> Result<RunShare, Error> {
        let share = || {
            let sql = "SELECT segments, bytes, refused FROM run_shares WHERE run = ?1 AND node = ?2";
            let mut statement = self.connection.prepare_cached(sql)?;
            let read = |row: &rusqlite::Row<'_>| {
                let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
                Ok(RunShare { segments: count(0)?, bytes: count(1)?, refused: count(2)? })
            };
            statement.query_row(params![run.0, node.0], read).optional()
        };
        share().map(Option::unwrap_or_default).map_err(|source| self.error(source))
    }

    /// How far the part is to which `id` belongs.
    fn part(&self, id: &SegmentId) -> rusqlite::Result<PartRow> {
        Ok(stored_part(&self.connection, id)?.unwrap_or_default())
    }
}

fn stored_part(connection: &Connection, id: &SegmentId) -> rusqlite::Result<Option<PartRow>> {
    let sql = "SELECT below, highest, end FROM run_parts WHERE run = ?1 AND attempt = ?2 AND node = ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &rusqlite::Row<'_>| {
        let end: Option<i64> = row.get(2)?;
        Ok(PartRow {
            below: row.get::<_, i64>(0)?.unsigned_abs(),
            highest: row.get::<_, i64>(1)?.unsigned_abs(),
            end: end.map(i64::unsigned_abs),
        })
    };
    statement.query_row(params![id.run.0, id.attempt, id.node.0], read).optional()
}

/// Counts a segment whose row was just inserted.
pub(super) fn count_segment(
    connection: &Connection,
    id: &SegmentId,
    bytes: usize,
    is_end: bool,
) -> rusqlite::Result<()> {
    let mut part = stored_part(connection, id)?.unwrap_or_default();
    part.highest = part.highest.max(id.number);
    if is_end {
        part.end = part.end.max(Some(id.number));
    }
    // Each number is passed once in the life of the part.
    while is_stored(connection, id, part.below)? {
        part.below += 1;
    }
    let sql = "INSERT OR REPLACE INTO run_parts (run, attempt, node, below, highest, end)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let end = part.end.map(integer);
    connection.prepare_cached(sql)?.execute(params![
        id.run.0,
        id.attempt,
        id.node.0,
        integer(part.below),
        integer(part.highest),
        end
    ])?;
    let sql = "INSERT INTO run_shares (run, node, segments, bytes, refused) VALUES (?1, ?2, 1, ?3, 0)
         ON CONFLICT (run, node) DO UPDATE SET segments = segments + 1, bytes = bytes + excluded.bytes";
    connection.prepare_cached(sql)?.execute(params![id.run.0, id.node.0, integer(on_disk(bytes))])?;
    Ok(())
}

fn is_stored(connection: &Connection, id: &SegmentId, number: u64) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM segments WHERE run = ?1 AND attempt = ?2 AND node = ?3 AND number = ?4";
    connection.prepare_cached(sql)?.exists(params![id.run.0, id.attempt, id.node.0, integer(number)])
}

/// As SQLite has them; numbers beyond are refused by its key, not wrapped.
pub(super) fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn share(bytes: u64, segments: u64) -> RunShare {
        RunShare { segments, bytes, refused: 0 }
    }

    #[test]
    fn a_node_has_its_quota_and_leaves_room_for_the_others() {
        use SegmentAdmission::{Admitted, BeyondShare, NoRoom};
        let quota = RunQuota { bytes: 10 * GIB, segments: 100 };
        let plenty = 1 << 50;
        assert_eq!(quota.admit(share(0, 99), 1000, plenty), Admitted);
        assert_eq!(quota.admit(share(0, 100), 1000, plenty), BeyondShare, "segments");
        assert_eq!(quota.admit(share(10 * GIB - LEAST, 1), 1, plenty), Admitted);
        assert_eq!(quota.admit(share(10 * GIB - LEAST, 1), 5000, plenty), BeyondShare, "bytes");
        assert_eq!(quota.admit(share(2 * GIB, 1), 1000, GIB + KEEP_FREE), Admitted);
        assert_eq!(
            quota.admit(share(3 * GIB, 1), 1000, GIB + KEEP_FREE),
            BeyondShare,
            "a quarter is for the others"
        );
        assert_eq!(
            quota.admit(share(ALWAYS - LEAST, 1), 1, 0),
            Admitted,
            "the disk itself says when it is full"
        );
        assert_eq!(quota.admit(share(ALWAYS, 1), 1, KEEP_FREE), NoRoom, "which may change");
    }
}
