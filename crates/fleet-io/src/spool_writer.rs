//! Writes samples to the spool, and deletes segments that the controller has stored, on a separate thread.
//!
//! A disk may take seconds for a write or a deletion, but the agent's loop renews leases that last for only two
//! seconds. So while senders run, that loop only queues orders here. Beginning and ending a journal wait for the disk,
//! but nothing is sent at that time.
//!
//! Invariant: at most one sample waits. A newer sample replaces it, because counts are cumulative.

use crate::error::{Error, ignore_failure};
use packetrig_fleet::message::{MessageHead, StoredWatermark};
use packetrig_report::RunId;
use packetrig_stats::result::CountSample;
use packetrig_store::spool::{self, NodeJournal, ResultSpool};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// The journal in the spool for the samples and the result of one attempt of a run.
#[derive(Debug)]
pub(crate) struct RunJournal {
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
    pub(crate) journal: NodeJournal,
}

impl RunJournal {
    pub(crate) fn begin_journal(spool: &ResultSpool, head: &MessageHead) -> Result<Self, Error> {
        let journal = spool.begin_journal(&head.run, head.attempt)?;
        Ok(Self { run: head.run.clone(), attempt: head.attempt, journal })
    }

    pub(crate) fn belongs_to_attempt(&self, head: &MessageHead) -> bool {
        self.run == head.run && self.attempt == head.attempt
    }
}

/// Run, attempt, and number of segments that wait for the controller.
pub(crate) type WaitingSegments = (RunId, u32, u64);

/// Directories that the thread uses, and the callback for its writes.
pub(crate) struct WriterDirectories {
    pub(crate) spool: ResultSpool,
    /// Directory of captures until they are collected, with one subdirectory for each run.
    pub(crate) captures: PathBuf,
    /// Called after each write, with an error text if segments could not be deleted.
    pub(crate) on_write: Box<dyn Fn(Option<String>) + Send>,
}

