//! Judges whether the device meets the user's criteria.

use super::{
    LatencyBenchmark, MinimumThroughput, PartOutcome, RecoveryBenchmark, ResetTime, Rfc2544Method,
    SizeBenchmark, ThroughputBasis, ThroughputBounds,
};
use crate::verdict::ValueRange;
use crate::{BoundCause, JudgedCriterion, Load, MethodJudgement, MethodVerdict, TestMethod};
use packetrig_units::Nanos;

impl Rfc2544Method {
    /// Judges all sizes. A bound that the rig set is never a reason for FAIL.
    pub fn judge_result(&self) -> MethodJudgement {
        let criteria = self.result.sizes.iter().flat_map(|row| self.judge_size(row));
        let reset =
            self.options.criteria.maximum_reset_ns.map(|most| judge_reset(self.result.reset.as_ref(), most));
        let open = self.next_trial_request().is_some().then(|| "the benchmark is not complete".to_owned());
        let unknown = self.result.sizes.iter().flat_map(describe_unknown);
        let unknown = unknown.chain(describe_unmeasured("reset", self.result.reset.as_ref())).chain(open);
        MethodJudgement::new(criteria.chain(reset).collect(), unknown.collect())
    }

    fn judge_size(&self, row: &SizeBenchmark) -> Vec<JudgedCriterion> {
        let criteria = &self.options.criteria;
        // A limit for a test that was not requested is judged, too: without a value it must not look like a pass.
        let floors = criteria.minimum_throughput.iter().filter_map(|floor| judge_throughput(row, floor));
        let latency = criteria.maximum_latency_ns.map(|most| judge_latency(row, most));
        let recovery = criteria.maximum_recovery_ns.map(|most| judge_recovery(row, most));
        floors.chain(latency).chain(recovery).collect()
    }
}

fn judge_throughput(row: &SizeBenchmark, floor: &MinimumThroughput) -> Option<JudgedCriterion> {
    let wanted = floor.required_load(row.frame_size_bytes, row.theoretical_frames_per_second)?;
    let criterion = format!("{} throughput of at least {wanted}", row.frame_size_bytes);
    let Some(bounds) = &row.throughput else {
        return Some(JudgedCriterion::unknown(criterion, "the throughput was not measured"));
    };
    let carried = bounds.frames_per_second.unwrap_or(Load::ZERO);
    let lost_at = bounds.lost_at_frames_per_second;
    let (verdict, reason) = if carried >= wanted {
        (MethodVerdict::Pass, format!("the device carries {carried}"))
    } else {
        match (lost_at, bounds.limited_by) {
            // A loss above the wanted load does not refute it.
            (Some(lost_at), BoundCause::Device) if lost_at <= wanted => {
                (MethodVerdict::Fail, format!("the device carries {carried}, but loses frames at {lost_at}"))
            }
            _ => (MethodVerdict::Unknown, describe_bounds(bounds)),
        }
    };
    Some(JudgedCriterion { criterion, verdict, reason })
}

fn describe_bounds(bounds: &ThroughputBounds) -> String {
    let carried = bounds.frames_per_second.unwrap_or(Load::ZERO);
    match (bounds.limited_by, bounds.lost_at_frames_per_second) {
        (BoundCause::Rig, Some(load)) => {
            format!("the device carries {carried} or more: the rig could not sustain the trial at {load}")
        }
        (BoundCause::Device, Some(load)) => {
            format!("the device carries {carried}, but loses frames at {load}")
        }
        _ => format!("the device carries {carried}; no higher load was tried"),
    }
}

fn judge_latency(row: &SizeBenchmark, most: Nanos) -> JudgedCriterion {
    let criterion = format!("{} mean latency of at most {most}", row.frame_size_bytes);
    let latency =
        match measured_at_throughput(row.latency.as_ref(), |latency: &LatencyBenchmark| latency.basis) {
            Ok(latency) => latency,
            Err(reason) => return JudgedCriterion::unknown(criterion, reason),
        };
    let Some(mean) = latency.mean_latency_ns else {
        return JudgedCriterion::unknown(criterion, "no trial measured the latency");
    };
    let bound = latency.bound_ns.map_or(0.0, |bound| bound.as_u64() as f64);
    // The measured mean may be wrong by the bound in both directions.
    let range = ValueRange { low: (mean.mean - bound).max(0.0) / 1e3, high: (mean.mean + bound) / 1e3 };
    let judged = JudgedCriterion::judge_upper_limit(criterion, range, most.as_u64() as f64 / 1e3, "us");
    // A benchmark that was interrupted does not pass.
    judged.downgrade_pass_if_trials_missing(mean.count, latency.repetitions)
}

