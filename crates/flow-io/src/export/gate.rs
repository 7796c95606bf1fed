//! The gate between the queue and the targets. The active meter of a group passes batches on. A standby keeps
//! them until the active meter has exported the same packets.
//!
//! ```text
//!  queue -> kept batches -> [active] -> backlogs of the targets <----------------------------------.
//!               `--------> [standby, older than the watermark] -> left to others -> [new connection]
//! ```
//! The watermark is a time: all targets have confirmed everything that left the tables before it. The clocks of meters
//! differ, and it takes a while until a meter knows that its copy of the link is cut. So a standby keeps a batch
//! until the watermark is some seconds later than the batch.
//!
//! A batch that was left to another meter is kept for a while longer. A collector that is killed loses its last
//! records, and the meter that sent them may be dead, too. So on a new connection, the active meter sends the most
//! recent batches again, also those that another meter has sent.
//!
//! Invariant: each batch is counted exactly once: it is passed to the targets, left to another meter, or dropped.
//! Batches that are sent again are in no account.

use super::dispatch::Dispatcher;
use super::kept::StandbyBatchStore;
use super::outbox::WorkerProgress;
use crate::batch::WorkerBatch;
use crate::group::{self, GroupRoleHandle};
use crossbeam_channel::select;
use packetrig_flow::LossCause;
use packetrig_flow::group::{GroupRole, GroupTerm, MeterCoverage, PacketCount};
use packetrig_sys::clock;
use packetrig_units::Nanos;
use std::time::Duration;

/// Interval at which the gate reports progress to the group. Workers report their progress about as often.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the gate checks for progress once the workers have ended.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of further batches that are taken from the queue together with the first one.
const MAX_AT_ONCE: usize = 64;
/// Safety margin: records that left the table less than this long before a watermark may not have been exported.
pub(super) const WATERMARK_MARGIN: Nanos = Nanos::from_secs(4);
/// A standby that ends waits until the active meter's watermark is this much later than the end of the standby.
pub(super) const STANDBY_END_MARGIN: Nanos = Nanos::from_millis(500);
/// Time after which the active meter has reported all running flows that this meter recognises.
const FLOW_REPORT_TIME: Nanos = Nanos::from_secs(1);
/// If a target has not confirmed an offered batch for this long, the targets count as stuck.
const STALLED_TARGET_TIMEOUT: Nanos = Nanos::from_secs(1);
/// Time after a loss during which another meter should export.
const LOSS_RECOVERY_TIME: Nanos = Nanos::from_secs(10);

/// The gate of one meter.
#[derive(Debug)]
pub(super) struct ExportGate {
    role_handle: GroupRoleHandle,
    kept: StandbyBatchStore,
    /// The latest batches that another meter has exported.
    exported: StandbyBatchStore,
    /// Time for which the batches in `exported` are kept; 0 if collectors would not recognise repeated records.
    resend_time: Nanos,
    role: GroupRole,
    /// Number of losses of which the workers know, see [`CopyComparison`](packetrig_flow::group::CopyComparison).
    losses: u64,
    delivery: DeliveryReporter,
    coverage: CoverageReporter,
}

impl ExportGate {
    pub(super) fn new(
        role_handle: &GroupRoleHandle,
        keep_bytes: usize,
        ready_after: Nanos,
        resend_time: Nanos,
    ) -> Self {
        Self {
            role_handle: role_handle.clone(),
            kept: StandbyBatchStore::new(keep_bytes),
            exported: StandbyBatchStore::new(keep_bytes),
            resend_time,
            role: GroupRole::Standby,
            losses: 0,
            delivery: DeliveryReporter::default(),
            coverage: CoverageReporter { ready_after, ..CoverageReporter::default() },
        }
    }

    /// Keeps batches or passes them on until all workers have ended, and then finishes the export.
    pub(super) fn run_until_closed(&mut self, dispatcher: &Dispatcher) {
        let changes = self.role_handle.role_changes().clone();
        let batches = dispatcher.batches().clone();
        loop {
            select! {
                recv(batches) -> batch => match batch {
                    Ok(batch) => self.store_batches_for_standby([batch].into_iter().chain(batches.try_iter().take(MAX_AT_ONCE))),
                    Err(_) => break,
                },
                // A change of role wakes the thread at once, because a takeover must not wait for the
                // end of the interval.
                recv(changes) -> _ => {}
                default(PROGRESS_INTERVAL) => {}
            }
            self.poll_once(dispatcher);
        }
        self.finish_export(dispatcher);
    }

    fn store_batches_for_standby(&mut self, batches: impl Iterator<Item = WorkerBatch>) {
        // Batches get the time of the group and not the times of their packets, because the clock of
        // packet times may be set.
        let now_ns = group::group_time_ns();
        for batch in batches {
            self.kept.push_batch(now_ns, batch);
        }
    }

