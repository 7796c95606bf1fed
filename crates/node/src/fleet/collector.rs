//! The controller's end of the results' way: takes segments from the fabric, has them stored for good, confirms them.
//!
//! It works as long as the controller does, whatever run is under way: nodes may still have results of an earlier one.
//!
//! Invariant: a segment is confirmed to the fabric only after the shelf has stored it.

use crate::error::Error;
use crossbeam_channel::{Receiver, Sender, unbounded};
use packetrig_fleet::NodeName;
use packetrig_fleet::fabric::{Delivery, Incoming, SegmentId};
use packetrig_fleet::message::Watermark;
use packetrig_stats::result::NodeResult;
use packetrig_units::Nanos;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// How fast it notices that it is over.
const TURN: Nanos = Nanos::from_millis(50);

/// Where segments are stored for good.
pub trait Shelf: Send {
    /// Stores a segment, again if it is there already. `None` if this shelf has nothing to do with its run: it is left for
    /// whoever has.
    fn store(&mut self, id: &SegmentId, body: &[u8]) -> Result<Option<Shelved>, ShelfError>;
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
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Collector {
    pub(super) fn start<I: Incoming + 'static>(incoming: I, shelf: Box<dyn Shelf>) -> Result<Self, Error> {
        let (tell, told) = unbounded();
        let over = Arc::new(AtomicBool::new(false));
        let thread = {
            let over = Arc::clone(&over);
            let body = move || collect(incoming, shelf, &tell, &over);
            Builder::new().name("collector".to_owned()).spawn(body).map_err(Error::Thread)?
        };
        Ok(Self { told, over, thread: Some(thread) })
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

fn collect<I: Incoming>(mut incoming: I, mut shelf: Box<dyn Shelf>, tell: &Sender<Told>, over: &AtomicBool) {
    while !over.load(Ordering::Acquire) {
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
