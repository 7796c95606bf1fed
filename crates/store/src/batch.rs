//! Segments that are stored together: one pack file per run (several on a nearly full disk) and one commit of the
//! catalogue, for any number of nodes.
//!
//! Invariant: a segment gets a [`StoreOutcome`] only when it is synced to the disk and its row is committed. A bad
//! segment does not affect the others.

use crate::Error;
use crate::catalogue::{BatchQuotas, RunCatalogue};
use crate::draft::{RunDraft, check_run_id};
use crate::packs::{PackedSegment, SegmentLocation, write_pack};
use crate::segments::{StoreOutcome, check_node_directory_name, segment_key};
use crate::spool::segment::{SegmentHash, hash_in_hex};
use crate::spool::{ResultSegment, SegmentKind};
use packetrig_fleet::fabric::SegmentId;
use packetrig_report::RunId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub struct SegmentBatch<'a> {
    catalogue: &'a RunCatalogue,
    /// Time of arrival, nanoseconds since 1970 (UTC).
    at: u64,
    outcomes: Vec<SegmentWriteOutcome>,
    unwritten: Vec<UnwrittenSegment<'a>>,
    quotas: BatchQuotas,
    /// Directory of late segments of each run.
    late_directories: BTreeMap<RunId, PathBuf>,
}

/// The result for one segment.
#[derive(Debug)]
enum SegmentWriteOutcome {
    Settled(Result<StoreOutcome, Error>),
    /// The outcome is known when the unwritten segment with this index is stored.
    Unwritten(usize),
    /// The same segment came twice in the batch. This one gets the outcome of the first, as a repeat.
    Repeats(usize),
}

/// A segment that has to be written.
#[derive(Debug)]
struct UnwrittenSegment<'a> {
    id: &'a SegmentId,
    bytes: &'a [u8],
    kind: SegmentKind,
    hash: SegmentHash,
    /// The directory of its run.
    run: PathBuf,
    /// True if it has a row already, and only its file was lost.
    has_row: bool,
}

/// A segment whose bytes are on the disk and whose row must be written. If it has a row already, because only its file
/// was lost, the row gets the new location.
#[derive(Debug)]
pub(crate) struct SegmentToCatalogue<'a> {
    pub(crate) id: &'a SegmentId,
    pub(crate) kind: SegmentKind,
    pub(crate) sha256: String,
    pub(crate) place: SegmentLocation,
    /// The directory of its run.
    pub(crate) run: &'a Path,
    pub(crate) has_row: bool,
}

impl<'a> SegmentBatch<'a> {
    /// Makes an empty batch. `at` is the arrival time of its segments, in nanoseconds since 1970 (UTC).
    pub fn new(catalogue: &'a RunCatalogue, at: u64) -> Self {
        Self {
            catalogue,
            at,
            outcomes: Vec::new(),
            unwritten: Vec::new(),
            quotas: BatchQuotas::default(),
            late_directories: BTreeMap::new(),
        }
    }

    /// Adds a segment of the draft's run. A segment that is stored already gets [`StoreOutcome::Again`], or
    /// [`Error::Differs`] if its bytes are different: the bytes that were stored first never change.
    pub fn add_segment(&mut self, draft: &RunDraft, id: &'a SegmentId, bytes: &'a [u8]) {
        let outcome = self
            .examine_segment(draft, id, bytes)
            .unwrap_or_else(|error| SegmentWriteOutcome::Settled(Err(error)));
        self.outcomes.push(outcome);
    }

    /// Adds a segment for which the caller has no draft, so that the node can delete it. If the segment comes
    /// too late for its report, it is stored beside the report. A segment of an unknown run is stored in a
    /// separate directory. At most [`MAX_LATE_BYTES_OF_NODE`](crate::MAX_LATE_BYTES_OF_NODE) bytes are kept per node, and
    /// [`MAX_LATE`](crate::MAX_LATE) in total.
    pub fn add_late_segment(&mut self, id: &'a SegmentId, bytes: &'a [u8]) {
        let outcome = self
            .examine_late_segment(id, bytes)
            .unwrap_or_else(|error| SegmentWriteOutcome::Settled(Err(error)));
        self.outcomes.push(outcome);
    }

