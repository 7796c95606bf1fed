//! The node's spool: results stay on the node's disk until the controller has stored them.
//!
//! A [`NodeJournal`] records intervals, results and captures of one run and attempt, splits them into numbered
//! [segments](segment) and ends with a manifest. Another thread sends the [`ResultSpool::pending_segments`], and calls
//! [`ResultSpool::release_segments`] for segments that the controller has stored. The files are the only state: after a
//! crash or a power cut, opening the directory finds every segment whose number was returned.
//!
//! The spool sends nothing and does not use the fabric. The caller passes the function that returns the free
//! space of the disk.
//!
//! Invariants: a segment exists whole or not at all. Numbers begin at 0 and have no gaps. The bytes of the segment with
//! a number never change. Every journal gets an End, which marks it as cut short if it did not end regularly.

mod allowance;
mod error;
mod journal;
pub mod manifest;
mod part;
mod reserve;
pub mod segment;

pub use allowance::{AllowanceError, CaptureAllowance};
pub use error::Error;
pub use journal::{NodeJournal, NodeJournalEntry};
pub use manifest::{PartManifest, SegmentCounts};
pub use packetrig_fleet::packed as value;
pub(crate) use reserve::is_full_disk_kind;
pub use segment::{ResultSegment, SegmentKey, SegmentKind};

use packetrig_fleet::fabric::SegmentId;
use packetrig_report::{NodeName, RunId};
use packetrig_sys::private_files;
use part::{OpenedPart, PendingPartEnd, SpoolPart};
use reserve::DiskReserve;
use segment::{HEADER, MAX_CAPTURE_NAME_BYTES, MAX_PAYLOAD_BYTES};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of completed runs that are remembered, so that no remembered run begins twice.
const MAX_REMEMBERED_RUNS: usize = 256;
/// If the spool is nearly full, one interval in this many is stored.
const COARSE_INTERVAL_DIVISOR: u64 = 10;

/// Limits on the size of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Maximum bytes of all segments. Captures may use half of them, and intervals three quarters. Beyond that, one
    /// interval in ten is stored up to seven eighths. Results may use all of them. An End is always stored.
    pub bytes: u64,
    /// Bytes that captures and intervals must leave free on the disk.
    pub keep_free: u64,
}

/// Result of the recovery when the spool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveredParts {
    /// Number of segments that wait for the controller.
    pub waiting: u64,
    /// Number of segment files that were unfinished, altered or missing.
    pub torn: u64,
    /// Number of journals without an End, which the recovery has ended.
    pub cut_short: u64,
}

/// A segment that waits for the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSegment {
    pub key: SegmentKey,
    pub kind: SegmentKind,
    /// Size of the segment on the disk.
    pub bytes: u64,
}

impl PendingSegment {
    /// The segment's id on the fabric.
    pub fn segment_id(&self, node: &NodeName) -> SegmentId {
        let SegmentKey { run, attempt, number } = self.key.clone();
        SegmentId { run, attempt, node: node.clone(), number }
    }
}

/// A node's spool. Clones share one spool; one thread may write while another reads.
#[derive(Clone, Debug)]
pub struct ResultSpool {
    state: Arc<Mutex<SpoolState>>,
    recovered: RecoveredParts,
}

/// Function that returns the free bytes of the disk with this path; `None` if unknown.
pub type FreeSpaceFunction = Box<dyn Fn(&Path) -> Option<u64> + Send>;

struct SpoolState {
    directory: PathBuf,
    limits: SpoolLimits,
    free: FreeSpaceFunction,
    parts: BTreeMap<(RunId, u32), SpoolPart>,
    intervals_asked: u64,
    reserve: DiskReserve,
    /// Locked as long as the spool is open.
    _lock: File,
}

