//! Sends trains to a target, one after the other as an estimator requests them, and reports the outcome of each.
//!
//! Only one train is sent at a time: the estimator is asked for the next one after the last one was answered
//! or its time limit has passed. The estimator evaluates the trains ([`packetrig_probe::estimate`]).
//!
//! Invariant: a train begins only when the limits of the target allow the whole train, so they never stop it halfway.

use crate::listener::PacketListener;
use crate::path::ProbePath;
use crate::release::{DueFrame, ReleaseDispatcher};
use crate::{Error, frame_length, now};
use packetrig_probe::answer::PathFailure;
use packetrig_probe::estimate::{RateEstimator, TrainProbeTimes, TrainRequest};
use packetrig_probe::method::{ProbeMethod, ReplyMeaning};
use packetrig_probe::series::ProbeSeries;
use packetrig_probe::{PlannedProbe, ProbeFlag, ProbeRecord};
use packetrig_units::{MonoTime, Nanos};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredArrival {
    /// Arrivals of the probes at the target, as the target reports them: measures the path to the target.
    Far,
    /// Arrivals of the answers at this machine: measures the direction with the lower capacity.
    Near,
}

/// Reason why no more trains are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainSeriesEndReason {
    /// The estimator requests no more trains: it has its result, or gives up.
    Done,
    Stopped,
    /// Too many probes were lost.
    Lossy,
    /// A host or router reported that probes are administratively prohibited.
    Prohibited,
}

pub struct TrainSender<'a> {
    pub way: &'a ProbePath,
    pub method: Box<dyn ProbeMethod>,
    pub dispatcher: ReleaseDispatcher,
    pub listener: PacketListener,
    pub arrival: MeasuredArrival,
    /// Time limit for an answer.
    pub answer_timeout: Nanos,
    series: ProbeSeries,
    sent: u32,
    begun: u32,
    /// Planned departure time of the last probe of the latest train.
    last: MonoTime,
    is_prohibited: bool,
    /// Apparent offset of the target's clock (see [`target_clock_offset_with_delay`]), from the first probe
    /// that the target reported.
    far_ahead: Option<u64>,
}

impl fmt::Debug for TrainSender<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainSender")
            .field("target", &self.way.ends.target)
            .field("trains", &self.begun)
            .finish_non_exhaustive()
    }
}

impl<'a> TrainSender<'a> {
    pub fn new(
        way: &'a ProbePath,
        method: Box<dyn ProbeMethod>,
        dispatcher: ReleaseDispatcher,
        listener: PacketListener,
        arrival: MeasuredArrival,
    ) -> Self {
        Self {
            way,
            method,
            dispatcher,
            listener,
            arrival,
            answer_timeout: Nanos::from_secs(1),
            series: ProbeSeries::new(),
            sent: 0,
            begun: 0,
            last: MonoTime::default(),
            is_prohibited: false,
            far_ahead: None,
        }
    }

    /// Returns the listener, so that the caller can use it again.
    pub fn into_listener(self) -> PacketListener {
        self.listener
    }

    /// Returns all probes so far with their outcomes.
    pub const fn series(&self) -> &ProbeSeries {
        &self.series
    }

    /// Returns the records of all probes so far.
    pub fn records(&self) -> &[ProbeRecord] {
        self.series.records()
    }

    /// Sends the trains that an estimator requests, until it requests no more, or `stop`, a prohibition or too
    /// much loss ends the series. After each train, calls `on_train` with the number of trains so far.
    pub fn run_estimator(
        &mut self,
        estimator: &mut dyn RateEstimator,
        stop: &dyn Fn() -> bool,
        on_train: &mut dyn FnMut(u32),
    ) -> Result<TrainSeriesEndReason, Error> {
        while let Some(ask) = estimator.next_train() {
            let passed = self.measure_train(&ask, stop)?;
            // A train that was interrupted measures nothing, so the estimator does not get it.
            if stop() {
                return Ok(TrainSeriesEndReason::Stopped);
            }
            if self.is_prohibited {
                return Ok(TrainSeriesEndReason::Prohibited);
            }
            estimator.add_train(&passed);
            on_train(self.begun);
            if self.is_lossy() {
                return Ok(TrainSeriesEndReason::Lossy);
            }
        }
        Ok(TrainSeriesEndReason::Done)
    }

    /// Returns the fraction of the sent probes, from 0 to 1, that got neither an answer nor an error; 0
    /// if none was sent.
    pub fn loss_share(&self) -> f64 {
        let counts = self.series.counts();
        counts.lost as f64 / counts.sent.max(1) as f64
    }

    fn is_lossy(&self) -> bool {
        let counts = self.series.counts();
        self.way.permitted.limits().is_lossy(counts.sent, counts.lost)
    }

