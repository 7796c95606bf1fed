//! Sends a node's results to the controller: it writes them to the spool, and a separate thread passes segments from
//! the spool to the fabric. While senders run, the caller never waits for the disk ([`SpoolWriter`]).
//!
//! A segment is deleted from the spool only when the controller reports that it has stored the segment. A segment that
//! was handed over to the fabric and is not confirmed for a while is handed over again, because the fabric's disk may
//! have lost it. The controller recognises a segment that arrives twice.
//!
//! Invariant: segments of a run are handed over in order; none is deleted before the controller has stored it.

mod observer;

pub use observer::{UplinkObserver, UplinkStatus};

use crate::agent::now;
use crate::captures::SharedCaptureAllowance;
use crate::error::{Error, ignore_failure};
use crate::spool_writer::{RunJournal, SpoolWriter, WaitingSegments, WriterDirectories};
use packetrig_fleet::fabric::{self, ResultSender, SegmentId};
use packetrig_fleet::message::{MessageHead, StoredWatermark};
use packetrig_report::{NodeName, RunId};
use packetrig_stats::result::{CountSample, NodeResult};
use packetrig_store::spool::{NodeJournal, PendingSegment, ResultSpool};
use packetrig_units::{MonoTime, Nanos};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Interval at which the spool is checked even if no new segment was announced.
const SPOOL_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);
/// Time without a confirmation after which a segment is handed over again.
const SEGMENT_RESEND_TIMEOUT: Nanos = Nanos::from_secs(10);
/// Maximum number of segments that are handed over before other work is checked.
const MAX_SEGMENTS_PER_BATCH: usize = 64;

/// Opens the connection for results; called again when the connection is lost.
pub type UplinkOpener = Box<dyn FnMut() -> Result<Box<dyn ResultSender>, fabric::Error> + Send>;

/// The node whose results are sent, with its spool and its captures.
#[derive(Clone, Debug)]
pub struct UplinkSource {
    pub spool: ResultSpool,
    /// Directory of captures until they are collected, with one subdirectory for each run.
    pub captures: PathBuf,
    /// Maximum number of bytes of a run's captures, all files and all attempts together, that leave the node.
    pub capture_bytes: u64,
    pub node: NodeName,
}