#[derive(Debug)]
pub(crate) struct SpoolWriter {
    spool: ResultSpool,
    shared: Arc<WriterShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WriterShared {
    state: Mutex<WriterState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WriterState {
    /// Journal of the current run; `None` also while the thread writes to it.
    journal: Option<RunJournal>,
    sample: Option<CountSample>,
    /// Watermark of each run and attempt: first number of a segment that the controller has not stored.
    stored: BTreeMap<(RunId, u32), u64>,
    is_writing: bool,
    waiting: Vec<WaitingSegments>,
    /// Error of an earlier write of a sample, for the next caller.
    failure: Option<Error>,
    is_over: bool,
    /// True if the thread has ended, also by a panic. Nobody may wait for it then.
    has_ended: bool,
}

impl WriterState {
    fn has_queued_writes(&self) -> bool {
        self.sample.is_some() || !self.stored.is_empty()
    }
}

impl WriterShared {
    fn lock_writer(&self) -> MutexGuard<'_, WriterState> {
        // A panic cannot leave the value half changed: it is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl FnMut(&mut WriterState) -> bool) -> MutexGuard<'_, WriterState> {
        self.changed.wait_while(self.lock_writer(), condition).unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpoolWriter {
    pub(crate) fn start_writing(places: WriterDirectories) -> Result<Self, Error> {
        let spool = places.spool.clone();
        let shared = Arc::new(WriterShared::default());
        shared.lock_writer().waiting = count_waiting_segments(&spool);
        let writer = WriterThread { places, shared: Arc::clone(&shared) };
        let thread =
            Builder::new().name("spool".to_owned()).spawn(move || writer.write_segments_until_over());
        Ok(Self { spool, shared, thread: Some(thread.map_err(Error::Thread)?) })
    }

    /// Waits until all earlier samples are written, and passes the journal to `change`, which may replace it.
    /// Waits for the disk.
    pub(crate) fn change_journal<T>(&self, change: impl FnOnce(&mut Option<RunJournal>) -> T) -> T {
        let mut state = self
            .shared
            .wait_while(|state| !state.has_ended && (state.is_writing || state.has_queued_writes()));
        // The stored failure is about the previous journal. Beginning or ending a journal returns disk errors itself.
        state.failure = None;
        let changed = change(&mut state.journal);
        state.waiting = count_waiting_segments(&self.spool);
        changed
    }

    /// Returns whether the journal belongs to this attempt. Waits for a write in progress, but not for queued writes.
    pub(crate) fn has_journal_of_attempt(&self, head: &MessageHead) -> bool {
        let state = self.shared.wait_while(|state| !state.has_ended && state.is_writing);
        state.journal.as_ref().is_some_and(|kept| kept.belongs_to_attempt(head))
    }

    /// Hands over a sample for writing; it replaces one that still waits. Returns the error of an earlier write, if one
    /// failed, or that the writer has ended.
    pub(crate) fn queue_sample(&self, sample: CountSample) -> Result<(), Error> {
        let mut state = self.shared.lock_writer();
        if state.has_ended {
            return Err(Error::WriterEnded);
        }
        state.sample = Some(sample);
        self.shared.changed.notify_all();
        state.failure.take().map_or(Ok(()), Err)
    }

    /// Queues the deletion of segments that the controller has stored.
    pub(crate) fn delete_stored_segments(&self, mark: &StoredWatermark) {
        let mut state = self.shared.lock_writer();
        let below = state.stored.entry((mark.run.clone(), mark.attempt)).or_default();
        // An older watermark may arrive after a newer one.
        *below = mark.below.max(*below);
        self.shared.changed.notify_all();
    }

    /// Returns the runs with segments that wait for the controller, as of the last write.
    pub(crate) fn runs_with_waiting_segments(&self) -> Vec<WaitingSegments> {
        self.shared.lock_writer().waiting.clone()
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        self.shared.lock_writer().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // This fails only if the thread has panicked. The spool's files are consistent even then.
            drop(thread.join());
        }
    }
}

struct WriterThread {
    places: WriterDirectories,
    shared: Arc<WriterShared>,
}

/// Records that the thread has ended, even after a panic, so that no caller waits for it for ever.
struct MarkEndedOnDrop(Arc<WriterShared>);

impl Drop for MarkEndedOnDrop {
    fn drop(&mut self) {
        self.0.lock_writer().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl WriterThread {
    fn write_segments_until_over(self) {
        let _notice = MarkEndedOnDrop(Arc::clone(&self.shared));
        loop {
            let mut state = self.shared.wait_while(|state| !state.is_over && !state.has_queued_writes());
            if !state.has_queued_writes() {
                return;
            }
            let (sample, stored) = (state.sample.take(), std::mem::take(&mut state.stored));
            // The file is written outside the lock: the disk may take seconds, and `queue_sample` must not
            // wait for it.
            let mut journal = state.journal.take();
            state.is_writing = true;
            drop(state);
            let written = Self::append_sample(journal.as_mut().map(|run| &mut run.journal), sample);
            let deleted = stored
                .iter()
                .try_for_each(|((run, attempt), below)| self.delete_segments(run, *attempt, *below));
            let waiting = count_waiting_segments(&self.places.spool);
            let mut state = self.shared.lock_writer();
            state.journal = journal;
            state.waiting = waiting;
            state.is_writing = false;
            // The first failure is kept for the next caller; later failures are usually consequences of the first.
            state.failure = state.failure.take().or_else(|| written.err());
            drop(state);
            self.shared.changed.notify_all();
            let trouble = deleted
                .err()
                .map(|error| format!("cannot delete results that the controller has stored: {error}"));
            (self.places.on_write)(trouble);
        }
    }

    fn append_sample(journal: Option<&mut NodeJournal>, sample: Option<CountSample>) -> Result<(), Error> {
        let Some((journal, sample)) = journal.zip(sample) else { return Ok(()) };
        match journal.append_interval(&sample) {
            // A full spool refuses samples, and the journal's last segment has their number. The result matters more
            // than the samples.
            Ok(_) | Err(spool::Error::Refused { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn delete_segments(&self, run: &RunId, attempt: u32, below: u64) -> Result<(), Error> {
        let WriterDirectories { spool, captures, .. } = &self.places;
        spool.release_segments(run, attempt, below)?;
        if spool.final_segment_count(run, attempt).is_some_and(|all| all <= below) {
            // Removes an empty directory only: captures that were too large for the spool stay in it.
            ignore_failure(fs::remove_dir(captures.join(&run.0)));
        }
        Ok(())
    }
}

fn count_waiting_segments(spool: &ResultSpool) -> Vec<WaitingSegments> {
    let mut waiting: BTreeMap<(RunId, u32), u64> = BTreeMap::new();
    for pending in spool.pending_segments(usize::MAX) {
        *waiting.entry((pending.key.run, pending.key.attempt)).or_default() += 1;
    }
    waiting.into_iter().map(|((run, attempt), segments)| (run, attempt, segments)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_store::spool::SpoolLimits;

    #[test]
    fn callers_do_not_wait_for_a_thread_that_panicked() {
        let directory = tempfile::tempdir().unwrap();
        let places = WriterDirectories {
            spool: ResultSpool::open_or_create(
                directory.path(),
                SpoolLimits { bytes: 1 << 24, keep_free: 0 },
                Box::new(|_| None),
            )
            .unwrap(),
            captures: directory.path().join("captures"),
            on_write: Box::new(|_| panic!("as a bug would")),
        };
        let writer = SpoolWriter::start_writing(places).unwrap();
        writer.queue_sample(CountSample::default()).unwrap();
        drop(writer.shared.wait_while(|state| !state.has_ended));
        let refused = writer.queue_sample(CountSample::default());
        assert!(matches!(refused, Err(Error::WriterEnded)), "{refused:?}");
        assert!(writer.change_journal(|journal| journal.is_none()));
    }
}
