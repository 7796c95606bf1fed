//! Measures the loss of service when a link or a route changes: the loss-derived method of RFC 6413.
//!
//! Each trial sends a constant load while the event happens. The loss of connectivity of a stream is its lost
//! frames divided by its rate. The result also has the longest outage, which is shorter if a stream was
//! interrupted more than once.
//!
//! Lost frames say nothing about a time in which the rig itself sent no frames. So each measured time has a lower and
//! an upper bound. The upper bound is the lost frames divided by the rate, plus the time without arrivals that these
//! frames do not explain. A criterion is met only if the upper bound meets it. If the limit lies between the bounds of
//! a repetition, the repetition is made again, at most twice.

use crate::any_method::{OptionProblem, find_first_problem};
use crate::rounding::time_of_frames;
use crate::session::MAX_TRIAL_REPEATS;
use crate::trial::LATE_EVENT_REASON;
use crate::{
    Load, SampleStatistics, StreamTrial, TestMethod, TimeRange, TrialEvent, TrialLength, TrialPurpose,
    TrialRequest, TrialResult, TrialWaits,
};
use packetrig_units::{FrameSize, Nanos, clamp_to_u32};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

mod judgement;

/// Options of the method `convergence`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvergenceOptions {
    /// Size of all frames; `None` for the sizes of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame_size_bytes: Option<FrameSize>,
    pub frames_per_second: Load,
    pub trial_ns: Nanos,
    /// Time of the event, after the first frame.
    pub event_at_ns: Nanos,
    pub repetitions: u32,
    #[serde(default)]
    pub waits: TrialWaits,
    /// Limit for the loss of connectivity of every stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_convergence_ns: Option<Nanos>,
}

impl ConvergenceOptions {
    pub(crate) fn find_problem(&self) -> Option<OptionProblem> {
        find_first_problem(&[
            (self.frames_per_second == Load::ZERO, "frames_per_second", "must be above 0"),
            // An event after the last frame costs no frame, so there would be nothing to measure.
            (self.trial_ns <= self.event_at_ns, "trial_ns", "must be longer than event_at_ns"),
            (self.repetitions == 0, "repetitions", "must be at least 1"),
        ])
    }
}

/// Result of the method `convergence`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConvergenceResult {
    pub trials: Vec<ConvergenceTrial>,
    pub repetitions: u32,
    /// Statistics over the measured trials. The value of a trial is the upper bound of its slowest stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub convergence_ns: Option<SampleStatistics>,
    pub streams: Vec<StreamConvergence>,
    /// Streams that lost nothing in any measured trial.
    pub unaffected_streams: Vec<String>,
}

/// One repetition: a trial during which the event happened, or should have happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConvergenceTrial {
    pub outcome: ConvergenceOutcome,
    /// Reason why the trial measured nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_at_ns: Option<Nanos>,
    pub streams: Vec<StreamConnectivity>,
}

/// Whether a repetition measured something; if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConvergenceOutcome {
    /// The event happened. A loss of 0 means that nothing was lost.
    Measured,
    EventDidNotHappen,
    /// The rig could not sustain the trial.
    RigFault,
}

/// Results of one stream in one repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamConnectivity {
    pub stream: String,
    pub frames_per_second: f64,
    pub sent_frames: u64,
    pub least_lost_frames: u64,
    pub most_lost_frames: u64,
    /// Lower bound of the loss of connectivity. Both bounds are absent if the stream has no rate.
    pub least_loss_of_connectivity_ns: Option<Nanos>,
    /// Upper bound of the loss of connectivity.
    pub loss_of_connectivity_ns: Option<Nanos>,
    /// Lower bound of the longest outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_longest_outage_ns: Option<Nanos>,
    /// Upper bound of the longest outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_outage_ns: Option<Nanos>,
}

/// Results of one stream over all measured repetitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamConvergence {
    pub stream: String,
    /// Number of repetitions in which the stream lost frames.
    pub affected_trials: u32,
    /// Statistics of the upper bounds of the repetitions.
    pub loss_of_connectivity_ns: SampleStatistics,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_outage_ns: Option<SampleStatistics>,
}

