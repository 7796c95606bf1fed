//! Remaining quotas of the nodes, while a batch of segments is assembled.
//!
//! The catalogue is read once for each node of a batch, and the changes are written in the same transaction as the segments.

use super::parts::{SegmentAdmission, counted_segment_bytes};
use super::{MAX_LATE, MAX_LATE_BYTES_OF_NODE, RunCatalogue, RunQuota, StoredRunShare};
use crate::Error;
use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use packetrig_units::clamp_to_i64;
use rusqlite::{Connection, params};
use std::collections::BTreeMap;
use std::io::ErrorKind;

/// Bytes that late results leave free on the disk, for runs under way.
const LATE_RESERVED_DISK_BYTES: u64 = 128 << 20;

#[derive(Debug, Default)]
pub(crate) struct BatchQuotas {
    /// Free bytes of the disk minus the bytes of the batch; `None` before the first segment.
    free: Option<u64>,
    /// Stored data of each node in its run under way, including the batch.
    shares: BTreeMap<(RunId, NodeName), StoredRunShare>,
    /// Number of segments that the batch refused, of each node in its run under way.
    refused: BTreeMap<(RunId, NodeName), i64>,
    /// Bytes of late results of each node, including the batch.
    late_bytes: Option<BTreeMap<NodeName, u64>>,
    /// Late results that the batch adds, by node.
    late: BTreeMap<NodeName, LateResultCounts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct LateResultCounts {
    segments: i64,
    bytes: u64,
    refused: i64,
}

impl BatchQuotas {
    /// Creates quotas for a disk with this many free bytes.
    #[cfg(test)]
    pub(crate) fn with_free(free: u64) -> Self {
        Self { free: Some(free), ..Self::default() }
    }

    fn free_bytes(&mut self, catalogue: &RunCatalogue) -> u64 {
        let place = catalogue.place();
        // If the free space is unknown, it counts as unlimited: the write itself fails if there is no space.
        *self.free.get_or_insert_with(|| packetrig_sys::disk::free_bytes(place).unwrap_or(u64::MAX))
    }

    fn deduct_free_bytes(&mut self, bytes: u64) {
        self.free = self.free.map(|free| free.saturating_sub(bytes));
    }

    /// Counts a segment of a run under way, or refuses it if its node has used its share or the disk is full.
    pub(crate) fn admit_segment_to_run(
        &mut self,
        catalogue: &RunCatalogue,
        id: &SegmentId,
        bytes: usize,
        quota: RunQuota,
    ) -> Result<(), Error> {
        let free = self.free_bytes(catalogue);
        let key = (id.run.clone(), id.node.clone());
        let mut share = match self.shares.get(&key) {
            Some(share) => *share,
            None => catalogue.read_stored_run_share(&id.run, &id.node)?,
        };
        // The changed share is remembered for the next segment of the batch, because the catalogue does not
        // contain this segment yet.
        let admission = quota.admit_segment(share, bytes, free);
        match admission {
            SegmentAdmission::Admitted => {
                share.segments += 1;
                share.bytes = share.bytes.saturating_add(counted_segment_bytes(bytes));
                self.deduct_free_bytes(counted_segment_bytes(bytes));
            }
            SegmentAdmission::BeyondShare => {
                share.refused = share.refused.saturating_add(1);
                // Refusals are counted separately, because a refused segment has no row to commit.
                *self.refused.entry(key.clone()).or_default() += 1;
            }
            // A full disk is not the node's fault, so it does not count as a refusal.
            SegmentAdmission::NoRoom => {}
        }
        self.shares.insert(key, share);
        match admission {
            SegmentAdmission::Admitted => Ok(()),
            SegmentAdmission::BeyondShare => Err(Error::RunQuota { id: id.clone(), share }),
            SegmentAdmission::NoRoom => Err(no_space_error(catalogue)),
        }
    }

    /// Counts a late segment, or refuses it. A segment that is stored again because its row was lost counts
    /// twice, which uses up some of its node's share.
    pub(crate) fn admit_late_segment(
        &mut self,
        catalogue: &RunCatalogue,
        id: &SegmentId,
        bytes: usize,
    ) -> Result<(), Error> {
        let free = self.free_bytes(catalogue);
        let bytes = counted_segment_bytes(bytes);
        let mut kept = match self.late_bytes.take() {
            Some(kept) => kept,
            None => catalogue.list_late_results()?.into_iter().map(|late| (late.node, late.bytes)).collect(),
        };
        let of_node = kept.get(&id.node).copied().unwrap_or(0);
        // Both limits apply: neither a single node nor many nodes together may fill the disk.
        let of_all: u64 = kept.values().sum();
        let limits = [(of_node, MAX_LATE_BYTES_OF_NODE), (of_all, MAX_LATE)];
        let beyond = limits.into_iter().find(|(kept, most)| kept.saturating_add(bytes) > *most);
        // A full disk is not counted as a refusal, and the node sends the segment again.
        if beyond.is_none() && bytes > free.saturating_sub(LATE_RESERVED_DISK_BYTES) {
            self.late_bytes = Some(kept);
            return Err(no_space_error(catalogue));
        }
        let addition = self.late.entry(id.node.clone()).or_default();
        if beyond.is_some() {
            addition.refused += 1;
        } else {
            addition.segments += 1;
            addition.bytes = addition.bytes.saturating_add(bytes);
            kept.insert(id.node.clone(), of_node.saturating_add(bytes));
            self.deduct_free_bytes(bytes);
        }
        self.late_bytes = Some(kept);
        match beyond {
            Some((kept, most)) => Err(Error::LateQuota { id: id.clone(), kept, most }),
            None => Ok(()),
        }
    }

    /// Returns whether there are changes to write besides the segments.
    pub(crate) fn is_changed(&self) -> bool {
        !self.refused.is_empty() || !self.late.is_empty()
    }

    /// Writes the counts of refusals and of late results. The stored segments of runs
    /// are counted by `count_segment`.
    pub(super) fn write_counts(&self, change: &Connection) -> rusqlite::Result<()> {
        let sql = "INSERT INTO run_shares (run, node, segments, bytes, refused) VALUES (?1, ?2, 0, 0, ?3)
             ON CONFLICT (run, node) DO UPDATE SET refused = refused + excluded.refused";
        // The batch has differences only, so they are added to rows that other
        // processes may have changed meanwhile.
        for ((run, node), refused) in &self.refused {
            change.prepare_cached(sql)?.execute(params![run.0, node.0, refused])?;
        }
        let sql = "INSERT INTO late (node, segments, bytes, refused) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (node) DO UPDATE SET segments = segments + excluded.segments,
             bytes = bytes + excluded.bytes, refused = refused + excluded.refused";
        for (node, LateResultCounts { segments, bytes, refused }) in &self.late {
            change.prepare_cached(sql)?.execute(params![node.0, segments, clamp_to_i64(*bytes), refused])?;
        }
        Ok(())
    }
}

/// The error for a disk that has too little space now. The fabric keeps the segment and delivers it again.
/// If the segment were refused for good, its counts would be missing in the report, although there may be
/// space a moment later.
fn no_space_error(catalogue: &RunCatalogue) -> Error {
    Error::file("store a segment in", catalogue.place())(ErrorKind::StorageFull.into())
}
