//! The controller's end of the results' way: takes segments from the fabric, has them stored for good, confirms them.
//!
//! It works as long as the controller does, and reads its latest runs: nodes may still have results of those. Of other runs it
//! reads what comes late, if no controller at work reads it and the shelf knows the run.
//!
//! Invariant: a segment is confirmed to the fabric only after the shelf has stored it.

use crate::agent::now;
use crate::error::Error;
use crossbeam_channel::{Receiver, Sender, unbounded};
use packetrig_fleet::controller::RunRecord;
use packetrig_fleet::fabric::{self, Delivery, Incoming, Records, SegmentId};
use packetrig_fleet::message::Watermark;
use packetrig_fleet::reign::{ReignRecord, ReignWatch};
use packetrig_fleet::{NodeName, RunId};
use packetrig_stats::result::NodeResult;
use packetrig_sys::process;
use packetrig_units::{MonoTime, Nanos};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Own runs that are read: the one under way, and those before it of which something may come late.
const OWN_RUNS: usize = 4;
/// How often it is looked for results that nobody reads.
const LOOK_FOR_LATE: Nanos = Nanos::from_secs(5);
/// The same for whoever waits until nothing is left.
const LOOK_TO_COLLECT: Nanos = Nanos::from_millis(500);
/// How fast it notices that it is over.
const TURN: Nanos = Nanos::from_millis(50);

/// Where segments are stored for good.
pub trait Shelf: Send {
    /// Stores a segment, again if it is there already. `None` if this shelf has nothing to do with its run: it is left for
    /// whoever has.
    fn store(&mut self, id: &SegmentId, body: &[u8]) -> Result<Option<Shelved>, ShelfError>;
    /// Whether this run has ended here: what comes late belongs to it.
    fn knows(&self, run: &RunId) -> bool;
}

/// Why a segment was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShelfError {
    /// For now: the disk is full, or the catalogue is in use. The fabric brings it again.
    ForNow(String),
    /// For ever: nobody can read it. What the shelf has room for was set aside; it must not come again.
    Unreadable(String),
}

/// What is on the shelf of a node's part in a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shelved {
    /// The first number that is not stored; the node may delete what is below.
    pub below: u64,
    /// The node's result, when all of it is stored and it reached its end.
    pub result: Option<Arc<NodeResult>>,
    /// All is stored, and there is no result: the node did not get to its end.
    pub cut_short: Option<String>,
    /// What is missing of what the node had to say, once its last segment is stored.
    pub doubts: Vec<String>,
    /// What is still at the node.
    pub elsewhere: Vec<String>,
    /// It came after the report of its run, which was written again with it: in words.
    pub completed: Option<String>,
}

/// A segment that was stored.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) node: NodeName,
    pub(super) mark: Watermark,
    pub(super) shelved: Shelved,
}

/// What the collector tells.
#[derive(Debug)]
pub(super) enum Told {
    Arrival(Box<Arrival>),
    /// Something could not be stored; it comes again.
    Trouble(String),
    /// So many segments of a node will never be stored.
    Refused {
        node: NodeName,
        count: u64,
        why: String,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Collector {
    told: Receiver<Told>,
    wanted: Sender<RunId>,
    is_drained: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    pub(super) fn start<I: Incoming + 'static, R: Records + 'static>(
        incoming: I,
        shelf: Box<dyn Shelf>,
        others: OtherRuns<R>,
    ) -> Result<Self, Error> {
        let (tell, told) = unbounded();
        let (wanted, wishes) = unbounded();
        let over = Arc::new(AtomicBool::new(false));
        let is_drained = Arc::new(AtomicBool::new(false));
        let thread = {
            let over = Arc::clone(&over);
            let reading = RunReading {
                incoming,
                others,
                wanted: VecDeque::new(),
                read: BTreeSet::new(),
                look_at: None,
                is_drained: Arc::clone(&is_drained),
            };
            let body = move || collect(reading, shelf, (&tell, &wishes), &over);
            Builder::new().name("collector".to_owned()).spawn(body).map_err(Error::Thread)?
        };
        Ok(Self { told, wanted, is_drained, over, thread: Some(thread) })
    }

    /// Results of this run are taken in from now on.
    pub(super) fn read(&self, run: &RunId) {
        // A thread that has ended was told to.
        self.wanted.send(run.clone()).unwrap_or(());
    }

    /// Whether nothing waited at the last look.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Acquire)
    }

    /// What came since it was asked last.
    pub(super) fn news(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // What was not confirmed comes again to the next one.
            drop(thread.join());
        }
    }
}

/// What has to be known to read the results of others.
pub(super) struct OtherRuns<R> {
    pub(super) records: R,
    pub(super) watch: ReignWatch,
    /// Those too that the shelf does not know.
    pub(super) reads_all: bool,
}

/// Which runs are read.
struct RunReading<I, R> {
    incoming: I,
    others: OtherRuns<R>,
    /// This controller's own, the latest last.
    wanted: VecDeque<RunId>,
    read: BTreeSet<RunId>,
    /// When to look next for what nobody reads.
    look_at: Option<MonoTime>,
    /// The last look has found nothing of what is read here.
    is_drained: Arc<AtomicBool>,
}

