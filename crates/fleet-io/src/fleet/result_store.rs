//! Stores the results of a fleet in the catalogue.
//!
//! Invariant: a segment that the store has accepted is on the disk and has its row in the catalogue.

mod late;

use super::collector::{
    KnownFrameCounts, PartContents, ReceivedSegment, ResultStore, ResultStoreError, StoredBatch, StoredPart,
    UnfinishedPart,
};
use crate::open_run::OpenRun;
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::message::StoredWatermark;
use packetrig_report::{NodeName, RunId, RunReport};
use packetrig_store::files::PageChoice;
use packetrig_store::{
    AssembledPart, Error, ReportSize, RunCatalogue, RunDraft, RunQuota, SegmentBatch, StoreOutcome,
    StoredRunShare, UnfinishedRun, UnlistedRun,
};
use packetrig_sys::clock;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stores the results of runs in a catalogue. Clones share the catalogue and the current run.
#[derive(Clone)]
pub struct RunResultStore(Arc<Mutex<ResultStoreState>>);

struct ResultStoreState {
    catalogue: RunCatalogue,
    draft: Option<RunDraft>,
    /// JSON object that was stored at the beginning of the current run. Its member `record` has the latest
    /// state of the run.
    begun: Value,
    /// The nodes that take part in the current run or were left out of it; `None` if no list was stored.
    nodes: Option<BTreeSet<String>>,
    quota: RunQuota,
    page: PageChoice,
    /// Contents of complete parts. Each part is assembled only once, even if its segments are delivered again.
    whole: BTreeMap<CompletePartKey, PartContents>,
}

/// Attempt and node of a part of the current run whose segments are all stored.
type CompletePartKey = (u32, NodeName);

/// Outcome of completing reports that lacked results.
#[derive(Debug, Default)]
pub struct CompletedReports {
    /// A sentence for each result that was added to its report.
    pub told: Vec<String>,
    /// A sentence for each report that could not be written.
    pub failed: Vec<String>,
}

/// Key of a node's part in an attempt of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartKey {
    run: RunId,
    attempt: u32,
    node: NodeName,
}

impl PartKey {
    fn from_segment(id: &SegmentId) -> Self {
        Self { run: id.run.clone(), attempt: id.attempt, node: id.node.clone() }
    }
}

/// State of the parts that got segments.
struct StoredParts {
    parts: Vec<StoredPart>,
    /// Parts whose stored state could not be read, with the reasons.
    failed: BTreeMap<PartKey, String>,
}

impl ResultStoreState {
    fn set_current_run(&mut self, mut draft: RunDraft, record: &str) {
        draft.set_quota(self.quota);
        draft.set_page_choice(self.page);
        self.draft = Some(draft);
        self.begun = serde_json::from_str(record).unwrap_or_default();
        self.nodes = node_names_in_record(&self.begun["record"]);
        // The keys do not contain the run, so entries of the earlier run would look like entries of this one.
        self.whole.clear();
    }
}

impl std::fmt::Debug for RunResultStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunResultStore").finish_non_exhaustive()
    }
}

impl RunResultStore {
    /// Creates a store of results in `catalogue`, with the default quota.
    pub fn new(catalogue: RunCatalogue) -> Self {
        Self::with_quota(catalogue, RunQuota::default())
    }

    /// Creates a store of results with a quota for each node's part in a run.
    pub fn with_quota(catalogue: RunCatalogue, quota: RunQuota) -> Self {
        Self(Arc::new(Mutex::new(ResultStoreState {
            catalogue,
            draft: None,
            begun: Value::Null,
            nodes: None,
            quota,
            page: PageChoice::Write,
            whole: BTreeMap::new(),
        })))
    }

    /// Sets whether runs that begin from now on get a report page (HTML).
    pub fn set_page_choice(&self, page: PageChoice) {
        self.lock_store().page = page;
    }

    fn lock_store(&self) -> MutexGuard<'_, ResultStoreState> {
        // A panic cannot leave the value half changed: it is consistent between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run that a later controller can find. The caller provides its record, a JSON object.
    pub fn begin_run(&self, unfinished: &UnfinishedRun, size: ReportSize) -> Result<(), Error> {
        let mut slot = self.lock_store();
        let draft = slot.catalogue.begin_resumable_run(unfinished, size)?;
        slot.set_current_run(draft, &unfinished.record);
        Ok(())
    }

