//! A meter of a group hands over to its targets while it is the active one. As a standby it keeps batches until the active one has
//! exported the same.
//!
//! ```text
//!  queue -> kept batches -> [active] -> backlogs of the targets
//!               `--------> [standby, older than the watermark] -> left to others
//! ```
//! The watermark is the time up to which everything that left the tables has been confirmed by all targets. Clocks of meters differ, and
//! it takes a while until a meter knows that its copy of the link is cut; so batches are kept for some seconds longer.
//!
//! Invariant: a batch is handed over or left once; what does not fit is counted as dropped.

use super::dispatch::Dispatcher;
use super::kept::KeptBatches;
use super::outbox::WorkerProgress;
use crate::batch::WorkerBatch;
use crate::group::{self, GroupSeat};
use crossbeam_channel::select;
use packetrig_flow::LossCause;
use packetrig_flow::group::{GroupRole, GroupTerm, MeterCoverage};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::time::Duration;

/// How often progress is passed on. Workers tell theirs about as often.
const LOOK: Duration = Duration::from_millis(50);
/// The same at the end.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Batches that are taken before anything else is looked at.
const MOST_AT_ONCE: usize = 64;
/// What left the table this long before a watermark may not have been exported.
pub(super) const MARGIN: Nanos = Nanos::from_secs(4);
/// At its end, a standby waits until the active meter was alive this much later.
const APART: Nanos = Nanos::from_millis(500);
/// What this meter knows of running flows, the active one has told the collector after this time.
const TOLD: Nanos = Nanos::from_secs(1);
/// Targets that have not taken what was offered this long ago are stuck.
const STALL: Nanos = Nanos::from_secs(1);
/// After a loss, another meter that is fit should export for so long.
const RECOVERY: Nanos = Nanos::from_secs(10);

/// The gate of one meter.
#[derive(Debug)]
pub(super) struct ExportGate {
    seat: GroupSeat,
    kept: KeptBatches,
    role: GroupRole,
    delivery: DeliveryWatch,
    coverage: CoverageWatch,
}

impl ExportGate {
    pub(super) fn new(seat: &GroupSeat, keep_bytes: usize, ready_after: Nanos) -> Self {
        Self {
            seat: seat.clone(),
            kept: KeptBatches::new(keep_bytes),
            role: GroupRole::Standby,
            delivery: DeliveryWatch::default(),
            coverage: CoverageWatch { ready_after, ..CoverageWatch::default() },
        }
    }

    /// Works until all workers have ended.
    pub(super) fn run(&mut self, dispatcher: &Dispatcher) {
        let changes = self.seat.changes().clone();
        let batches = dispatcher.batches().clone();
        loop {
            select! {
                recv(batches) -> batch => match batch {
                    Ok(batch) => self.keep([batch].into_iter().chain(batches.try_iter().take(MOST_AT_ONCE))),
                    Err(_) => break,
                },
                recv(changes) -> _ => {}
                default(LOOK) => {}
            }
            self.look(dispatcher);
        }
        self.finish(dispatcher);
    }

    fn keep(&mut self, batches: impl Iterator<Item = WorkerBatch>) {
        let now_ns = group::steady_ns();
        for batch in batches {
            self.kept.push(now_ns, batch);
        }
    }

    fn look(&mut self, dispatcher: &Dispatcher) {
        self.follow_role(dispatcher);
        if self.role.is_active() {
            self.hand_over(dispatcher);
        } else {
            self.leave_exported(dispatcher);
        }
        while self.kept.is_over_bound()
            && let Some(batch) = self.kept.pop()
        {
            dispatcher.drop_kept(LossCause::QueueFull, &batch);
        }
        let progress = dispatcher.progress();
        if self.seat.is_blind() {
            dispatcher.announce_blindness();
        }
        self.coverage.look(&self.seat, progress);
        // Last: what was handed over above is in its counts.
        self.delivery.look(&self.seat, self.role.term(), dispatcher, progress);
    }

    /// A takeover leaves what the former active meter has exported.
    fn follow_role(&mut self, dispatcher: &Dispatcher) {
        let view = self.seat.view();
        if view.role != self.role && view.role.is_active() {
            let from_ns = view.replay_from_ns.saturating_sub(MARGIN.as_u64());
            while let Some(batch) = self.kept.pop_before(from_ns) {
                dispatcher.leave(&batch);
            }
            // Counted now, because batches leave while later ones come.
            self.seat.set_replayed(self.kept.records());
            dispatcher.announce_takeover();
        }
        self.role = view.role;
    }

    fn hand_over(&mut self, dispatcher: &Dispatcher) {
        while !self.kept.is_empty()
            && dispatcher.has_room()
            && let Some(batch) = self.kept.pop()
        {
            dispatcher.hand_over(batch);
        }
    }

    fn leave_exported(&mut self, dispatcher: &Dispatcher) {
        let Some(watermark_ns) = self.seat.active_watermark() else { return };
        while let Some(batch) = self.kept.pop_before(watermark_ns.saturating_sub(MARGIN.as_u64())) {
            dispatcher.leave(&batch);
        }
    }

