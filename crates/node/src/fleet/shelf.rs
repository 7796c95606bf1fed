//! Results of a fleet in the catalogue: the one shelf there is beside those of tests.
//!
//! Invariant: what [`RunShelf::store`] has answered is on the disk for good, and has its row.

use super::collector::{Shelf, ShelfError, Shelved};
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::SegmentId;
use packetrig_fleet::report::RunReport;
use packetrig_fleet::{NodeName, RunId};
use packetrig_store::{Catalogue, Draft, Error, Gathered, KeptRun, ReportSize, Stored, Unfinished};
use packetrig_sys::clock;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A catalogue, and the run that is under way. Clones are the same shelf.
#[derive(Clone)]
pub struct RunShelf(Arc<Mutex<Slot>>);

struct Slot {
    catalogue: Catalogue,
    draft: Option<Draft>,
    /// What was written down of the run under way when it began; how far it is, is its member `record`.
    begun: Value,
}

impl std::fmt::Debug for RunShelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunShelf").finish_non_exhaustive()
    }
}

impl RunShelf {
    /// Of a connection of its own.
    pub fn new(catalogue: Catalogue) -> Self {
        Self(Arc::new(Mutex::new(Slot { catalogue, draft: None, begun: Value::Null })))
    }

    fn own(&self) -> MutexGuard<'_, Slot> {
        // Whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a run that a later controller can find. Its record is a JSON object of the caller's.
    pub fn begin(&self, unfinished: &Unfinished, size: ReportSize) -> Result<(), Error> {
        let mut slot = self.own();
        slot.draft = Some(slot.catalogue.begin_unfinished(unfinished, size)?);
        slot.begun = serde_json::from_str(&unfinished.record).unwrap_or_default();
        Ok(())
    }

    /// Runs that have begun and have no report.
    pub fn unfinished(&self) -> Result<Vec<Unfinished>, Error> {
        self.own().catalogue.unfinished()
    }

    /// Takes up a run where another process left it.
    pub fn resume(&self, run: &RunId) -> Result<Unfinished, Error> {
        let mut slot = self.own();
        let (draft, unfinished) = slot.catalogue.resume(run)?;
        slot.draft = Some(draft);
        slot.begun = serde_json::from_str(&unfinished.record).unwrap_or_default();
        Ok(unfinished)
    }

    /// What of the run under way is stored already: whoever takes it up is not told again.
    pub fn on_hand(&self, record: &RunRecord) -> Vec<(NodeName, Shelved)> {
        let slot = self.own();
        let of_node = |node: &NodeName| {
            Some((node.clone(), slot.shelved(&record.head.run, record.head.attempt, node).ok()?))
        };
        record.nodes.iter().filter_map(of_node).collect()
    }

    /// Writes how far the run under way is.
    pub fn note(&self, record: &RunRecord) -> Result<(), Error> {
        let mut slot = self.own();
        if slot.draft.as_ref().is_none_or(|draft| *draft.run() != record.head.run) {
            // A run of another catalogue.
            return Ok(());
        }
        slot.begun["record"] = serde_json::to_value(record).unwrap_or_default();
        let (text, head) = (slot.begun.to_string(), &record.head);
        slot.catalogue.note_unfinished(&head.run, head.attempt, head.epoch, &text)
    }

    /// Writes the report of the run under way; gives its directory. The report names captures where they then are.
    pub fn commit(&self, report: &mut RunReport, document: &str) -> Result<PathBuf, Error> {
        let mut slot = self.own();
        let draft = slot.draft.take().ok_or_else(|| Error::NotUnfinished(report.run.clone()))?;
        draft.commit(&slot.catalogue, report, document)
    }

    /// The run under way will have no report. Says what was kept of it, if anything was captured.
    pub fn give_up(&self) -> Result<Option<KeptRun>, Error> {
        let mut slot = self.own();
        let draft = slot.draft.take();
        draft.map_or(Ok(None), |draft| draft.give_up(&slot.catalogue))
    }
}

impl Shelf for RunShelf {
    fn store(&mut self, id: &SegmentId, body: &[u8]) -> Result<Option<Shelved>, ShelfError> {
        let slot = self.own();
        match slot.store(id, body) {
            Ok(shelved) => Ok(Some(shelved)),
            Err(error) if error.is_unreadable() => {
                let why = error.to_string();
                slot.catalogue.set_aside(id, body).map_err(|error| ShelfError::ForNow(error.to_string()))?;
                Err(ShelfError::Unreadable(why))
            }
            Err(error) => Err(ShelfError::ForNow(error.to_string())),
        }
    }
}

impl Slot {
    /// Whether the node is one of the run under way. What others send for it counts against their room for late results.
    fn takes_part(&self, node: &NodeName) -> bool {
        let record = &self.begun["record"];
        let lists = [&record["nodes"], &record["left_out"]];
        let mut names = lists.into_iter().filter_map(Value::as_array).flatten();
        record.is_null() || names.any(|name| name == node.0.as_str())
    }

    fn store(&self, id: &SegmentId, body: &[u8]) -> Result<Shelved, Error> {
        let at = clock::wall_clock_ns();
        let SegmentId { run, attempt, node, .. } = id;
        match self.under_way(run, node) {
            Some(draft) => settled(draft.store_segment(&self.catalogue, id, body, at))?,
            None => settled(self.catalogue.store_late(id, body, at))?,
        }
        self.shelved(run, *attempt, node)
    }

    fn under_way(&self, run: &RunId, node: &NodeName) -> Option<&Draft> {
        self.draft.as_ref().filter(|draft| draft.run() == run && self.takes_part(node))
    }

    /// What is stored of a node's part in a run.
    fn shelved(&self, run: &RunId, attempt: u32, node: &NodeName) -> Result<Shelved, Error> {
        let under_way = self.under_way(run, node);
        let gathered = match under_way {
            Some(draft) => draft.assemble(&self.catalogue, attempt, node)?,
            None => None,
        };
        let below = self.catalogue.watermark(run, attempt, node)?;
        let cut_short = gathered.as_ref().filter(|all| all.result.is_none()).map(last_words);
        let Gathered { result, doubts, elsewhere, .. } = gathered.unwrap_or_default();
        Ok(Shelved { below, result: result.map(Arc::new), cut_short, doubts, elsewhere })
    }
}

/// Other bytes under a name that is stored come from a disk that lost what it had: what came first counts, and the node
/// need not send it for ever.
fn settled(stored: Result<Stored, Error>) -> Result<(), Error> {
    match stored {
        // What is beyond a quota stays with its node, which is told no higher number. The fabric need not hold it meanwhile.
        Ok(_) | Err(Error::Differs(_) | Error::LateQuota { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What is known of a node that kept no result.
fn last_words(gathered: &Gathered) -> String {
    let reason = gathered.end.as_ref().and_then(|end| end.reason.clone());
    let counted = gathered.last_sample.as_ref().map(|sample| {
        let sent: u64 = sample.tx.iter().map(|(_, counts)| counts.frames).sum();
        let received: u64 = sample.rx.iter().map(|(.., counts)| counts.frames).sum();
        format!("the last it kept: {sent} frames sent, {received} received")
    });
    let words: Vec<String> = reason.into_iter().chain(counted).collect();
    if words.is_empty() { "nothing of it was kept".to_owned() } else { words.join("; ") }
}