    /// Returns the runs that have begun and have no report.
    pub fn unfinished_runs(&self) -> Result<Vec<UnfinishedRun>, Error> {
        self.lock_store().catalogue.unfinished_runs()
    }

    /// Continues a run that another process left unfinished; it becomes the current run.
    pub fn resume_run(&self, run: &RunId) -> Result<UnfinishedRun, Error> {
        let mut slot = self.lock_store();
        let (draft, unfinished) = slot.catalogue.resume_run(run)?;
        slot.set_current_run(draft, &unfinished.record);
        Ok(unfinished)
    }

    /// Reads what is stored of a run's results. A controller that takes over the run needs this, because it gets no
    /// events for segments that are stored already.
    pub fn read_stored_parts(&self, record: &RunRecord) -> Vec<StoredPart> {
        let mut slot = self.lock_store();
        let mut on_hand = Vec::new();
        let run = &record.head.run;
        let attempt = record.head.attempt;
        for node in &record.nodes {
            let below = slot.catalogue.watermark(run, attempt, node).unwrap_or(0);
            let mark = StoredWatermark { run: run.clone(), attempt, below };
            if let Ok(contents) = slot.part_contents(run, attempt, node) {
                on_hand.push(StoredPart { node: node.clone(), mark, contents, completed: None });
            }
        }
        on_hand
    }

    /// Returns the first segment number that is not stored, for a node in an attempt of any run.
    pub fn stored_watermark(&self, node: &NodeName, run: &RunId, attempt: u32) -> u64 {
        // If the catalogue cannot be read, the answer is 0, so that the node deletes nothing.
        self.lock_store().catalogue.watermark(run, attempt, node).unwrap_or(0)
    }

    /// Saves the record of the current run in the catalogue; does nothing for another run.
    pub fn store_run_state(&self, record: &RunRecord) -> Result<(), Error> {
        let mut slot = self.lock_store();
        if slot.draft.as_ref().is_none_or(|draft| *draft.run_id() != record.head.run) {
            // The record belongs to a run of another catalogue.
            return Ok(());
        }
        slot.begun["record"] = serde_json::to_value(record).unwrap_or_default();
        slot.nodes = node_names_in_record(&slot.begun["record"]);
        let text = slot.begun.to_string();
        let head = &record.head;
        slot.catalogue.store_unfinished_state(&head.run, head.attempt, head.epoch, &text)
    }

    /// Writes the report of the current run and returns its directory. The report names captures by their
    /// final paths. `report` is replaced by the stored one if results arrived while it was made. With `open`, results
    /// that arrive later are added to the stored report, with a note.
    pub fn commit_report(
        &self,
        report: &mut RunReport,
        document: &str,
        open: Option<&OpenRun>,
    ) -> Result<PathBuf, Error> {
        let mut slot = self.lock_store();
        let mut draft = slot.draft.take().ok_or_else(|| Error::NotUnfinished(report.run.clone()))?;
        if let Some(written) = open.and_then(|open| open.to_bytes().ok()) {
            draft.set_open_state(written);
        }
        let directory = draft.commit_run(&slot.catalogue, report, document)?;
        // Results that came while the report was made are stored and will not come again, so they
        // go into the report now. If the report cannot be written, the collection of results tries again.
        if slot.complete_report_of_run(&report.run).is_ok_and(|completed| !completed.is_empty()) {
            *report = slot.catalogue.load_report(&report.run.0)?.1;
        }
        Ok(directory)
    }

    /// Completes reports that lack results, with the results that have arrived since.
    pub fn complete_open_reports(&self) -> CompletedReports {
        let slot = self.lock_store();
        let mut completed = CompletedReports::default();
        let open = slot.catalogue.list_runs_with_missing_results().unwrap_or_else(|error| {
            completed.failed.push(format!("cannot list the runs with incomplete reports: {error}"));
            Vec::new()
        });
        for run in &open {
            match slot.complete_report_of_run(run) {
                Ok(told) => completed.told.extend(told),
                Err(error) => {
                    completed.failed.push(format!("cannot update the report of run {run}: {error}"));
                }
            }
        }
        completed
    }

