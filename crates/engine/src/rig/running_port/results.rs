//! Counts of a port: samples while it works, and its final results.

use super::{PortHalfState, RunningPort};
use crate::Error;
use crate::port::{RingDrainTarget, WorkerClock};
use crate::rig::account::{PortComponent, ReceiverResult, SenderResult};
use crate::stream::{NextStep, ReceivedFrames, SendingRecord, StreamControl, StreamRx, StreamTx};
use crate::worker::{FinishedWorker, PortWorker};
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};

/// Time limit for a stopped sender to empty its ring; longer than a back end's own timeout.
const RING_DRAIN_TIMEOUT: Nanos = Nanos::from_millis(3_000);
/// Time limit for emptying a receive ring while frames keep coming.
const RECEIVE_RING_DRAIN_TIMEOUT: Nanos = Nanos::from_millis(200);
/// Time limit for the kernel to hand over a partly filled block, which takes 2 ms unless a processor stalls.
const LAST_BLOCK_TIMEOUT: Nanos = Nanos::from_millis(2_000);

impl RunningPort {
    /// Adds the counts that this port's sender published last to the sample. Returns their time, or `None` if there are
    /// none or they are final. Fails if the worker panicked.
    pub(in crate::rig) fn add_sender_counts_to_sample(
        &mut self,
        sample: &mut CountSample,
    ) -> Result<Option<MonoTime>, Error> {
        // A port without a sender also gets an entry in the sample, with counters of zero.
        let mut counters = TxCounters::default();
        let mut at = None;
        if let Some(worker) = self.tx.worker_mut() {
            worker.check_alive()?;
            // `is_done` is read before the counts: if the worker was done by then, these are its last counts.
            let is_final = worker.is_done();
            if let Some(latest) = worker.publications().pop_back() {
                sample.tx.extend(self.sends.iter().copied().zip(latest.counts.streams));
                counters = latest.counts.port;
                at = Some(latest.at).filter(|_| !is_final);
            }
        }
        sample.ports.push((self.port, counters, RxCounters::default()));
        Ok(at)
    }

    /// Adds to the sample the latest published counts of this port's receiver that are not newer than `by`. If all are
    /// newer, it adds the oldest; without `by`, the latest. Fails if a worker panicked.
    pub(in crate::rig) fn add_receiver_counts_to_sample(
        &mut self,
        sample: &mut CountSample,
        latency: &mut DelaySummary,
        by: Option<MonoTime>,
    ) -> Result<(), Error> {
        self.host.as_mut().map_or(Ok(()), PortWorker::check_alive)?;
        let Some(worker) = self.rx.worker_mut() else { return Ok(()) };
        worker.check_alive()?;
        // A copy, so that the worker never waits for this thread.
        let mut published = worker.publications();
        // A worker keeps its last few publications, so that one of them is old enough: the receiver's counts must not
        // be newer than the senders'.
        while published.len() > 1 && published.back().is_some_and(|last| by.is_some_and(|by| last.at > by)) {
            published.pop_back();
        }
        let Some(latest) = published.pop_back() else { return Ok(()) };
        let streams = self.receives.iter().zip(latest.counts.streams);
        sample.rx.extend(streams.map(|(stream, counts)| (*stream, self.port, counts)));
        // `add_sender_counts_to_sample` has added the entry of this port.
        if let Some((.., counters)) = sample.ports.iter_mut().find(|(port, ..)| *port == self.port) {
            *counters = latest.counts.port;
        }
        sample.receivers_behind = sample.receivers_behind.max(sample.at.since(latest.at));
        latency.merge(&latest.counts.latency);
        Ok(())
    }

