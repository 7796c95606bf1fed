//! Reset (RFC 2544, 26.6): measures how long the device forwards nothing when it is reset while frames
//! arrive at its throughput.

use super::{
    PartOutcome, ResetTime, Rfc2544Options, SizeBenchmark, ThroughputBasis, build_timed_order,
    find_invalidity_reason,
};
use crate::rounding::time_of_frames;
use crate::session::MAX_TRIAL_REPEATS;
use crate::trial::LATE_EVENT_REASON;
use crate::{TimeRange, TrialEvent, TrialPurpose, TrialRequest, TrialResult};
use packetrig_units::{FrameSize, Nanos};

/// Loss after this percentage of the trial means that the device did not come back.
const END_PERCENT: u64 = 99;

impl ResetTime {
    pub(super) const fn outage_range(&self) -> TimeRange {
        TimeRange { least: self.least_outage_ns, most: self.outage_ns }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ResetTrial {
    size: FrameSize,
    basis: ThroughputBasis,
    time: Nanos,
    event: TrialEvent,
    limit: Option<Nanos>,
    /// Number of times that the trial was repeated because its bounds did not decide the criterion.
    repeated: u32,
    outcome: Option<PartOutcome<ResetTime>>,
}

impl ResetTrial {
    pub(super) const fn new(options: &Rfc2544Options, row: &SizeBenchmark, basis: ThroughputBasis) -> Self {
        Self {
            size: row.frame_size_bytes,
            basis,
            time: options.durations.reset_trial_ns,
            event: TrialEvent { at: options.durations.reset_at_ns },
            limit: options.criteria.maximum_reset_ns,
            repeated: 0,
            outcome: None,
        }
    }

    pub(super) fn next_trial_request(&self) -> Option<TrialRequest> {
        let order =
            build_timed_order(TrialPurpose::Reset, self.size, self.basis.frames_per_second, self.time);
        self.outcome.is_none().then_some(TrialRequest { event: Some(self.event), ..order })
    }

    pub(super) fn on_result(&mut self, result: &TrialResult) {
        let outcome = match (result.event_at, find_invalidity_reason(result)) {
            // This arm is first: without the event nothing was reset, whatever the rig did.
            (None, _) => PartOutcome::NotMeasured {
                reason: "the device was not reset: the event did not happen".to_owned(),
            },
            _ if result.may_have_missed_event(self.time) => {
                PartOutcome::NotMeasured { reason: LATE_EVENT_REASON.to_owned() }
            }
            (Some(_), Some(reason)) => PartOutcome::NotMeasured { reason },
            (Some(event_at), None) => PartOutcome::Measured(self.evaluate_reset(result, event_at)),
        };
        // A device that does not come back has no upper bound in a repeated trial, either.
        let is_open = outcome
            .measured_value()
            .zip(self.limit)
            .is_some_and(|(reset, limit)| reset.is_back && reset.outage_range().is_undecided(limit));
        if is_open && self.repeated < MAX_TRIAL_REPEATS {
            self.repeated += 1;
            return;
        }
        self.outcome = Some(outcome);
    }

    fn evaluate_reset(&self, result: &TrialResult, event_at_ns: Nanos) -> ResetTime {
        let streams = &result.streams;
        let last_loss = streams.iter().filter_map(|stream| stream.last_loss).max();
        let is_back = last_loss.is_none_or(|last| last.as_u64() < self.time.as_u64() / 100 * END_PERCENT);
        let outage = streams.iter().filter_map(|stream| stream.longest_outage).max();
        // An outage has no end without an arrival after it. The lost frames then show its least length.
        let outage_ns =
            outage.filter(|_| is_back).or_else(|| self.estimate_outage_from_losses(result)).max(outage);
        let outage_ns = outage_ns.unwrap_or(Nanos::ZERO);
        let least = streams.iter().filter_map(|stream| stream.least_longest_outage).max();
        ResetTime {
            // Without an end, the lower bound is the outage so far. A lower bound above the upper
            // bound would be invalid.
            least_outage_ns: least.filter(|_| is_back).unwrap_or(outage_ns).min(outage_ns),
            frame_size_bytes: self.size,
            basis: self.basis,
            outage_ns,
            is_back,
            lost_frames: result.lost.most,
            event_at_ns,
        }
    }

    fn estimate_outage_from_losses(&self, result: &TrialResult) -> Option<Nanos> {
        // Only certain losses count, because the result is a lower bound of the outage.
        let of_streams =
            result.streams.iter().filter_map(|stream| time_of_frames(stream.lost.least, stream.rate));
        let rate = self.basis.frames_per_second.frames_per_second();
        of_streams.max().or_else(|| time_of_frames(result.lost.least, rate))
    }

    pub(super) fn current_outcome(&self) -> PartOutcome<ResetTime> {
        self.outcome
            .clone()
            .unwrap_or_else(|| PartOutcome::NotMeasured { reason: "the trial was not made".to_owned() })
    }
}
