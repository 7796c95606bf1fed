//! A worker: one source, one parser, one table, on one thread.
//!
//! ```text
//!  take a batch -> parse -> table -> outbox
//!       nothing there: time out flows, send what is waiting, wait a little; a part of it also in between
//! ```
//! Packets of capture files pass a [`ReorderBuffer`] on their way to the table.
//!
//! Time drives the table also when no packet arrives. Between batches, a few times a second, the worker leaves its
//! counts on its [`WorkerMeeting`], where others read them.
//!
//! Invariant: what is on the desk balances in itself, and at the end is everything.

use crate::Error;
use crate::intake::PacketIntake;
use crate::memory::MeterMemory;
use crate::outbox::{OfferedCounts, OutputQueues};
use crate::reorder::ReorderBuffer;
use crate::source::{PacketSource, TakeOutcome};
use crate::top::TopBoard;
use packetrig_flow::sim::SimEvent;
use packetrig_flow::table::FlowTable;
use packetrig_flow::{PacketCounts, PacketInfo};
use packetrig_sys::clock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Batches between two looks at the clock.
const ROUNDS: u32 = 16;
/// Flows looked after between two looks at the source: many more than packets can open in between, and few enough that a
/// ring does not fill meanwhile.
const DUE: usize = 4096;
/// How long to wait for packets before looking after the flows.
const PAUSE_NS: u64 = 20_000_000;
/// How often counts are left on the desk, and records that wait are sent.
const NOTE_NS: u64 = 50_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Of parser and table.
    pub counts: PacketCounts,
    /// Dropped by its ring.
    pub ring_dropped: u64,
    /// Given by its source.
    pub delivered: u64,
    /// What its ring says it put in; known at the end.
    pub put_in: Option<u64>,
    /// Of a file, read and not given because it was stopped.
    pub left: u64,
    pub offered: Vec<OfferedCounts>,
}

/// Where a worker and everybody else meet.
#[derive(Debug, Default)]
pub struct WorkerMeeting {
    is_called_off: AtomicBool,
    has_failed: AtomicBool,
    notes: Mutex<WorkerCounts>,
    /// Where it notes flows, if anybody wants to see the largest.
    pub board: Option<TopBoard>,
}

impl WorkerMeeting {
    /// With nothing on it; `has_board`: somebody wants to see the largest flows.
    pub(crate) fn new(has_board: bool) -> Self {
        Self { board: has_board.then(TopBoard::default), ..Self::default() }
    }

    /// Has the worker take what is there and come to an end.
    pub fn stop(&self) {
        self.is_called_off.store(true, Ordering::Release);
    }

    /// Whether the worker has come to an end that nobody wanted.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// What says that the worker has failed if its thread panics.
    pub(crate) fn alarm(self: &Arc<Self>) -> WorkerAlarm {
        WorkerAlarm(Arc::clone(self))
    }

    /// The worker's counts, as of a moment ago.
    pub fn notes(&self) -> WorkerCounts {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// See [`WorkerMeeting::alarm`].
pub(crate) struct WorkerAlarm(Arc<WorkerMeeting>);

impl Drop for WorkerAlarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.has_failed.store(true, Ordering::Release);
        }
    }
}

pub(crate) struct MeterWorker {
    pub(crate) source: Box<dyn PacketSource>,
    pub(crate) intake: PacketIntake,
    pub(crate) table: FlowTable<MeterMemory>,
    pub(crate) outbox: OutputQueues,
    pub(crate) desk: Arc<WorkerMeeting>,
    /// Where the source's packets may be out of order, and need not be metered at once.
    pub(crate) reorder: Option<ReorderBuffer>,
}

impl MeterWorker {
    /// Works until the source ends.
    pub(crate) fn run(mut self) -> Result<(), Error> {
        let worked = self.work();
        // Before it waits for the others: whoever looks at the desk ends them.
        self.desk.has_failed.store(worked.is_err(), Ordering::Release);
        self.outbox.end_input();
        self.release_held();
        // Whatever happened: what was metered is reported.
        self.table.finish(&mut self.outbox);
        self.outbox.flush();
        let put_in = self.source.put_in();
        self.note(put_in.as_ref().ok().copied().flatten());
        worked?;
        put_in.map(|_| ())
    }

