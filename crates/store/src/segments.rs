//! Segments of nodes, as the controller stores them.
//!
//! ```text
//! <directory of the run>/segments/<hash>.pack                      segments that were stored together
//! <directory of the run>/segments/<node>.<attempt>/<number>.seg    a segment that an earlier version stored
//! ```
//! Invariant: a segment gets its row only after its file is synced to the disk, and files with the same name have
//! the same bytes. After a [`StoreOutcome`], the node may delete the segment.

use crate::Error;
use crate::batch::SegmentBatch;
use crate::catalogue::RunCatalogue;
use crate::draft::RunDraft;
use crate::spool::SegmentKey;
use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use std::path::{Path, PathBuf};

/// Directory of segments in a run's directory.
pub(crate) const SEGMENTS_DIRECTORY: &str = "segments";

/// Directory in the store for segments of runs that the store does not know.
pub(crate) const UNKNOWN_RUNS_DIRECTORY: &str = "stray";

/// Result of storing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    New,
    /// The segment was stored before, so this was a repeat.
    Again,
}

impl RunDraft {
    /// Stores one segment, as a separate [`SegmentBatch`].
    pub fn store_segment(
        &self,
        catalogue: &RunCatalogue,
        id: &SegmentId,
        bytes: &[u8],
        at: u64,
    ) -> Result<StoreOutcome, Error> {
        let mut batch = SegmentBatch::new(catalogue, at);
        batch.add_segment(self, id, bytes);
        // One segment was added, so there is exactly one answer.
        batch.store_segments().remove(0)
    }
}

impl RunCatalogue {
    /// Stores one segment as [`SegmentBatch::add_late_segment`] does.
    pub fn store_late_segment(&self, id: &SegmentId, bytes: &[u8], at: u64) -> Result<StoreOutcome, Error> {
        let mut batch = SegmentBatch::new(self, at);
        batch.add_late_segment(id, bytes);
        batch.store_segments().remove(0)
    }

    /// Directory for segments of a run of which the caller has no draft.
    pub(crate) fn late_segment_directory(&self, run: &RunId) -> Result<PathBuf, Error> {
        let under_way = self.unfinished_directory(run)?;
        let listed = self.run_directory(run);
        // The order matters: first a run under way, then a run that already has its report, then an unknown
        // run.
        Ok(match under_way {
            Some(partial) if partial.exists() => partial,
            _ if listed.exists() => listed,
            _ => self.place().join(UNKNOWN_RUNS_DIRECTORY).join(&run.0),
        })
    }
}

pub(crate) fn segment_key(id: &SegmentId) -> SegmentKey {
    SegmentKey { run: id.run.clone(), attempt: id.attempt, number: id.number }
}

pub(crate) fn node_directory(run: &Path, attempt: u32, node: &NodeName) -> PathBuf {
    run.join(SEGMENTS_DIRECTORY).join(format!("{node}.{attempt}"))
}

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:020}.seg")
}

pub(crate) fn check_node_directory_name(node: &NodeName) -> Result<(), Error> {
    // The name becomes the name of a directory: no separators, no hidden names, no `.` and no `..`.
    let is_plain = node.0.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if node.0.is_empty() || node.0.len() > 100 || node.0.starts_with('.') || !is_plain {
        return Err(Error::BadNode(node.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
