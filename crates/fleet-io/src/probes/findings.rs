//! Converts the outcome of a probe line to its row in the report.

use super::ready::ChosenMechanism;
use packetrig_probe::BudgetExceeded;
use packetrig_probe::estimate::{NoEstimateReason, RateEstimate};
use packetrig_probe::series::{ProbeSeries, SeriesSummary, SeriesTimes};
use packetrig_probe::session::delays::{self, ClockRelation, DirectionDelays, OwnClock, SessionDelays};
use packetrig_probe::session::sender::{StampSender, StampSessionFacts};
use packetrig_probe::{ErrorSpread, ProbeRecord, ReleaseSummary};
use packetrig_probe_io::ask::{ProbeSeriesOutcome, SeriesEndReason};
use packetrig_probe_io::send::SendOutcome;
use packetrig_probe_io::trains::TrainSeriesEndReason as TrainEnd;
use packetrig_stats::probe::{
    CapacityRange, DirectionTimes, FirstProbe, MeasuredCapacity, ProbeCounts, ProbeLineEndReason,
    ProbeLineResult, ProbeTimes,
};
use packetrig_sys::clock::RealtimeOffset;
use packetrig_units::{MonoTime, Nanos};

/// A line whose probes were sent.
pub(super) struct SentProbeLine {
    pub(super) number: usize,
    pub(super) planned: u64,
    pub(super) mechanism: ChosenMechanism,
}

/// Offset of the wall clock before and after a session.
#[derive(Clone, Copy)]
pub(super) struct SessionClock {
    pub(super) before: RealtimeOffset,
    pub(super) after: RealtimeOffset,
}

impl SessionClock {
    /// Describes this node's wall clock. The report compares this clock with the other node's wall clock later, where
    /// the results of both nodes are available.
    const fn own_wall_clock(self) -> OwnClock {
        let (before, after) = (self.before, self.after);
        let widest = if before.bound_ns > after.bound_ns { before.bound_ns } else { after.bound_ns };
        OwnClock {
            offset_ns: after.offset_ns,
            // If the wall clock was set in between, it is unknown which timestamps are before and which after that.
            bound_ns: widest.saturating_add(after.offset_ns.abs_diff(before.offset_ns)),
            error_ns: Some(0),
        }
    }
}

/// Builds the result of a line with answered probes. `compares`: the clocks of both ends are also compared from the
/// times in the session's probes and answers.
pub(super) fn answered_line_result(
    line: SentProbeLine,
    outcome: &ProbeSeriesOutcome,
    session: Option<&StampSender>,
    clock: SessionClock,
    compares: bool,
) -> ProbeLineResult {
    let summary = outcome.series.summary();
    let records = outcome.series.records();
    let directions = session.map(|session| SessionFindings::from_session(session, records, clock, compares));
    let lost =
        session.map(StampSender::build_session_facts).and_then(|told| told.lost_there.zip(told.lost_back));
    ProbeLineResult {
        counts: probe_counts(&summary, line.planned),
        session_lost: lost,
        round_trip: summary.rtt.map(probe_times),
        path: directions.as_ref().and_then(|found| found.path),
        there: directions.as_ref().map(|found| found.there).unwrap_or_default(),
        back: directions.map(|found| found.back).unwrap_or_default(),
        release_error: release_error(records),
        mechanism: line.mechanism.mechanism.to_string(),
        why: line.mechanism.why,
        ..ProbeLineResult::without_probes(line.number, line.planned, to_reported_end(outcome.end))
    }
}

fn probe_counts(summary: &SeriesSummary, planned: u64) -> ProbeCounts {
    let counts = summary.counts;
    ProbeCounts {
        planned,
        sent: counts.sent,
        answered: counts.answered,
        lost: counts.lost,
        refused: counts.refused,
        duplicates: counts.duplicates,
        reordered: counts.reordered,
        corrupted: counts.corrupted,
        doubtful: summary.doubtful,
    }
}

