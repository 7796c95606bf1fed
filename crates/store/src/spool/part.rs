//! The spool's part for one attempt of a run: a directory of segments, and its state in memory.
//!
//! ```text
//! <spool>/<run>.<attempt>/00000000000000000007.seg   a whole segment
//! <spool>/<run>.<attempt>/.00000000000000000008.seg.tmp   a segment that was being written
//! <spool>/<run>.<attempt>/released                   counts and checksum of the deleted segments
//! ```
//! Invariant: once the number of a segment was returned, the bytes of that segment never change. If its file is lost or
//! damaged, a segment of kind `Lost`, which needs no space on the disk, takes the number.

use super::error::Error;
use super::manifest::{DeletedSegmentsSummary, PartManifest, SegmentTally};
use super::segment::{BrokenSegment, ResultSegment, SegmentHash, SegmentKey, SegmentKind};
use crate::disk;
use packetrig_report::RunId;
use packetrig_sys::private_files;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const RELEASED_FILE_NAME: &str = "released";

/// A segment that the controller has not confirmed, so it is still in the spool.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnreleasedSegment {
    pub(super) kind: SegmentKind,
    pub(super) bytes: u64,
    hash: SegmentHash,
}

#[derive(Debug)]
pub(super) struct SpoolPart {
    pub(super) run: RunId,
    pub(super) attempt: u32,
    directory: PathBuf,
    /// Tally of the released segments.
    gone: SegmentTally,
    tally: SegmentTally,
    pub(super) kept: BTreeMap<u64, UnreleasedSegment>,
    pub(super) next: u64,
    /// True if the part has its End.
    pub(super) ended: bool,
    /// True if the End is released, so that only the directory and one small file are left.
    pub(super) over: bool,
    pub(super) refused_captures: u64,
    pub(super) refused_intervals: u64,
    /// An End that did not fit on the disk yet.
    pub(super) pending_end: Option<PendingPartEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct PendingPartEnd {
    pub(super) cut_short: bool,
    pub(super) reason: Option<String>,
}

/// A part after a restart, and how many of its files were unfinished, damaged or missing.
pub(super) struct OpenedPart {
    pub(super) part: SpoolPart,
    pub(super) torn: u64,
}

impl SpoolPart {
    /// Begins a part; [`Error::Taken`] if it exists.
    pub(super) fn create_in(spool: &Path, run: RunId, attempt: u32) -> Result<Self, Error> {
        let directory = spool.join(format!("{run}.{attempt}"));
        match private_files::create_directory(&directory) {
            // The name of the directory must survive a power cut, because segments in it count as stored.
            Ok(()) => disk::sync_directory(spool).map_err(Error::file("sync", spool))?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(Error::Taken { run, attempt });
            }
            Err(error) => return Err(Error::file("create", directory)(error)),
        }
        Ok(Self::new(directory, run, attempt, &DeletedSegmentsSummary::default()))
    }

    fn new(directory: PathBuf, run: RunId, attempt: u32, released: &DeletedSegmentsSummary) -> Self {
        Self {
            run,
            attempt,
            directory,
            gone: released.to_tally(),
            tally: released.to_tally(),
            kept: BTreeMap::new(),
            next: released.below,
            ended: released.over,
            over: released.over,
            refused_captures: 0,
            refused_intervals: 0,
            pending_end: None,
        }
    }

