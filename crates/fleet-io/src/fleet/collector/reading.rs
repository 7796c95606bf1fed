//! Chooses the runs whose results a controller reads: its own latest runs, and a few late runs (other
//! runs with waiting results).
//!
//! A late run is read here if this controller's store has it, if no controller ever began it, or, in a controller that
//! reads all runs, if it has ended. A run that a running controller reads is not read here. The collector leaves a late
//! run when no result of it waits, or after [`LATE_RUN_READ_TIME`] if other runs wait to be read.
//!
//! Invariant: between two checks for deliveries of its own runs, a controller opens at most one late run.

use super::super::PresenceDirectory;
use super::{CollectorEvent, ResultStore};
use crate::agent::now;
use crate::error::ignore_failure;
use crossbeam_channel::Receiver;
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::{self, RecordStore, ResultReceiver, StoredRecord};
use packetrig_fleet::term::{ControllerIdentity, ControllerTermWatch, TermRecord};
use packetrig_report::RunId;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of own runs that are read: the current run, and earlier runs with results that may come late.
const MAX_OWN_RUNS_READ: usize = 4;
/// Maximum number of late runs that are read at the same time.
const MAX_LATE_RUNS_READ: usize = 8;
/// Maximum number of runs that are looked up at one check; the next check continues with the remaining runs.
const MAX_RUNS_LOOKED_UP: usize = 256;
/// A late run is read this long if other runs wait to be read.
const LATE_RUN_READ_TIME: Nanos = Nanos::from_secs(30);
/// Interval at which the collector checks for results without a reader.
const LATE_RUN_CHECK_INTERVAL: Nanos = Nanos::from_secs(5);
/// Shorter interval of the same check, while a command waits for the last results or the fabric's store is nearly full.
const FREQUENT_CHECK_INTERVAL: Nanos = Nanos::from_millis(500);

/// Sources that show which runs of other controllers may be read here.
pub(in super::super) struct OtherRuns<R> {
    pub(in super::super) records: R,
    pub(in super::super) watch: ControllerTermWatch,
    /// Directory in which controllers of this machine show that they are running.
    pub(in super::super) presences: Option<PresenceDirectory>,
    /// True if runs that the store does not have are also read.
    pub(in super::super) reads_all: bool,
}

/// State of reading: the runs that should be read, and the runs that are being read.
pub(super) struct RunReadingState<I, R> {
    pub(super) incoming: I,
    others: OtherRuns<R>,
    /// Runs of this controller, the latest last.
    wanted: VecDeque<RunId>,
    /// Runs of this controller that are being read.
    read: BTreeSet<RunId>,
    /// Late runs that are being read, each with the time at which its reading began.
    late: BTreeMap<RunId, MonoTime>,
    /// Late runs that may be read next; the first one is read first.
    candidates: VecDeque<RunId>,
    /// The last run that the previous check looked up.
    looked_up: Option<RunId>,
    /// Time of the next check for results without a reader.
    look_at: Option<MonoTime>,
    /// True if the last check found no result that this controller should read.
    is_drained: Arc<AtomicBool>,
    events: Vec<CollectorEvent>,
}

impl<I: ResultReceiver, R: RecordStore> RunReadingState<I, R> {
    pub(super) const fn new(incoming: I, others: OtherRuns<R>, is_drained: Arc<AtomicBool>) -> Self {
        Self {
            incoming,
            others,
            wanted: VecDeque::new(),
            read: BTreeSet::new(),
            late: BTreeMap::new(),
            candidates: VecDeque::new(),
            looked_up: None,
            look_at: None,
            is_drained,
            events: Vec::new(),
        }
    }