    /// Waits until the train may begin, sends it and receives its answers. If `stop` returns true before the
    /// train begins, the result is empty.
    pub fn measure_train(
        &mut self,
        ask: &TrainRequest,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<TrainProbeTimes>, Error> {
        // The whole train must fit in the budget before its first probe leaves: a train that is cut short measures nothing.
        let train = ask.probes.iter().map(|probe| (probe.at, probe.length));
        let lead = self.dispatcher.lead_time();
        let soonest = (now() + lead).max(self.last + ask.pause);
        let begins = self.dispatcher.earliest_start(soonest, train)?;
        while now() + lead < begins && !stop() {
            self.handle_arrivals((begins - lead).since(now()))?;
        }
        let first = self.series.records().len();
        if !stop() {
            self.send_train(ask, begins)?;
            self.receive_answers(first, stop)?;
        }
        let records = &self.series.records()[first..];
        if self.arrival == MeasuredArrival::Near {
            return Ok(records.iter().map(TrainProbeTimes::from_round_trip).collect());
        }
        // The clocks need not agree: the same offset is subtracted from all trains, so it cancels in every
        // difference of arrivals. It only keeps the numbers close to this node's clock.
        self.far_ahead = self.far_ahead.or_else(|| records.iter().find_map(target_clock_offset_with_delay));
        let far_ahead = self.far_ahead.unwrap_or(0);
        Ok(records.iter().map(|record| TrainProbeTimes::from_one_way(record, far_ahead)).collect())
    }

    fn send_train(&mut self, ask: &TrainRequest, begins: MonoTime) -> Result<(), Error> {
        let mut frames = Vec::with_capacity(ask.probes.len());
        // Numbers continue over all trains, so that a late answer to an earlier train is not mistaken for an
        // answer to this one.
        for (probe, number) in ask.probes.iter().zip(self.sent..) {
            let mut frame = Vec::new();
            self.method.write_probe(number, begins + probe.at, probe.length, &mut frame);
            frames.push(frame);
        }
        let due: Vec<_> = ask
            .probes
            .iter()
            .zip(&frames)
            .map(|(probe, frame)| DueFrame { at: begins + probe.at, frame })
            .collect();
        let mut gone = Vec::with_capacity(due.len());
        // The budget has allowed the whole train, and nothing else uses the budget meanwhile.
        self.dispatcher.send_train(&due, &mut gone)?;
        for ((probe, due), gone) in ask.probes.iter().zip(&due).zip(gone) {
            let length = frame_length(due.frame);
            let planned = PlannedProbe { number: self.sent, train: self.begun, length, ..*probe };
            self.series.add_sent_probe(gone.into_record(planned, due.at));
            self.sent += 1;
        }
        self.last = begins + ask.probes.last().map(|probe| probe.at).unwrap_or_default();
        self.begun += 1;
        Ok(())
    }

    /// Listens until all probes from `first` on are answered, or the time limit has passed. `stop` or a
    /// prohibition ends the wait earlier.
    fn receive_answers(&mut self, first: usize, stop: &dyn Fn() -> bool) -> Result<(), Error> {
        let deadline = now() + self.answer_timeout;
        while self.has_unanswered_probes(first) && now() < deadline && !stop() && !self.is_prohibited {
            self.handle_arrivals(deadline.since(now()))?;
        }
        // If this thread had no processor until the deadline, the answers are still in the ring.
        self.handle_arrivals(Nanos::ZERO)
    }

    /// Returns whether a probe from `first` on was sent and is not answered.
    fn has_unanswered_probes(&self, first: usize) -> bool {
        self.series.records()[first..]
            .iter()
            .any(|record| record.answered.is_none() && !record.flags.contains(&ProbeFlag::Unsent))
    }

    /// Waits for frames, for at most `within`, and handles the frames that arrived.
    fn handle_arrivals(&mut self, within: Nanos) -> Result<(), Error> {
        self.listener.wait_for_frames(within)?;
        self.listener.receive_waiting_frames(|heard| {
            let Some(reply) = heard.read_answer().and_then(|answer| self.method.read_reply(&answer)) else {
                return;
            };
            self.is_prohibited |= reply.says == ReplyMeaning::Trouble(PathFailure::Prohibited);
            self.series.add_answer(&reply, heard.at);
        });
        Ok(())
    }
}

/// Returns the arrival on the target's clock minus the departure on this machine's clock: the difference of the
/// clocks plus the delay of the path. `None` if one of the two times is unknown.
fn target_clock_offset_with_delay(record: &ProbeRecord) -> Option<u64> {
    Some(record.far_arrival?.middle().saturating_sub(record.local_departure()?.middle()))
}

#[cfg(test)]
mod tests;