    fn poll_once(&mut self, dispatcher: &Dispatcher) {
        self.apply_current_role(dispatcher);
        if self.role.is_active() {
            // The older records first, in the order in which the collector would have received them.
            self.resend_exported(dispatcher);
            self.dispatch_kept_batches(dispatcher);
        } else {
            self.count_exported_batches_as_left(dispatcher);
        }
        // The oldest batches are dropped first, because the active meter has most likely exported them.
        while self.kept.is_over_bound()
            && let Some(kept) = self.kept.pop_oldest()
        {
            dispatcher.count_kept_batch_as_dropped(LossCause::QueueFull, &kept.batch);
        }
        let progress = dispatcher.combined_progress();
        let (is_blind, comparison) = self.role_handle.copy_comparison();
        dispatcher.announce_copy_comparison(comparison);
        let has_lost = is_blind || comparison.losses != self.losses;
        self.losses = comparison.losses;
        self.coverage.report_coverage(&self.role_handle, progress, has_lost);
        // This comes last, because its counts must include the batches that were passed on above.
        self.delivery.report_delivery(&self.role_handle, self.role.term(), dispatcher, progress);
    }

    /// Applies the current role. A takeover leaves out the batches that the former active meter has exported.
    fn apply_current_role(&mut self, dispatcher: &Dispatcher) {
        let view = self.role_handle.role_view();
        if view.role != self.role && view.role.is_active() {
            // The margin is subtracted because the clocks of meters differ, and a meter notices late that its copy of
            // the link is cut.
            let from_ns = view.replay_from_ns.saturating_sub(WATERMARK_MARGIN.as_u64());
            self.count_batches_before_as_left(from_ns, dispatcher);
            // The kept records are counted before the first is passed on, because new records arrive meanwhile.
            self.role_handle.set_replayed_records(self.kept.record_count());
            dispatcher.announce_takeover();
        }
        self.role = view.role;
    }

    fn dispatch_kept_batches(&mut self, dispatcher: &Dispatcher) {
        while !self.kept.is_empty()
            && dispatcher.has_room()
            && let Some(kept) = self.kept.pop_oldest()
        {
            dispatcher.hand_over(kept.batch);
        }
    }

    fn count_exported_batches_as_left(&mut self, dispatcher: &Dispatcher) {
        let Some(watermark_ns) = self.role_handle.active_watermark() else { return };
        self.count_batches_before_as_left(watermark_ns.saturating_sub(WATERMARK_MARGIN.as_u64()), dispatcher);
    }

    /// Counts the batches that are older than `before_ns` as left to another meter, which has exported the same
    /// packets. They are kept for `resend_time`.
    fn count_batches_before_as_left(&mut self, before_ns: u64, dispatcher: &Dispatcher) {
        while let Some(kept) = self.kept.pop_before(before_ns) {
            dispatcher.count_batch_as_exported_by_others(&kept.batch);
            if self.resend_time == Nanos::ZERO {
                continue;
            }
            let forget_ns = kept.at_ns.saturating_sub(self.resend_time.as_u64());
            self.exported.push_kept(kept);
            while self.exported.pop_before(forget_ns).is_some() {}
        }
        // Both stores together stay within the limit. Batches that another meter has exported are removed first.
        while self.exported.bytes() > 0 && self.exported.bytes() + self.kept.bytes() > self.kept.max_bytes() {
            self.exported.pop_oldest();
        }
    }

    /// Sends again the batches that another meter had sent before the last connection to a collector began.
    fn resend_exported(&mut self, dispatcher: &Dispatcher) {
        let before_ns = dispatcher.last_connection_ns().saturating_add(WATERMARK_MARGIN.as_u64());
        while dispatcher.has_room()
            && let Some(kept) = self.exported.pop_before(before_ns)
        {
            dispatcher.dispatch_repeated_batch(kept.batch);
        }
    }

    /// Ends the export after the workers have ended. The active meter passes all kept batches on. A standby waits until
    /// a watermark shows that the active meter continued after this meter's end, or until it has become active itself.
    /// Both wait at most for the linger time.
    fn finish_export(&mut self, dispatcher: &Dispatcher) {
        // From here on this meter may become active even if another program assigns the roles: otherwise its
        // kept records would be lost.
        self.role_handle.announce_end();
        let ended_ns = group::group_time_ns();
        let give_up_ns = clock::monotonic_ns().saturating_add(dispatcher.linger().as_u64());
        let alive_ns = ended_ns.saturating_add(STANDBY_END_MARGIN.as_u64());
        let is_exported =
            |role_handle: &GroupRoleHandle| role_handle.active_watermark().is_some_and(|ns| ns >= alive_ns);
        loop {
            self.poll_once(dispatcher);
            let is_done =
                if self.role.is_active() { self.kept.is_empty() } else { is_exported(&self.role_handle) };
            if is_done || clock::monotonic_ns() >= give_up_ns {
                break;
            }
            // A plain sleep: the channel of changes may hold an old item and would return at once.
            std::thread::sleep(END_CHECK_INTERVAL);
        }
        let is_left = !self.role.is_active() && is_exported(&self.role_handle);
        while let Some(kept) = self.kept.pop_oldest() {
            if is_left {
                dispatcher.count_batch_as_exported_by_others(&kept.batch);
            } else {
                dispatcher.count_kept_batch_as_dropped(LossCause::Unreported, &kept.batch);
            }
        }
    }
}