/// The running method `convergence`: its options and the trials so far.
#[derive(Clone, Debug)]
pub struct ConvergenceMethod {
    options: ConvergenceOptions,
    trials: Vec<ConvergenceTrial>,
    /// Number of times that the present repetition was repeated because its bounds did not decide the criterion.
    repeated: u32,
}

impl ConvergenceMethod {
    pub const fn new(options: ConvergenceOptions) -> Self {
        Self { options, trials: Vec::new(), repeated: 0 }
    }

    /// Returns the result so far.
    pub fn current_result(&self) -> ConvergenceResult {
        let streams = summarise_streams(&self.trials);
        let unaffected = streams.iter().filter(|stream| stream.affected_trials == 0);
        ConvergenceResult {
            repetitions: self.options.repetitions,
            convergence_ns: SampleStatistics::from_values(&list_slowest_times(&self.trials)),
            unaffected_streams: unaffected.map(|stream| stream.stream.clone()).collect(),
            trials: self.trials.clone(),
            streams,
        }
    }
}

impl ConvergenceMethod {
    /// True if the limit lies between the lower and the upper bound that a trial measured.
    fn is_limit_undecided(&self, trial: &ConvergenceTrial) -> bool {
        // Without a limit there is nothing to decide, so no repetition is made again.
        let Some(limit) = self.options.maximum_convergence_ns else { return false };
        let slowest = trial.slowest_stream_time().filter(|_| trial.outcome == ConvergenceOutcome::Measured);
        slowest.is_some_and(|slowest| slowest.is_undecided(limit))
    }
}

impl ConvergenceTrial {
    /// Bounds of the loss of connectivity of the slowest stream.
    fn slowest_stream_time(&self) -> Option<TimeRange> {
        // The two bounds may come from different streams. Whichever stream is the slowest, its time is at least the
        // greatest lower bound and at most the greatest upper bound.
        let least = self.streams.iter().filter_map(|row| row.least_loss_of_connectivity_ns).max();
        let most = self.streams.iter().filter_map(|row| row.loss_of_connectivity_ns).max();
        least.zip(most).map(|(least, most)| TimeRange { least, most })
    }
}

impl TestMethod for ConvergenceMethod {
    fn next_trial_request(&self) -> Option<TrialRequest> {
        let options = &self.options;
        let length = TrialLength::Time(options.trial_ns);
        let purpose = TrialPurpose::Convergence;
        let order = TrialRequest::with_constant_load(
            purpose,
            options.frame_size_bytes,
            options.frames_per_second,
            length,
        );
        let order = TrialRequest { event: Some(TrialEvent { at: options.event_at_ns }), ..order };
        (self.trials.len() < options.repetitions as usize).then_some(order)
    }

    fn on_result(&mut self, result: &TrialResult) {
        let Some(order) = self.next_trial_request() else { return };
        let trial = evaluate_trial(result, order.load, self.options.trial_ns);
        // The number of repeats is limited, so that the method ends even if the rig is always this uncertain.
        if self.is_limit_undecided(&trial) && self.repeated < MAX_TRIAL_REPEATS {
            self.repeated += 1;
            return;
        }
        self.repeated = 0;
        self.trials.push(trial);
    }

    fn describe_progress(&self) -> String {
        let done = format!("convergence: {} of {} trials", self.trials.len(), self.options.repetitions);
        match SampleStatistics::from_values(&list_slowest_times(&self.trials)) {
            Some(found) => format!("{done}, {:.3} to {:.3} ms", found.min / 1e6, found.max / 1e6),
            None => done,
        }
    }
}