    /// The workers have ended. The active meter hands over everything. A standby waits until it knows that the active one has gone on
    /// for longer, or has become active itself.
    fn finish(&mut self, dispatcher: &Dispatcher) {
        self.seat.announce_end();
        let ended_ns = group::steady_ns();
        let give_up_ns = clock::monotonic_ns().saturating_add(dispatcher.linger().as_u64());
        let alive_ns = ended_ns.saturating_add(APART.as_u64());
        let is_exported = |seat: &GroupSeat| seat.active_watermark().is_some_and(|ns| ns >= alive_ns);
        loop {
            self.look(dispatcher);
            let is_done = if self.role.is_active() { self.kept.is_empty() } else { is_exported(&self.seat) };
            if is_done || clock::monotonic_ns() >= give_up_ns {
                break;
            }
            // Not at the channel of changes: it may have an old item.
            std::thread::sleep(LAST_LOOK);
        }
        let is_left = !self.role.is_active() && is_exported(&self.seat);
        while let Some(batch) = self.kept.pop() {
            if is_left {
                dispatcher.leave(&batch);
            } else {
                dispatcher.drop_kept(LossCause::Unreported, &batch);
            }
        }
    }
}

/// Tells the group how complete this meter's records are.
#[derive(Debug, Default)]
struct CoverageWatch {
    /// Not before this time is it known which flows began before the meter was there.
    ready_after: Nanos,
    /// Since when no flow is strange.
    recognises_from_ns: Option<u64>,
    last: WorkerProgress,
}

impl CoverageWatch {
    fn look(&mut self, seat: &GroupSeat, progress: WorkerProgress) {
        // Not up to now: workers may be behind.
        seat.set_seen_packets(progress.packets, group::moment_of(progress.settled_ns));
        let now_ns = group::steady_ns();
        let has_lost = progress.ring_dropped > self.last.ring_dropped;
        self.last = progress;
        // A gap in what was seen is like a new start: running flows lack packets.
        if has_lost || seat.is_blind() {
            seat.set_coverage(MeterCoverage::since(now_ns));
            self.recognises_from_ns = None;
        }
        let coverage = seat.coverage();
        let is_settled = now_ns >= coverage.seen_since_ns.saturating_add(self.ready_after.as_u64());
        let recognises = is_settled && progress.strange_flows == 0;
        self.recognises_from_ns = recognises.then(|| self.recognises_from_ns.unwrap_or(now_ns));
        if let Some(from_ns) = self.recognises_from_ns.filter(|_| coverage.complete_from_ns.is_none())
            && now_ns >= from_ns.saturating_add(TOLD.as_u64())
        {
            seat.set_ready(from_ns);
        }
    }
}

/// A time up to which all records had been offered when there were so many.
#[derive(Clone, Copy, Debug)]
struct PendingWatermark {
    watermark_ns: u64,
    records: u64,
    since_ns: u64,
}

/// Tells the group what has been exported, and whether the export works.
#[derive(Debug, Default)]
struct DeliveryWatch {
    term: Option<GroupTerm>,
    pending: Option<PendingWatermark>,
    /// So many records had been confirmed when the targets stopped to take data.
    stuck_at: Option<u64>,
    /// Records that were lost when the term began.
    lost: u64,
    unfit_until_ns: u64,
}

impl DeliveryWatch {
    fn look(
        &mut self,
        seat: &GroupSeat,
        term: Option<GroupTerm>,
        dispatcher: &Dispatcher,
        progress: WorkerProgress,
    ) {
        let delivery = dispatcher.delivery();
        let now_ns = clock::monotonic_ns();
        if term != self.term {
            (self.term, self.lost, self.pending) = (term, delivery.lost, None);
        }
        // What a queue or a target has lost only another meter can still export, so the watermark must not pass it.
        let has_lost = delivery.lost > self.lost;
        if has_lost && term.is_some() {
            self.unfit_until_ns = now_ns.saturating_add(RECOVERY.as_u64());
        }
        self.stuck_at = self.stuck_at.filter(|confirmed| delivery.confirmed <= *confirmed);
        if self.pending.is_some_and(|pending| now_ns.saturating_sub(pending.since_ns) >= STALL.as_u64()) {
            self.stuck_at = self.stuck_at.or(Some(delivery.confirmed));
        }
        let can_export = delivery.is_reachable && self.stuck_at.is_none() && now_ns >= self.unfit_until_ns;
        seat.set_can_export(can_export);
        let Some(term) = term else { return };
        if let Some(pending) = self.pending
            && !has_lost
            && delivery.confirmed >= pending.records
        {
            seat.set_watermark(term, pending.watermark_ns.min(group::steady_ns()));
            self.pending = None;
        }
        // The time first: what was offered by then is in a count that is read later.
        let next = || PendingWatermark {
            watermark_ns: progress.settled_ns,
            records: dispatcher.delivery().offered,
            since_ns: now_ns,
        };
        self.pending = Some(self.pending.unwrap_or_else(next));
    }
}

/// The end of an active meter: everything was exported if everything that was offered is confirmed.
pub(super) fn final_watermark(seat: &GroupSeat, is_all_confirmed: bool) {
    if let Some(term) = seat.role().term()
        && is_all_confirmed
    {
        seat.set_watermark(term, group::steady_ns());
    }
}

#[cfg(test)]
mod tests;