    /// Returns and clears the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<CollectorEvent> {
        std::mem::take(&mut self.events)
    }

    /// Begins to read this controller's wanted runs that are not read yet; a failure is tried again with the next call.
    /// Then looks for late runs if that check is due, or begins to read one late run.
    pub(super) fn update_run_reading(&mut self, wanted_runs: &Receiver<RunId>, store: &dyn ResultStore) {
        self.wanted.extend(wanted_runs.try_iter());
        while self.wanted.len() > MAX_OWN_RUNS_READ {
            // A run that is in the list again is still wanted.
            let oldest = self.wanted.pop_front().filter(|run| !self.wanted.contains(run));
            if let Some(oldest) = oldest.filter(|run| self.read.remove(run)) {
                self.incoming.leave_run(&oldest);
            }
        }
        for run in self.wanted.clone() {
            if !self.read.contains(&run) && self.try_read_run(&run).unwrap_or(false) {
                // The run is not a late run any more: it is read without a time limit.
                self.late.remove(&run);
                self.read.insert(run);
            }
        }
        if self.look_at.is_none_or(|at| now() >= at) {
            // If the runs cannot be listed now, the next check lists them.
            ignore_failure(self.find_late_runs(store));
            // A command that waits for the last results looks often; so does every
            // controller while the shared store is nearly full.
            let is_urgent = self.others.reads_all || self.incoming.is_nearly_full();
            self.look_at =
                Some(now() + if is_urgent { FREQUENT_CHECK_INTERVAL } else { LATE_RUN_CHECK_INTERVAL });
        } else if self.late.len() < MAX_LATE_RUNS_READ
            && let Some(run) = self.candidates.pop_front()
            && self.try_read_run(&run).unwrap_or(false)
        {
            self.late.insert(run, now());
        }
    }

    /// Lists the runs with waiting results, and decides which late runs this controller reads.
    fn find_late_runs(&mut self, store: &dyn ResultStore) -> Result<(), fabric::Error> {
        let waiting = self.incoming.list_runs_with_waiting_segments()?;
        let unread = self.find_unread_runs(&waiting);
        let late = self.look_up_late_runs(&unread, store);
        // Drained means: no result waits of a run that is read here, no other result waits that may be read here,
        // and this check has covered all runs.
        let reads_none = !waiting.keys().any(|run| self.is_read(run));
        self.is_drained.store(reads_none && late.candidates.is_empty() && !late.has_more, Ordering::Release);
        self.candidates = late.candidates;
        self.leave_finished_late_runs(&waiting);
        if self.incoming.is_nearly_full() && !late.discardable.is_empty() {
            self.discard_unread_runs(&late.discardable);
        }
        Ok(())
    }

    fn is_read(&self, run: &RunId) -> bool {
        self.read.contains(run) || self.late.contains_key(run)
    }

    /// Returns the waiting runs that neither this controller nor another running controller reads.
    fn find_unread_runs(&mut self, waiting: &BTreeMap<RunId, BTreeSet<String>>) -> BTreeSet<RunId> {
        // One controller may read many runs; its record is read only once.
        let mut at_work: BTreeMap<&String, bool> = BTreeMap::new();
        let mut unread = BTreeSet::new();
        for (run, readers) in waiting {
            let mut has_reader = self.is_read(run);
            for reader in readers {
                let others = &mut self.others;
                // A reader with an unreadable record counts as running: two controllers must not read the same run.
                has_reader |= *at_work
                    .entry(reader)
                    .or_insert_with(|| others.is_controller_active(reader).unwrap_or(true));
            }
            if !has_reader {
                unread.insert(run.clone());
            }
        }
        unread
    }

    /// Looks up at most [`MAX_RUNS_LOOKED_UP`] of the unread runs, beginning after the last one of the previous check.
    fn look_up_late_runs(&mut self, unread: &BTreeSet<RunId>, store: &dyn ResultStore) -> RunsWithoutReader {
        // This is a round robin: after 256 runs the next check continues with the following ones, so that
        // every run gets its turn.
        let last = self.looked_up.take();
        let (before, after): (Vec<&RunId>, Vec<&RunId>) =
            unread.iter().partition(|run| last.as_ref().is_some_and(|last| *run <= last));
        let in_turn: Vec<&RunId> = after.into_iter().chain(before).take(MAX_RUNS_LOOKED_UP).collect();
        self.looked_up = in_turn.last().map(|run| (*run).clone());
        let mut late =
            RunsWithoutReader { has_more: in_turn.len() < unread.len(), ..RunsWithoutReader::default() };
        // Results of a run in this catalogue belong to this controller, whatever the run's record says.
        let (known, unknown): (Vec<&RunId>, Vec<&RunId>) =
            in_turn.into_iter().partition(|run| store.knows_run(run));
        late.candidates.extend(known.into_iter().cloned());
        let keys: Vec<String> = unknown.iter().map(|run| RunRecord::record_key(run)).collect();
        match self.others.records.get_records(&keys) {
            Ok(records) => {
                for (run, record) in unknown.into_iter().zip(records) {
                    self.others.classify_run_not_in_store(run, record.as_ref(), &mut late);
                }
            }
            // These runs were not looked up, so the check is incomplete and the collector does not count as drained.
            Err(_) => late.has_more = true,
        }
        late
    }

    /// Leaves late runs without waiting results, and late runs that have used up their time while other runs wait.
    fn leave_finished_late_runs(&mut self, waiting: &BTreeMap<RunId, BTreeSet<String>>) {
        let others_wait = !self.candidates.is_empty();
        let finished = self.late.iter().filter(|(run, since)| {
            !waiting.contains_key(*run) || others_wait && now() >= **since + LATE_RUN_READ_TIME
        });
        let finished: Vec<RunId> = finished.map(|(run, _)| run.clone()).collect();
        for run in finished {
            self.late.remove(&run);
            self.incoming.leave_run(&run);
        }
    }

    /// Discards results without a reader: they must not fill the fabric's store, which all controllers share.
    fn discard_unread_runs(&mut self, runs: &BTreeSet<RunId>) {
        let told = match self.incoming.discard_runs(runs) {
            Ok(0) => return,
            Ok(segments) => format!(
                "the message server's store for results was nearly full, so results that no controller reads were \
                 removed from it (segments: {segments}); the nodes still have these results"
            ),
            Err(error) => format!(
                "the message server's store for results is nearly full, and segments of runs that no controller \
                 reads could not be removed: {error}"
            ),
        };
        self.events.push(CollectorEvent::Trouble(told));
    }

    /// Tries to become the reader of a run, in place of controllers that do not run any more. Returns whether this
    /// controller reads the run now.
    fn try_read_run(&mut self, run: &RunId) -> Result<bool, fabric::Error> {
        // The fabric names one reader at a time. A new reader may replace a reader that is certainly dead; if the
        // reader is running, this attempt ends.
        let mut gone = BTreeSet::new();
        loop {
            match self.incoming.read_run(run, &gone) {
                // If the fabric names a dead reader again, although it may be replaced,
                // the attempt ends: otherwise the loop would never end.
                Err(fabric::Error::Taken(reader)) if !gone.contains(&reader.0) => {
                    if self.others.is_controller_active(&reader.0)? {
                        return Ok(false);
                    }
                    gone.insert(reader.0);
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(true),
            }
        }
    }
}