/// Reports to the group how complete this meter's records are.
#[derive(Debug, Default)]
struct CoverageReporter {
    /// Time until the meter recognises which flows began before it started.
    ready_after: Nanos,
    /// Time since which the meter recognises every flow.
    recognises_from_ns: Option<u64>,
    last: WorkerProgress,
}

impl CoverageReporter {
    /// `has_lost`: other members have shown that packets did not arrive at this one.
    fn report_coverage(&mut self, role_handle: &GroupRoleHandle, progress: WorkerProgress, has_lost: bool) {
        // Once the workers have ended, they no longer count all packets of the link.
        if !progress.has_ended {
            role_handle.set_seen_packets(PacketCount {
                // Dropped packets count as seen: a full ring does not mean that the copy of the link is cut.
                packets: progress.packets.saturating_add(progress.ring_dropped),
                // The time of the slowest worker and not the current time, because workers may be behind.
                all_until: group::boottime_of_group_time(progress.delivered_ns),
                none_after: group::boottime_of_group_time(progress.read_ns),
            });
        }
        let now_ns = group::group_time_ns();
        let has_dropped = progress.ring_dropped > self.last.ring_dropped;
        self.last = progress;
        // A gap in the received packets is like a new start: running flows lack packets.
        if has_lost || has_dropped {
            role_handle.set_coverage(MeterCoverage::seen_since(now_ns));
            // A flow that ran during the gap is complete only from its next packets on, so the meter has to
            // become ready again.
            self.recognises_from_ns = None;
        }
        let coverage = role_handle.coverage();
        let is_settled = now_ns >= coverage.seen_since_ns.saturating_add(self.ready_after.as_u64());
        let recognises = is_settled && progress.strange_flows == 0;
        self.recognises_from_ns = recognises.then(|| self.recognises_from_ns.unwrap_or(now_ns));
        if let Some(from_ns) = self.recognises_from_ns.filter(|_| coverage.complete_from_ns.is_none())
            && now_ns >= from_ns.saturating_add(FLOW_REPORT_TIME.as_u64())
        {
            // By now the active meter has reported the flows that this one recognises, see `FLOW_REPORT_TIME`.
            role_handle.set_ready(from_ns);
        }
    }
}

/// A watermark that is not reported yet. When `records` was read, all records before `watermark_ns` had been offered.
#[derive(Clone, Copy, Debug)]
struct PendingWatermark {
    watermark_ns: u64,
    records: u64,
    since_ns: u64,
}

/// Reports to the group the watermark, and whether the export works.
#[derive(Debug, Default)]
struct DeliveryReporter {
    term: Option<GroupTerm>,
    pending: Option<PendingWatermark>,
    /// Number of confirmed records when the targets stopped accepting data.
    stuck_at: Option<u64>,
    /// Records that were lost when the term began.
    lost: u64,
    unfit_until_ns: u64,
}

impl DeliveryReporter {
    fn report_delivery(
        &mut self,
        role_handle: &GroupRoleHandle,
        term: Option<GroupTerm>,
        dispatcher: &Dispatcher,
        progress: WorkerProgress,
    ) {
        let delivery = dispatcher.delivery_counts();
        let now_ns = clock::monotonic_ns();
        if term != self.term {
            (self.term, self.lost, self.pending) = (term, delivery.lost, None);
        }
        // Only another meter can export records that a queue or a target has lost, so the watermark must not pass them.
        let has_lost = delivery.lost > self.lost;
        if has_lost && term.is_some() {
            self.unfit_until_ns = now_ns.saturating_add(LOSS_RECOVERY_TIME.as_u64());
        }
        self.stuck_at = self.stuck_at.filter(|confirmed| delivery.confirmed <= *confirmed);
        if self
            .pending
            .is_some_and(|pending| now_ns.saturating_sub(pending.since_ns) >= STALLED_TARGET_TIMEOUT.as_u64())
        {
            self.stuck_at = self.stuck_at.or(Some(delivery.confirmed));
        }
        let can_export = delivery.is_reachable && self.stuck_at.is_none() && now_ns >= self.unfit_until_ns;
        role_handle.set_can_export(can_export);
        let Some(term) = term else { return };
        if let Some(pending) = self.pending
            && !has_lost
            && delivery.confirmed >= pending.records
        {
            role_handle.set_watermark(term, pending.watermark_ns);
            self.pending = None;
        }
        // The time is read before the count, so everything that was offered by then is counted.
        self.pending = Some(self.pending.unwrap_or_else(|| PendingWatermark {
            watermark_ns: progress.settled_ns,
            records: dispatcher.delivery_counts().offered,
            since_ns: now_ns,
        }));
    }
}

/// Sets the last watermark of an active meter at its end, if everything that was offered is confirmed. The end of an
/// export may take seconds, but nobody has metered the packets of these seconds for it.
pub(super) fn set_final_watermark(
    role_handle: &GroupRoleHandle,
    last: WorkerProgress,
    is_all_confirmed: bool,
) {
    if let Some(term) = role_handle.role().term()
        && is_all_confirmed
    {
        role_handle.set_watermark(term, last.settled_ns);
    }
}

#[cfg(test)]
mod tests;
