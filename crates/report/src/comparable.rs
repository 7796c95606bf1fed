//! Figures of a run that can be compared with figures of another run.

use super::figures::saturating_sum_of;
use super::{FrameLoss, LatencyReport, MeanRate, ProbeFindings, ProbesReport, RunReport, StreamReport};
use packetrig_stats::bounded::Bounded;
use packetrig_stats::figure::{BetterDirection, ReportFigure};
use packetrig_stats::probe::ProbeTimes;
use packetrig_stats::sequence::SequenceCounts;
use packetrig_units::{Nanos, Ratio};

/// Subject of figures of the whole run.
const RUN_SUBJECT: &str = "run";
const FRAME_RATE_UNIT: &str = "frames/s";
const TIME_UNIT: &str = "ns";
const PERCENT_UNIT: &str = "%";
const BIT_RATE_UNIT: &str = "bit/s";

/// Figures of a run that have a value: first those of all streams together, then those of each stream, then
/// those of each probe line.
pub fn run_figures(report: &RunReport) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    // With a single stream, the figures of the whole run would only repeat the stream's figures.
    if report.streams.len() > 1 {
        figures.extend(list_total_figures(report));
    }
    figures.extend(report.streams.iter().filter(|stream| stream.measured).flat_map(list_stream_figures));
    figures.extend(report.probes.iter().flat_map(list_probe_figures));
    figures.retain(|figure| figure.value.is_some());
    figures
}

fn list_total_figures(report: &RunReport) -> Vec<ReportFigure> {
    let measured: Vec<_> = report.streams.iter().filter(|stream| stream.measured).collect();
    // A sum is unknown if one of its parts is unknown.
    let rates: Option<Vec<_>> = measured.iter().map(|stream| stream_throughput(stream)).collect();
    let losses: Option<Vec<_>> = measured.iter().map(|stream| stream.loss).collect();
    let sum = |of: fn(&FrameLoss) -> u64| Some(saturating_sum_of(losses.as_ref()?.iter().map(of)));
    let share = |part: Option<u64>| percent_of(part?, sum(|loss| loss.expected)?);
    let rates = rates.filter(|rates| !rates.is_empty());
    let rate = rates.as_ref().map(|rates| rates.iter().map(|rate| rate.value).sum());
    let doubt = rates.as_ref().map(|rates| rates.iter().map(|rate| rate.doubt).sum());
    vec![
        higher_is_better_figure("throughput", RUN_SUBJECT, rate, FRAME_RATE_UNIT).with_uncertainty(doubt),
        lower_is_better_figure("loss", RUN_SUBJECT, share(sum(|loss| loss.lost)), PERCENT_UNIT)
            .with_uncertainty(share(sum(|loss| loss.in_doubt))),
        higher_is_better_figure("load-factor", RUN_SUBJECT, report.load.map(|load| load.k), ""),
    ]
}

fn list_stream_figures(stream: &StreamReport) -> Vec<ReportFigure> {
    let name = &stream.name;
    let loss =
        |part: fn(&FrameLoss) -> u64| stream.loss.and_then(|loss| percent_of(part(&loss), loss.expected));
    let received = stream.received.as_ref();
    let share = |part: fn(&SequenceCounts) -> u64| {
        received.and_then(|received| percent_of(part(&received.sequence), received.frames))
    };
    let rate = stream_throughput(stream);
    let outages = stream.outages.as_ref();
    // Without any outage, the length of the longest one is 0.
    let none = Some(Bounded::exactly(Nanos::ZERO));
    let outage = outages.and_then(|found| if found.count == 0 { none } else { found.longest_length });
    let mut figures = vec![
        higher_is_better_figure("throughput", name, rate.map(|rate| rate.value), FRAME_RATE_UNIT)
            .with_uncertainty(rate.map(|rate| rate.doubt)),
        lower_is_better_figure("loss", name, loss(|loss| loss.lost), PERCENT_UNIT)
            .with_uncertainty(loss(|loss| loss.in_doubt)),
        lower_is_better_figure("duplicates", name, share(|counts| counts.duplicates), PERCENT_UNIT),
        lower_is_better_figure("reordered", name, share(|counts| counts.reordered), PERCENT_UNIT),
        build_bounded_figure("longest-outage", name, outage),
    ];
    figures.extend(stream.latency.iter().flat_map(|latency| list_latency_figures(name, latency)));
    figures.extend([
        build_bounded_figure("jitter", name, stream.largest_jitter),
        ReportFigure::new("sent-rate", name, sent_rate(stream), FRAME_RATE_UNIT, BetterDirection::Neither),
    ]);
    figures
}

/// Rate at which frames arrived.
#[derive(Clone, Copy)]
struct Throughput {
    value: f64,
    /// Amount by which the true rate of the device may be higher.
    doubt: f64,
}