fn evaluate_trial(result: &TrialResult, load: Load, sending: Nanos) -> ConvergenceTrial {
    let (outcome, reason) = match (&result.rig_fault, result.event_at) {
        // This arm comes first: without the event there is no convergence to measure, whatever the rig did.
        (_, None) => (ConvergenceOutcome::EventDidNotHappen, Some("the event did not happen".to_owned())),
        _ if result.may_have_missed_event(sending) => {
            (ConvergenceOutcome::EventDidNotHappen, Some(LATE_EVENT_REASON.to_owned()))
        }
        // A trial without loss counts even if this machine reports a fault: such a fault may add losses, but hides
        // none.
        (Some(fault), _) if !result.is_without_loss() => (ConvergenceOutcome::RigFault, Some(fault.clone())),
        _ => (ConvergenceOutcome::Measured, None),
    };
    let streams = match &result.streams[..] {
        [] => vec![evaluate_stream(&combine_into_one_stream(result, load))],
        streams => streams.iter().map(evaluate_stream).collect(),
    };
    ConvergenceTrial { outcome, reason, event_at_ns: result.event_at, streams }
}

/// Makes one row from the sums of a trial whose result has no rows for single streams.
fn combine_into_one_stream(result: &TrialResult, load: Load) -> StreamTrial {
    StreamTrial {
        name: "all streams".to_owned(),
        sent: result.sent,
        lost: result.lost,
        // The load of a trial is the sum over its streams.
        rate: load.frames_per_second(),
        ..StreamTrial::default()
    }
}

fn evaluate_stream(stream: &StreamTrial) -> StreamConnectivity {
    let [least, most] =
        [stream.lost.least, stream.lost.most].map(|frames| time_of_frames(frames, stream.rate));
    let by_frames = least.zip(most).map(|(least, most)| TimeRange { least, most });
    // The measured loss of connectivity is preferred, because it also covers times in which the rig sent
    // nothing, which lost frames do not show.
    let connectivity = stream.loss_of_connectivity.or(by_frames);
    StreamConnectivity {
        stream: stream.name.clone(),
        frames_per_second: stream.rate,
        sent_frames: stream.sent,
        least_lost_frames: stream.lost.least,
        most_lost_frames: stream.lost.most,
        least_loss_of_connectivity_ns: connectivity.map(|time| time.least),
        loss_of_connectivity_ns: connectivity.map(|time| time.most),
        least_longest_outage_ns: stream.least_longest_outage,
        longest_outage_ns: stream.longest_outage,
    }
}

fn iter_measured_trials(trials: &[ConvergenceTrial]) -> impl Iterator<Item = &ConvergenceTrial> {
    trials.iter().filter(|trial| trial.outcome == ConvergenceOutcome::Measured)
}

fn list_slowest_times(trials: &[ConvergenceTrial]) -> Vec<f64> {
    iter_measured_trials(trials)
        .filter_map(ConvergenceTrial::slowest_stream_time)
        .map(|time| time.most.as_u64() as f64)
        .collect()
}

fn summarise_streams(trials: &[ConvergenceTrial]) -> Vec<StreamConvergence> {
    // The order of the plan is kept; a sorted map would have the order of the names.
    let mut order = Vec::new();
    let mut rows: BTreeMap<&str, Vec<&StreamConnectivity>> = BTreeMap::new();
    for row in iter_measured_trials(trials).flat_map(|trial| &trial.streams) {
        let known = rows.entry(&row.stream).or_default();
        if known.is_empty() {
            order.push(row.stream.as_str());
        }
        known.push(row);
    }
    order.into_iter().filter_map(|name| summarise_stream(name, &rows[name])).collect()
}

fn summarise_stream(name: &str, rows: &[&StreamConnectivity]) -> Option<StreamConvergence> {
    let times = |read: fn(&StreamConnectivity) -> Option<Nanos>| -> Vec<f64> {
        rows.iter().filter_map(|row| read(row)).map(|time| time.as_u64() as f64).collect()
    };
    let affected = rows.iter().filter(|row| row.most_lost_frames > 0).count();
    Some(StreamConvergence {
        stream: name.to_owned(),
        affected_trials: clamp_to_u32(affected),
        // A stream without a rate has no times, so it gets no row.
        loss_of_connectivity_ns: SampleStatistics::from_values(&times(|row| row.loss_of_connectivity_ns))?,
        longest_outage_ns: SampleStatistics::from_values(&times(|row| row.longest_outage_ns)),
    })
}

#[cfg(test)]
mod tests;
