//! The node's spool: what a node found out stays on its disk until the controller has it for good.
//!
//! A [`NodeJournal`] takes intervals, results and captures of one run and attempt, cuts them into numbered
//! [segments](segment) and ends with a manifest. Another thread reads [`ResultSpool::pending`], sends what is there, and
//! [`ResultSpool::release`]s what the controller has stored. The files are the truth: whoever opens the directory again after
//! a crash or a power cut finds every segment whose number was given out.
//!
//! It sends nothing and knows no fabric. It asks no disk how full it is: whoever opens it says how to find out.
//!
//! Invariants: a segment is whole or not there; numbers begin at 0 and have no gap; a number means the same bytes for
//! ever; a journal always ends, if need be as one that was cut short.

mod allowance;
pub mod books;
mod error;
mod journal;
mod part;
mod reserve;
pub mod segment;

pub use allowance::{AllowanceError, CaptureAllowance};
pub use books::{PartManifest, SegmentCounts};
pub use error::Error;
pub use journal::{JournalEntry, NodeJournal};
pub use packetrig_fleet::packed as value;
pub use segment::{ResultSegment, SegmentKey, SegmentKind};

use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::{NodeName, RunId};
use packetrig_sys::private_files;
use part::SpoolPart;
use reserve::DiskReserve;
use segment::{HEADER, NAME_ROOM, PAYLOAD_ROOM};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Runs that are over and still remembered, so that none is begun twice.
const REMEMBERED: usize = 256;
/// Of intervals that come when the spool is nearly full, one in this many is kept.
const COARSE: u64 = 10;

/// How large a spool may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// All segments. Captures may take half of it, intervals three quarters, and one in ten of them up to seven eighths;
    /// results all; an End is always kept.
    pub bytes: u64,
    /// What captures and intervals must leave free on the disk.
    pub keep_free: u64,
}

/// What was found when the spool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveredParts {
    /// Segments that wait for the controller.
    pub waiting: u64,
    /// Files that were cut, altered or missing.
    pub torn: u64,
    /// Journals that had no End and were given one.
    pub cut_short: u64,
}

/// A segment that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSegment {
    pub key: SegmentKey,
    pub kind: SegmentKind,
    /// Its size on the disk.
    pub bytes: u64,
}

impl PendingSegment {
    /// As the fabric names it.
    pub fn id(&self, node: &NodeName) -> SegmentId {
        let SegmentKey { run, attempt, number } = self.key.clone();
        SegmentId { run, attempt, node: node.clone(), number }
    }
}

/// A spool. Clones are the same spool; one thread may write while another reads.
#[derive(Clone, Debug)]
pub struct ResultSpool {
    state: Arc<Mutex<SpoolState>>,
    recovered: RecoveredParts,
}

/// How much is free on the disk that a path is on; `None` if that is not known.
pub type FreeSpace = Box<dyn Fn(&Path) -> Option<u64> + Send>;

struct SpoolState {
    directory: PathBuf,
    limits: SpoolLimits,
    free: FreeSpace,
    parts: BTreeMap<(RunId, u32), SpoolPart>,
    intervals_asked: u64,
    reserve: DiskReserve,
    /// Held as long as the spool is open.
    _lock: File,
}

impl std::fmt::Debug for SpoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("directory", &self.directory)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl ResultSpool {
    /// Opens the spool in `directory`, making it if there is none, and puts it in order after a crash. `free` tells how
    /// much of a disk is free.
    pub fn open(directory: &Path, limits: SpoolLimits, free: FreeSpace) -> Result<Self, Error> {
        private_files::create_directories(directory).map_err(Error::file("create", directory))?;
        let lock = lock(directory)?;
        let mut recovered = RecoveredParts::default();
        let mut parts = BTreeMap::new();
        for (path, run, attempt) in directories(directory)? {
            let (part, torn) = SpoolPart::open(path, run.clone(), attempt)?;
            recovered.torn += torn;
            parts.insert((run, attempt), part);
        }
        let (directory, reserve) = (directory.to_owned(), DiskReserve::in_directory(directory));
        let mut state =
            SpoolState { directory, limits, free, parts, intervals_asked: 0, reserve, _lock: lock };
        state.forget_old()?;
        let open: Vec<_> = state.parts.values().filter(|part| !part.ended).map(|part| part.key(0)).collect();
        recovered.cut_short = u64::try_from(open.len()).unwrap_or(u64::MAX);
        for SegmentKey { run, attempt, .. } in open {
            let reason = "the agent ended before the run did".to_owned();
            // On a full disk the End is owed, and written when something was released.
            state.end(&run, attempt, true, Some(reason)).map(drop).or_else(Error::if_not_full)?;
        }
        recovered.waiting =
            state.parts.values().map(|part| u64::try_from(part.kept.len()).unwrap_or(0)).sum();
        Ok(Self { state: Arc::new(Mutex::new(state)), recovered })
    }