    fn work(&mut self) -> Result<(), Error> {
        let mut noted_ns = 0;
        loop {
            let mut taken = TakeOutcome::Some;
            for _ in 0..ROUNDS {
                taken = self.round()?;
                if taken != TakeOutcome::Some {
                    break;
                }
            }
            let is_done = self.advance(taken);
            let clock_ns = clock::monotonic_ns();
            if clock_ns >= noted_ns + NOTE_NS {
                self.attend()?;
                noted_ns = clock_ns;
            }
            match taken {
                TakeOutcome::Nothing if is_done => self.source.wait(PAUSE_NS)?,
                TakeOutcome::Some | TakeOutcome::Nothing => {}
                TakeOutcome::Ended => return Ok(()),
            }
        }
    }

    /// Does what is due, or a part of it; whether that was all.
    fn advance(&mut self, taken: TakeOutcome) -> bool {
        let has_ended = taken == TakeOutcome::Ended;
        if has_ended {
            self.release_held();
        }
        let given_ns = self.source.now_ns(taken == TakeOutcome::Nothing);
        let now_ns = self.reorder.as_ref().map_or(Some(given_ns), |reorder| reorder.now_ns(given_ns));
        let most = if has_ended { usize::MAX } else { DUE };
        now_ns.is_none_or(|now_ns| self.table.advance_some(now_ns, most, &mut self.outbox))
    }

    /// Nothing more comes: what is held back is metered.
    fn release_held(&mut self) {
        let Self { table, outbox, desk, reorder, .. } = self;
        if let Some(reorder) = reorder {
            reorder.finish(|batch, now_ns| meter(table, outbox, desk, batch, now_ns));
        }
    }

    pub(crate) fn round(&mut self) -> Result<TakeOutcome, Error> {
        self.intake.clear();
        let taken = self.source.take(&mut self.intake)?;
        let packets = self.intake.packets();
        if packets.is_empty() {
            return Ok(taken);
        }
        let Self { source, table, outbox, desk, .. } = self;
        match &mut self.reorder {
            Some(reorder) => reorder.pass(packets, |batch, now_ns| meter(table, outbox, desk, batch, now_ns)),
            None => meter(table, outbox, desk, packets, source.now_ns(false)),
        }
        Ok(taken)
    }

    /// What is to be done a few times a second.
    fn attend(&mut self) -> Result<(), Error> {
        if self.desk.is_called_off.load(Ordering::Acquire) {
            self.source.stop()?;
        }
        self.outbox.flush();
        self.note(None);
        Ok(())
    }

    fn note(&mut self, put_in: Option<u64>) {
        let ring_dropped = self.source.ring_dropped();
        let mut counts = *self.intake.counts();
        counts.add(self.table.counts());
        let mut notes = self.desk.notes.lock().unwrap_or_else(PoisonError::into_inner);
        // A ring that cannot be asked any more keeps its last answer.
        let ring_dropped = ring_dropped.unwrap_or(notes.ring_dropped);
        if ring_dropped > notes.ring_dropped {
            self.table.mark_loss();
        }
        notes.counts = counts;
        notes.ring_dropped = ring_dropped;
        notes.delivered = self.source.delivered();
        notes.put_in = put_in;
        notes.left = self.source.left();
        notes.offered.clear();
        notes.offered.extend_from_slice(self.outbox.offered());
    }
}

/// Meters packets, and tells those who want to know of each.
fn meter(
    table: &mut FlowTable<MeterMemory>,
    outbox: &mut OutputQueues,
    desk: &WorkerMeeting,
    packets: &[PacketInfo],
    now_ns: u64,
) {
    table.meter(packets, now_ns, outbox);
    if outbox.wants_events() {
        for packet in packets {
            let flow_id = table.flow_id(packet);
            outbox.event(SimEvent::Packet { flow_id, bytes: packet.bytes, at_ns: packet.at_ns });
        }
    }
    if let Some(board) = &desk.board {
        board.note(packets);
    }
}