    /// Ends the current run without a report. Returns the captures and segments that were kept, if there are any.
    pub fn abandon_run(&self) -> Result<Option<UnlistedRun>, Error> {
        let mut slot = self.lock_store();
        let draft = slot.draft.take();
        draft.map_or(Ok(None), |draft| draft.abandon_run(&slot.catalogue))
    }
}

impl ResultStore for RunResultStore {
    fn knows_run(&self, run: &RunId) -> bool {
        self.lock_store().catalogue.read_plan(run).is_ok()
    }

    fn store_segments(&mut self, segments: &[ReceivedSegment]) -> StoredBatch {
        self.lock_store().store_batch(segments)
    }
}

impl ResultStoreState {
    /// Returns whether the node takes part in the current run. Segments of other nodes count against their
    /// quota for late results.
    fn is_node_in_current_run(&self, node: &NodeName) -> bool {
        self.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node.0))
    }

    fn store_batch(&mut self, segments: &[ReceivedSegment]) -> StoredBatch {
        let answers = self.store_segments(segments);
        let mut outcomes = Vec::with_capacity(segments.len());
        // The state of a part is read once, however many of its segments have arrived.
        let mut parts: BTreeMap<PartKey, Vec<String>> = BTreeMap::new();
        for (ReceivedSegment { id, body }, answer) in segments.iter().zip(answers) {
            // A segment beyond its node's quota is confirmed to the fabric, but not stored: the node keeps it, and the
            // part gets a doubt about it.
            let mut doubt = None;
            if let Err(Error::RunQuota { share, .. }) = &answer {
                doubt = describe_first_quota_refusal(&id.node, *share);
            }
            let outcome = self.decide_segment_answer(id, body, answer);
            if outcome.is_ok() {
                parts.entry(PartKey::from_segment(id)).or_default().extend(doubt);
            }
            outcomes.push(outcome);
        }
        let stored = self.complete_and_read_parts(parts);
        // If the state of a part cannot be read, there is no watermark for its node, so its segments must be delivered
        // again.
        for (ReceivedSegment { id, .. }, outcome) in segments.iter().zip(&mut outcomes) {
            if let Some(why) = stored.failed.get(&PartKey::from_segment(id)).filter(|_| outcome.is_ok()) {
                *outcome = Err(ResultStoreError::ForNow(why.clone()));
            }
        }
        StoredBatch { outcomes, parts: stored.parts }
    }

    fn store_segments(&self, segments: &[ReceivedSegment]) -> Vec<Result<StoreOutcome, Error>> {
        let mut batch = SegmentBatch::new(&self.catalogue, clock::wall_clock_ns());
        for ReceivedSegment { id, body } in segments {
            match self.current_draft_for(&id.run, &id.node) {
                Some(draft) => batch.add_segment(draft, id, body),
                None => batch.add_late_segment(id, body),
            }
        }
        batch.store_segments()
    }

    /// Decides the answer to the fabric about a segment; `Ok` confirms it. If a segment with other bytes is stored
    /// under its name, the node's disk has lost its contents: the first bytes count, and the node need not send the
    /// segment again. A segment beyond a quota stays on its node, which gets no higher watermark.
    fn decide_segment_answer(
        &self,
        id: &SegmentId,
        body: &[u8],
        answer: Result<StoreOutcome, Error>,
    ) -> Result<(), ResultStoreError> {
        match answer {
            Ok(_) | Err(Error::Differs(_) | Error::RunQuota { .. } | Error::LateQuota { .. }) => Ok(()),
            Err(error) if error.is_unreadable() => {
                // The segment is set aside before the answer: the fabric does not deliver a confirmed segment
                // again.
                let why = error.to_string();
                self.catalogue
                    .store_unreadable_segment(id, body)
                    .map_err(|error| ResultStoreError::ForNow(error.to_string()))?;
                Err(ResultStoreError::Unreadable(why))
            }
            Err(error) => Err(ResultStoreError::ForNow(error.to_string())),
        }
    }

    /// Completes earlier reports that lacked these parts, and reads the state of the parts. `keys` has the
    /// doubts about each part.
    fn complete_and_read_parts(&mut self, keys: BTreeMap<PartKey, Vec<String>>) -> StoredParts {
        let mut completed = self.complete_late_reports(keys.keys());
        let mut parts = Vec::with_capacity(keys.len());
        let mut failed = BTreeMap::new();
        for (key, doubts) in keys {
            let completed = completed.remove(&key).transpose();
            match completed.and_then(|completed| self.read_stored_part(&key, doubts, completed)) {
                Ok(arrival) => parts.push(arrival),
                Err(error) => drop(failed.insert(key, error.to_string())),
            }
        }
        StoredParts { parts, failed }
    }

    fn read_stored_part(
        &mut self,
        key: &PartKey,
        doubts: Vec<String>,
        completed: Option<String>,
    ) -> Result<StoredPart, Error> {
        let PartKey { run, attempt, node } = key;
        let mut contents = self.part_contents(run, *attempt, node)?;
        contents.doubts.extend(doubts);
        let below = self.catalogue.watermark(run, *attempt, node)?;
        let mark = StoredWatermark { run: run.clone(), attempt: *attempt, below };
        Ok(StoredPart { node: node.clone(), mark, contents, completed })
    }

    /// Returns the draft of the current run, if `run` is the current run and the node takes part in it.
    fn current_draft_for(&self, run: &RunId, node: &NodeName) -> Option<&RunDraft> {
        self.draft.as_ref().filter(|draft| draft.run_id() == run && self.is_node_in_current_run(node))
    }

    /// Returns the contents of a node's part in the current run; empty until the part is stored to its end. The part is
    /// assembled only once.
    fn part_contents(&mut self, run: &RunId, attempt: u32, node: &NodeName) -> Result<PartContents, Error> {
        let part = (attempt, node.clone());
        // A complete part does not change. Without this check, each repeated segment would cause all segments
        // to be read again.
        if let Some(known) = self.whole.get(&part) {
            return Ok(known.clone());
        }
        let draft = self.current_draft_for(run, node);
        let gathered = draft.map(|draft| draft.assemble_part(&self.catalogue, attempt, node)).transpose()?;
        let Some(gathered) = gathered.flatten() else { return Ok(PartContents::default()) };
        let contents = build_complete_part_contents(node, gathered);
        self.whole.insert(part, contents.clone());
        Ok(contents)
    }
}

