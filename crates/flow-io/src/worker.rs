//! A worker: one source, one parser, one table, on one thread.
//!
//! ```text
//!  take a batch -> parse -> table -> outputs
//!       between batches: time out some flows; without packets: all that are due, then wait a little
//! ```
//! Packets of capture files pass a [`ReorderBuffer`] on their way to the table, unless they come from a pipe or are
//! replayed at their recorded times. In a group of meters that compare their packet counts, packets from an interface
//! pass a [`SilenceBuffer`].
//!
//! Time drives the table even if no packet arrives. A few times a second, between batches, the worker publishes its
//! counters in its [`WorkerStatus`].
//!
//! Invariant: published counters balance in themselves, except for packets that a [`ReorderBuffer`] or a
//! [`SilenceBuffer`] holds back. At the end they are complete.

use crate::Error;
use crate::export::WorkerProgress;
use crate::group::{boottime_now, group_time_ns};
use crate::intake::{PACKETS_PER_BATCH, PacketIntake};
use crate::memory::MeterMemory;
use crate::outbox::{OfferedCounts, OutputQueues};
use crate::reorder::ReorderBuffer;
use crate::silence::{ReleasedPackets, SilenceBuffer};
use crate::source::{PacketSource, SentCounts, TakeOutcome};
use crate::top::TopFlowTable;
use packetrig_flow::sim::SimEvent;
use packetrig_flow::table::FlowTable;
use packetrig_flow::{PacketCounts, PacketInfo};
use packetrig_sys::clock;
use packetrig_units::{MonoTime, Nanos};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Number of batches between two readings of the clock.
const BATCHES_PER_CLOCK_READING: u32 = 16;
/// Maximum number of flows that are timed out between two visits to the source: many more than can be opened in between, and few enough that
/// the ring does not fill meanwhile.
const MAX_TIMED_OUT_FLOWS_PER_VISIT: usize = 4096;
/// Number of table slots whose flows are reported again between two visits to the source.
const REPORTED_SLOTS_PER_VISIT: usize = 4096;
/// Time to wait for packets before timing out flows again.
const PACKET_WAIT_NS: u64 = 20_000_000;
/// Interval at which counters are published and incomplete batches are sent.
const PUBLICATION_INTERVAL_NS: u64 = 50_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Counts of parser and table.
    pub counts: PacketCounts,
    /// Frames that the worker's ring dropped.
    pub ring_dropped: u64,
    /// Packets on the wire that the worker's source delivered; a merged frame counts as all of its packets.
    pub delivered: u64,
    /// Counts of the delivered frames that this machine sent.
    pub sent: SentCounts,
    /// Frames that the kernel put into the worker's ring; read at the end. `None` before that, or if
    /// they are not counted.
    pub put_in: Option<u64>,
    /// Packets of a file that were read, but not delivered because the meter was stopped.
    pub left: u64,
    pub offered: Vec<OfferedCounts>,
}

/// State that a worker shares with other threads: its published counters, and the request to stop.
#[derive(Debug, Default)]
pub struct WorkerStatus {
    is_called_off: AtomicBool,
    has_failed: AtomicBool,
    notes: Mutex<WorkerCounts>,
    /// Table of the largest flows, if there is a live view.
    pub board: Option<TopFlowTable>,
}

impl WorkerStatus {
    /// With `has_board`, the worker records the largest flows.
    pub(crate) fn new(has_board: bool) -> Self {
        Self { board: has_board.then(TopFlowTable::default), ..Self::default() }
    }

    /// Asks the worker to meter the packets that have arrived, and then to end.
    pub fn request_stop(&self) {
        self.is_called_off.store(true, Ordering::Release);
    }

    /// Reports whether the worker ended with an error or a panic.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns a guard that marks the worker as failed if its thread panics.
    pub(crate) fn guard_against_panic(self: &Arc<Self>) -> WorkerPanicGuard {
        WorkerPanicGuard(Arc::clone(self))
    }

