//! Numbers of a result that can be compared with numbers of another test: `report diff` and `report trend` read them.

use crate::bisection::BisectionResult;
use crate::comparison::ComparisonResult;
use crate::convergence::ConvergenceResult;
use crate::loss_share::LossShareResult;
use crate::mlrsearch::GoalResult;
use crate::rfc2544::{
    FrameLossPoint, RecoveryBenchmark, ResetTime, Rfc2544Result, SizeBenchmark, ThroughputBounds,
};
use crate::{BoundCause, Load, MethodResult, SampleStatistics};
use packetrig_stats::figure::{BetterDirection, ReportFigure};

const RATE_UNIT: &str = "frames/s";
const TIME_UNIT: &str = "ns";

impl MethodResult {
    /// Returns the numbers of this result that can be compared with another test.
    pub fn report_figures(&self) -> Vec<ReportFigure> {
        match self {
            Self::Rfc2544(result) => list_rfc2544_figures(result),
            Self::Mlrsearch(result) => result.goals.iter().flat_map(list_goal_figures).collect(),
            Self::Bisect(result) => vec![build_bisection_figure(result)],
            Self::Convergence(result) => list_convergence_figures(result),
            Self::Compare(result) => list_comparison_figures(result),
            Self::LossShare(result) => list_loss_share_figures(result),
        }
    }
}

fn list_rfc2544_figures(result: &Rfc2544Result) -> Vec<ReportFigure> {
    let mut figures: Vec<ReportFigure> = result.sizes.iter().flat_map(list_size_figures).collect();
    figures.extend(result.reset.as_ref().and_then(|reset| reset.measured_value()).map(build_reset_figure));
    figures
}

fn build_reset_figure(reset: &ResetTime) -> ReportFigure {
    let [least, most] = [reset.least_outage_ns, reset.outage_ns].map(|time| time.as_u64() as f64);
    // An outage without an end lasted at least this long, so its value is unknown.
    let value = Some(most).filter(|_| reset.is_back);
    lower_is_better_figure("reset", reset.frame_size_bytes.to_string(), value, TIME_UNIT)
        .with_uncertainty(value.map(|most| most - least))
}

fn list_size_figures(size: &SizeBenchmark) -> Vec<ReportFigure> {
    let subject = size.frame_size_bytes.to_string();
    let throughput = size.throughput.as_ref().map(|bounds| build_throughput_figure(bounds, subject.clone()));
    let latency = size.latency.as_ref().and_then(|part| part.measured_value()).map(|latency| {
        let bound = latency.bound_ns.map(|bound| bound.as_u64() as f64);
        lower_is_better_figure(
            "latency-mean",
            subject.clone(),
            mean_value(latency.mean_latency_ns),
            TIME_UNIT,
        )
        .with_uncertainty(bound)
    });
    // The first point of the curve is at the maximum load.
    let loss = size.frame_loss.as_ref().and_then(|curve| curve.points.first());
    let loss = loss.map(|point| build_maximum_loss_figure(point, subject.clone()));
    let burst = size.back_to_back.as_ref().and_then(|part| part.measured_value()).map(|burst| {
        let spread = burst.burst_frames.map(|frames| frames.standard_deviation);
        higher_is_better_figure("back-to-back", subject.clone(), mean_value(burst.burst_frames), "frames")
            .with_uncertainty(spread)
    });
    let recovery = size.recovery.as_ref().and_then(|part| part.measured_value());
    let recovery = recovery.map(|recovery| build_recovery_figure(recovery, subject.clone()));
    [throughput, latency, loss, burst, recovery].into_iter().flatten().collect()
}

fn build_maximum_loss_figure(point: &FrameLossPoint, subject: String) -> ReportFigure {
    // The value is the upper bound. The true value may be this much lower.
    let doubt = point.most_loss_percent - point.least_loss_percent;
    // The rig may have caused the loss, so the loss of the device is unknown.
    let value = Some(point.most_loss_percent).filter(|_| point.rig_fault.is_none());
    lower_is_better_figure("frame-loss-at-maximum", subject, value, "%")
        .with_uncertainty(value.map(|_| doubt))
}

fn build_recovery_figure(recovery: &RecoveryBenchmark, subject: String) -> ReportFigure {
    // A trial without recovery gives only a lower bound of the time, so the mean has no upper bound.
    let value = mean_value(recovery.recovery_ns).filter(|_| recovery.has_recovered_in_all_trials());
    lower_is_better_figure("recovery", subject, value, TIME_UNIT)
}

fn build_throughput_figure(bounds: &ThroughputBounds, subject: String) -> ReportFigure {
    let lost_at = bounds.lost_at_frames_per_second;
    let figure =
        build_bounds_figure("throughput", subject, bounds.frames_per_second, lost_at, bounds.limited_by);
    clear_value_unless(bounds.is_complete, figure)
}