    fn examine_segment(
        &mut self,
        draft: &RunDraft,
        id: &'a SegmentId,
        bytes: &'a [u8],
    ) -> Result<SegmentWriteOutcome, Error> {
        if id.run != *draft.run_id() {
            return Err(Error::Foreign(id.clone()));
        }
        let run = draft.partial_directory();
        let segment = read_segment(id, bytes)?;
        let hash = ResultSegment::read_checksum(bytes);
        // The batch is checked before the catalogue: a segment that came twice in one batch has no row yet,
        // and must be counted once.
        if let Some(outcome) = self.find_repeated_segment(id, &hash)? {
            return Ok(outcome);
        }
        let listed = self.catalogue.find_listed_segment(id)?;
        if let Some(listed) = &listed {
            if listed.sha256 != hash_in_hex(&hash) {
                return Err(Error::Differs(id.clone()));
            }
            // If there is a row but no file, the disk has lost the file, so the segment is written again
            // below.
            if listed.place.is_on_disk(run, id) {
                return Ok(SegmentWriteOutcome::Settled(Ok(StoreOutcome::Again)));
            }
        } else {
            self.quotas.admit_segment_to_run(self.catalogue, id, bytes.len(), draft.quota())?;
        }
        let run = run.to_owned();
        let has_row = listed.is_some();
        Ok(self.queue_unwritten_segment(UnwrittenSegment {
            id,
            bytes,
            kind: segment.kind,
            hash,
            run,
            has_row,
        }))
    }

    fn examine_late_segment(
        &mut self,
        id: &'a SegmentId,
        bytes: &'a [u8],
    ) -> Result<SegmentWriteOutcome, Error> {
        // No draft has checked this id, and it may become the name of a directory.
        check_run_id(&id.run.0)?;
        let segment = read_segment(id, bytes)?;
        let hash = ResultSegment::read_checksum(bytes);
        if let Some(outcome) = self.find_repeated_segment(id, &hash)? {
            return Ok(outcome);
        }
        match self.catalogue.find_listed_segment(id)? {
            // The file is not checked: files of a committed run were removed on purpose.
            Some(listed) if listed.sha256 == hash_in_hex(&hash) => {
                return Ok(SegmentWriteOutcome::Settled(Ok(StoreOutcome::Again)));
            }
            // The bytes that came first stay, because a node never changes a segment.
            Some(_) => return Err(Error::Differs(id.clone())),
            // Only a new segment counts: a repeat takes no more space.
            None => self.quotas.admit_late_segment(self.catalogue, id, bytes.len())?,
        }
        let run = self.late_segment_directory(&id.run)?;
        Ok(self.queue_unwritten_segment(UnwrittenSegment {
            id,
            bytes,
            kind: segment.kind,
            hash,
            run,
            has_row: false,
        }))
    }

    /// Returns the outcome if the batch already contains this segment. Fails if its bytes there are different.
    fn find_repeated_segment(
        &self,
        id: &SegmentId,
        hash: &SegmentHash,
    ) -> Result<Option<SegmentWriteOutcome>, Error> {
        match self.unwritten.iter().position(|one| one.id == id) {
            // A node sends a segment again when its first answer was late, so both may be in one batch.
            Some(first) if self.unwritten[first].hash == *hash => {
                Ok(Some(SegmentWriteOutcome::Repeats(first)))
            }
            Some(_) => Err(Error::Differs(id.clone())),
            None => Ok(None),
        }
    }

    fn queue_unwritten_segment(&mut self, segment: UnwrittenSegment<'a>) -> SegmentWriteOutcome {
        self.unwritten.push(segment);
        SegmentWriteOutcome::Unwritten(self.unwritten.len() - 1)
    }

    fn late_segment_directory(&mut self, run: &RunId) -> Result<PathBuf, Error> {
        if let Some(known) = self.late_directories.get(run) {
            return Ok(known.clone());
        }
        // The directory is remembered for the batch, so that each run needs one look-up and one pack.
        let directory = self.catalogue.late_segment_directory(run)?;
        self.late_directories.insert(run.clone(), directory.clone());
        Ok(directory)
    }

    /// Stores all segments. Returns an answer for each, in the order in which they were added.
    pub fn store_segments(self) -> Vec<Result<StoreOutcome, Error>> {
        let answers = self.write_and_commit_segments();
        let settled = self.outcomes.into_iter().map(|outcome| match outcome {
            SegmentWriteOutcome::Settled(answer) => answer,
            SegmentWriteOutcome::Unwritten(index) => answers[index].clone().map_err(Error::OfBatch),
            SegmentWriteOutcome::Repeats(index) => {
                answers[index].clone().map(|_| StoreOutcome::Again).map_err(Error::OfBatch)
            }
        });
        settled.collect()
    }