fn judge_recovery(row: &SizeBenchmark, most: Nanos) -> JudgedCriterion {
    let criterion = format!("{} recovery within {most}", row.frame_size_bytes);
    if let Some(PartOutcome::NotApplicable { reason }) = &row.recovery {
        // With a maximum load below the line rate, a higher load might still overload the device.
        let is_line = row.maximum_frames_per_second >= row.theoretical_frames_per_second;
        let verdict = if is_line { MethodVerdict::Pass } else { MethodVerdict::Unknown };
        return JudgedCriterion { criterion, verdict, reason: reason.clone() };
    }
    let recovery = match measured_at_throughput(row.recovery.as_ref(), |part: &RecoveryBenchmark| part.basis)
    {
        Ok(recovery) => recovery,
        Err(reason) => return JudgedCriterion::unknown(criterion, reason),
    };
    let Some(mean) = recovery.recovery_ns else {
        return JudgedCriterion::unknown(criterion, "no trial measured the recovery time");
    };
    // If one trial has no recovery, the mean has no upper bound.
    let high = if recovery.has_recovered_in_all_trials() { mean.mean / 1e6 } else { f64::INFINITY };
    let range = ValueRange { low: mean.mean / 1e6, high };
    let judged = JudgedCriterion::judge_upper_limit(criterion, range, most.as_u64() as f64 / 1e6, "ms");
    judged.downgrade_pass_if_trials_missing(mean.count, recovery.repetitions)
}

fn judge_reset(outcome: Option<&PartOutcome<ResetTime>>, most: Nanos) -> JudgedCriterion {
    let criterion = format!("outage of at most {most} after a reset");
    let reset = match measured_at_throughput(outcome, |reset| reset.basis) {
        Ok(reset) => reset,
        Err(reason) => return JudgedCriterion::unknown(criterion, reason),
    };
    let [low, high] = [reset.least_outage_ns, reset.outage_ns].map(|time| time.as_u64() as f64 / 1e6);
    // An outage without an end has no upper bound.
    let range = ValueRange { low, high: if reset.is_back { high } else { f64::INFINITY } };
    JudgedCriterion::judge_upper_limit(criterion, range, most.as_u64() as f64 / 1e6, "ms")
}

/// Returns the value of a part if it was measured at the throughput; otherwise the reason why there is no such value.
fn measured_at_throughput<T>(
    part: Option<&PartOutcome<T>>,
    basis: fn(&T) -> ThroughputBasis,
) -> Result<&T, String> {
    match part {
        None => Err("this value was not measured".to_owned()),
        Some(PartOutcome::NotApplicable { reason } | PartOutcome::NotMeasured { reason }) => {
            Err(reason.clone())
        }
        Some(PartOutcome::Measured(value)) => {
            // Below the throughput the device may be quicker. A value within the limit there proves nothing.
            let ThroughputBasis { frames_per_second, is_throughput } = basis(value);
            let reason = format!(
                "this value was measured at {frames_per_second}, the highest load that was carried: the \
                 throughput is unknown, because the rig could not sustain the trials above that load"
            );
            if is_throughput { Ok(value) } else { Err(reason) }
        }
    }
}

fn describe_unknown(row: &SizeBenchmark) -> Vec<String> {
    let size = row.frame_size_bytes;
    // The throughput is also unknown while its search is in progress. That is reported once for the whole benchmark,
    // not for every size.
    let throughput = row.throughput.as_ref().filter(|bounds| bounds.is_complete && !bounds.is_known());
    let throughput = throughput.map(|bounds| format!("{size} throughput: {}", describe_bounds(bounds)));
    let invalid =
        row.back_to_back.as_ref().and_then(PartOutcome::measured_value).and_then(|part| part.invalid.clone());
    let faults = count_faults(row).into_iter().filter(|(_, count)| *count > 0);
    let faults = faults.map(|(what, count)| {
        let trials = if count == 1 { "trial" } else { "trials" };
        format!("{size} {what}: {count} {trials} did not measure this value")
    });
    let parts = describe_unmeasured(&format!("{size} latency"), row.latency.as_ref())
        .into_iter()
        .chain(describe_unmeasured(&format!("{size} back-to-back"), row.back_to_back.as_ref()))
        .chain(describe_unmeasured(&format!("{size} recovery"), row.recovery.as_ref()));
    let invalid = invalid.map(|reason| format!("{size} back-to-back: {reason}"));
    throughput.into_iter().chain(parts).chain(invalid).chain(faults).collect()
}

/// Counts the trials of each part that prove nothing about the device.
fn count_faults(row: &SizeBenchmark) -> [(&'static str, usize); 3] {
    let latency = row.latency.as_ref().and_then(PartOutcome::measured_value);
    let samples = latency.iter().flat_map(|part| &part.samples);
    let samples = samples.filter(|sample| sample.rig_fault.is_some() || sample.latency.is_none());
    let points =
        row.frame_loss.iter().flat_map(|curve| &curve.points).filter(|point| point.rig_fault.is_some());
    let recovery = row.recovery.as_ref().and_then(PartOutcome::measured_value);
    let unknown = recovery.iter().flat_map(|part| &part.trials).filter(|trial| trial.recovery_ns.is_none());
    [("latency", samples.count()), ("frame loss", points.count()), ("recovery", unknown.count())]
}

fn describe_unmeasured<T>(what: &str, part: Option<&PartOutcome<T>>) -> Option<String> {
    match part {
        Some(PartOutcome::NotMeasured { reason }) => Some(format!("{what}: {reason}")),
        _ => None,
    }
}
