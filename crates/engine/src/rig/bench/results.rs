//! What a port has counted: samples while it works, and its final word.

use super::{HalfState, PortBench};
use crate::Error;
use crate::port::WorkerClock;
use crate::rig::account::{ReceiverResult, SenderResult};
use crate::stream::{NextStep, ReceivedFrames, SendingRecord, StreamControl};
use crate::worker::PortWorker;
use packetrig_stats::counts::DelaySummary;
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_stats::result::CountSample;
use packetrig_units::{MonoTime, Nanos};

/// How long a stopped sender may take to get rid of what is in its ring; longer than a back end's patience with it.
const EMPTYING: Nanos = Nanos::from_millis(3_000);
/// How long emptying a receive ring may take when frames keep coming.
const LAST_LOOK: Nanos = Nanos::from_millis(200);

impl PortBench {
    /// Adds what this port's sender counted last; finds a worker that failed. Says as of when that is, unless it is final.
    pub(in crate::rig) fn sample_sender(
        &mut self,
        sample: &mut CountSample,
    ) -> Result<Option<MonoTime>, Error> {
        let mut counters = TxCounters::default();
        let mut at = None;
        if let Some(worker) = self.tx.working() {
            worker.check()?;
            let is_final = worker.is_done();
            if let Some(latest) = worker.published().pop_back() {
                sample.tx.extend(self.sends.iter().copied().zip(latest.counts.streams));
                counters = latest.counts.port;
                at = Some(latest.at).filter(|_| !is_final);
            }
        }
        sample.ports.push((self.port, counters, RxCounters::default()));
        Ok(at)
    }

    /// Adds what this port's receiver had counted by `by`, or last; finds a worker that failed.
    pub(in crate::rig) fn sample_receiver(
        &mut self,
        sample: &mut CountSample,
        latency: &mut DelaySummary,
        by: Option<MonoTime>,
    ) -> Result<(), Error> {
        self.host.as_mut().map_or(Ok(()), PortWorker::check)?;
        let Some(worker) = self.rx.working() else { return Ok(()) };
        worker.check()?;
        // A copy, so that the worker never waits for this thread.
        let mut published = worker.published();
        // What is older than all that is kept cannot be told any more.
        // A worker keeps its last few publications, so that one of them is old enough: what a receiver has counted
        // must not be newer than what the senders have.
        while published.len() > 1 && published.back().is_some_and(|last| by.is_some_and(|by| last.at > by)) {
            published.pop_back();
        }
        let Some(latest) = published.pop_back() else { return Ok(()) };
        let streams = self.receives.iter().zip(latest.counts.streams);
        sample.rx.extend(streams.map(|(stream, counts)| (*stream, self.port, counts)));
        if let Some((.., counters)) = sample.ports.iter_mut().find(|(port, ..)| *port == self.port) {
            *counters = latest.counts.port;
        }
        latency.merge(&latest.counts.latency);
        Ok(())
    }

    /// Ends the sender. What is in its ring still leaves; what is unsent stays unsent.
    pub(in crate::rig) fn finish_sender(&mut self, clock: &dyn WorkerClock) -> Result<SenderResult, Error> {
        if let Some(worker) = self.tx.working() {
            let mut tx = worker.quit()?.into_inner();
            tx.control(StreamControl::Stop);
            let give_up = clock.now() + EMPTYING;
            // On this thread: the worker has ended, and frames that are in the ring must leave or be counted as
            // refused before the counters are read.
            while tx.step(clock.now())? != NextStep::Done && clock.now() < give_up {}
            self.tx = HalfState::Ended(tx);
        }
        match &mut self.tx {
            HalfState::Ended(tx) => {
                let counters = tx.port_counters()?;
                let record = tx.record();
                Ok(SenderResult { streams: tx.finish(), counters, record })
            }
            HalfState::Unused(tx) => Ok(SenderResult {
                streams: Vec::new(),
                counters: tx.port_counters()?,
                record: SendingRecord::default(),
            }),
            HalfState::Working(_) | HalfState::Lost => Err(Error::Bug("a sender was finished twice")),
        }
    }

    /// Tells the receiver to end, without waiting; [`Self::finish_receiver`] waits and takes in what has arrived since.
    pub(in crate::rig) fn begin_finish_receiver(&self) {
        if let HalfState::Working(worker) = &self.rx {
            worker.begin_quit();
        }
    }

    /// Ends the receiver, once what has arrived is taken in. `totals`: frames sent, by stream of the plan.
    pub(in crate::rig) fn finish_receiver(
        &mut self,
        clock: &dyn WorkerClock,
        totals: &[u64],
    ) -> Result<ReceiverResult, Error> {
        if let Some(worker) = self.rx.working() {
            let mut rx = worker.quit()?.into_inner();
            let give_up = clock.now() + LAST_LOOK;
            // Empties the ring for good. The bound is for a device that keeps sending, which would never let it run
            // dry.
            while rx.step(clock.now())? == NextStep::Busy && clock.now() < give_up {}
            self.rx = HalfState::Ended(rx);
        }
        match &mut self.rx {
            HalfState::Ended(rx) => {
                let counters = rx.port_counters()?;
                let bound = rx.clock_bound();
                let sent: Vec<u64> = self.receives.iter().map(|stream| totals[*stream]).collect();
                Ok(ReceiverResult { frames: rx.finish(&sent), counters: Some(counters), clock_bound: bound })
            }
            HalfState::Unused(rx) => {
                let frames = ReceivedFrames::default();
                Ok(ReceiverResult { frames, counters: None, clock_bound: rx.clock_bound() })
            }
            HalfState::Working(_) | HalfState::Lost => Err(Error::Bug("a receiver was finished twice")),
        }
    }
}