    /// Sets the counters that a worker would publish.
    #[cfg(test)]
    pub(crate) fn publish(&self, counts: WorkerCounts) {
        *self.notes.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// Returns the counters that the worker published last.
    pub fn published_counts(&self) -> WorkerCounts {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// See [`WorkerStatus::guard_against_panic`].
pub(crate) struct WorkerPanicGuard(Arc<WorkerStatus>);

impl Drop for WorkerPanicGuard {
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
    pub(crate) status: Arc<WorkerStatus>,
    /// Present if the source's packets may be out of order and need not be metered at once.
    pub(crate) reorder: Option<ReorderBuffer>,
    /// Present if other meters may show that this one has lost packets.
    pub(crate) silence: Option<SilenceBuffer>,
    /// Time before which all due flows have left the table.
    pub(crate) settled_ns: u64,
    /// Time up to which the source has delivered all packets.
    pub(crate) delivered_ns: u64,
    /// Next slot of the table whose flows must be reported to the export again; `None` if no such report is due.
    pub(crate) tell_from: Option<usize>,
    /// True after the ring has dropped frames, until the ring has been read empty.
    pub(crate) has_open_ring_loss: bool,
}

impl MeterWorker {
    /// Meters packets until the source ends or fails. Then reports all flows and publishes the final counters.
    pub(crate) fn run_until_ended(mut self) -> Result<(), Error> {
        let worked = self.meter_until_ended();
        // The failure is published before `end_source_and_wait`, which waits for the other workers: the caller stops
        // them when it sees the failure.
        self.status.has_failed.store(worked.is_err(), Ordering::Release);
        self.outbox.end_source_and_wait();
        self.meter_held_packets();
        // The flows are finished after an error, too, because metered packets must be reported.
        self.table.finish_flows(&mut self.outbox);
        self.outbox.flush_batches();
        let put_in = self.source.frames_put_into_ring();
        self.publish_counts(put_in.as_ref().ok().copied().flatten());
        worked?;
        put_in.map(|_| ())
    }

    fn meter_until_ended(&mut self) -> Result<(), Error> {
        let mut noted_ns = 0;
        loop {
            let mut taken = TakeOutcome::Some;
            for _ in 0..BATCHES_PER_CLOCK_READING {
                taken = self.meter_batch()?;
                if taken != TakeOutcome::Some {
                    break;
                }
            }
            // `&` and not `&&`: both must run.
            let is_done = self.expire_flows(taken) & self.report_next_open_flows();
            let clock_ns = clock::monotonic_ns();
            if clock_ns >= noted_ns + PUBLICATION_INTERVAL_NS {
                self.do_periodic_work()?;
                noted_ns = clock_ns;
            }
            self.apply_copy_comparison();
            if taken == TakeOutcome::Nothing && std::mem::take(&mut self.has_open_ring_loss) {
                // The ring was full when it dropped packets. So the dropped packets came after those in the ring, which
                // have been read only now.
                self.mark_packet_loss();
            }
            match taken {
                // While flows are still due, the worker looks for packets between
                // two portions and does not sleep.
                TakeOutcome::Nothing if is_done => self.source.wait_for_packets(PACKET_WAIT_NS)?,
                TakeOutcome::Some | TakeOutcome::Nothing => {}
                TakeOutcome::Ended => return Ok(()),
            }
        }
    }

    /// Times out some or all of the due flows. Returns true if no due flow is left.
    fn expire_flows(&mut self, taken: TakeOutcome) -> bool {
        let has_ended = taken == TakeOutcome::Ended;
        if has_ended {
            self.meter_held_packets();
        }
        let given_ns = self.source.delivered_until_ns(taken == TakeOutcome::Nothing);
        self.delivered_ns = given_ns;
        // Held packets must still find their flows: the time advances only up to the released packets.
        let given_ns = self.silence.as_ref().map_or(given_ns, |silence| silence.complete_until_ns(given_ns));
        let now_ns =
            self.reorder.as_ref().map_or(Some(given_ns), |reorder| reorder.complete_until_ns(given_ns));
        let most = if has_ended { usize::MAX } else { MAX_TIMED_OUT_FLOWS_PER_VISIT };
        let Some(now_ns) = now_ns else { return true };
        let is_done = self.table.advance_with_limit(now_ns, most, &mut self.outbox);
        // If some flows are left, flows that were due earlier may be among them.
        if is_done {
            self.settled_ns = now_ns;
        }
        is_done
    }

    /// After a takeover, reports some of the continuing flows to the export. Returns true if all are reported.
    fn report_next_open_flows(&mut self) -> bool {
        if self.outbox.take_open_flows_request() {
            self.tell_from = Some(0);
        }
        let Some(from) = self.tell_from else { return true };
        self.tell_from = self.table.report_open_flows(from, REPORTED_SLOTS_PER_VISIT, &mut self.outbox);
        // All flows are reported: the export must not wait for the next publication to send the last ones.
        if self.tell_from.is_none() {
            self.outbox.flush_batches();
        }
        self.tell_from.is_none()
    }

    /// Meters the packets that are held back, because no more packets arrive.
    fn meter_held_packets(&mut self) {
        // A loss that is known by now was before these packets.
        self.apply_copy_comparison();
        let Self { table, outbox, status, reorder, silence, .. } = self;
        if let Some(reorder) = reorder {
            reorder.release_all_packets(|batch, now_ns| meter_packets(table, outbox, status, batch, now_ns));
        }
        while let Some(released) = silence.as_mut().and_then(SilenceBuffer::take_oldest_packets) {
            meter_released_packets(table, outbox, status, &released);
        }
    }

    /// Marks a loss that the packet counts of other meters show, and meters the packets that were held back until then.
    fn apply_copy_comparison(&mut self) {
        let (has_loss, comparison) = self.outbox.take_copy_comparison();
        if has_loss {
            self.mark_packet_loss();
        }
        let Self { table, outbox, status, silence, .. } = self;
        let Some(silence) = silence else { return };
        let now = boottime_now();
        while let Some(released) = silence.take_compared_packets(comparison, now) {
            meter_released_packets(table, outbox, status, &released);
        }
    }

    pub(crate) fn meter_batch(&mut self) -> Result<TakeOutcome, Error> {
        self.intake.clear();
        let taken = self.source.take_packets(&mut self.intake)?;
        let packets = self.intake.packets();
        if packets.is_empty() {
            return Ok(taken);
        }
        let Self { source, table, outbox, status, reorder, silence, .. } = self;
        match (reorder, silence) {
            (Some(reorder), _) => reorder.reorder_packets(packets, |batch, now_ns| {
                meter_packets(table, outbox, status, batch, now_ns);
            }),
            (None, Some(silence)) => {
                let free = silence.hold_packets_after_silence(packets, boottime_of_packet_time);
                if free > 0 {
                    let now_ns = silence.complete_until_ns(source.delivered_until_ns(false));
                    meter_packets(table, outbox, status, &packets[..free], now_ns);
                }
            }
            // An interface gives its packets once, in order of their arrival. Only files can be sorted.
            (None, None) => {
                meter_packets(table, outbox, status, packets, source.delivered_until_ns(false));
            }
        }
        Ok(taken)
    }

    /// Does the work that is due a few times a second: stops the source on request, sends
    /// incomplete batches, publishes counters.
    fn do_periodic_work(&mut self) -> Result<(), Error> {
        // Only this thread may use the source, so it checks here whether it should stop.
        if self.status.is_called_off.load(Ordering::Acquire) {
            self.source.stop_receiving()?;
        }
        self.outbox.flush_batches();
        let ring_dropped = self.publish_counts(None);
        // The progress is computed from the delay of the source, because the clock of packet times may be set. If that
        // clock is set back while packets wait, the result is too late by their waiting time, which is far less than
        // the time for which a standby keeps batches.
        let behind_ns = clock::wall_clock_ns().saturating_sub(self.settled_ns);
        let settled_ns = group_time_ns().saturating_sub(behind_ns);
        let undelivered_ns = clock::wall_clock_ns().saturating_sub(self.delivered_ns);
        let progress = WorkerProgress {
            settled_ns,
            delivered_ns: group_time_ns().saturating_sub(undelivered_ns),
            packets: self.delivered_packets(),
            read_ns: group_time_ns(),
            ring_dropped,
            strange_flows: self.table.strange_flows(),
            has_ended: false,
        };
        self.outbox.report_progress(progress);
        Ok(())
    }

    /// Returns the number of packets on the wire that the source has delivered.
    fn delivered_packets(&self) -> u64 {
        self.source.delivered_frames() + self.intake.counts().packets_gained_by_splitting()
    }

    /// Publishes the counters; returns how many packets the ring has dropped.
    fn publish_counts(&mut self, put_in: Option<u64>) -> u64 {
        let ring_dropped = self.source.ring_dropped();
        let mut counts = *self.intake.counts();
        counts.add_counts(self.table.counts());
        let delivered = self.delivered_packets();
        let mut notes = self.status.notes.lock().unwrap_or_else(PoisonError::into_inner);
        // If the ring cannot be read, for example because the interface was removed, the last number stays.
        let ring_dropped = ring_dropped.unwrap_or(notes.ring_dropped);
        let has_new_loss = ring_dropped > notes.ring_dropped;
        notes.counts = counts;
        notes.ring_dropped = ring_dropped;
        notes.delivered = delivered;
        notes.sent = self.source.sent_counts();
        notes.put_in = put_in;
        notes.left = self.source.skipped_packets();
        // The vector is reused, so publishing allocates nothing.
        notes.offered.clear();
        notes.offered.extend_from_slice(self.outbox.offered_counts());
        drop(notes);
        if has_new_loss {
            // Records of flows that were open during a loss say so: their counts may be too low.
            self.mark_packet_loss();
            self.has_open_ring_loss = true;
        }
        ring_dropped
    }

    /// Marks that packets were lost before the next one.
    fn mark_packet_loss(&mut self) {
        self.table.mark_packet_loss();
        if let Some(silence) = &mut self.silence {
            silence.mark_packet_loss();
        }
    }
}

/// Converts the time of a packet to `CLOCK_BOOTTIME`.
fn boottime_of_packet_time(at_ns: u64) -> MonoTime {
    boottime_now() - Nanos::new(clock::wall_clock_ns().saturating_sub(at_ns))
}

/// Meters packets that were held back after a silence.
fn meter_released_packets(
    table: &mut FlowTable<MeterMemory>,
    outbox: &mut OutputQueues,
    status: &WorkerStatus,
    ReleasedPackets { packets, is_after_loss }: &ReleasedPackets,
) {
    if *is_after_loss {
        table.mark_packet_loss();
    }
    for batch in packets.chunks(PACKETS_PER_BATCH) {
        batch.last().into_iter().for_each(|last| meter_packets(table, outbox, status, batch, last.at_ns));
    }
}

/// Meters packets. Also reports each packet to the SIM export and to the live view, if there are any.
fn meter_packets(
    table: &mut FlowTable<MeterMemory>,
    outbox: &mut OutputQueues,
    status: &WorkerStatus,
    packets: &[PacketInfo],
    now_ns: u64,
) {
    table.meter_packets(packets, now_ns, outbox);
    // The events of packets come after the table: SIM requires that a new flow is announced before its packets.
    if outbox.wants_events() {
        for packet in packets {
            let flow_id = table.flow_id(packet);
            for bytes in packet.packet_lengths() {
                outbox.add_event(SimEvent::Packet { flow_id, bytes, at_ns: packet.at_ns });
            }
        }
    }
    if let Some(board) = &status.board {
        board.count_batch_flows(packets);
    }
}