/// A line with trains that an estimator requested.
pub(super) struct EstimatedProbeLine<'a> {
    pub(super) series: &'a ProbeSeries,
    pub(super) end: Result<TrainEnd, packetrig_probe_io::Error>,
    pub(super) answer: Result<RateEstimate, NoEstimateReason>,
    /// Length of the estimator's time slot.
    pub(super) slot: Nanos,
}

/// Builds the result of a line with an estimator. `is_stopped`: the run was stopped, or the lease has ended.
pub(super) fn estimated_line_result(
    number: usize,
    mechanism: ChosenMechanism,
    line: &EstimatedProbeLine<'_>,
    is_stopped: bool,
) -> ProbeLineResult {
    let summary = line.series.summary();
    let sent = summary.counts.sent;
    let end = match &line.end {
        Ok(TrainEnd::Stopped) if is_stopped => ProbeLineEndReason::Stopped,
        // The estimator was stopped at the end of its time: its answer is its result up to then.
        Ok(TrainEnd::Done | TrainEnd::Stopped) => ProbeLineEndReason::Done,
        Ok(TrainEnd::Lossy) => ProbeLineEndReason::Lossy,
        Ok(TrainEnd::Prohibited) => ProbeLineEndReason::Prohibited,
        Err(packetrig_probe_io::Error::Limits(exceeded)) => budget_end_reason(*exceeded),
        Err(error) => ProbeLineEndReason::Failed(error.to_string()),
    };
    ProbeLineResult {
        // The estimator decides how many probes are sent, so the planned number is the sent one.
        counts: probe_counts(&summary, sent),
        round_trip: summary.rtt.map(probe_times),
        capacity: Some(line.measured_capacity()),
        release_error: release_error(line.series.records()),
        mechanism: mechanism.mechanism.to_string(),
        why: mechanism.why,
        ..ProbeLineResult::without_probes(number, sent, end)
    }
}