#[derive(Debug)]
pub struct ResultUplink {
    spool: ResultSpool,
    writer: SpoolWriter,
    captures: SharedCaptureAllowance,
    shared: Arc<UplinkShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct UplinkShared {
    state: Mutex<UplinkState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct UplinkState {
    over: bool,
    /// True if the spool has new segments, so that the thread must not wait.
    fresh: bool,
    /// True if a run has begun, so that the connection should be opened before its segments are ready.
    expected: bool,
    /// Reason why segments cannot be handed over now.
    obstacle: Option<String>,
    /// Other messages for the controller, each reported once.
    remarks: Vec<String>,
    begun_runs: u64,
    finished_runs: u64,
}

impl UplinkShared {
    fn lock_uplink(&self) -> MutexGuard<'_, UplinkState> {
        // A panic cannot leave the value half changed: it is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the thread that the spool has new segments.
    fn announce_segments(&self) {
        self.lock_uplink().fresh = true;
        self.changed.notify_all();
    }

    /// Called after each write to the spool: announces new segments, and records the error if stored segments
    /// could not be deleted.
    fn record_write(&self, trouble: Option<String>) {
        self.lock_uplink().remarks.extend(trouble);
        self.announce_segments();
    }
}

impl ResultUplink {
    /// Starts the threads that write to the spool of `source` and send its waiting segments.
    pub fn start_sending(source: UplinkSource, open: UplinkOpener) -> Result<Self, Error> {
        let UplinkSource { spool, captures, capture_bytes, node } = source;
        let allowance = Arc::new(Mutex::new(spool.open_capture_allowance(capture_bytes)?));
        let shared = Arc::new(UplinkShared::default());
        let announcing = Arc::clone(&shared);
        let on_write = Box::new(move |trouble| announcing.record_write(trouble));
        let writer =
            SpoolWriter::start_writing(WriterDirectories { spool: spool.clone(), captures, on_write })?;
        let carrier = UplinkThread {
            spool: spool.clone(),
            node,
            shared: Arc::clone(&shared),
            open,
            outlet: None,
            handed: BTreeMap::new(),
        };
        let thread =
            Builder::new().name("uplink".to_owned()).spawn(move || carrier.send_segments_until_over());
        let thread = Some(thread.map_err(Error::Thread)?);
        Ok(Self { spool, writer, captures: allowance, shared, thread })
    }

    /// Returns the limit and the counts for capture bytes that leave the node. The
    /// [`CaptureServer`](crate::CaptureServer) uses the same value.
    pub fn capture_allowance(&self) -> SharedCaptureAllowance {
        Arc::clone(&self.captures)
    }

    /// Returns a reader of the uplink's state for other threads.
    pub fn observer(&self) -> UplinkObserver {
        UplinkObserver::new(self.spool.clone(), Arc::clone(&self.shared))
    }

    /// Begins an attempt of a run: its samples and its result are stored from now on. If the journal of an earlier
    /// attempt has not ended, it is discarded.
    pub(crate) fn begin_run(&mut self, head: &MessageHead) -> Result<(), Error> {
        self.writer.change_journal(|kept| {
            if let Some(before) = kept.take() {
                before.journal.discard_journal()?;
            }
            *kept = Some(RunJournal::begin_journal(&self.spool, head)?);
            Ok::<_, Error>(())
        })?;
        let mut state = self.shared.lock_uplink();
        state.expected = true;
        state.begun_runs += 1;
        drop(state);
        self.shared.announce_segments();
        Ok(())
    }

    /// Returns whether the journal belongs to this attempt.
    pub(crate) fn has_journal_of_attempt(&self, head: &MessageHead) -> bool {
        self.writer.has_journal_of_attempt(head)
    }

    /// Ends the run without a result. Its stored samples stay in the spool only if `is_worth` is set.
    pub(crate) fn leave_run(&mut self, is_worth: bool) -> Result<(), Error> {
        self.writer.change_journal(|kept| match kept.take() {
            // Dropping a journal ends it without a result.
            Some(before) if is_worth => {
                drop(before);
                self.shared.announce_segments();
                Ok(())
            }
            Some(before) => Ok(before.journal.discard_journal()?),
            None => Ok(()),
        })
    }

    /// Queues a sample for the spool, without waiting for the disk. Returns the error of an earlier sample, if one
    /// could not be stored.
    pub(crate) fn store_sample(&self, sample: CountSample) -> Result<(), Error> {
        self.writer.queue_sample(sample)
    }

    /// Stores the captures, the result and the end of the run. Returns the number of the run's segments.
    pub(crate) fn finish_run(&mut self, result: &NodeResult) -> Result<u64, Error> {
        let segments = self
            .writer
            .change_journal(|kept| self.end_journal(kept.take().ok_or(Error::NoJournal)?, result))?;
        self.shared.lock_uplink().finished_runs += 1;
        Ok(segments)
    }

    fn end_journal(&self, kept: RunJournal, result: &NodeResult) -> Result<u64, Error> {
        let RunJournal { run, attempt, mut journal } = kept;
        let mut left = Vec::new();
        let mut kept_files = Vec::new();
        for capture in &result.captures {
            let path = Path::new(&capture.file);
            match store_capture(&mut journal, path, &run, &self.captures) {
                Ok(()) => kept_files.push(path),
                Err(why) => left.push(format!("capture {} stays on the node: {why}", path.display())),
            }
        }
        // The journal is ended even if the result could not be stored: the controller must learn that nothing more
        // comes, and why.
        let kept = journal.append_result(result);
        let reason = kept.as_ref().err().map(ToString::to_string);
        let last = journal.end_journal(reason);
        self.shared.lock_uplink().remarks.extend(left);
        self.shared.announce_segments();
        kept.and(last)?;
        for file in kept_files {
            // The spool keeps the file until the controller has it. A second copy of each run would fill the
            // owner's disk. A file that cannot be removed stays, and nothing else depends on it.
            ignore_failure(std::fs::remove_file(file));
        }
        Ok(self.spool.final_segment_count(&run, attempt).unwrap_or_default())
    }

    /// Queues the deletion of segments that the controller has stored.
    pub(crate) fn delete_stored_segments(&self, mark: &StoredWatermark) {
        self.writer.delete_stored_segments(mark);
    }

    /// Returns the runs with waiting segments: (run, attempt, number of segments).
    pub(crate) fn runs_with_waiting_segments(&self) -> Vec<WaitingSegments> {
        self.writer.runs_with_waiting_segments()
    }

    /// Returns the messages for the controller: the current obstacle, and the remarks since the last call.
    pub(crate) fn take_problems(&self) -> Vec<String> {
        let mut state = self.shared.lock_uplink();
        let remarks = std::mem::take(&mut state.remarks);
        state.obstacle.iter().cloned().chain(remarks).collect()
    }
}

fn store_capture(
    journal: &mut NodeJournal,
    path: &Path,
    run: &RunId,
    allowance: &SharedCaptureAllowance,
) -> Result<(), String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut allowance = allowance.lock().unwrap_or_else(PoisonError::into_inner);
    // The decision comes before the copy, so that a capture that may not leave the node does not fill the spool.
    allowance.count_sent_file(run, &name, size).map_err(|error| error.to_string())?;
    drop(allowance);
    journal.append_capture(&name, path).map(drop).map_err(|error| error.to_string())
}

impl Drop for ResultUplink {
    fn drop(&mut self) {
        self.shared.lock_uplink().over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Segments that were not handed over wait in the spool.
            drop(thread.join());
        }
    }
}