/// Returns the names of all nodes in a run's record; `None` if there is no record yet.
fn node_names_in_record(record: &Value) -> Option<BTreeSet<String>> {
    if record.is_null() {
        return None;
    }
    let lists = [&record["nodes"], &record["left_out"]];
    let names = lists.into_iter().filter_map(Value::as_array).flatten();
    Some(names.filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Builds the contents of a part that is stored to its end.
fn build_complete_part_contents(node: &NodeName, gathered: AssembledPart) -> PartContents {
    let cut_short = gathered.result.is_none().then(|| build_unfinished_part(&gathered));
    let AssembledPart { mut result, mut doubts, elsewhere, .. } = gathered;
    // The segments have the signature of this node. A result that names another node would be counted for that node.
    if let Some(result) = result.as_mut().filter(|result| result.node != node.0) {
        doubts.push(format!(
            "{node}: the result names node `{}`, but counts for {node}, whose signature it has",
            result.node
        ));
        result.node.clone_from(&node.0);
    }
    PartContents { result: result.map(Arc::new), cut_short, doubts, elsewhere }
}

/// Returns a message about a node that has used up its quota, at its first refused segment. The catalogue
/// counts the later ones.
fn describe_first_quota_refusal(node: &NodeName, share: StoredRunShare) -> Option<String> {
    let StoredRunShare { segments, bytes, refused } = share;
    (refused == 1).then(|| {
        format!(
            "{node}: result quota used up: {bytes} B are stored (segments: {segments}); later segments stay \
             on the node"
        )
    })
}

/// Returns the reason why a node did not finish, and its last counts.
fn build_unfinished_part(gathered: &AssembledPart) -> UnfinishedPart {
    UnfinishedPart {
        reason: gathered.end.as_ref().and_then(|end| end.reason.clone()),
        counted: gathered.last_sample.as_ref().map(KnownFrameCounts::from_sample),
    }
}

#[cfg(test)]
mod tests;