impl EstimatedProbeLine<'_> {
    fn measured_capacity(&self) -> MeasuredCapacity {
        // Trains are numbered from 0 in the order of their departure.
        let trains = self.series.records().last().map_or(0, |record| u64::from(record.train) + 1);
        match (&self.answer, &self.end) {
            // With too many losses there is no answer, whatever the estimator would compute
            // from the remaining probes.
            (Ok(estimate), Ok(TrainEnd::Done | TrainEnd::Stopped)) => MeasuredCapacity {
                rate: Some(capacity_range(estimate)),
                why_not: None,
                trains,
                used: estimate.quality.used as u64,
            },
            (Ok(_), _) => MeasuredCapacity { rate: None, why_not: None, trains, used: 0 },
            (Err(none), end) => {
                let is_late = matches!(end, Ok(TrainEnd::Stopped));
                let late = if is_late {
                    format!("; the estimator used up its time of {}", self.slot)
                } else {
                    String::new()
                };
                MeasuredCapacity { rate: None, why_not: Some(format!("{none}{late}")), trains, used: 0 }
            }
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate; `as` saturates at 0")]
fn capacity_range(estimate: &RateEstimate) -> CapacityRange {
    CapacityRange {
        bits_per_s: estimate.bits_per_s as u64,
        low: estimate.low as u64,
        high: estimate.high as u64,
        packet_bits_per_s: estimate.packet_bits_per_s() as u64,
    }
}

/// Builds the result of a line with probes that are not answered.
pub(super) fn build_unanswered_line_result(line: SentProbeLine, outcome: &SendOutcome) -> ProbeLineResult {
    let summary = ReleaseSummary::from_records(&outcome.records);
    let end = match outcome.refused {
        Some(refused) => budget_end_reason(refused),
        None if summary.unsent > 0 => ProbeLineEndReason::Stopped,
        None => ProbeLineEndReason::Done,
    };
    let doubtful = summary.late + summary.early + summary.stamps_missing + summary.stamps_disagree;
    ProbeLineResult {
        counts: ProbeCounts { planned: line.planned, sent: summary.sent, doubtful, ..ProbeCounts::default() },
        release_error: release_error(&outcome.records),
        mechanism: line.mechanism.mechanism.to_string(),
        why: line.mechanism.why,
        ..ProbeLineResult::without_probes(line.number, line.planned, end)
    }
}

fn to_reported_end(end: SeriesEndReason) -> ProbeLineEndReason {
    match end {
        SeriesEndReason::Done => ProbeLineEndReason::Done,
        SeriesEndReason::Stopped => ProbeLineEndReason::Stopped,
        SeriesEndReason::Lossy => ProbeLineEndReason::Lossy,
        SeriesEndReason::Prohibited => ProbeLineEndReason::Prohibited,
        SeriesEndReason::Limits(exceeded) => budget_end_reason(exceeded),
    }
}

fn budget_end_reason(exceeded: BudgetExceeded) -> ProbeLineEndReason {
    match exceeded {
        BudgetExceeded::Lease => ProbeLineEndReason::LeaseEnded,
        other => ProbeLineEndReason::Limits(other.to_string()),
    }
}

/// Returns the end reason of a line: if the line was stopped and the lease has ended, the lease is the reason.
pub(super) fn end_reason_with_lease(end: ProbeLineEndReason, lost_lease: bool) -> ProbeLineEndReason {
    if lost_lease && end == ProbeLineEndReason::Stopped { ProbeLineEndReason::LeaseEnded } else { end }
}

/// Returns the due time and the departure time of the first probe that was sent.
pub(super) fn find_first_probe(records: &[ProbeRecord]) -> Option<FirstProbe> {
    let first = records.iter().find_map(|record| Some((record.planned, record.local_departure()?)));
    first.map(|(due, left)| FirstProbe { due, left: MonoTime::from_nanos(left.middle()) })
}

/// Results of a session for both directions.
struct SessionFindings {
    there: DirectionTimes,
    back: DirectionTimes,
    path: Option<ProbeTimes>,
}

impl SessionFindings {
    fn from_session(
        session: &StampSender,
        records: &[ProbeRecord],
        clock: SessionClock,
        compares: bool,
    ) -> Self {
        let follow_ups = session.follow_ups();
        // The reflector's own claim about UTC is not used: the report compares the two wall clocks.
        let told = StampSessionFacts { is_far_synchronised: true, ..session.build_session_facts() };
        let walls =
            delays::compute_delays(records, follow_ups, &told, &ClockRelation::Utc(clock.own_wall_clock()));
        let exchanges = compares.then(|| {
            delays::compute_delays(records, follow_ups, &told, &delays::compare_clocks(records, follow_ups))
        });
        Self {
            there: direction_times(&walls, exchanges.as_ref(), |both| both.there),
            back: direction_times(&walls, exchanges.as_ref(), |both| both.back),
            path: walls.path.map(probe_times),
        }
    }
}

fn direction_times(
    walls: &SessionDelays,
    exchanges: Option<&SessionDelays>,
    of: fn(&SessionDelays) -> DirectionDelays,
) -> DirectionTimes {
    DirectionTimes {
        by_wall_clocks: of(walls).delay.map(probe_times),
        by_exchanges: exchanges.and_then(|both| of(both).delay).map(probe_times),
        variation: of(walls).variation.map(probe_times),
    }
}

const fn probe_times(times: SeriesTimes) -> ProbeTimes {
    ProbeTimes {
        samples: times.samples,
        min_ns: times.min_ns,
        p50_ns: times.p50_ns,
        p95_ns: times.p95_ns,
        p99_ns: times.p99_ns,
        max_ns: times.max_ns,
        bound_ns: times.bound_ns,
    }
}

fn release_error(records: &[ProbeRecord]) -> Option<ProbeTimes> {
    let summary = ReleaseSummary::from_records(records);
    let ErrorSpread { least, p50, p95, p99, most } = summary.release_error_ns?;
    let bound_ns = summary.stamp_bound_ns.map_or(0, |bound| bound.most.unsigned_abs());
    Some(ProbeTimes {
        samples: summary.sent,
        min_ns: least,
        p50_ns: p50,
        p95_ns: p95,
        p99_ns: p99,
        max_ns: most,
        bound_ns,
    })
}