/// Removes the value of a figure unless its search is over: before that, the value is not final.
fn clear_value_unless(is_over: bool, figure: ReportFigure) -> ReportFigure {
    if is_over { figure } else { ReportFigure { value: None, uncertainty: None, ..figure } }
}

/// Builds the figure of a searched load. If the rig set the bound, the figure has no value.
fn build_bounds_figure(
    name: &str,
    subject: String,
    lower: Option<Load>,
    upper: Option<Load>,
    cause: BoundCause,
) -> ReportFigure {
    let lower = lower.map(Load::frames_per_second);
    // If no load passed, the device forwards nothing, so the value is 0. There is no value if the rig set the bound.
    let value = Some(lower.unwrap_or(0.0)).filter(|_| cause != BoundCause::Rig);
    // The true value is between the two bounds, so it may be this much above the value.
    let doubt = lower.zip(upper).map(|(lower, upper)| upper.frames_per_second() - lower);
    higher_is_better_figure(name, subject, value, RATE_UNIT).with_uncertainty(doubt)
}

fn list_goal_figures(result: &GoalResult) -> Vec<ReportFigure> {
    let subject = result.goal.to_string();
    let bound = build_bounds_figure(
        "lower-bound",
        subject.clone(),
        result.lower_bound,
        result.upper_bound,
        result.cause,
    );
    let conditional = result.conditional_throughput.map(Load::frames_per_second);
    // If the rig set the bound, the device may forward more, so the value is unknown.
    let known = conditional.filter(|_| result.cause != BoundCause::Rig);
    let conditional = higher_is_better_figure("conditional-throughput", subject, known, RATE_UNIT);
    vec![clear_value_unless(result.is_reached, bound), clear_value_unless(result.is_reached, conditional)]
}

fn build_bisection_figure(result: &BisectionResult) -> ReportFigure {
    let figure = build_bounds_figure(
        "throughput",
        String::new(),
        result.lower_bound,
        result.upper_bound,
        result.cause,
    );
    clear_value_unless(result.is_over, figure)
}

fn list_convergence_figures(result: &ConvergenceResult) -> Vec<ReportFigure> {
    let spread = result.convergence_ns.map(|times| times.standard_deviation);
    vec![
        lower_is_better_figure("convergence", String::new(), mean_value(result.convergence_ns), TIME_UNIT)
            .with_uncertainty(spread),
    ]
}

fn list_comparison_figures(result: &ComparisonResult) -> Vec<ReportFigure> {
    let figures = result.loads.iter().flat_map(|load| {
        load.measures.iter().map(|measure| {
            // An uncertainty is the distance from the value to either end of the interval.
            let doubt = measure.confidence_95.map(|interval| (interval.high - interval.low) / 2.0);
            let name = format!("difference of {}", measure.measure.name());
            let subject = load.load.frames_per_second.to_string();
            let value = Some(measure.difference.mean);
            ReportFigure::new(name, subject, value, measure.measure.unit(), BetterDirection::Neither)
                .with_uncertainty(doubt)
        })
    });
    figures.collect()
}

fn list_loss_share_figures(result: &LossShareResult) -> Vec<ReportFigure> {
    let mut figures: Vec<ReportFigure> = result
        .rates
        .iter()
        .map(|rate| {
            let percent = rate.share_with_loss.map(|share| share * 100.0);
            // Half the width of the interval, in percent.
            let doubt = rate.confidence_95.map(|interval| (interval.high - interval.low) * 50.0);
            let subject = rate.frames_per_second.to_string();
            lower_is_better_figure("runs-with-loss", subject, percent, "%").with_uncertainty(doubt)
        })
        .collect();
    // If the lowest rate lost frames, no tested rate was without loss, so the value is 0.
    let highest = result.highest_lossless_frames_per_second.map_or(0.0, Load::frames_per_second);
    let known = Some(highest).filter(|_| result.is_highest_lossless_known());
    figures.push(higher_is_better_figure("highest-rate-without-loss", String::new(), known, RATE_UNIT));
    figures
}

fn mean_value(samples: Option<SampleStatistics>) -> Option<f64> {
    samples.map(|samples| samples.mean)
}

fn higher_is_better_figure(name: &str, subject: String, value: Option<f64>, unit: &str) -> ReportFigure {
    ReportFigure::new(name, subject, value, unit, BetterDirection::Higher)
}

fn lower_is_better_figure(name: &str, subject: String, value: Option<f64>, unit: &str) -> ReportFigure {
    ReportFigure::new(name, subject, value, unit, BetterDirection::Lower)
}

#[cfg(test)]
mod tests;