    /// How much of the captures of runs may still leave, of `per_run` bytes of each. There is one of a spool.
    pub fn capture_allowance(&self, per_run: u64) -> Result<CaptureAllowance, Error> {
        CaptureAllowance::open(&self.state().directory, per_run)
    }

    /// What was found when it was opened.
    pub const fn recovered(&self) -> RecoveredParts {
        self.recovered
    }

    /// Begins the journal of a run and attempt. There is only ever one.
    pub fn journal(&self, run: &RunId, attempt: u32) -> Result<NodeJournal, Error> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if run.0.is_empty() || run.0.len() > 100 || !run.0.chars().all(fits) {
            return Err(Error::BadId(run.0.clone()));
        }
        let mut state = self.state();
        state.reserve.hold()?;
        let part = SpoolPart::create(&state.directory, run.clone(), attempt)?;
        state.parts.insert((run.clone(), attempt), part);
        Ok(NodeJournal::new(self.clone(), run.clone(), attempt))
    }

    /// What waits for the controller, at most `most`, in order of run, attempt and number.
    pub fn pending(&self, most: usize) -> Vec<PendingSegment> {
        let state = self.state();
        let of = |part: &SpoolPart| -> Vec<PendingSegment> {
            let pending = |(number, kept): (&u64, &part::KeptSegment)| PendingSegment {
                key: part.key(*number),
                kind: kept.kind,
                bytes: kept.bytes,
            };
            part.kept.iter().take(most).map(pending).collect()
        };
        state.parts.values().flat_map(of).take(most).collect()
    }

    /// The bytes of a segment, as they travel.
    pub fn read(&self, key: &SegmentKey) -> Result<Vec<u8>, Error> {
        self.state().part(&key.run, key.attempt)?.read(key.number)
    }

    /// The controller has stored every segment of a run below `below`: they are deleted. Doing it again, or for a run that
    /// is not here, does no harm.
    pub fn release(&self, run: &RunId, attempt: u32, below: u64) -> Result<(), Error> {
        let mut state = self.state();
        if let Some(part) = state.parts.get_mut(&(run.clone(), attempt)) {
            part.release(below)?;
        }
        state.pay()
    }

    /// How many segments a run and attempt has, once it has its End.
    pub fn finished(&self, run: &RunId, attempt: u32) -> Option<u64> {
        let state = self.state();
        let part = state.parts.get(&(run.clone(), attempt))?;
        part.ended.then_some(part.next)
    }

    /// Whether the run and attempt has its End, so that nothing comes any more.
    pub fn is_finished(&self, run: &RunId, attempt: u32) -> bool {
        self.finished(run, attempt).is_some()
    }

    /// Bytes of disk in use.
    pub fn used(&self) -> u64 {
        self.state().used()
    }

    fn end(&self, run: &RunId, attempt: u32, cut_short: bool, reason: Option<String>) -> Result<u64, Error> {
        self.state().end(run, attempt, cut_short, reason)
    }

    /// Whoever panicked while holding it left files, and they are the truth.
    fn state(&self) -> MutexGuard<'_, SpoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpoolState {
    fn part(&mut self, run: &RunId, attempt: u32) -> Result<&mut SpoolPart, Error> {
        let key = (run.clone(), attempt);
        self.parts.get_mut(&key).ok_or_else(|| Error::Unknown { run: key.0.clone(), attempt, number: 0 })
    }

    fn used(&self) -> u64 {
        self.parts.values().map(SpoolPart::used).sum()
    }

    /// Whether there is room for `bytes` of a kind.
    fn admit(&mut self, run: &RunId, attempt: u32, kind: SegmentKind, bytes: usize) -> Result<(), Error> {
        let (used, most) = (self.used(), self.limits.bytes);
        let pieces = bytes.div_ceil(PAYLOAD_ROOM).max(1);
        let wanted = bytes.saturating_add(pieces.saturating_mul(HEADER + NAME_ROOM));
        let after = used.saturating_add(u64::try_from(wanted).unwrap_or(u64::MAX));
        let is_short = || {
            let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
            (self.free)(&self.directory)
                .is_some_and(|free| free < self.limits.keep_free.saturating_add(wanted))
        };
        let fits = match kind {
            SegmentKind::Capture => after <= most / 2 && !is_short(),
            SegmentKind::Interval => {
                let coarse = after > most / 4 * 3;
                self.intervals_asked += u64::from(coarse);
                let one_of_many = !coarse || self.intervals_asked % COARSE == 1;
                after <= most / 8 * 7 && one_of_many && !is_short()
            }
            SegmentKind::Result => after <= most,
            SegmentKind::End | SegmentKind::Lost => true,
        };
        let part = self.part(run, attempt)?;
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

    /// A full disk is a full spool, whatever its limit.
    fn as_full<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let full =
            |error: Error| if error.is_full_disk() { Error::DiskFull(self.directory.clone()) } else { error };
        outcome.map_err(full)
    }

    /// Writes what a run comes to. On a full disk it has the room that was kept for it.
    fn write_last<T>(
        &mut self,
        (run, attempt): (&RunId, u32),
        write: impl Fn(&mut SpoolPart) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut written = write(self.part(run, attempt)?);
        if written.as_ref().is_err_and(Error::is_full_disk) && self.reserve.give_up() {
            written = write(self.part(run, attempt)?);
        }
        self.as_full(written)
    }

    fn end(
        &mut self,
        run: &RunId,
        attempt: u32,
        cut_short: bool,
        reason: Option<String>,
    ) -> Result<u64, Error> {
        self.write_last((run, attempt), |part| part.end(cut_short, reason.clone()))
    }

    /// Writes the Ends that did not fit when they were due.
    fn pay(&mut self) -> Result<(), Error> {
        let owed = |part: &mut SpoolPart| Some((part.key(0), part.owed.take()?));
        let owed: Vec<_> = self.parts.values_mut().filter_map(owed).collect();
        owed.into_iter().try_for_each(|(SegmentKey { run, attempt, .. }, (cut_short, reason))| {
            self.end(&run, attempt, cut_short, reason).map(drop).or_else(Error::if_not_full)
        })
    }

    /// Of the runs that are over, the newest are remembered.
    fn forget_old(&mut self) -> Result<(), Error> {
        let over = self.parts.iter().filter(|(_, part)| part.over).map(|(key, _)| key.clone());
        let over: Vec<_> = over.collect();
        for key in over.iter().take(over.len().saturating_sub(REMEMBERED)) {
            if let Some(part) = self.parts.remove(key) {
                part.erase()?;
            }
        }
        Ok(())
    }
}

fn lock(directory: &Path) -> Result<File, Error> {
    let path = directory.join("lock");
    let file = private_files::create(&path).map_err(Error::file("create", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(directory.to_owned())),
        Err(TryLockError::Error(error)) => Err(Error::file("lock", path)(error)),
    }
}

/// Directories of runs; whatever else lies there is left alone.
fn directories(spool: &Path) -> Result<Vec<(PathBuf, RunId, u32)>, Error> {
    let entries = fs::read_dir(spool).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let named = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let (run, attempt) = name.to_str()?.rsplit_once('.')?;
        Some((entry.path(), RunId(run.to_owned()), attempt.parse().ok()?))
    };
    Ok(entries.map_err(Error::file("read", spool))?.into_iter().filter_map(named).collect())
}

#[cfg(test)]
mod tests;