struct UplinkThread {
    spool: ResultSpool,
    node: NodeName,
    shared: Arc<UplinkShared>,
    open: UplinkOpener,
    outlet: Option<Box<dyn ResultSender>>,
    /// Time at which each waiting segment was passed to the fabric.
    handed: BTreeMap<SegmentId, MonoTime>,
}

impl UplinkThread {
    fn send_segments_until_over(mut self) {
        loop {
            let obstacle = self.send_pending_segments().err().map(|error| error.to_string());
            // With an obstacle, new segments are no reason for an early attempt: the thread waits the full time.
            let is_free = obstacle.is_none();
            let mut state = self.shared.lock_uplink();
            state.obstacle = obstacle;
            let waited =
                self.shared.changed.wait_timeout_while(state, SPOOL_CHECK_INTERVAL.to_std(), |state| {
                    !(state.over || is_free && state.fresh)
                });
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.over {
                return;
            }
            state.fresh = false;
        }
    }

    /// Hands over the segments that were not handed over yet, and those that the controller has not confirmed within
    /// [`SEGMENT_RESEND_TIMEOUT`].
    fn send_pending_segments(&mut self) -> Result<(), fabric::Error> {
        if std::mem::take(&mut self.shared.lock_uplink().expected) {
            self.open_result_outlet()?;
        }
        let pending = self.spool.pending_segments(usize::MAX);
        // The list has the order of run, attempt and number, as the spool lists them: `binary_search` relies on it.
        let waits: Vec<SegmentId> = pending.iter().map(|one| one.segment_id(&self.node)).collect();
        // Segments that were confirmed have left the spool; without this line the map would grow with every run.
        self.handed.retain(|id, _| waits.binary_search(id).is_ok());
        let due = pending
            .into_iter()
            .zip(waits)
            .filter(|(_, id)| self.handed.get(id).is_none_or(|at| now() >= *at + SEGMENT_RESEND_TIMEOUT));
        for (pending, id) in due.take(MAX_SEGMENTS_PER_BATCH).collect::<Vec<_>>() {
            self.hand_over_segment(&pending, id)?;
        }
        Ok(())
    }

    fn open_result_outlet(&mut self) -> Result<&mut Box<dyn ResultSender>, fabric::Error> {
        let outlet = match self.outlet.take() {
            Some(outlet) => outlet,
            None => (self.open)()?,
        };
        Ok(self.outlet.insert(outlet))
    }

