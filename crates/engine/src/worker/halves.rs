//! Work of a port's two workers: sending and receiving, with the counters of the port as they were read last.

use super::WorkerTask;
use crate::Error;
use crate::port::WorkerClock;
use crate::stream::{
    ClockShift, NextStep, SteeredReceiver, SteeredSender, StreamControl, StreamRx, StreamTx,
};
use packetrig_stats::counts::{DelaySummary, StreamRxCounts, StreamTxCounts};
use packetrig_stats::port::{RxCounters, TxCounters};
use packetrig_units::{MonoTime, Nanos};

/// A steered run checks both halves when it arms them, so this cannot happen later.
const NOT_STEERED_ERROR: Error =
    Error::Bug("a change was requested for a sender or receiver that does not support it");

pub(crate) struct SendingHalf {
    half: Box<dyn StreamTx>,
    /// Counters of the port as they were read last.
    counters: TxCounters,
    has_given_up: bool,
}

/// Counts that a sending half publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedTxCounts {
    pub(crate) streams: Vec<StreamTxCounts>,
    pub(crate) port: TxCounters,
}

impl SendingHalf {
    pub(crate) fn new(half: Box<dyn StreamTx>) -> Self {
        Self { half, counters: TxCounters::default(), has_given_up: false }
    }

    pub(crate) fn stream_counts(&self) -> Vec<StreamTxCounts> {
        let mut counts = self.half.stream_counts();
        for counts in &mut counts {
            // After an error this half does not know that it has stopped sending.
            counts.is_sending &= !self.has_given_up;
        }
        counts
    }

    /// Returns the half, and the counters of its port as they were read last.
    pub(crate) fn into_parts(self) -> (Box<dyn StreamTx>, TxCounters) {
        (self.half, self.counters)
    }

    pub(crate) fn steered_sender(&mut self) -> Result<&mut dyn SteeredSender, Error> {
        self.half.steered_sender().ok_or(NOT_STEERED_ERROR)
    }
}

impl WorkerTask for SendingHalf {
    type Counts = PublishedTxCounts;
    const PUBLISH_AFTER: Nanos = Nanos::from_millis(2);
    const COUNTS_FROM: bool = true;

    fn apply_control(&mut self, control: StreamControl) {
        self.half.apply_control(control);
    }

    fn run_step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        self.half.send_due(now)
    }

    fn wait_for_work_until(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error> {
        // The clock sleeps until shortly before the deadline; a wait for commands would wake late.
        clock.wait_until(until);
        Ok(())
    }

    fn needs_only_commands(&self) -> bool {
        true
    }

    fn read_counters(&mut self) -> Result<(), Error> {
        self.counters = self.half.port_counters()?;
        Ok(())
    }

    fn current_counts(&self) -> PublishedTxCounts {
        PublishedTxCounts { streams: self.stream_counts(), port: self.counters }
    }

    fn give_up_work(&mut self) {
        self.has_given_up = true;
    }
}

pub(crate) struct ReceivingHalf {
    half: Box<dyn StreamRx>,
    /// Counters of the port as they were read last.
    counters: RxCounters,
}

/// Counts that a receiving half publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedRxCounts {
    pub(crate) streams: Vec<StreamRxCounts>,
    pub(crate) port: RxCounters,
    pub(crate) latency: DelaySummary,
}

impl ReceivingHalf {
    pub(crate) fn new(half: Box<dyn StreamRx>) -> Self {
        Self { half, counters: RxCounters::default() }
    }

    /// Returns the half, and the counters of its port as they were read last.
    pub(crate) fn into_parts(self) -> (Box<dyn StreamRx>, RxCounters) {
        (self.half, self.counters)
    }

    pub(crate) fn set_clock_shifts(&mut self, shifts: &[(u16, ClockShift)]) {
        self.half.set_clock_shifts(shifts);
    }

    pub(crate) fn steered_receiver(&mut self) -> Result<&mut dyn SteeredReceiver, Error> {
        self.half.steered_receiver().ok_or(NOT_STEERED_ERROR)
    }
}

impl WorkerTask for ReceivingHalf {
    type Counts = PublishedRxCounts;

    fn apply_control(&mut self, control: StreamControl) {
        self.half.apply_control(control);
    }

    fn run_step(&mut self, now: MonoTime) -> Result<NextStep, Error> {
        self.half.receive_arrivals(now)
    }

    fn wait_for_work_until(&mut self, clock: &dyn WorkerClock, until: MonoTime) -> Result<(), Error> {
        self.half.wait_for_frames(until.since(clock.now()))
    }

    fn read_counters(&mut self) -> Result<(), Error> {
        self.counters = self.half.port_counters()?;
        Ok(())
    }

    fn current_counts(&self) -> PublishedRxCounts {
        PublishedRxCounts {
            streams: self.half.stream_counts(),
            port: self.counters,
            latency: self.half.current_latency(),
        }
    }
}