/// Distinct frames that arrived per second of the requested time, as `--min-rate` judges them. For a stream that was
/// sent as fast as possible, the rate between its first and last arrival; a single frame has no rate.
fn stream_throughput(stream: &StreamReport) -> Option<Throughput> {
    if let Some(delivered) = &stream.delivered_milli {
        return Some(Throughput {
            value: delivered.value as f64 / 1000.0,
            // The measured rate is the lower bound, so only the upper bound can differ from it.
            doubt: delivered.most.saturating_sub(delivered.value) as f64 / 1000.0,
        });
    }
    let received = stream.received.as_ref()?;
    let value = match received.rate {
        Some(rate) => rate.frames_per_second(),
        // It is known that no frame arrived: the rate is zero, not unknown.
        None if received.frames == 0 => 0.0,
        None => return None,
    };
    Some(Throughput { value, doubt: estimate_unpaced_rate_doubt(stream, value) })
}

/// Amount by which the rig may have lowered the rate of a stream that was sent as fast as possible.
fn estimate_unpaced_rate_doubt(stream: &StreamReport, received_rate: f64) -> f64 {
    match stream.loss {
        Some(loss) if loss.lost > 0 => {
            // The frames in doubt would have arrived at the same rate as the frames that arrived.
            let arrived = loss.expected.saturating_sub(loss.lost);
            received_rate * loss.in_doubt as f64 / arrived.max(1) as f64
        }
        // Without losses, the highest rate of the device is unknown.
        _ => received_rate,
    }
}

fn sent_rate(stream: &StreamReport) -> Option<f64> {
    stream.sent.as_ref()?.rate.map(MeanRate::frames_per_second)
}

/// Percentage of a part; `None` if the whole is zero.
fn percent_of(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| Ratio::new(part, whole).percent())
}

fn list_latency_figures(stream: &str, latency: &LatencyReport) -> Vec<ReportFigure> {
    let bounds = latency.bounds;
    let values = [
        ("latency-min", latency.min, bounds.map(|bounds| bounds.min)),
        ("latency-mean", latency.mean, bounds.map(|bounds| bounds.mean)),
        ("latency-p50", latency.p50, bounds.map(|bounds| bounds.p50)),
        ("latency-p99", latency.p99, bounds.map(|bounds| bounds.p99)),
        ("latency-max", latency.max, bounds.map(|bounds| bounds.max)),
    ];
    // Each figure has its own bounds; a report of an older version has one error for all.
    let figures = values.into_iter().map(|(name, value, bounded)| {
        let doubt = bounded.map(largest_deviation).or_else(|| latency.error.p99());
        lower_is_better_figure(name, stream, Some(nanos_as_float(value)), TIME_UNIT)
            .with_uncertainty(doubt.map(nanos_as_float))
    });
    figures.collect()
}

/// Figure of a time with its own bounds.
fn build_bounded_figure(name: &str, stream: &str, time: Option<Bounded<Nanos>>) -> ReportFigure {
    lower_is_better_figure(name, stream, time.map(|time| nanos_as_float(time.value)), TIME_UNIT)
        .with_uncertainty(time.map(|time| nanos_as_float(largest_deviation(time))))
}

/// Largest possible distance of the true value from a measured time.
fn largest_deviation(time: Bounded<Nanos>) -> Nanos {
    let Bounded { value, least, most, .. } = time;
    value.saturating_sub(least).max(most.saturating_sub(value))
}

fn list_probe_figures(probes: &ProbesReport) -> Vec<ReportFigure> {
    let found = probes.lines.iter().filter_map(|line| Some((line.name(), line.found.as_ref()?)));
    found.flat_map(|(line, found)| list_line_figures(&line, found)).collect()
}

fn list_line_figures(line: &str, found: &ProbeFindings) -> Vec<ReportFigure> {
    let loss = percent_of(found.counts.lost, found.counts.sent);
    let mut figures = vec![lower_is_better_figure("probe-loss", line, loss, PERCENT_UNIT)];
    if let Some(rate) = found.capacity_rate() {
        // A comparison uses one uncertainty for both directions, so the larger distance is used.
        let doubt = rate.high.saturating_sub(rate.bits_per_s).max(rate.bits_per_s.saturating_sub(rate.low));
        let figure =
            higher_is_better_figure("probe-capacity", line, Some(rate.bits_per_s as f64), BIT_RATE_UNIT);
        figures.push(figure.with_uncertainty(Some(doubt as f64)));
    }
    let times = [
        ("round-trip", found.round_trip),
        ("delay-there", found.delay_there),
        ("delay-back", found.delay_back),
    ];
    for (name, times) in times.into_iter().filter_map(|(name, times)| Some((name, times?))) {
        figures.extend(list_times_figures(name, line, times));
    }
    figures
}

fn list_times_figures(name: &str, line: &str, times: ProbeTimes) -> [ReportFigure; 2] {
    [("p50", Some(times.p50_ns)), ("p99", times.p99_ns)].map(|(quantile, ns)| {
        lower_is_better_figure(&format!("{name}-{quantile}"), line, ns.map(|ns| ns as f64), TIME_UNIT)
            .with_uncertainty(Some(times.bound_ns as f64))
    })
}

fn nanos_as_float(time: Nanos) -> f64 {
    time.as_u64() as f64
}

fn higher_is_better_figure(name: &str, subject: &str, value: Option<f64>, unit: &str) -> ReportFigure {
    ReportFigure::new(name, subject, value, unit, BetterDirection::Higher)
}

fn lower_is_better_figure(name: &str, subject: &str, value: Option<f64>, unit: &str) -> ReportFigure {
    ReportFigure::new(name, subject, value, unit, BetterDirection::Lower)
}