/// Runs without a reader, sorted by what may be done with them.
#[derive(Debug, Default)]
struct RunsWithoutReader {
    /// Runs that may be read here.
    candidates: VecDeque<RunId>,
    /// Runs that may be removed from the fabric when it is nearly full.
    discardable: BTreeSet<RunId>,
    /// True if there are more runs, which were not looked up.
    has_more: bool,
}

impl<R: RecordStore> OtherRuns<R> {
    /// Sorts a run that this controller's store does not have. Its results are read by the controller that ends it.
    /// Results of a run that no controller ever began have no owner, and must not fill the message server.
    fn classify_run_not_in_store(
        &self,
        run: &RunId,
        found: Option<&StoredRecord>,
        late: &mut RunsWithoutReader,
    ) {
        // `Some(None)` is an unreadable record: a controller began the run, so the run has an owner.
        let record = found.map(|found| serde_json::from_slice::<RunRecord>(&found.value).ok());
        let is_unfinished =
            record.as_ref().is_some_and(|record| record.as_ref().is_some_and(RunRecord::is_unfinished));
        let is_nobodys = record.is_none();
        if is_nobodys || self.reads_all && !is_unfinished {
            late.candidates.push_back(run.clone());
        }
        if is_nobodys || !self.reads_all || is_unfinished {
            late.discardable.insert(run.clone());
        }
    }

    fn is_controller_active(&mut self, controller: &str) -> Result<bool, fabric::Error> {
        let found = self.records.get_record(&TermRecord::record_key(controller))?;
        let record = found.and_then(|found| {
            Some((serde_json::from_slice::<TermRecord>(&found.value).ok()?, found.revision))
        });
        let seen = record.as_ref().map(|(record, revision)| (record, *revision));
        let is_there =
            |controller: &ControllerIdentity| self.presences.as_ref()?.is_controller_present(controller);
        Ok(self.watch.judge_term_record(controller, seen, &is_there, now()).holds_leads())
    }
}

#[cfg(test)]
mod tests;
