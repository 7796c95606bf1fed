//! Results that come when no run waits for them, and how much of them is kept.
//!
//! Any node of the fleet may send such, of a run that ended without it or of one that nobody has heard of. They are
//! counted by node when they are stored, so that no node takes the disk or the share of another.

use super::RunCatalogue;
use crate::segments::STRAY;
use crate::{Error, migrations};
use packetrig_fleet::NodeName;
use serde::Serialize;
use std::fs;
use std::io;

/// Most bytes of late results of one node.
pub const MOST_LATE_OF_NODE: u64 = 4 << 30;
/// Most bytes of late results of all nodes.
pub const MOST_LATE: u64 = 16 << 30;
/// What came late of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LateResults {
    pub node: NodeName,
    /// Segments that are kept.
    pub segments: u64,
    /// Room they take on the disk.
    pub bytes: u64,
    /// How often one was refused, because too much was kept. The node has it still and sends it again.
    pub refused: u64,
}

impl RunCatalogue {
    /// What came late, by node.
    pub fn late(&self) -> Result<Vec<LateResults>, Error> {
        let is_older = migrations::version(&self.connection).is_ok_and(|found| found < migrations::newest());
        if is_older {
            // Opened for reading only: there is no such table.
            return Ok(Vec::new());
        }
        let rows = || {
            let sql = "SELECT node, segments, bytes, refused FROM late ORDER BY node";
            let mut statement = self.connection.prepare(sql)?;
            let read = |row: &rusqlite::Row<'_>| {
                let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
                let node = NodeName(row.get(0)?);
                Ok(LateResults { node, segments: count(1)?, bytes: count(2)?, refused: count(3)? })
            };
            statement.query_map([], read)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        rows().map_err(|source| self.error(source))
    }

    /// Removes late results of runs that are not known here, and forgets how much of others was kept.
    pub fn discard_late(&self) -> Result<(), Error> {
        let stray = self.place().join(STRAY);
        match fs::remove_dir_all(&stray) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::file("remove", stray)(error));
            }
            _ => {}
        }
        let sql = "DELETE FROM segments WHERE run NOT IN (SELECT id FROM runs)
             AND run NOT IN (SELECT run FROM unfinished);
             DELETE FROM run_parts WHERE run NOT IN (SELECT run FROM segments);
             DELETE FROM run_shares WHERE run NOT IN (SELECT run FROM segments);
             DELETE FROM late;";
        self.connection.execute_batch(sql).map_err(|source| self.error(source))
    }
}