    /// Ends the sender. Frames in its ring still leave; other frames stay unsent. Returns the counts even after an
    /// error of the port.
    pub(in crate::rig) fn finish_sender(&mut self, clock: &dyn WorkerClock) -> Result<SenderResult, Error> {
        let mut last_read = TxCounters::default();
        if let Some(worker) = self.tx.worker_mut() {
            let FinishedWorker { work, fault } = worker.quit_and_join()?;
            let (mut tx, counters) = work.into_parts();
            last_read = counters;
            self.record_fault(PortComponent::Sender, fault);
            tx.apply_control(StreamControl::Stop);
            let emptied = drain_sender(&mut *tx, clock);
            self.record_final_error(PortComponent::Sender, emptied, clock.now());
            self.tx = PortHalfState::Ended(tx);
        }
        let (tx, has_sent) = match &mut self.tx {
            PortHalfState::Ended(tx) => (tx, true),
            PortHalfState::Unused(tx) => (tx, false),
            PortHalfState::Working(_) | PortHalfState::Lost => {
                return Err(Error::Bug("a sender was finished twice"));
            }
        };
        // This comes after the ring is empty, and before `finish_sending` consumes the lanes.
        let read = tx.port_counters();
        let record = if has_sent { tx.sending_record() } else { SendingRecord::default() };
        let streams = if has_sent { tx.finish_sending() } else { Vec::new() };
        // If this reading failed, the last one is used: the interface may be gone.
        let counters = *read.as_ref().unwrap_or(&last_read);
        self.record_final_error(PortComponent::Sender, read.map(drop), clock.now());
        let has_failed = self.faults.iter().any(|fault| fault.part == PortComponent::Sender);
        Ok(SenderResult { streams, counters, record, has_failed })
    }

    /// Tells the receiver to end, without waiting; [`Self::finish_receiver`] waits and counts the
    /// frames that arrived since.
    pub(in crate::rig) fn request_receiver_end(&self) {
        if let PortHalfState::Working(worker) = &self.rx {
            worker.request_quit();
        }
    }

    /// Ends the receiver after counting all frames that arrived. `totals` is the number of frames sent, by stream of
    /// the plan. Returns the counts even after an error of the port.
    pub(in crate::rig) fn finish_receiver(
        &mut self,
        clock: &dyn WorkerClock,
        totals: &[u64],
    ) -> Result<ReceiverResult, Error> {
        let mut last_read = RxCounters::default();
        if let Some(worker) = self.rx.worker_mut() {
            let FinishedWorker { work, fault } = worker.quit_and_join()?;
            let (mut rx, counters) = work.into_parts();
            last_read = counters;
            self.record_fault(PortComponent::Receiver, fault);
            let emptied = drain_receiver(&mut *rx, clock);
            self.record_final_error(PortComponent::Receiver, emptied, clock.now());
            self.rx = PortHalfState::Ended(rx);
        }
        match &mut self.rx {
            PortHalfState::Ended(rx) => {
                // The counters are read before `finish_receiving`, which consumes the state that holds a part of them.
                let read = rx.port_counters();
                let clock_bound = rx.clock_bound();
                let sent: Vec<u64> = self.receives.iter().map(|stream| totals[*stream]).collect();
                let frames = rx.finish_receiving(&sent);
                let counters = Some(*read.as_ref().unwrap_or(&last_read));
                self.record_final_error(PortComponent::Receiver, read.map(drop), clock.now());
                Ok(ReceiverResult { frames, counters, clock_bound })
            }
            PortHalfState::Unused(rx) => {
                let frames = ReceivedFrames::default();
                Ok(ReceiverResult { frames, counters: None, clock_bound: rx.clock_bound() })
            }
            PortHalfState::Working(_) | PortHalfState::Lost => {
                Err(Error::Bug("a receiver was finished twice"))
            }
        }
    }
}

/// Empties a sender's ring on the calling thread, because the worker has ended. Frames in the ring must leave or be
/// counted as refused before the counters are read.
fn drain_sender(tx: &mut dyn StreamTx, clock: &dyn WorkerClock) -> Result<(), Error> {
    let give_up = clock.now() + RING_DRAIN_TIMEOUT;
    while tx.send_due(clock.now())? != NextStep::Done && clock.now() < give_up {}
    Ok(())
}