impl std::fmt::Debug for SpoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpoolState")
            .field("directory", &self.directory)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl ResultSpool {
    /// Opens the spool in `directory`, creates it if there is none, and recovers it after a crash. `free` returns how
    /// much of a disk is free.
    pub fn open_or_create(
        directory: &Path,
        limits: SpoolLimits,
        free: FreeSpaceFunction,
    ) -> Result<Self, Error> {
        private_files::create_directories(directory).map_err(Error::file("create", directory))?;
        // The lock comes before anything is read: a running agent may be changing the parts.
        let lock = lock_directory(directory)?;
        let mut recovered = RecoveredParts::default();
        let mut parts = BTreeMap::new();
        for PartDirectory { path, run, attempt } in list_part_directories(directory)? {
            let OpenedPart { part, torn } = SpoolPart::open_existing(path, run.clone(), attempt)?;
            recovered.torn += torn;
            parts.insert((run, attempt), part);
        }
        let mut state = SpoolState {
            directory: directory.to_owned(),
            limits,
            free,
            parts,
            intervals_asked: 0,
            reserve: DiskReserve::in_directory(directory),
            _lock: lock,
        };
        // Old parts are forgotten only here: a remembered run costs one small file.
        state.forget_old_parts()?;
        let open: Vec<_> =
            state.parts.values().filter(|part| !part.ended).map(|part| part.segment_key(0)).collect();
        recovered.cut_short = open.len() as u64;
        for SegmentKey { run, attempt, .. } in open {
            let reason = "the agent ended before the run did".to_owned();
            // On a full disk the End stays pending, and is written once segments were released.
            state.end_part(&run, attempt, true, Some(reason)).map(drop).or_else(Error::ignore_if_full)?;
        }
        recovered.waiting = state.parts.values().map(|part| part.kept.len() as u64).sum();
        Ok(Self { state: Arc::new(Mutex::new(state)), recovered })
    }

    /// Opens the count of captured bytes that have left the node, with `per_run` bytes allowed for each run.
    /// A spool has one such count.
    pub fn open_capture_allowance(&self, per_run: u64) -> Result<CaptureAllowance, Error> {
        CaptureAllowance::open_in(&self.lock_state().directory, per_run)
    }

    /// Result of the recovery when the spool was opened.
    pub const fn recovered_parts(&self) -> RecoveredParts {
        self.recovered
    }

    /// Begins the journal of a run and attempt. Each attempt of a run can have only one journal.
    pub fn begin_journal(&self, run: &RunId, attempt: u32) -> Result<NodeJournal, Error> {
        // The id comes from a controller and becomes the name of a directory.
        let is_plain = run.0.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if run.0.is_empty() || run.0.len() > 100 || !is_plain {
            return Err(Error::BadId(run.0.clone()));
        }
        let mut state = self.lock_state();
        // Space is reserved before the run begins, because other programs may fill the disk afterwards.
        state.reserve.allocate_reserve()?;
        let part = SpoolPart::create_in(&state.directory, run.clone(), attempt)?;
        state.parts.insert((run.clone(), attempt), part);
        Ok(NodeJournal::new(self.clone(), run.clone(), attempt))
    }

    /// Segments that wait for the controller, at most `most`, in the order of run, attempt and number.
    pub fn pending_segments(&self, most: usize) -> Vec<PendingSegment> {
        let state = self.lock_state();
        let mut pending = Vec::new();
        for part in state.parts.values() {
            // This cannot underflow: no more than `most` were taken before.
            for (number, kept) in part.kept.iter().take(most - pending.len()) {
                pending.push(PendingSegment {
                    key: part.segment_key(*number),
                    kind: kept.kind,
                    bytes: kept.bytes,
                });
            }
        }
        pending
    }

    /// Number of segments that wait for the controller.
    pub fn pending_segment_count(&self) -> u64 {
        self.lock_state().parts.values().map(|part| part.kept.len() as u64).sum()
    }

    /// Reads the bytes of a segment as they are sent.
    pub fn read_segment(&self, key: &SegmentKey) -> Result<Vec<u8>, Error> {
        self.lock_state().find_part(&key.run, key.attempt)?.read_segment(key.number)
    }

    /// Deletes the segments of a run with numbers below `below`, which the controller has stored. An unknown run is
    /// ignored, and the call may be repeated. It also writes the Ends of any run that did not fit before.
    pub fn release_segments(&self, run: &RunId, attempt: u32, below: u64) -> Result<(), Error> {
        let mut state = self.lock_state();
        if let Some(part) = state.parts.get_mut(&(run.clone(), attempt)) {
            part.release_segments_below(below)?;
        }
        // Space has become free, so an End that did not fit may fit now.
        state.write_pending_ends()
    }

    /// The number of segments of a run and attempt, including the End; `None` before the End is written.
    pub fn final_segment_count(&self, run: &RunId, attempt: u32) -> Option<u64> {
        let state = self.lock_state();
        let part = state.parts.get(&(run.clone(), attempt))?;
        part.ended.then_some(part.next)
    }

    /// Returns whether the run and attempt has its End, so that no segment follows.
    pub fn is_finished(&self, run: &RunId, attempt: u32) -> bool {
        self.final_segment_count(run, attempt).is_some()
    }

    /// Number of bytes that the segments in the spool take on the disk.
    pub fn used_bytes(&self) -> u64 {
        self.lock_state().used_bytes()
    }

    fn end_part(
        &self,
        run: &RunId,
        attempt: u32,
        cut_short: bool,
        reason: Option<String>,
    ) -> Result<u64, Error> {
        self.lock_state().end_part(run, attempt, cut_short, reason)
    }

    /// Locks the state. A poisoned lock does no harm, because the files are the only state and each
    /// of them is complete.
    fn lock_state(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpoolState {
    fn find_part(&mut self, run: &RunId, attempt: u32) -> Result<&mut SpoolPart, Error> {
        let key = (run.clone(), attempt);
        self.parts.get_mut(&key).ok_or_else(|| Error::Unknown { run: key.0.clone(), attempt, number: 0 })
    }

    fn used_bytes(&self) -> u64 {
        self.parts.values().map(SpoolPart::used_bytes).sum()
    }

    /// Fails if the spool must not store `bytes` more of this kind. Counts refused captures and intervals of the run.
    fn check_admission(
        &mut self,
        run: &RunId,
        attempt: u32,
        kind: SegmentKind,
        bytes: usize,
    ) -> Result<(), Error> {
        let used = self.used_bytes();
        let most = self.limits.bytes;
        // Upper bound of the segments' size, with their headers and names.
        let pieces = bytes.div_ceil(MAX_PAYLOAD_BYTES).max(1);
        let wanted = bytes.saturating_add(pieces.saturating_mul(HEADER + MAX_CAPTURE_NAME_BYTES)) as u64;
        let after = used.saturating_add(wanted);
        // Less important segments are refused earlier, so that results find space when intervals and captures
        // no longer do.
        let fits = match kind {
            SegmentKind::Capture => after <= most / 2 && !self.would_exceed_free_space(wanted),
            SegmentKind::Interval => {
                let coarse = after > most / 4 * 3;
                self.intervals_asked += u64::from(coarse);
                // The first of ten intervals is stored, so that the reduced rate begins at once.
                let one_of_many = !coarse || self.intervals_asked % COARSE_INTERVAL_DIVISOR == 1;
                after <= most / 8 * 7 && one_of_many && !self.would_exceed_free_space(wanted)
            }
            SegmentKind::Result => after <= most,
            // A journal must always get its End, and a lost segment takes no space.
            SegmentKind::End | SegmentKind::Lost => true,
        };
        let part = self.find_part(run, attempt)?;
        match kind {
            _ if fits => return Ok(()),
            SegmentKind::Capture => part.refused_captures += 1,
            SegmentKind::Interval => part.refused_intervals += 1,
            SegmentKind::Result | SegmentKind::End | SegmentKind::Lost => {
                return Err(Error::Full { used, most });
            }
        }
        Err(Error::Refused { kind, used, most })
    }

    /// Returns whether `wanted` more bytes would leave less free space on the disk than the limits require;
    /// `false` if the free space is unknown.
    fn would_exceed_free_space(&self, wanted: u64) -> bool {
        (self.free)(&self.directory).is_some_and(|free| free < self.limits.keep_free.saturating_add(wanted))
    }

    /// Reports a full disk as a full spool, even below the spool's limit.
    fn report_full_disk_as_full_spool<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        match outcome {
            Err(error) if error.is_full_disk() => Err(Error::DiskFull(self.directory.clone())),
            outcome => outcome,
        }
    }

    /// Writes a result or an End. On a full disk, the reserved space is released for it.
    fn write_with_reserve<T>(
        &mut self,
        run: &RunId,
        attempt: u32,
        write: impl Fn(&mut SpoolPart) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut written = write(self.find_part(run, attempt)?);
        // The reserve is freed only when it is needed, and once: the second attempt finds its space.
        if written.as_ref().is_err_and(Error::is_full_disk) && self.reserve.release_disk_reserve() {
            written = write(self.find_part(run, attempt)?);
        }
        self.report_full_disk_as_full_spool(written)
    }

    fn end_part(
        &mut self,
        run: &RunId,
        attempt: u32,
        cut_short: bool,
        reason: Option<String>,
    ) -> Result<u64, Error> {
        self.write_with_reserve(run, attempt, |part| part.write_end_segment(cut_short, reason.clone()))
    }

    /// Writes the Ends that did not fit when they were due.
    fn write_pending_ends(&mut self) -> Result<(), Error> {
        let pending: Vec<_> = self
            .parts
            .values_mut()
            .filter_map(|part| Some((part.segment_key(0), part.pending_end.take()?)))
            .collect();
        for (SegmentKey { run, attempt, .. }, PendingPartEnd { cut_short, reason }) in pending {
            // An End that still does not fit is pending again.
            self.end_part(&run, attempt, cut_short, reason).map(drop).or_else(Error::ignore_if_full)?;
        }
        Ok(())
    }

    /// Forgets completed runs, except the newest.
    fn forget_old_parts(&mut self) -> Result<(), Error> {
        let over = self.parts.iter().filter(|(_, part)| part.over).map(|(key, _)| key.clone());
        let over: Vec<_> = over.collect();
        // The map is in the order of run ids, which begin with their time, so the first are the oldest.
        for key in over.iter().take(over.len().saturating_sub(MAX_REMEMBERED_RUNS)) {
            if let Some(part) = self.parts.remove(key) {
                part.remove_part_directory()?;
            }
        }
        Ok(())
    }
}

fn lock_directory(directory: &Path) -> Result<File, Error> {
    // Two agents with one spool would give the same numbers to different segments.
    let path = directory.join("lock");
    let file = private_files::create_file(&path).map_err(Error::file("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(Error::file("lock", path)(error)),
    }
}

/// The directory for one attempt of a run.
struct PartDirectory {
    path: PathBuf,
    run: RunId,
    attempt: u32,
}

impl PartDirectory {
    fn from_entry(entry: &fs::DirEntry) -> Option<Self> {
        let name = entry.file_name();
        // The id of a run has no dots, so the attempt follows the last dot.
        let (run, attempt) = name.to_str()?.rsplit_once('.')?;
        Some(Self { path: entry.path(), run: RunId(run.to_owned()), attempt: attempt.parse().ok()? })
    }
}

/// The directories of runs in a spool; other entries are ignored.
fn list_part_directories(spool: &Path) -> Result<Vec<PartDirectory>, Error> {
    let entries = fs::read_dir(spool).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    Ok(entries.map_err(Error::file("read", spool))?.iter().filter_map(PartDirectory::from_entry).collect())
}

#[cfg(test)]
mod tests;
