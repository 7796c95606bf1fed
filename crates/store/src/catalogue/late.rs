//! Results that arrive when no run waits for them, and the limits on their size.
//!
//! Any node of the fleet may send such results, for a run that ended without them or for a run that this
//! store does not know. They are counted by node when they are stored, so that no single node fills the disk or
//! uses up the limit of all nodes.

use super::{RunCatalogue, read_count};
use crate::segments::UNKNOWN_RUNS_DIRECTORY;
use crate::{Error, migrations};
use packetrig_report::NodeName;
use serde::Serialize;
use std::fs;
use std::io;

/// Maximum number of bytes of late results of one node.
pub const MAX_LATE_BYTES_OF_NODE: u64 = 4 << 30;
/// Maximum number of bytes of late results of all nodes.
pub const MAX_LATE: u64 = 16 << 30;
/// Late results of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LateResults {
    pub node: NodeName,
    /// Number of stored segments.
    pub segments: u64,
    /// Bytes of these segments; each counts as at least 4096.
    pub bytes: u64,
    /// How many times a segment was refused because too much was stored. The node still has such a segment and sends
    /// it again, and every refusal counts.
    pub refused: u64,
}

impl RunCatalogue {
    /// Lists the late results of each node, in the order of the nodes' names.
    pub fn list_late_results(&self) -> Result<Vec<LateResults>, Error> {
        if self.is_older_than(migrations::LATE_RESULTS_SCHEMA_VERSION) {
            return Ok(Vec::new());
        }
        let sql = "SELECT node, segments, bytes, refused FROM late ORDER BY node";
        self.query_rows(sql, [], |row| {
            Ok(LateResults {
                node: NodeName(row.get(0)?),
                segments: read_count(row, 1)?,
                bytes: read_count(row, 2)?,
                refused: read_count(row, 3)?,
            })
        })
    }

    /// Removes late results of unknown runs, and resets the counts of all nodes. Late results of known runs stay, but
    /// no longer count.
    pub fn discard_late_results(&self) -> Result<(), Error> {
        // The files are removed before the rows. After a crash in between, the rows still count them, and the
        // next call removes the rows.
        let stray = self.place().join(UNKNOWN_RUNS_DIRECTORY);
        match fs::remove_dir_all(&stray) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::file("remove", stray)(error));
            }
            _ => {}
        }
        // Known runs keep their rows, which are needed to recognise a repeated segment.
        let sql = "DELETE FROM segments WHERE run NOT IN (SELECT id FROM runs)
             AND run NOT IN (SELECT run FROM unfinished);
             DELETE FROM run_parts WHERE run NOT IN (SELECT run FROM segments);
             DELETE FROM run_shares WHERE run NOT IN (SELECT run FROM segments);
             DELETE FROM late;";
        self.connection.execute_batch(sql).map_err(|source| self.catalogue_error(source))
    }
}