    /// Writes the segments and commits their rows. Returns an answer for each unwritten segment.
    fn write_and_commit_segments(&self) -> Vec<Result<StoreOutcome, Arc<Error>>> {
        // The bytes are synced before any row names them: a crash in between leaves a pack without rows, and
        // the nodes send the segments again.
        let places = self.write_packs();
        let written = self.unwritten.iter().zip(&places);
        let to_list: Vec<SegmentToCatalogue<'_>> = written
            .filter_map(|(segment, place)| Some(segment.to_catalogue_segment(place.as_ref().ok()?)))
            .collect();
        let listed = match self.catalogue.commit_written_segments(&to_list, &self.quotas, self.at) {
            Ok(listed) => listed,
            // Nothing was committed. The nodes keep their segments and send them again.
            Err(error) => {
                self.remove_unlisted_packs(&to_list);
                let error = Arc::new(error);
                return places
                    .into_iter()
                    .map(|place| Err(place.err().unwrap_or_else(|| Arc::clone(&error))))
                    .collect();
            }
        };
        // `listed` has an entry for each written segment, in the same order; segments that were
        // not written have errors.
        let mut listed = listed.into_iter();
        let answers = places.into_iter().zip(&self.unwritten).map(|(place, segment)| {
            place?;
            let stored = listed.next().flatten();
            // Without an outcome, another process has meanwhile stored other bytes with this id.
            stored.ok_or_else(|| Arc::new(Error::Differs(segment.id.clone())))
        });
        answers.collect()
    }

    /// Writes the segments into a pack for each run. Returns the location of each unwritten segment, in their order.
    fn write_packs(&self) -> Vec<Result<SegmentLocation, Arc<Error>>> {
        let mut of_runs: BTreeMap<&Path, Vec<usize>> = BTreeMap::new();
        for (index, segment) in self.unwritten.iter().enumerate() {
            of_runs.entry(&segment.run).or_default().push(index);
        }
        // Keyed by index, because runs are mixed in a batch and the answers have to be in the order of the segments.
        let mut places = BTreeMap::new();
        for (run, indices) in of_runs {
            self.write_pack_or_halves(run, &indices, &mut places);
        }
        // The map is sorted by index, so the answers are in the order of the segments again.
        places.into_values().collect()
    }

    fn write_pack_or_halves(
        &self,
        run: &Path,
        indices: &[usize],
        places: &mut BTreeMap<usize, Result<SegmentLocation, Arc<Error>>>,
    ) {
        let packed: Vec<PackedSegment<'_>> =
            indices.iter().map(|index| self.unwritten[*index].to_packed()).collect();
        match write_pack(self.catalogue.place(), run, &packed) {
            Ok(written) => places.extend(indices.iter().copied().zip(written.into_iter().map(Ok))),
            // On a full disk some segments may still fit: halves are tried, down to single segments.
            Err(error) if indices.len() > 1 && is_full_disk_error(&error) => {
                let (first, second) = indices.split_at(indices.len() / 2);
                self.write_pack_or_halves(run, first, places);
                self.write_pack_or_halves(run, second, places);
            }
            Err(error) => {
                let error = Arc::new(error);
                places.extend(indices.iter().map(|index| (*index, Err(Arc::clone(&error)))));
            }
        }
    }

    /// Removes packs without rows. Nothing else would ever remove them, and the disk may be full.
    fn remove_unlisted_packs(&self, segments: &[SegmentToCatalogue<'_>]) {
        let packs: BTreeSet<PathBuf> =
            segments.iter().map(|segment| segment.place.file_path(segment.run, segment.id)).collect();
        for pack in packs {
            let name = pack.file_name().unwrap_or_default().to_string_lossy();
            // A pack of the same name, and so of the same bytes, may have rows from an earlier batch. If the catalogue cannot
            // be read, the file stays.
            if !self.catalogue.is_pack_listed(&name).unwrap_or(true) {
                // A pack that cannot be removed only takes space.
                drop(fs::remove_file(&pack));
            }
        }
    }
}

impl<'a> UnwrittenSegment<'a> {
    const fn to_packed(&self) -> PackedSegment<'a> {
        PackedSegment { id: self.id, hash: self.hash, bytes: self.bytes }
    }

    fn to_catalogue_segment(&self, place: &SegmentLocation) -> SegmentToCatalogue<'_> {
        SegmentToCatalogue {
            id: self.id,
            kind: self.kind,
            sha256: hash_in_hex(&self.hash),
            place: place.clone(),
            run: &self.run,
            has_row: self.has_row,
        }
    }
}

fn is_full_disk_error(error: &Error) -> bool {
    // A user's quota (EDQUOT) leaves as little room as a full disk (ENOSPC).
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded];
    matches!(error, Error::File { source, .. } if full.contains(&source.kind()))
}

fn read_segment(id: &SegmentId, bytes: &[u8]) -> Result<ResultSegment, Error> {
    let segment = ResultSegment::from_bytes(&segment_key(id), bytes)
        .map_err(|source| Error::BadSegment { id: id.clone(), source })?;
    // The checksum does not cover the node's name, which becomes part of a path.
    check_node_directory_name(&id.node)?;
    Ok(segment)
}

#[cfg(test)]
mod tests;