/// Counts all frames that have arrived, including those in a block that the kernel still fills: a frame
/// left there would count as lost by the device. The limits are for a device that keeps sending, so that
/// the ring never becomes empty.
fn drain_receiver(rx: &mut dyn StreamRx, clock: &dyn WorkerClock) -> Result<(), Error> {
    let began = clock.now();
    let mut rest = RingDrainTarget::default();
    loop {
        let is_idle = rx.receive_arrivals(clock.now())? != NextStep::Busy;
        let now = clock.now();
        let is_read = rest.is_read(rx.ring_progress()?);
        if (is_read && (is_idle || now >= began + RECEIVE_RING_DRAIN_TIMEOUT))
            || now >= began + LAST_BLOCK_TIMEOUT
        {
            return Ok(());
        }
        if is_idle {
            rx.wait_for_frames(Nanos::from_millis(1))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::RingProgress;
    use crate::sim::VirtualClock;
    use crate::stream::RxJob;
    use packetrig_stats::counts::StreamRxCounts;

    /// A receiver with its last frames in a block until a given time.
    struct LateBlock {
        clock: VirtualClock,
        handed_over: MonoTime,
        progress: RingProgress,
        keeps_coming: bool,
    }

    impl StreamRx for LateBlock {
        fn arm_receiver(&mut self, _: RxJob) -> Result<(), Error> {
            Ok(())
        }

        fn apply_control(&mut self, _: StreamControl) {}

        fn receive_arrivals(&mut self, now: MonoTime) -> Result<NextStep, Error> {
            self.progress.arrived += u64::from(self.keeps_coming);
            if now < self.handed_over || self.progress.is_read() {
                return Ok(NextStep::IdleUntil(now));
            }
            self.progress.read += 1;
            self.clock.advance_to(now + Nanos::from_millis(1));
            Ok(NextStep::Busy)
        }

        fn wait_for_frames(&mut self, within: Nanos) -> Result<(), Error> {
            self.clock.advance_to(self.clock.now() + within);
            Ok(())
        }

        fn ring_progress(&mut self) -> Result<RingProgress, Error> {
            Ok(self.progress)
        }

        fn stream_counts(&self) -> Vec<StreamRxCounts> {
            Vec::new()
        }

        fn current_latency(&self) -> DelaySummary {
            DelaySummary::default()
        }

        fn port_counters(&mut self) -> Result<RxCounters, Error> {
            Ok(RxCounters::default())
        }

        fn clock_bound(&self) -> Nanos {
            Nanos::ZERO
        }

        fn finish_receiving(&mut self, _: &[u64]) -> ReceivedFrames {
            ReceivedFrames::default()
        }
    }

    /// Reads 10 frames from a block that is handed over this much later; returns the frames read and the time.
    fn emptied(handed_over: Nanos, keeps_coming: bool) -> (u64, Nanos) {
        let clock = VirtualClock::new(MonoTime::default());
        let mut rx = LateBlock {
            clock: clock.clone(),
            handed_over: MonoTime::default() + handed_over,
            progress: RingProgress { arrived: 10, read: 0 },
            keeps_coming,
        };
        drain_receiver(&mut rx, &clock).unwrap();
        (rx.progress.read, clock.now().since(MonoTime::default()))
    }

    #[test]
    fn receiver_reads_late_kernel_block_to_end() {
        assert_eq!(emptied(Nanos::from_millis(700), false), (10, Nanos::from_millis(710)));
    }

    #[test]
    fn receiver_ends_despite_constant_frames_or_missing_block() {
        let (read, took) = emptied(Nanos::ZERO, true);
        assert!(read >= 10 && took <= Nanos::from_millis(210), "{read} {took}");
        assert_eq!(emptied(Nanos::from_secs(3600), false), (0, LAST_BLOCK_TIMEOUT));
    }
}