impl<I: Incoming, R: Records> RunReading<I, R> {
    /// Reads what is wanted and not read yet; what could not be done is tried again.
    fn follow(&mut self, wishes: &Receiver<RunId>, shelf: &dyn Shelf) {
        self.wanted.extend(wishes.try_iter());
        while self.wanted.len() > OWN_RUNS {
            let oldest = self.wanted.pop_front().filter(|run| !self.wanted.contains(run));
            if let Some(oldest) = oldest.filter(|run| self.read.remove(run)) {
                self.incoming.leave_run(&oldest);
            }
        }
        for run in self.wanted.clone() {
            if !self.read.contains(&run) {
                self.read_run(&run).unwrap_or(());
            }
        }
        if self.look_at.is_none_or(|at| now() >= at) {
            let every = if self.others.reads_all { LOOK_TO_COLLECT } else { LOOK_FOR_LATE };
            self.look_at = Some(now() + every);
            self.read_late(shelf).unwrap_or(());
        }
    }

    fn read_late(&mut self, shelf: &dyn Shelf) -> Result<(), fabric::Error> {
        let waiting = self.incoming.waiting_runs()?;
        for run in waiting.keys() {
            if !self.read.contains(run) && (shelf.knows(run) || self.others.may_be_read(run)?) {
                self.read_run(run)?;
            }
        }
        let is_drained = waiting.keys().all(|run| !self.read.contains(run));
        self.is_drained.store(is_drained, Ordering::Release);
        Ok(())
    }

    /// In place of controllers that are not at work any more.
    fn read_run(&mut self, run: &RunId) -> Result<(), fabric::Error> {
        let mut gone = BTreeSet::new();
        loop {
            match self.incoming.read_run(run, &gone) {
                Err(fabric::Error::Taken(reader)) if !gone.contains(&reader.0) => {
                    if self.others.is_at_work(&reader.0)? {
                        return Ok(());
                    }
                    gone.insert(reader.0);
                }
                Err(error) => return Err(error),
                Ok(()) => {
                    self.read.insert(run.clone());
                    return Ok(());
                }
            }
        }
    }
}

impl<R: Records> OtherRuns<R> {
    /// Whether results of a run that the shelf does not know may be read here. What claims to be of a run that no controller ever
    /// began belongs to nobody, and must not fill the store. A run that has not ended is read by whoever ends it.
    fn may_be_read(&mut self, run: &RunId) -> Result<bool, fabric::Error> {
        let Some(found) = self.records.get(&RunRecord::key(run))? else { return Ok(true) };
        let record = serde_json::from_slice::<RunRecord>(&found.value).ok();
        Ok(self.reads_all && record.is_none_or(|record| !record.is_unfinished()))
    }

    fn is_at_work(&mut self, controller: &str) -> Result<bool, fabric::Error> {
        let found = self.records.get(&ReignRecord::key(controller))?;
        let record = found.and_then(|found| {
            Some((serde_json::from_slice::<ReignRecord>(&found.value).ok()?, found.revision))
        });
        let seen = record.as_ref().map(|(record, revision)| (record, *revision));
        Ok(self.watch.look(controller, seen, &process::exists, now()).holds())
    }
}

fn collect<I: Incoming, R: Records>(
    mut reading: RunReading<I, R>,
    mut shelf: Box<dyn Shelf>,
    (tell, wishes): (&Sender<Told>, &Receiver<RunId>),
    over: &AtomicBool,
) {
    while !over.load(Ordering::Acquire) {
        reading.follow(wishes, &*shelf);
        let incoming = &mut reading.incoming;
        let delivery = incoming.collect(TURN);
        for (node, count) in incoming.refused() {
            let why = "not sealed by that node".to_owned();
            // Whoever started this may be about to end it.
            tell.send(Told::Refused { node, count, why }).unwrap_or(());
        }
        for (node, why) in incoming.unreadable_keys() {
            let trouble =
                format!("segments of {node} have to wait: the key of the node cannot be read: {why}");
            tell.send(Told::Trouble(trouble)).unwrap_or(());
        }
        let Some(Delivery { id, body, token }) = delivery else { continue };
        let told = match shelf.store(&id, &body) {
            Ok(Some(shelved)) => match incoming.confirm(token) {
                Ok(()) => Told::Arrival(Box::new(arrival(id, shelved))),
                Err(error) => Told::Trouble(format!("segment {id}: {error}")),
            },
            Ok(None) => continue,
            Err(ShelfError::ForNow(error)) => Told::Trouble(format!("segment {id} was not stored: {error}")),
            Err(ShelfError::Unreadable(why)) => match incoming.confirm(token) {
                Ok(()) => Told::Refused { node: id.node, count: 1, why },
                Err(error) => Told::Trouble(format!("segment {id}: {error}")),
            },
        };
        // Whoever started this may be about to end it.
        tell.send(told).unwrap_or(());
    }
}

fn arrival(id: SegmentId, shelved: Shelved) -> Arrival {
    let mark = Watermark { run: id.run, attempt: id.attempt, below: shelved.below };
    Arrival { node: id.node, mark, shelved }
}