    /// Reads a part after a restart. Removes unfinished files, and files of segments that were released before.
    pub(super) fn open_existing(directory: PathBuf, run: RunId, attempt: u32) -> Result<OpenedPart, Error> {
        let SpoolDirectoryFiles { mut numbers, mut torn } = scan_spool_directory(&directory)?;
        let released = read_release_summary(&directory, numbers.iter().next().copied().unwrap_or(0))?;
        let mut part = Self::new(directory, run, attempt, &released);
        let waiting = numbers.split_off(&released.below);
        for number in numbers {
            // The segment was released, but the process ended before it deleted the file.
            remove_if_present(&part.segment_path(number))?;
        }
        // Numbers have no gaps, so a missing file below the highest number was lost. The number must not be used again: the controller
        // may have seen it.
        for number in released.below..waiting.last().map_or(released.below, |last| last + 1) {
            match part.read_segment_file(number) {
                Ok(SegmentFile { segment, bytes }) => part.record_segment(number, segment.kind, &bytes),
                // A segment of a newer format is not damaged: a newer packetrig wrote it and can still read
                // it.
                Err(Error::Broken { source: BrokenSegment::Version(version), path }) => {
                    return Err(Error::Broken { path, source: BrokenSegment::Version(version) });
                }
                Err(Error::Broken { .. } | Error::Unknown { .. }) => {
                    torn += 1;
                    let bytes = part.encode_lost_segment(number)?;
                    part.record_segment(number, SegmentKind::Lost, &bytes);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(OpenedPart { part, torn })
    }

    pub(super) fn segment_key(&self, number: u64) -> SegmentKey {
        SegmentKey { run: self.run.clone(), attempt: self.attempt, number }
    }

    /// Number of bytes that the segments of this part take on the disk.
    pub(super) fn used_bytes(&self) -> u64 {
        self.kept.values().map(|kept| kept.bytes).sum()
    }

    /// Writes the next segment. After an error it does not count, and its number is used again.
    pub(super) fn append_segment(&mut self, segment: &ResultSegment) -> Result<u64, Error> {
        if self.ended {
            return Err(Error::Ended { run: self.run.clone(), attempt: self.attempt });
        }
        let number = self.next;
        let encoded = segment.to_bytes(&self.segment_key(number));
        let bytes = encoded.map_err(|source| Error::Broken { path: self.segment_path(number), source })?;
        // The file and its name are synced before the number is returned, because the number must survive a
        // power cut.
        write_whole_file(&self.directory, &file_name(number), &bytes)?;
        self.record_segment(number, segment.kind, &bytes);
        Ok(number)
    }

    fn record_segment(&mut self, number: u64, kind: SegmentKind, bytes: &[u8]) {
        let hash = ResultSegment::read_checksum(bytes);
        // A lost segment takes no space.
        let bytes = if kind == SegmentKind::Lost { 0 } else { bytes.len() as u64 };
        self.kept.insert(number, UnreleasedSegment { kind, bytes, hash });
        self.tally.add_segment(kind, &hash);
        self.next = number + 1;
        self.ended |= kind == SegmentKind::End;
    }

    /// Writes the End. If that fails, it stays pending.
    pub(super) fn write_end_segment(
        &mut self,
        cut_short: bool,
        reason: Option<String>,
    ) -> Result<u64, Error> {
        let manifest = serde_json::to_vec(&self.build_manifest(cut_short, reason.clone()));
        let payload = manifest.map_err(|error| Error::Value(error.to_string()))?;
        let end =
            ResultSegment { kind: SegmentKind::End, name: String::new(), offset: 0, last: true, payload };
        let written = self.append_segment(&end);
        // If the part already has its End, a second one fails and must not be tried again.
        let is_pending = written.is_err() && !self.ended;
        self.pending_end = is_pending.then_some(PendingPartEnd { cut_short, reason });
        written
    }

    fn build_manifest(&self, cut_short: bool, reason: Option<String>) -> PartManifest {
        PartManifest {
            counts: self.tally.counts,
            sha256: super::segment::hash_in_hex(&self.tally.chain),
            cut_short,
            reason,
            refused_captures: self.refused_captures,
            refused_intervals: self.refused_intervals,
        }
    }

    /// Reads the bytes of a segment. For a lost segment, returns a segment of kind `Lost`.
    pub(super) fn read_segment(&self, number: u64) -> Result<Vec<u8>, Error> {
        match self.kept.get(&number).map(|kept| kept.kind) {
            Some(SegmentKind::Lost) => self.encode_lost_segment(number),
            Some(_) => Ok(self.read_segment_file(number)?.bytes),
            None => Err(self.unknown_segment_error(number)),
        }
    }

    fn encode_lost_segment(&self, number: u64) -> Result<Vec<u8>, Error> {
        let segment = ResultSegment {
            kind: SegmentKind::Lost,
            name: String::new(),
            offset: 0,
            last: true,
            payload: Vec::new(),
        };
        let bytes = segment.to_bytes(&self.segment_key(number));
        bytes.map_err(|source| Error::Broken { path: self.segment_path(number), source })
    }

    fn read_segment_file(&self, number: u64) -> Result<SegmentFile, Error> {
        let path = self.segment_path(number);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(self.unknown_segment_error(number));
            }
            Err(error) => return Err(Error::file("read", path)(error)),
        };
        let segment = ResultSegment::from_bytes(&self.segment_key(number), &bytes);
        Ok(SegmentFile { segment: segment.map_err(|source| Error::Broken { path, source })?, bytes })
    }

    fn unknown_segment_error(&self, number: u64) -> Error {
        Error::Unknown { run: self.run.clone(), attempt: self.attempt, number }
    }

    /// Deletes the segments below `below`. The summary is written first: after a crash in between, these
    /// segments are deleted and do not count as lost.
    pub(super) fn release_segments_below(&mut self, below: u64) -> Result<(), Error> {
        // The number comes from the controller: it must not release segments that do not exist yet.
        let below = below.min(self.next);
        let rest = self.kept.split_off(&below);
        let going = std::mem::replace(&mut self.kept, rest);
        if going.is_empty() {
            return Ok(());
        }
        let mut gone = self.gone.clone();
        for kept in going.values() {
            gone.add_segment(kept.kind, &kept.hash);
        }
        let over = self.ended && self.kept.is_empty();
        let released = DeletedSegmentsSummary::new(below, &gone, over);
        let written = self.write_deletion_summary(&released).or_else(|error| match going.keys().next() {
            // On a full disk, deleting the first of these segments frees space for the summary. The
            // controller has stored this segment.
            Some(first) if error.is_full_disk() => {
                remove_if_present(&self.segment_path(*first))?;
                self.write_deletion_summary(&released)
            }
            _ => Err(error),
        });
        // Without the summary, the release fails. The first segment may be deleted already: the controller has
        // it, and a restart finds it as lost.
        if let Err(error) = written {
            self.kept.extend(going);
            return Err(error);
        }
        self.gone = gone;
        self.over = over;
        going.keys().try_for_each(|number| remove_if_present(&self.segment_path(*number)))
    }

    /// Discards all segments. Only the fact that the part existed is kept.
    pub(super) fn discard_segments(&mut self) -> Result<(), Error> {
        // The summary is written before the files are deleted, as in `release_segments_below`.
        self.write_deletion_summary(&DeletedSegmentsSummary::new(self.next, &self.tally, true))?;
        self.ended = true;
        self.over = true;
        let kept = std::mem::take(&mut self.kept);
        kept.keys().try_for_each(|number| remove_if_present(&self.segment_path(*number)))
    }

    /// Removes the directory of a completed part.
    pub(super) fn remove_part_directory(&self) -> Result<(), Error> {
        fs::remove_dir_all(&self.directory).map_err(Error::file("remove", &self.directory))
    }

    /// Writes the counts and the hashes of the segments that were deleted.
    fn write_deletion_summary(&self, released: &DeletedSegmentsSummary) -> Result<(), Error> {
        let text = serde_json::to_vec(released).map_err(|error| Error::Value(error.to_string()))?;
        write_whole_file(&self.directory, RELEASED_FILE_NAME, &text)
    }

    fn segment_path(&self, number: u64) -> PathBuf {
        self.directory.join(file_name(number))
    }
}

fn file_name(number: u64) -> String {
    format!("{number:020}.seg")
}

/// A segment with its bytes in the file.
struct SegmentFile {
    segment: ResultSegment,
    bytes: Vec<u8>,
}

/// Numbers of the segments in a directory, and how many files were being written when the process ended.
#[derive(Default)]
struct SpoolDirectoryFiles {
    numbers: BTreeSet<u64>,
    torn: u64,
}

/// Finds the segments in a directory, and removes files that were being written.
fn scan_spool_directory(directory: &Path) -> Result<SpoolDirectoryFiles, Error> {
    let mut found = SpoolDirectoryFiles::default();
    let entries = fs::read_dir(directory)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(Error::file("read", directory))?;
    for entry in entries {
        let name = entry.file_name();
        let Some((stem, end)) = name.to_str().and_then(|name| name.rsplit_once('.')) else { continue };
        if end == disk::UNFINISHED_FILE_EXTENSION {
            // The number of this segment was never returned to a caller, so no caller relies on it.
            remove_if_present(&entry.path())?;
            found.torn += 1;
        } else if let ("seg", Ok(number)) = (end, stem.parse()) {
            found.numbers.insert(number);
        }
    }
    Ok(found)
}

/// Reads the summary of the released segments. If its content is not valid, the disk has damaged it: then the
/// existing segments are kept, and earlier segments have no counts.
fn read_release_summary(directory: &Path, lowest: u64) -> Result<DeletedSegmentsSummary, Error> {
    let path = directory.join(RELEASED_FILE_NAME);
    match fs::read(&path) {
        Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_else(|_| DeletedSegmentsSummary {
            below: lowest,
            ..DeletedSegmentsSummary::default()
        })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(DeletedSegmentsSummary::default()),
        Err(error) => Err(Error::file("read", path)(error)),
    }
}

fn write_whole_file(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), Error> {
    disk::write_whole_file(directory, name, bytes).map_err(Error::file("write", directory.join(name)))
}

fn remove_if_present(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}