    fn hand_over_segment(&mut self, pending: &PendingSegment, id: SegmentId) -> Result<(), fabric::Error> {
        // If the segment cannot be read, it was deleted meanwhile, because the controller has stored it.
        let Ok(bytes) = self.spool.read_segment(&pending.key) else { return Ok(()) };
        match self.open_result_outlet()?.append_segment(&id, &bytes) {
            Ok(()) => {
                self.handed.insert(id, now());
                Ok(())
            }
            Err(error) => {
                // A lost connection is opened again with the next segment; other errors leave it usable.
                if matches!(error, fabric::Error::Down(_)) {
                    self.outlet = None;
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packetrig_report::PlanHash;
    use packetrig_stats::result::CaptureResult;
    use packetrig_store::spool;

    fn nowhere() -> UplinkOpener {
        Box::new(|| Err(fabric::Error::Down("nowhere".into())))
    }

    fn spool(place: &Path) -> ResultSpool {
        let limits = spool::SpoolLimits { bytes: 1 << 24, keep_free: 0 };
        ResultSpool::open_or_create(&place.join("spool"), limits, Box::new(|_| None)).unwrap()
    }

    fn start(spool: &ResultSpool) -> ResultUplink {
        let captures = PathBuf::from("/nowhere");
        let source = UplinkSource {
            spool: spool.clone(),
            captures,
            capture_bytes: 250_000,
            node: NodeName("n".into()),
        };
        ResultUplink::start_sending(source, nowhere()).unwrap()
    }

    /// A run with captures of 100 kB each; which of them stay on the node.
    fn capture(
        place: &Path,
        uplink: &mut ResultUplink,
        run: &str,
        attempt: u32,
        names: &[&str],
    ) -> Vec<String> {
        let head =
            MessageHead { run: RunId(run.into()), attempt, epoch: 1, plan: PlanHash::from_document("") };
        uplink.begin_run(&head).unwrap();
        let mut result = NodeResult::default();
        for name in names {
            let file = place.join(name);
            std::fs::write(&file, vec![7; 100_000]).unwrap();
            let file = file.to_string_lossy().into_owned();
            result.captures.push(CaptureResult { port: 0, file, written: 1, dropped: 0 });
        }
        uplink.finish_run(&result).unwrap();
        names.iter().filter(|name| place.join(name).exists()).map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn waiting_run_disappears_once_result_is_stored() {
        let place = tempfile::tempdir().unwrap();
        let spool = spool(place.path());
        let mut uplink = start(&spool);
        let head =
            MessageHead { run: RunId("r".into()), attempt: 1, epoch: 1, plan: PlanHash::from_document("") };
        uplink.begin_run(&head).unwrap();
        assert!(uplink.has_journal_of_attempt(&head) && uplink.runs_with_waiting_segments().is_empty());
        let segments = uplink.finish_run(&NodeResult::default()).unwrap();
        assert_eq!(uplink.runs_with_waiting_segments(), [(head.run.clone(), 1, segments)]);
        uplink.delete_stored_segments(&StoredWatermark { run: head.run, attempt: 1, below: segments });
        while !uplink.runs_with_waiting_segments().is_empty() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn captures_over_total_limit_stay_on_node() {
        let place = tempfile::tempdir().unwrap();
        let spool = spool(place.path());
        let mut uplink = start(&spool);
        let left = capture(place.path(), &mut uplink, "r", 1, &["one.pcapng", "two.pcapng", "three.pcapng"]);
        let captures =
            spool.pending_segments(99).iter().filter(|one| one.kind == spool::SegmentKind::Capture).count();
        assert_eq!(captures, 2, "200 kB of 300 kB");
        let told = uplink.take_problems().join("\n");
        assert!(told.contains("three.pcapng stays on the node") && !told.contains("two"), "{told}");
        assert_eq!(left, ["three.pcapng"]);
    }

    #[test]
    fn capture_allowance_survives_attempt_and_restart() {
        let place = tempfile::tempdir().unwrap();
        let opened = spool(place.path());
        let mut uplink = start(&opened);
        let captured = |uplink: &mut ResultUplink, run, attempt, names: &[&str]| {
            capture(place.path(), uplink, run, attempt, names)
        };
        assert!(captured(&mut uplink, "a", 1, &["1.pcapng", "2.pcapng"]).is_empty());
        assert!(captured(&mut uplink, "b", 1, &["3.pcapng"]).is_empty(), "another run has its own");
        assert_eq!(captured(&mut uplink, "a", 2, &["4.pcapng"]), ["4.pcapng"], "a run in between");
        drop((uplink, opened));
        let mut again = start(&spool(place.path()));
        assert_eq!(captured(&mut again, "a", 3, &["5.pcapng"]), ["5.pcapng"], "a restart in between");
        assert!(captured(&mut again, "b", 2, &["6.pcapng"]).is_empty(), "200 kB of 250 kB");
    }
}
